"""Delete the objects of tables: at once, or when a dropped table can no longer be restored."""

import os
import time
from collections.abc import Mapping
from contextlib import suppress

from penstock.catalog import Catalog, CatalogEntry, TableCatalog
from penstock.dataset._locations import release_address
from penstock.errors import PenstockError
from penstock.format import TABLE_KEY
from penstock.storage import FolderStore, Store, open_store

_OWN_PREFIXES = (
    "log/", "refs/", "ids/", "snapshots/", "manifests/", "data/", "blobs/", "index/", "views/", "ingest/",
    "quarantine/", "leases/", "intents/", "vacuums/",
)  # fmt: skip


def delete_objects(store: Store) -> None:
    """Delete the objects of a table, and no other ones; the key that makes it a table is deleted first."""
    store.delete([TABLE_KEY])
    store.delete([item.key for prefix in _OWN_PREFIXES for item in store.list(prefix)])


def delete_managed(catalog: TableCatalog, entry: CatalogEntry, store: Store) -> None:
    """Delete a table of a catalog, and its entry; raises `NotFoundError` if another process has removed it."""
    if isinstance(catalog, Catalog) and entry.owned:
        dropped = catalog.drop(entry.address, recoverable=False)  # if this is interrupted, `purge` continues
        _delete_location(store)
        catalog.forget(dropped)
    else:
        delete_objects(store)
        release_address(catalog, entry.address)


def purge(catalog: Catalog, *, storage_options: Mapping[str, str] | None = None) -> dict[str, PenstockError]:
    """Delete the objects of dropped tables that can no longer be restored; registered tables are only forgotten.

    Any number of processes may purge at once. Returns the URIs of tables that could not be deleted, with the reasons:
    the next call tries again.
    """
    failed: dict[str, PenstockError] = {}
    for entry in catalog.expire(time.time_ns() // 1000):
        try:
            if entry.owned:
                _delete_location(open_store(entry.uri, options=storage_options))
            catalog.forget(entry)
        except PenstockError as error:
            failed[entry.uri] = error
    return failed


def _delete_location(store: Store) -> None:
    """Delete the objects of a table at a location that no other table ever has, and its empty folders."""
    delete_objects(store)
    if isinstance(store, FolderStore):
        for folder, _, _ in os.walk(store.uri, topdown=False):
            with suppress(OSError):  # it contains a file that is not of the table
                os.rmdir(folder)
