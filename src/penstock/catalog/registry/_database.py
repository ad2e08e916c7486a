"""One database: an engine whose connections commit each statement, and explicit transactions."""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa

from penstock.catalog.registry._errors import DatabaseRefusedError, translated_errors
from penstock.errors import InvalidInputError, NotFoundError

CONTROL_SCHEMA = "penstock"
_POOL_SIZE = 4  # statements take a millisecond: a few connections serve all threads of a process
_POOL_TIMEOUT_S = 10.0
_BUSY_TIMEOUT_S = 30.0
_CONNECT = {
    "connect_timeout": 5,
    "keepalives_idle": 30,
    "tcp_user_timeout": 15_000,  # a host that vanished is noticed within 15 s
}
_OPTIONS = "-c statement_timeout=30s -c lock_timeout=20s -c idle_in_transaction_session_timeout=60s"


class Database:
    """A PostgreSQL login with a schema, or a SQLite file."""

    def __init__(self, url: sa.URL, *, exists: Callable[[], bool] | None = None, kept: int = _POOL_SIZE) -> None:
        """`exists` tells whether a database that cannot be opened is there at all.

        Of up to four connections, `kept` stay open when nobody uses them.
        """
        self.url = url
        self._exists = exists
        self.is_postgresql = url.get_backend_name() == "postgresql"
        self.name = _display_name(url)
        self.engine = _engine(url, kept)
        self._closed = False
        sa.event.listen(self.engine, "checkin", self._close_returned)
        make_dialect: Callable[..., sa.Dialect] = type(self.engine.dialect)
        self._positional = make_dialect(paramstyle="format" if self.is_postgresql else "qmark")
        self._compiled: dict[sa.Select[Any], str] = {}

    def read(self, statement: sa.Executable, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        """The rows of a query, in one round trip; repeated once if a pooled connection turns out to be dead."""
        with self._translated_errors():
            try:
                with self.engine.connect() as connection:
                    return list(connection.execute(statement, parameters))
            except sa.exc.DBAPIError as error:
                if not error.connection_invalidated:
                    raise
            with self.engine.connect() as connection:
                return list(connection.execute(statement, parameters))

    def look_up(self, statement: sa.Select[Any], value: str) -> list[Any]:
        """The rows of a query with one parameter, as the driver gives them.

        Every request makes such queries; beside the pool, SQLAlchemy would take two thirds of their processor time.
        """
        with self._translated_errors():
            sql = self._compiled.get(statement)
            if sql is None:
                sql = self._compiled[statement] = str(statement.compile(dialect=self._positional))
            connection = self.engine.raw_connection()
            try:
                driver: Any = connection.driver_connection
                return list(driver.execute(sql, (value,)).fetchall())
            except psycopg.Error as error:
                if not driver.closed:
                    raise
                connection.invalidate(error)
            finally:
                connection.close()
        [parameter] = statement.compile().params
        return self.read(statement, {parameter: value})

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Commit what the block does, or nothing; on SQLite one at a time.

        The block handles the `IntegrityError` that it expects; others are translated like any error.
        """
        with self._translated_errors(), self._begun() as connection:
            try:
                yield connection
                connection.exec_driver_sql("COMMIT")
            except BaseException:
                try:
                    connection.exec_driver_sql("ROLLBACK")
                except sa.exc.SQLAlchemyError:
                    connection.invalidate()  # never goes back to the pool with an open transaction
                raise

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            with translated_errors(self.name):
                yield
        except DatabaseRefusedError:
            if self._exists is None or self._exists():
                raise
            raise NotFoundError(f"{self.name} does not exist: its workspace was dropped") from None

    @contextmanager
    def _begun(self) -> Iterator[sa.Connection]:
        begin = "BEGIN" if self.is_postgresql else "BEGIN IMMEDIATE"
        connection = self.engine.connect()
        try:
            try:
                connection.exec_driver_sql(begin)
            except sa.exc.DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                connection.close()  # stale since the pool was last used; nothing was sent, so another one may be tried
                connection = self.engine.connect()
                connection.exec_driver_sql(begin)
            yield connection
        finally:
            connection.close()

    @property
    def in_use(self) -> bool:
        """Whether a thread holds a connection."""
        pool = self.engine.pool
        return isinstance(pool, sa.QueuePool) and pool.checkedout() > 0

    def close(self) -> None:
        """Close the connections; those that threads still use are closed when they return."""
        self._closed = True
        self.engine.dispose()

    def _close_returned(self, _driver: object, record: sa.pool.ConnectionPoolEntry) -> None:
        if self._closed:
            record.invalidate()


def control_url(text: str) -> sa.URL:
    """The URL of the control database; a plain path is a SQLite file, or a folder for one."""
    scheme, separator, _ = text.partition("://")
    if not separator:
        path = Path(os.path.abspath(os.path.expanduser(text)))
        return _sqlite_url(path if path.suffix or path.is_file() else path / "registry.db")
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):  # whose message may repeat the password
        raise InvalidInputError(
            "the URL of the database cannot be parsed; write postgresql://user:password@host:5432/database, with "
            "special characters of the password percent-encoded, or sqlite:///path"
        ) from None
    if scheme in ("postgresql", "postgres", "postgresql+psycopg"):
        return with_options(url.set(drivername="postgresql+psycopg"), f"-c search_path={CONTROL_SCHEMA}")
    if scheme == "sqlite" and url.database and url.database != ":memory:":
        return _sqlite_url(Path(os.path.abspath(url.database)))
    raise InvalidInputError(f"{scheme}:// cannot hold a registry; use postgresql://… or sqlite:///path of a file")


def workspace_url(control: sa.URL, id: str, password: str | None) -> sa.URL:
    """The URL of a workspace's database: its own login and schema, or a file next to the control file."""
    if control.get_backend_name() == "sqlite":
        file = Path(control.database or "")
        return _sqlite_url(file.with_name(f"{file.stem}.{schema_name(id)}.db"))
    return with_options(control.set(username=role_name(id), password=password), f"-c search_path={schema_name(id)}")


def schema_name(id: str) -> str:
    return f"ws_{id}"


def role_name(id: str) -> str:
    return f"penstock_{id}"


def with_options(url: sa.URL, options: str) -> sa.URL:
    """The URL with further settings of its sessions; later ones win."""
    given = url.query.get("options", "")
    text = given if isinstance(given, str) else " ".join(given)
    return url.update_query_dict({"options": f"{text} {options}".strip()})


def _sqlite_url(file: Path) -> sa.URL:
    return sa.URL.create("sqlite+pysqlite", database=str(file))


def _display_name(url: sa.URL) -> str:
    if url.get_backend_name() == "sqlite":
        return f"the database {url.database}"
    host = url.host or url.query.get("host") or "the local socket"
    return f"the database {url.database or ''} at {host}{f':{url.port}' if url.port else ''}".replace("  ", " ")


def _engine(url: sa.URL, kept: int) -> sa.Engine:
    shared: dict[str, Any] = {
        "isolation_level": "AUTOCOMMIT",
        "hide_parameters": True,
        "pool_size": kept,
        "max_overflow": _POOL_SIZE - kept,
        "pool_timeout": _POOL_TIMEOUT_S,
        "pool_use_lifo": True,
        "pool_reset_on_return": None,  # each statement or `transaction` leaves nothing to roll back
    }
    if url.get_backend_name() == "postgresql":
        limited = url.update_query_dict({"options": f"{_OPTIONS} {url.query.get('options', '')}"})
        return sa.create_engine(limited, connect_args=_CONNECT, **shared)
    return sa.create_engine(url, creator=partial(_connect_sqlite, Path(url.database or "")), **shared)


def _connect_sqlite(file: Path) -> sqlite3.Connection:
    uri = f"{file.as_uri()}?mode=rw"  # the file of a dropped workspace does not come back
    connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)  # SQL reaches no other workspace's file
    _use_wal(connection)
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Connections to a new file may all switch it at once; of those SQLite refuses some without waiting."""
    deadline = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def create_sqlite_file(url: sa.URL) -> None:
    """Create the file, readable by its owner only."""
    file = Path(url.database or "")
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
