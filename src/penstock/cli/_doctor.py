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

import penstock
from penstock.cli._command import CommandContext, CommandResult, Uri, printable
from penstock.cli._credentials import credentials
from penstock.cli._render import render_check
from penstock.dataset import managed_table, open_entry, open_location
from penstock.errors import NotFoundError, PenstockError, StorageError
from penstock.storage import FolderStore, RetryPolicy, Store, probe

_PACKAGES = ("penstock", "pyarrow", "obstore", "numpy")
_RETRY = RetryPolicy(deadline_s=20.0, attempt_timeout_s=10.0)
_ROUNDS = 5
_BODY = bytes(4096)


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    ok: bool
    detail: str


def doctor(context: CommandContext, uri: Uri) -> CommandResult:
    """Test what a store supports, and remove the test objects; a table is not needed."""
    table = managed_table(uri)
    if table is None:
        return check_store(open_location(uri, context.storage_options, retry=_RETRY), context)
    entry = table.find()
    issued = None if entry.issuer is None else f"issued for this table by {table.catalog}"
    return check_store(open_entry(entry, context.storage_options, retry=_RETRY), context, issued)


def check_store(store: Store, context: CommandContext, issued: str | None = None) -> CommandResult:
    """Run all checks; a store that does not respond ends them. `issued` says who issues the credentials, if any."""
    checks = [Check("credentials", True, issued or credentials(store.uri, context.storage_options))]
    latency: dict[str, float] | None = None
    try:
        checks.append(_check_table(store))
        with _remove_new_folders(store):
            checks += _check_capabilities(store)
            latency = _latency_ms(store)
        checks.append(Check("latency", True, ", ".join(f"{method} {ms:.3g} ms" for method, ms in latency.items())))
    except StorageError as error:  # further checks would only wait for the same timeout
        checks.append(Check("access", False, context.redact(str(error))))
    ok = all(check.ok for check in checks)
    versions = {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()}
    document = {
        "uri": store.uri,
        "ok": ok,
        "checks": [*map(asdict, checks)],
        "latency_ms": latency,
        "versions": versions,
    }
    lines = [render_check(check.name, check.detail, ok=check.ok) for check in checks]
    packages = ", ".join(f"{name} {number}" for name, number in versions.items())
    return CommandResult(document, [Text(printable(store.uri), "bold"), *lines, f"     {packages}"], ok)


def _check_table(store: Store) -> Check:
    try:
        dataset = penstock.load(store)
    except NotFoundError as error:
        damaged = any(True for _ in store.list("log/"))
        return Check("table", not damaged, str(error) if damaged else "none yet")
    except StorageError:
        raise
    except PenstockError as error:
        return Check("table", False, str(error))
    return Check("table", True, f"{dataset.version} with {len(dataset):,} rows")


def _check_capabilities(store: Store) -> list[Check]:
    found = probe(store)
    writers = "exactly one of several concurrent writers wins" if found.create_only else found.detail
    listing = "includes" if found.list_after_write else "does not include"
    ranged = "work" if found.ranged_reads else "return other bytes than requested"
    return [
        Check("writers", found.create_only, writers),
        Check("listing", found.list_after_write, f"{listing} an object right after its write"),
        Check("ranged reads", found.ranged_reads, ranged),
    ]


def _latency_ms(store: Store) -> dict[str, float]:
    """The median latency of a few small writes and reads."""
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
def _remove_new_folders(store: Store) -> Iterator[None]:
    """Remove the folders that the checks create for a local store that does not exist yet."""
    if not isinstance(store, FolderStore):
        yield
        return
    root = Path(store.uri)
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    try:
        yield
    finally:
        for folder in missing:
            with suppress(OSError):  # another process has written to it
                folder.rmdir()
