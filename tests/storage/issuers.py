"""Issuers of credentials for tests; importable without the rest of Penstock, as the sidecar process needs it."""

import os
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from penstock.errors import AccessDeniedError, StorageError
from penstock.storage import Credentials


class FixedIssuer:
    """Gives the same options each time; all copies of it, in all processes, are counted and controlled by a folder."""

    def __init__(self, folder: Path, options: Mapping[str, str], lifetime_s: float | None = None) -> None:
        self.folder, self.options, self.lifetime_s = folder, dict(options), lifetime_s

    def issue(self) -> Credentials:
        with (self.folder / "issued").open("a") as file:
            file.write(f"{os.getpid()}\n")
        while (self.folder / "hangs").exists():
            time.sleep(0.01)
        if (self.folder / "away").exists():
            raise StorageError("cannot connect to the issuer")
        if (self.folder / "denies").exists():
            raise AccessDeniedError("the API key was revoked")
        return Credentials(self.new_options(), self.lifetime_s)

    def new_options(self) -> dict[str, str]:
        return self.options

    def begin(self, state: str) -> None:
        """Make every copy be `away`, or make it `deny`, or `hang`."""
        (self.folder / state).touch()

    def end(self, state: str) -> None:
        (self.folder / state).unlink()

    @property
    def issued(self) -> Counter[int]:
        """How often credentials were requested, by process."""
        with suppress(FileNotFoundError):
            return Counter(map(int, (self.folder / "issued").read_text().split()))
        return Counter()


class TokenIssuer(FixedIssuer):
    """Gives tokens that contain the end of their lifetime, on the clock that all processes of a machine share."""

    def __init__(self, folder: Path, endpoint: str, lifetime_s: float) -> None:
        super().__init__(folder, {"google_base_url": endpoint}, lifetime_s)

    def new_options(self) -> dict[str, str]:
        assert self.lifetime_s is not None
        token = f"{secrets.token_hex(8)}-{time.monotonic() + self.lifetime_s}"
        return self.options | {"google_token": token}


def is_valid(token: str) -> bool:
    """Whether a token of `TokenIssuer` has not expired."""
    _, _, end = token.rpartition("-")
    return bool(end) and time.monotonic() < float(end)
