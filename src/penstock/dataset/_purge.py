"""Delete the objects of tables: at once, or when a dropped table can no longer be restored."""

import os
import time
from collections.abc import Mapping
from contextlib import suppress

from penstock.catalog import Catalog, CatalogEntry, TableCatalog
from penstock.dataset._locations import delete_objects
from penstock.errors import PenstockError
from penstock.storage import FolderStore, Store, open_store


def delete_managed(catalog: TableCatalog, entry: CatalogEntry, store: Store) -> None:
    """Delete a table of a catalog, and its entry.

    Raises `NotFoundError` if another process has removed the entry, and `ConflictError` if the address is another
    table's by now, which is left alone.
    """
    if isinstance(catalog, Catalog):
        dropped = catalog.drop(entry.address, uri=entry.uri, recoverable=False)
        # If this is interrupted, `purge` continues.
        (_delete_location if entry.owned else delete_objects)(store)
        catalog.forget(dropped)
    else:
        delete_objects(store)  # before, because credentials are not renewed for a dropped table
        catalog.drop(entry.address, uri=entry.uri)


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
