"""The SQLite file of the catalog: connections, schema migrations, and translated errors."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from penstock.errors import (
    AccessDeniedError,
    CorruptError,
    PenstockError,
    StorageError,
    StorageTimeoutError,
    UnsupportedFormatError,
)

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
    (
        """
        CREATE TABLE entries (
            workspace TEXT NOT NULL,
            name TEXT NOT NULL,
            uri TEXT NOT NULL,
            created_us INTEGER NOT NULL,
            table_id TEXT,
            owned INTEGER NOT NULL,
            dropped_us INTEGER UNIQUE,
            purge_us INTEGER
        )
        """,
        # Version 1 does not say which tables were registered, so none of them may be deleted.
        "INSERT INTO entries SELECT workspace, name, uri, created_us, table_id, 0, NULL, NULL FROM tables",
        "DROP TABLE tables",
        "ALTER TABLE entries RENAME TO tables",
        "CREATE UNIQUE INDEX live ON tables (workspace, name) WHERE dropped_us IS NULL",
    ),
)
"""Item i migrates a file from version i to i + 1; never changed once released."""
_RESTORE = "restore it from a copy, or move it away and register the tables again: the tables are stored elsewhere"
_FIX_ACCESS = "check the owner and permissions of it and its folder, or set PENSTOCK_HOME to another folder"
_DENIED = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_CORRUPT = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_ERROR,  # the statements are correct, so the tables do not have the expected schema
}


class Database:
    """A SQLite file shared by any number of processes and threads.

    Each call opens its own connection, so that none is shared between threads or inherited by a fork. There is no
    write-ahead log, because network file systems, where home folders may be, do not support one.
    """

    def __init__(self, file: Path, *, busy_timeout_s: float) -> None:
        self.file = file
        self._busy_timeout_s = busy_timeout_s

    def read(self, sql: str, *values: str | int) -> list[Row]:
        """The rows of a query, which modifies nothing; no rows if the file does not exist."""
        with self._translate_errors():
            if not self.file.exists():
                return []
            with self._connect("mode=ro") as db:
                version = self._version(db)
                if version == len(_MIGRATIONS):
                    return db.execute(sql, values).fetchall()
                if not version:  # another process is creating it
                    return []
                with closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
                    db.backup(copy)  # an old file stays readable where it is read-only, and for an old Penstock
                    self._migrate(copy)
                    return copy.execute(sql, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """An exclusive write transaction; an exception rolls it back."""
        with self._translate_errors():
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._connect("mode=rwc") as db:
                if self._version(db) < len(_MIGRATIONS):
                    self._migrate(db)
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")

    @contextmanager
    def _connect(self, mode: str) -> Iterator[sqlite3.Connection]:
        uri = f"{self.file.as_uri()}?{mode}"
        with closing(sqlite3.connect(uri, uri=True, timeout=self._busy_timeout_s, isolation_level=None)) as db:
            yield db  # closing rolls back uncommitted changes

    def _migrate(self, db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        version = self._version(db)  # another process may have migrated it already
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
            raise CorruptError(f"{self.file} is a database, but not a Penstock catalog; {_RESTORE}")
        if found[0] > len(_MIGRATIONS):
            raise UnsupportedFormatError(
                f"the catalog {self.file} was written by a newer Penstock (catalog version {found[0]}; this one "
                f"supports {len(_MIGRATIONS)}); upgrade Penstock, or set PENSTOCK_HOME to another folder"
            )
        return found[0]

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._translate_sqlite(error) from error
        except UnicodeDecodeError as error:  # in a table name or a URI
            raise CorruptError(f"the catalog {self.file} is damaged ({error}); {_RESTORE}") from error
        except OSError as error:
            raise self._translate_os(error) from error

    def _translate_sqlite(self, error: sqlite3.Error) -> PenstockError:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # drop the extended code
        if code in _DENIED:
            return AccessDeniedError(f"the catalog {self.file} cannot be opened or written ({error}); {_FIX_ACCESS}")
        if code in _BUSY:
            return StorageTimeoutError(
                f"the catalog {self.file} was locked by another process for {self._busy_timeout_s:g} s ({error}); "
                "retry, and check for a hanging process"
            )
        if code in _CORRUPT:
            return CorruptError(f"the catalog {self.file} is damaged ({error}); {_RESTORE}")
        return StorageError(f"the catalog {self.file} cannot be used ({error}); check its disk, and retry")

    def _translate_os(self, error: OSError) -> PenstockError:
        reason = error.strerror or str(error)
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return AccessDeniedError(f"the catalog {self.file} cannot be opened or written ({reason}); {_FIX_ACCESS}")
        return StorageError(
            f"the catalog {self.file} cannot be used ({reason}); fix its folder, or set PENSTOCK_HOME to another"
        )
