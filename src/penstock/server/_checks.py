"""Prove that what a server depends on works: its database, its workspaces, its storage, the credentials it issues."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

from penstock.catalog.registry import Registry
from penstock.catalog.vending import Vendor
from penstock.errors import AccessDeniedError, NotFoundError, PenstockError, StorageError
from penstock.server._config import ServerConfig, new_vendor
from penstock.server._logging import LOGGER
from penstock.storage import RetryPolicy, Store, open_store

_RETRY = RetryPolicy(deadline_s=10.0, attempt_timeout_s=5.0)
_SAMPLE = 8
"""Workspaces of which a check of a running server tries the logins."""
_KEY = "check"


@dataclass(frozen=True)
class Check:
    """The outcome of one check; `detail` is for the server's admin."""

    name: str
    ok: bool
    detail: str


def check_server(config: ServerConfig) -> list[Check]:
    """Check what a server of this configuration depends on, every workspace included; nothing is changed.

    Raises `InvalidInputError` for a configuration that cannot work.
    """
    vendor = new_vendor(config)
    registry = Registry(config.database)
    try:
        return list(_checks(registry, vendor, sample=sys.maxsize, may_be_new=True))
    finally:
        registry.close()


def raise_failures(registry: Registry, vendor: Vendor) -> None:
    """Check what a running server depends on, some workspaces included; log failures, and raise `StorageError`."""
    failed = [check for check in _checks(registry, vendor, sample=_SAMPLE, may_be_new=False) if not check.ok]
    for check in failed:
        LOGGER.error("check failed", extra={"fields": {"check": check.name, "reason": check.detail}})
    if failed:
        raise StorageError(f"checks failed: {', '.join(check.name for check in failed)}")


def _checks(registry: Registry, vendor: Vendor, *, sample: int, may_be_new: bool) -> Iterator[Check]:
    try:
        unusable = registry.check(sample=sample)
    except PenstockError as error:
        is_new = may_be_new and isinstance(error, NotFoundError)
        yield Check("database", is_new, "the first start creates its tables" if is_new else str(error))
    else:
        yield Check("database", True, "it answers, and its user may create roles and schemas")
        reasons = "; ".join(f"{name}: {error}" for name, error in unusable.items())
        yield Check("workspaces", not unusable, reasons or "the login of each may read its tables")
    yield from _check_store(vendor)


def _check_store(vendor: Vendor) -> Iterator[Check]:
    try:
        location = vendor.new_location()
    except PenstockError as error:
        yield Check("storage", False, str(error))
        return
    storage = _attempt("storage", lambda: _list(vendor, location))
    yield storage
    yield _attempt(
        "credentials", lambda: _try_credentials(vendor, location) if storage.ok else _issue(vendor, location)
    )


def _attempt(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, True, check())
    except PenstockError as error:
        return Check(name, False, str(error))


def _list(vendor: Vendor, location: str) -> str:
    with _opened(location, vendor.server_options) as store:
        list(islice(store.list(), 1))
    return f"the server may list {vendor.storage}"


def _issue(vendor: Vendor, location: str) -> str:
    vendor.vend(location, "write")
    return "they are issued, and were not tried, because the storage does not work"


def _try_credentials(vendor: Vendor, location: str) -> str:
    """Use credentials for a location, and have the server delete what they wrote there."""
    try:
        writer, reader = (vendor.vend(location, access).options for access in ("write", "read"))
        with _opened(location, writer) as store:
            store.put(_KEY, b"written")
        with _opened(location, reader) as store:
            if bytes(store.get(_KEY)) != b"written":
                raise StorageError(f"{location} gives other bytes than were written; check what answers there")
            if writer == reader:
                return "members share those of the server" if writer else "members use their own rights to the folder"
            _check_refused(store, vendor.storage)
    finally:
        vendor.remove(location)
    return "those of a writer write, and those of a reader read and do not write"


def _check_refused(store: Store, storage: str) -> None:
    try:
        store.put(f"{_KEY}-refused", b"")
    except AccessDeniedError:
        return
    raise StorageError(
        f"{storage} lets credentials write that were issued to read: it does not enforce the policies that come with "
        "them; use a store that does"
    )


def _opened(location: str, options: Mapping[str, str]) -> closing[Store]:
    return closing(open_store(location, options=options, retry=_RETRY))
