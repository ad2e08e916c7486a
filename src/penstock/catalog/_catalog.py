"""The embedded catalog: table addresses and URIs, in the user's data folder."""

import os
import sys
import time
from difflib import get_close_matches
from pathlib import Path

from penstock.catalog._address import TableAddress
from penstock.catalog._database import Database, Row
from penstock.catalog._entry import CatalogEntry
from penstock.catalog._locations import catalog_folder, checked_uri, storage_folder, table_uri
from penstock.errors import AlreadyExistsError, CorruptError, InvalidInputError, NotFoundError

_COLUMNS = "workspace, name, uri, created_us, table_id"
_MAX_SUGGESTIONS = 3
_BUSY_TIMEOUT_S = 30.0


class Catalog:
    """Maps addresses to URIs; never accesses the tables themselves.

    `home` is the folder of the catalog (default: `PENSTOCK_HOME`, or the system's folder for user data). `storage` is
    the location of new tables (default: `PENSTOCK_STORAGE`, or a folder next to the catalog).
    """

    def __init__(
        self, home: str | os.PathLike[str] | None = None, *, storage: str | os.PathLike[str] | None = None
    ) -> None:
        self.home = catalog_folder(os.environ, sys.platform) if home is None else Path(os.path.abspath(home))
        self.storage = storage_folder(os.environ, self.home) if storage is None else os.fspath(storage)
        self._database = Database(self.home / "catalog.db", busy_timeout_s=_BUSY_TIMEOUT_S)

    def find(self, address: TableAddress) -> CatalogEntry:
        """The entry of a table; raises `NotFoundError` that suggests similar addresses."""
        rows = self._database.read(
            f"SELECT {_COLUMNS} FROM tables WHERE workspace = ? AND name = ?", address.workspace, address.table
        )
        if not rows:
            raise NotFoundError(self._not_found_message(address))
        return self._entry(rows[0])

    def reserve(self, address: TableAddress) -> CatalogEntry:
        """Assign a URI to an address, for a new table; idempotent across processes.

        The URI remains assigned until `remove`, so that an interrupted job resumes at the same location even if
        `PENSTOCK_STORAGE` changes. Does not check whether a table exists there.
        """
        return self._upsert(address, table_uri(self.storage, address), None)

    def register(
        self, address: TableAddress, uri: str | os.PathLike[str], *, table_id: str | None = None
    ) -> CatalogEntry:
        """Add an existing table; registering it again may add its id. Raises `AlreadyExistsError`."""
        checked = checked_uri(uri)
        entry = self._upsert(address, checked, table_id)
        if entry.uri != checked:
            raise AlreadyExistsError(
                f"{address} is registered for {entry.uri} already; remove that entry first, or choose another name"
            )
        return entry

    def remove(self, address: TableAddress) -> CatalogEntry:
        """Remove an entry and return it; the table itself is not deleted. Raises `NotFoundError`."""
        entry = self.find(address)
        with self._database.transaction() as db:
            db.execute(  # only this entry, not one that another process has registered since
                "DELETE FROM tables WHERE workspace = ? AND name = ? AND uri = ? AND created_us = ?",
                (address.workspace, address.table, entry.uri, entry.created_us),
            )
        return entry

    def tables(self, workspace: str | None = None) -> list[CatalogEntry]:
        """All entries, or those of a workspace, sorted by address."""
        rows = self._database.read(f"SELECT {_COLUMNS} FROM tables ORDER BY workspace, name")
        return [entry for entry in map(self._entry, rows) if workspace in (None, entry.address.workspace)]

    def workspaces(self) -> list[str]:
        """The names of workspaces that have tables, sorted."""
        return sorted({entry.address.workspace for entry in self.tables()})

    def _upsert(self, address: TableAddress, uri: str, table_id: str | None) -> CatalogEntry:
        with self._database.transaction() as db:
            db.execute(
                f"INSERT INTO tables ({_COLUMNS}) VALUES (?, ?, ?, ?, ?) ON CONFLICT (workspace, name) DO UPDATE "
                "SET table_id = excluded.table_id WHERE uri = excluded.uri AND excluded.table_id IS NOT NULL",
                (address.workspace, address.table, uri, time.time_ns() // 1000, table_id),
            )
            row = db.execute(
                f"SELECT {_COLUMNS} FROM tables WHERE workspace = ? AND name = ?", (address.workspace, address.table)
            )
            return self._entry(row.fetchone())

    def _not_found_message(self, address: TableAddress) -> str:
        known = {f"{entry.address.workspace}/{entry.address.table}": entry.address for entry in self.tables()}
        close = get_close_matches(f"{address.workspace}/{address.table}", known, _MAX_SUGGESTIONS)
        similar = dict.fromkeys(known[name] for name in close)
        similar |= dict.fromkeys(other for other in known.values() if other.table == address.table)
        suggestions = " or ".join(map(str, list(similar)[:_MAX_SUGGESTIONS]))
        hint = f"did you mean {suggestions}? Otherwise" if similar else "to add it,"
        return (
            f"the catalog in {self.home} has no table {address}; {hint} create it with "
            f'penstock.create("{address}"), or register the URI of an existing table'
        )

    def _entry(self, row: Row) -> CatalogEntry:
        workspace, name, uri, created_us, table_id = row
        try:
            return CatalogEntry(TableAddress(workspace, name), uri, created_us, table_id)
        except (InvalidInputError, TypeError) as error:
            raise CorruptError(f"the catalog in {self.home} has an invalid row ({error}); remove it") from error
