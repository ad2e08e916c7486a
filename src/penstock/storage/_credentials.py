"""Short-lived credentials that someone else issues, and that are replaced before they expire."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Credentials:
    """Rights to a part of a store."""

    options: Mapping[str, str]
    """Storage options by obstore's names, such as `access_key_id`, `secret_access_key` and `session_token`."""
    lifetime_s: float | None
    """How long they are valid from now on; None if they do not expire. A duration, because clocks differ."""

    def __repr__(self) -> str:
        return f"Credentials({', '.join(self.options)}, lifetime_s={self.lifetime_s})"


class CredentialIssuer(Protocol):
    """Issues credentials for a table; can be pickled, because worker processes renew credentials themselves."""

    def issue(self) -> Credentials:
        """New credentials; raises `StorageError` if the issuer does not answer, `AccessDeniedError` if it refuses."""
