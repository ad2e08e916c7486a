"""Where tables are: open the store of a path, a URI, a `penstock://` address or a table of a given catalog."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from penstock.catalog import Access, CatalogEntry, TableAddress, TableCatalog, is_table_address, open_catalog
from penstock.errors import AlreadyExistsError, ConflictError, NotFoundError, PenstockError
from penstock.format import TABLE_KEY
from penstock.storage import RetryPolicy, Store, bare_option, open_store

UriLike = str | os.PathLike[str] | Store
"""Location of a table: a path, a URI, a `penstock://` address, or an open store."""

_OWN_PREFIXES = (
    "log/", "refs/", "ids/", "snapshots/", "manifests/", "data/", "blobs/", "index/", "views/", "ingest/",
    "quarantine/", "leases/", "intents/", "vacuums/",
)  # fmt: skip
_OWN_CREDENTIALS = {
    "access_key_id", "secret_access_key", "session_token", "profile", "web_identity_token_file", "skip_signature",
    "account_key", "access_key", "sas_token", "sas_key", "client_secret", "token_file", "token", "bearer_token",
    "service_account", "service_account_path", "service_account_key", "application_credentials",
}  # fmt: skip
"""Storage options of a user who brings credentials; those of the catalog do not apply then."""


@dataclass(frozen=True)
class ManagedTable(os.PathLike[str]):
    """A table of a catalog; a `penstock://` address is one of the configured catalog."""

    catalog: TableCatalog
    address: TableAddress
    access: Access | None = None
    """Limits its credentials; None for all that the user may do."""

    def __fspath__(self) -> str:
        return str(self.address)

    def find(self) -> CatalogEntry:
        """Its entry in the catalog; raises `NotFoundError`."""
        return self.catalog.find(self.address, access=self.access)


def address_of(location: UriLike) -> str | None:
    """The `penstock://` address of a managed table; None for a path, a URI or a store."""
    if isinstance(location, Store) or not is_table_address(text := os.fspath(location)):
        return None
    return text


def managed_table(location: UriLike) -> ManagedTable | None:
    """The table of a catalog that a location names; None for a path, a URI or a store."""
    if isinstance(location, ManagedTable):
        return location
    address = address_of(location)
    return None if address is None else ManagedTable(open_catalog(), TableAddress.parse(address))


def open_location(
    location: UriLike, storage_options: Mapping[str, str] | None, *, retry: RetryPolicy | None = None
) -> Store:
    """The store at a location; that of a managed table has the credentials that the catalog issues.

    Raises `NotFoundError` if the catalog does not have the table.
    """
    if isinstance(location, Store):
        return location
    table = managed_table(location)
    if table is None:
        return open_store(location, options=storage_options, retry=retry)
    return open_entry(table.find(), storage_options, retry=retry)


def open_entry(
    entry: CatalogEntry, storage_options: Mapping[str, str] | None, *, retry: RetryPolicy | None = None
) -> Store:
    """The store of a table in a catalog; options and credentials of the user replace those of the catalog."""
    own = {bare_option(name.lower()) for name in storage_options or {}}
    options = {name: value for name, value in entry.storage_options.items() if bare_option(name.lower()) not in own}
    options |= storage_options or {}
    if own & _OWN_CREDENTIALS:
        return open_store(entry.uri, options=options, retry=retry)
    return open_store(entry.uri, options=options, retry=retry, issuer=entry.issuer, credentials=entry.credentials)


@contextmanager
def reserved_location(location: UriLike, storage_options: Mapping[str, str] | None) -> Iterator[Store]:
    """The store of a table to be created; a managed table gets a catalog entry, unless its creation fails."""
    table = managed_table(location)
    if table is None:
        yield open_location(location, storage_options)
        return
    try:
        entry, known = table.find(), True
    except NotFoundError:
        entry, known = table.catalog.reserve(table.address), False
    store = open_entry(entry, storage_options)
    try:
        yield store
    except BaseException:
        if not known:
            with suppress(PenstockError):  # the entry stays, and the next attempt finds it
                _release(table.catalog, entry, store)
        raise
    _keep(table.catalog, entry, store)


def _release(catalog: TableCatalog, entry: CatalogEntry, store: Store) -> None:
    """Free the address of a table that was not made; not if another process has made it at the same location.

    That process looks for the entry after it has made the table, and this one for the table after it has removed the
    entry: one of them at least sees the other, and puts the entry back.
    """
    if not has_table(store):
        catalog.forget(entry)
        if has_table(store):
            catalog.keep(entry)


def _keep(catalog: TableCatalog, entry: CatalogEntry, store: Store) -> None:
    """Make sure that a new table has its entry, or delete the table and raise `ConflictError`."""
    try:
        catalog.keep(entry)
    except (AlreadyExistsError, NotFoundError) as error:
        delete_objects(store)
        raise ConflictError(
            f"{entry.address} was removed from the catalog while its table was created, and the table was deleted "
            f"again: {error}"
        ) from error


def has_table(store: Store) -> bool:
    """Whether there is a table. Raises `StorageError` if the store does not answer."""
    try:
        store.head(TABLE_KEY)
    except NotFoundError:
        return False
    return True


def delete_objects(store: Store) -> None:
    """Delete the objects of a table, and no other ones; the key that makes it a table is deleted first."""
    store.delete([TABLE_KEY])
    store.delete([item.key for prefix in _OWN_PREFIXES for item in store.list(prefix)])
