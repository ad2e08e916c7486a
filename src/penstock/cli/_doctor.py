"""`penstock doctor`."""

import platform
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median

from rich.text import Text

from penstock.cli._credentials import credentials
from penstock.cli._verb import Answer, Run, Uri, printable
from penstock.errors import NotFoundError, PenstockError, StorageError
from penstock.history import open_table, open_version
from penstock.storage import FolderStore, RetryPolicy, Store, open_store, probe

_PACKAGES = ("penstock", "pyarrow", "obstore", "numpy")
_PATIENCE = RetryPolicy(deadline_s=20.0, attempt_timeout_s=10.0)
_ROUNDS = 5
_BODY = bytes(4096)


@dataclass(frozen=True)
class Check:
    """One thing that was tried."""

    name: str
    ok: bool
    detail: str


def doctor(run: Run, uri: Uri) -> Answer:
    """Try what a store can do, and remove what that wrote; needs no table."""
    return examine(open_store(uri, options=run.options, retry=_PATIENCE), run)


def examine(store: Store, run: Run) -> Answer:
    """Every check in turn."""
    checks = [Check("credentials", True, credentials(store.uri, run.options))]
    latency: dict[str, float] | None = None
    try:
        checks.append(_table(store))
        with _left_as_it_was(store):
            checks += _capabilities(store)
            latency = _latency_ms(store)
        checks.append(Check("latency", True, ", ".join(f"{verb} {ms:.3g} ms" for verb, ms in latency.items())))
    except StorageError as error:  # the next would only wait for the same
        checks.append(Check("access", False, run.hide(str(error))))
    ok = all(check.ok for check in checks)
    versions = {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()}
    document = {
        "uri": store.uri,
        "ok": ok,
        "checks": [*map(asdict, checks)],
        "latency_ms": latency,
        "versions": versions,
    }
    lines = [_line(check) for check in checks]
    packages = ", ".join(f"{name} {number}" for name, number in versions.items())
    return Answer(document, [Text(printable(store.uri), "bold"), *lines, f"     {packages}"], ok)


def _line(check: Check) -> Text:
    mark = ("ok   ", "green") if check.ok else ("BAD  ", "bold red")
    return Text.assemble(mark, f"{check.name}: {printable(check.detail)}")


def _table(store: Store) -> Check:
    try:
        commit = open_version(store, open_table(store).main).commit
    except NotFoundError as error:
        there = any(True for _ in store.list("log/"))
        return Check("table", not there, str(error) if there else "none here yet")
    except StorageError:
        raise
    except PenstockError as error:
        return Check("table", False, str(error))
    return Check("table", True, f"main@{commit.version} with {commit.rows:,} rows")


def _capabilities(store: Store) -> list[Check]:
    found = probe(store)
    apart = "exactly one of racing writers wins" if found.create_only else found.detail
    listing = "shows" if found.list_after_write else "does not show"
    ranged = "work" if found.ranged_reads else "return other bytes than were asked for"
    return [
        Check("writers", found.create_only, apart),
        Check("listing", found.list_after_write, f"{listing} what was just written"),
        Check("ranged reads", found.ranged_reads, ranged),
    ]


def _latency_ms(store: Store) -> dict[str, float]:
    """The median time of a few small writes and reads."""
    keys = [f"doctor-{secrets.token_hex(8)}" for _ in range(_ROUNDS)]
    try:
        puts = [_timed_ms(lambda key=key: store.put(key, _BODY)) for key in keys]  # type: ignore[misc]
        gets = [_timed_ms(lambda key=key: store.get(key)) for key in keys]  # type: ignore[misc]
    finally:
        store.delete(keys)
    return {"put": round(median(puts), 3), "get": round(median(gets), 3)}


def _timed_ms(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


@contextmanager
def _left_as_it_was(store: Store) -> Iterator[None]:
    """Remove the folders that had to be made for a store in a folder that is not there yet."""
    if not isinstance(store, FolderStore):
        yield
        return
    root = Path(store.uri)
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    try:
        yield
    finally:
        for folder in missing:
            with suppress(OSError):  # somebody has put something into it
                folder.rmdir()
