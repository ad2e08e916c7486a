"""One SQLite file: opened for each use, brought up to date, and its errors told in our words."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from penstock.errors import AccessDenied, CorruptError, PenstockError, StorageError, StorageTimeout, UnsupportedFormat

Row = tuple[Any, ...]

_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE meta (key TEXT NOT NULL PRIMARY KEY, value NOT NULL)",
        "INSERT INTO meta VALUES ('version', 0)",
        """
        CREATE TABLE tables (
            workspace TEXT NOT NULL,
            name TEXT NOT NULL,
            uri TEXT NOT NULL,
            created_us INTEGER NOT NULL,
            table_id TEXT,
            PRIMARY KEY (workspace, name)
        )
        """,
    ),
)
"""Statements that bring a file from the version of their index to the next; never changed once released."""
_MOVE_AWAY = "restore it from a copy, or move it away and name the tables again: the tables themselves are not in it"
_PERMIT = "check who owns it and its folder, or set PENSTOCK_HOME to a folder of yours"
_DENIED = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_DAMAGED = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_ERROR,  # our statements are right: the tables are not those that they were written for
}


class Database:
    """A file that any number of processes and threads use at once.

    No connection outlives a call, so none is ever shared between threads or carried over a fork. There is no
    write-ahead log, because homes are on network file systems, which cannot share one.
    """

    def __init__(self, file: Path, *, busy_timeout_s: float) -> None:
        self.file = file
        self._busy_timeout_s = busy_timeout_s

    def read(self, sql: str, *values: str) -> list[Row]:
        """The rows of a query; none where there is no file yet, because looking makes none."""
        with self._translated():
            if not self.file.exists():
                return []
            with self._opened("mode=ro") as db:
                version = self._version(db)
                if version == len(_MIGRATIONS):
                    return db.execute(sql, values).fetchall()
            if not version:  # somebody is about to make it
                return []
            with self._opened("mode=rw") as db:
                self._migrate(db)
                return db.execute(sql, values).fetchall()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that no other writer overlaps; an error inside takes it back."""
        with self._translated():
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._opened("mode=rwc") as db:
                if self._version(db) < len(_MIGRATIONS):
                    self._migrate(db)
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")

    @contextmanager
    def _opened(self, mode: str) -> Iterator[sqlite3.Connection]:
        uri = f"{self.file.as_uri()}?{mode}"
        with closing(sqlite3.connect(uri, uri=True, timeout=self._busy_timeout_s, isolation_level=None)) as db:
            yield db  # closing takes back what was not committed

    def _migrate(self, db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        version = self._version(db)  # another process may have been first
        for number, statements in enumerate(_MIGRATIONS[version:], version + 1):
            for statement in statements:
                db.execute(statement)
            db.execute("UPDATE meta SET value = ? WHERE key = 'version'", (number,))
        db.execute("COMMIT")

    def _version(self, db: sqlite3.Connection) -> int:
        names = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not names:
            return 0
        found = db.execute("SELECT value FROM meta WHERE key = 'version'").fetchone() if "meta" in names else None
        if found is None or not isinstance(found[0], int):
            raise CorruptError(f"{self.file} is a database, but not a catalog of Penstock; {_MOVE_AWAY}")
        if found[0] > len(_MIGRATIONS):
            raise UnsupportedFormat(
                f"the catalog {self.file} was written by a newer Penstock (its version is {found[0]}, and this one "
                f"knows {len(_MIGRATIONS)}); upgrade Penstock, or set PENSTOCK_HOME to another folder"
            )
        return found[0]

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._from_sqlite(error) from error
        except UnicodeDecodeError as error:  # a name of a table, or an address
            raise CorruptError(f"the catalog {self.file} is damaged ({error}); {_MOVE_AWAY}") from error
        except OSError as error:
            raise self._from_system(error) from error

    def _from_sqlite(self, error: sqlite3.Error) -> PenstockError:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the rest is detail
        if code in _DENIED:
            return AccessDenied(f"the catalog {self.file} cannot be opened or written ({error}); {_PERMIT}")
        if code in _BUSY:
            return StorageTimeout(
                f"the catalog {self.file} was held by another process for {self._busy_timeout_s:g} s ({error}); "
                "try again, and look for a process that hangs"
            )
        if code in _DAMAGED:
            return CorruptError(f"the catalog {self.file} is damaged ({error}); {_MOVE_AWAY}")
        return StorageError(f"the catalog {self.file} cannot be used ({error}); look at its disk, and try again")

    def _from_system(self, error: OSError) -> PenstockError:
        reason = error.strerror or str(error)
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return AccessDenied(f"the catalog {self.file} cannot be opened or written ({reason}); {_PERMIT}")
        return StorageError(
            f"the catalog {self.file} cannot be used ({reason}); mend its folder, or set PENSTOCK_HOME to another"
        )
