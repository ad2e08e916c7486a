"""The gate through which errors of SQLAlchemy and its drivers become Penstock's; they name no SQL and no secret."""

from penstock.catalog import _server_packages  # noqa: F401  first, because it says which package is missing

# isort: split
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import sqlalchemy as sa

from penstock.errors import (
    CorruptError,
    InvalidInputError,
    NotFoundError,
    PenstockError,
    StorageError,
    StorageTimeoutError,
)

_LOGIN_REFUSED = ("password authentication failed", "pg_hba.conf", "does not exist", "not permitted to log in")
_DENIED = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class DatabaseRefusedError(StorageError):
    """The database refuses the server; an `AccessDeniedError` would tell a client that its own key is refused."""


@contextmanager
def translated_errors(database: str) -> Iterator[None]:
    """Raise errors of the database as Penstock's; `database` names it without its password.

    The driver's error is the cause, not SQLAlchemy's, which repeats the SQL.
    """
    try:
        yield
    except sa.exc.TimeoutError:
        raise StorageTimeoutError(
            f"every connection to {database} is in use; retry, and check for slow queries or a hanging database"
        ) from None
    except (sa.exc.DataError, psycopg.DataError, UnicodeEncodeError, OverflowError):
        raise InvalidInputError(
            "a value cannot be stored; leave out control characters and very large numbers"
        ) from None
    except sa.exc.DBAPIError as error:
        raise _translated(error.orig, database) from error.orig
    except (psycopg.Error, sqlite3.Error) as error:
        raise _translated(error, database) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(f"{database} cannot be used ({reason}); check its folder, owner and permissions") from error


def _translated(error: BaseException | None, database: str) -> PenstockError:
    reason = " ".join(str(error).split())
    if isinstance(error, sqlite3.Error):
        return _from_sqlite(error, reason, database)
    state = getattr(error, "sqlstate", None)
    if state is None and any(words in reason for words in _LOGIN_REFUSED):
        return DatabaseRefusedError(
            f"{database} refused the login ({reason}); check user, password and name of the database in its URL, and "
            "that pg_hba.conf lets the roles penstock_* log in with a password, as each workspace does"
        )
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName):
        return NotFoundError(f"{database} has no such tables: its workspace was dropped, or `migrate` was not run")
    if state == "42501":
        return DatabaseRefusedError(
            f"{database} refused an operation ({reason}); grant that right to the user of its URL"
        )
    if state in ("57014", "55P03"):
        return StorageTimeoutError(f"{database} took too long ({reason}); retry, and check its load and locks")
    return StorageError(
        f"{database} does not answer as it should ({reason}); check that it runs and is reachable, and the number of "
        "its connections; then retry"
    )


def _from_sqlite(error: sqlite3.Error, reason: str, database: str) -> PenstockError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # without the extended code
    if code == sqlite3.SQLITE_ERROR and reason.startswith("no such table"):
        return NotFoundError(f"{database} has no such tables: its workspace was dropped, or `migrate` was not run")
    if code in _DENIED:
        return DatabaseRefusedError(f"{database} cannot be opened or written ({reason}); check owner and permissions")
    if code in _BUSY:
        return StorageTimeoutError(f"{database} was locked for too long ({reason}); retry, or use PostgreSQL")
    if code in _CORRUPT:
        return CorruptError(f"{database} is damaged ({reason}); restore it from a copy")
    return StorageError(f"{database} cannot be used ({reason}); check its disk, and retry")
