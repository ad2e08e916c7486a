"""The embedded catalog: names of tables, in the user's data folder."""

import os
import sys
import time
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from penstock.catalog._address import Address
from penstock.catalog._database import Database, Row
from penstock.catalog._places import checked_uri, home_folder, storage_folder, table_uri
from penstock.errors import AlreadyExistsError, CorruptError, InvalidInputError, NotFoundError

_COLUMNS = "workspace, name, uri, created_us, table_id"
_MAX_NEAR = 3
_BUSY_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Entry:
    """What the catalog knows about a table; never a credential."""

    address: Address
    uri: str
    """An absolute path, or a URI that `open_store` takes."""
    created_us: int
    """When the name was given, in microseconds since 1970."""
    table_id: str | None = None
    """The id in the table's own files, where whoever named it said so."""


class Catalog:
    """Names and places; the tables themselves are never touched, nor asked whether they are there.

    `home` is the folder of the catalog (default: `PENSTOCK_HOME`, or the system's folder for users' data) and `storage`
    is where new tables go (default: `PENSTOCK_STORAGE`, or a folder beside the catalog).
    """

    def __init__(
        self, home: str | os.PathLike[str] | None = None, *, storage: str | os.PathLike[str] | None = None
    ) -> None:
        self.home = home_folder(os.environ, sys.platform) if home is None else Path(os.path.abspath(home))
        self.storage = storage_folder(os.environ, self.home) if storage is None else os.fspath(storage)
        self._database = Database(self.home / "catalog.db", busy_timeout_s=_BUSY_TIMEOUT_S)

    def find(self, address: Address) -> Entry:
        """Where a table is."""
        rows = self._database.read(
            f"SELECT {_COLUMNS} FROM tables WHERE workspace = ? AND name = ?", address.workspace, address.table
        )
        if not rows:
            raise NotFoundError(self._unknown(address))
        return self._entry(rows[0])

    def place(self, address: Address) -> Entry:
        """Give a new table its place; whoever asks again, in any process, is given the same one.

        The place is kept until `remove`, so that work that was interrupted goes on where it began, whatever
        `PENSTOCK_STORAGE` says by then. Whether there is a table already is for the place itself to say.
        """
        return self._keep(address, table_uri(self.storage, address), None)

    def register(self, address: Address, uri: str | os.PathLike[str], *, table_id: str | None = None) -> Entry:
        """Name a table that is somewhere already; naming it twice is no error, and may add its id."""
        place = checked_uri(uri)
        entry = self._keep(address, place, table_id)
        if entry.uri != place:
            raise AlreadyExistsError(
                f"{address} is the name of {entry.uri} already; remove that name first, or choose another"
            )
        return entry

    def remove(self, address: Address) -> Entry:
        """Forget a name, and say what it was for; the table stays where it is."""
        entry = self.find(address)
        with self._database.writing() as db:
            db.execute(  # what another process has named so since then stays
                "DELETE FROM tables WHERE workspace = ? AND name = ? AND uri = ? AND created_us = ?",
                (address.workspace, address.table, entry.uri, entry.created_us),
            )
        return entry

    def tables(self, workspace: str | None = None) -> list[Entry]:
        """Every table, or those of a workspace, by name."""
        rows = self._database.read(f"SELECT {_COLUMNS} FROM tables ORDER BY workspace, name")
        return [entry for entry in map(self._entry, rows) if workspace in (None, entry.address.workspace)]

    def workspaces(self) -> list[str]:
        """The workspaces that have tables, by name."""
        return sorted({entry.address.workspace for entry in self.tables()})

    def _keep(self, address: Address, uri: str, table_id: str | None) -> Entry:
        with self._database.writing() as db:
            db.execute(
                f"INSERT INTO tables ({_COLUMNS}) VALUES (?, ?, ?, ?, ?) ON CONFLICT (workspace, name) DO UPDATE "
                "SET table_id = excluded.table_id WHERE uri = excluded.uri AND excluded.table_id IS NOT NULL",
                (address.workspace, address.table, uri, time.time_ns() // 1000, table_id),
            )
            kept = db.execute(
                f"SELECT {_COLUMNS} FROM tables WHERE workspace = ? AND name = ?", (address.workspace, address.table)
            )
            return self._entry(kept.fetchone())

    def _unknown(self, address: Address) -> str:
        known = {f"{entry.address.workspace}/{entry.address.table}": entry.address for entry in self.tables()}
        close = get_close_matches(f"{address.workspace}/{address.table}", known, _MAX_NEAR)
        near = dict.fromkeys(known[name] for name in close)
        near |= dict.fromkeys(other for other in known.values() if other.table == address.table)
        hint = f"did you mean {' or '.join(map(str, list(near)[:_MAX_NEAR]))}? If not," if near else "to have it,"
        return (
            f"the catalog in {self.home} has no table {address}; {hint} make it with "
            f'penstock.create("{address}"), or register the place of one that exists'
        )

    def _entry(self, row: Row) -> Entry:
        workspace, name, uri, created_us, table_id = row
        try:
            return Entry(Address(workspace, name), uri, created_us, table_id)
        except (InvalidInputError, TypeError) as error:
            raise CorruptError(f"the catalog in {self.home} has a row that is not ours ({error}); remove it") from error
