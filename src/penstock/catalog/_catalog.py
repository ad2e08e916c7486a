"""The embedded catalog: table addresses and URIs, in the user's data folder."""

import os
import sqlite3
import sys
import time
from dataclasses import astuple, replace
from pathlib import Path

from penstock.catalog._address import TableAddress
from penstock.catalog._database import Database, Row
from penstock.catalog._entry import Access, CatalogEntry
from penstock.catalog._locations import catalog_folder, checked_uri, new_uri, storage_folder
from penstock.catalog._suggestions import dropped_message, not_found_message, similar_addresses
from penstock.errors import AlreadyExistsError, ConflictError, CorruptError, InvalidInputError, NotFoundError
from penstock.storage import local_path

_COLUMNS = "workspace, name, uri, created_us, table_id, owned, dropped_us, purge_us"
_LIVE = f"SELECT {_COLUMNS} FROM tables WHERE workspace = ? AND name = ? AND dropped_us IS NULL"
_RESTORABLE = f"SELECT {_COLUMNS} FROM tables WHERE purge_us > 0"
_EXPIRED = f"SELECT {_COLUMNS} FROM tables WHERE purge_us <= ?"
_IDENTITY = "workspace = ? AND name = ? AND uri = ? AND created_us = ? AND dropped_us IS ?"
_GIVEN_UP = 0
"""`purge_us` of a table that can no longer be restored, because its objects are being deleted."""
_RETENTION_US = 7 * 24 * 3600 * 1_000_000
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

    def __str__(self) -> str:
        return f"the catalog in {self.home}"

    def find(self, address: TableAddress, *, access: Access | None = None) -> CatalogEntry:  # noqa: ARG002
        """The entry of a table; raises `NotFoundError` that suggests similar addresses.

        `access` makes no difference: the credentials are the user's own.
        """
        rows = self._database.read(_LIVE, address.workspace, address.table)
        if not rows:
            raise NotFoundError(self._not_found_message(address))
        return self._entry(rows[0])

    def reserve(self, address: TableAddress) -> CatalogEntry:
        """Assign a URI to an address, for a new table; idempotent across processes.

        The URI remains assigned until `remove` or `drop`, so that an interrupted job resumes at the same location even
        if `PENSTOCK_STORAGE` changes. Does not check whether a table exists there.
        """
        return self._upsert(address, new_uri(self.storage, address), None, owned=True)

    def register(
        self, address: TableAddress, uri: str | os.PathLike[str], *, table_id: str | None = None
    ) -> CatalogEntry:
        """Add an existing table; registering it again may add its id. Raises `AlreadyExistsError`."""
        checked = checked_uri(uri)
        entry = self._upsert(address, checked, table_id, owned=False)
        if entry.uri != checked:
            raise AlreadyExistsError(
                f"{address} is registered for {entry.uri} already; remove that entry first, or choose another name"
            )
        return entry

    def rename(self, address: TableAddress, new: TableAddress) -> CatalogEntry:
        """Give a table another address, also in another workspace; its objects stay where they are.

        Raises `NotFoundError`, and `AlreadyExistsError` if another table has the new address.
        """
        self.find(address)  # without a transaction, so that an unknown address creates no catalog
        with self._database.transaction() as db:
            entry = self._live(db, address)
            if new != address:
                self._check_free(db, new)
            _update(db, entry, renamed := replace(entry, address=new))
        return renamed

    def drop(self, address: TableAddress, *, uri: str | None = None, recoverable: bool = True) -> CatalogEntry:
        """Free an address and return its dropped entry; raises `NotFoundError`.

        `uri` is that of the table which is meant: `ConflictError` if the address is another one's by now. `restore`
        brings it back for seven days at least, and until `expire` is called after that; never if it is not
        `recoverable`.
        """
        self.find(address)
        with self._database.transaction() as db:
            entry, now_us = self._live(db, address), _now_us()
            if uri not in (None, entry.uri):
                raise ConflictError(f"{address} is the address of another table by now, in {entry.uri}; look at it")
            # Unique and increasing even if the clock steps back: it identifies the dropped table.
            (dropped_us,) = db.execute(
                "SELECT max(?, coalesce(max(dropped_us) + 1, 0)) FROM tables", (now_us,)
            ).fetchone()
            purge_us = now_us + _RETENTION_US if recoverable else _GIVEN_UP
            _update(db, entry, dropped := replace(entry, dropped_us=dropped_us, purge_us=purge_us))
        return dropped

    def restore(self, address: TableAddress) -> CatalogEntry:
        """Bring back the table of this address that was dropped last.

        Raises `NotFoundError`, and `AlreadyExistsError` if another table has the address now.
        """
        if not any(entry.address == address for entry in self.tables(dropped=True)):
            raise NotFoundError(self._not_dropped_message(address))
        with self._database.transaction() as db:
            self._check_free(db, address)
            row = db.execute(
                f"{_RESTORABLE} AND workspace = ? AND name = ? ORDER BY dropped_us DESC",
                (address.workspace, address.table),
            ).fetchone()
            if row is None:
                raise NotFoundError(self._not_dropped_message(address))
            entry = self._entry(row)
            _update(db, entry, restored := replace(entry, dropped_us=None, purge_us=None))
        return restored

    def remove(self, address: TableAddress) -> CatalogEntry:
        """Remove an entry and return it; the table itself is not deleted. Raises `NotFoundError`."""
        entry = self.find(address)
        self.forget(entry)
        return entry

    def expire(self, now_us: int) -> list[CatalogEntry]:
        """The dropped tables whose objects are to be deleted; from then on, they cannot be restored.

        The caller deletes the objects of those that are `owned` and calls `forget`; until then, later calls return them
        again. A table that has another address is not among them.
        """
        if not self._database.read(_EXPIRED, now_us):
            return []
        with self._database.transaction() as db:
            others = db.execute(f"SELECT {_COLUMNS} FROM tables WHERE purge_us IS NULL OR purge_us > ?", (now_us,))
            in_use = {_location(self._entry(row).uri) for row in others}
            expired = [self._entry(row) for row in db.execute(f"{_EXPIRED} ORDER BY dropped_us", (now_us,))]
            expired = [each for each in expired if not (each.owned and _location(each.uri) in in_use)]
            for entry in expired:
                _update(db, entry, replace(entry, purge_us=_GIVEN_UP))
        return expired

    def forget(self, entry: CatalogEntry) -> None:
        """Remove this very entry, dropped or not, and no other that has its address; nothing if it is gone."""
        with self._database.transaction() as db:
            db.execute(f"DELETE FROM tables WHERE {_IDENTITY}", _identity(entry))

    def keep(self, entry: CatalogEntry) -> None:
        """Put the entry of a table back if another process has dropped or forgotten it; a renamed one stays so.

        Raises `AlreadyExistsError` if another table has the address.
        """
        with self._database.transaction() as db:
            if db.execute("SELECT 1 FROM tables WHERE uri = ? AND dropped_us IS NULL", (entry.uri,)).fetchone():
                return
            self._check_free(db, entry.address)
            db.execute("DELETE FROM tables WHERE uri = ?", (entry.uri,))
            db.execute(
                f"INSERT INTO tables ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, NULL, NULL)",
                (*astuple(entry.address), entry.uri, entry.created_us, entry.table_id, entry.owned),
            )

    def tables(self, workspace: str | None = None, *, dropped: bool = False) -> list[CatalogEntry]:
        """All entries, or those of a workspace, sorted by address; or those that `restore` can bring back."""
        live = f"SELECT {_COLUMNS} FROM tables WHERE dropped_us IS NULL"
        rows = self._database.read(f"{_RESTORABLE if dropped else live} ORDER BY workspace, name, dropped_us DESC")
        return [entry for entry in map(self._entry, rows) if workspace in (None, entry.address.workspace)]

    def workspaces(self) -> list[str]:
        """The names of workspaces that have tables, sorted."""
        return sorted({entry.address.workspace for entry in self.tables()})

    def _upsert(self, address: TableAddress, uri: str, table_id: str | None, *, owned: bool) -> CatalogEntry:
        with self._database.transaction() as db:
            db.execute(
                f"INSERT INTO tables ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, NULL, NULL) "
                "ON CONFLICT (workspace, name) WHERE dropped_us IS NULL DO UPDATE "
                "SET table_id = excluded.table_id WHERE uri = excluded.uri AND excluded.table_id IS NOT NULL",
                (address.workspace, address.table, uri, _now_us(), table_id, owned),
            )
            return self._live(db, address)

    def _live(self, db: sqlite3.Connection, address: TableAddress) -> CatalogEntry:
        row = db.execute(_LIVE, (address.workspace, address.table)).fetchone()
        if row is None:  # another process has removed or renamed it since
            raise NotFoundError(self._not_found_message(address))
        return self._entry(row)

    def _check_free(self, db: sqlite3.Connection, address: TableAddress) -> None:
        row = db.execute(_LIVE, (address.workspace, address.table)).fetchone()
        if row is not None:
            raise AlreadyExistsError(
                f"{address} is the address of the table in {self._entry(row).uri} already; rename or drop that table "
                "first, or choose another address"
            )

    def _not_found_message(self, address: TableAddress) -> str:
        if any(entry.address == address for entry in self.tables(address.workspace, dropped=True)):
            return dropped_message(address)
        return not_found_message(self, address, [entry.address for entry in self.tables()])

    def _not_dropped_message(self, address: TableAddress) -> str:
        suggestions = similar_addresses(address, [entry.address for entry in self.tables(dropped=True)])
        hint = f"did you mean {suggestions}? Otherwise see" if suggestions else "see"
        return f"{self} has no dropped table {address}; {hint} `penstock ls --dropped`"

    def _entry(self, row: Row) -> CatalogEntry:
        workspace, name, uri, created_us, table_id, owned, dropped_us, purge_us = row
        try:
            address = TableAddress(workspace, name)
            checked_uri(uri)
        except (InvalidInputError, TypeError) as error:
            raise CorruptError(f"{self} has an invalid row ({error}); remove it") from error
        return CatalogEntry(
            address, uri, created_us, table_id, owned=bool(owned), dropped_us=dropped_us, purge_us=purge_us
        )


def _identity(entry: CatalogEntry) -> tuple[str | int | None, ...]:
    return (entry.address.workspace, entry.address.table, entry.uri, entry.created_us, entry.dropped_us)


def _update(db: sqlite3.Connection, old: CatalogEntry, new: CatalogEntry) -> None:
    db.execute(
        f"UPDATE tables SET workspace = ?, name = ?, dropped_us = ?, purge_us = ? WHERE {_IDENTITY}",
        (new.address.workspace, new.address.table, new.dropped_us, new.purge_us, *_identity(old)),
    )


def _location(uri: str) -> str:
    """What two URIs of one location have in common: a folder may be written as a path or as file://."""
    return local_path(uri) or uri


def _now_us() -> int:
    return time.time_ns() // 1000
