"""The directory of workspaces, and the databases of those in use."""

import logging
import random
import secrets
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import sqlalchemy as sa

from penstock.catalog._address import TableAddress
from penstock.catalog.registry import _migrations, _schema, _wall
from penstock.catalog.registry._database import CONTROL_SCHEMA, Database, create_sqlite_file, workspace_url
from penstock.catalog.registry._errors import DatabaseRefusedError
from penstock.catalog.registry._records import WorkspaceInfo
from penstock.errors import AlreadyExistsError, ConflictError, NotFoundError, PenstockError

_MAX_OPEN = 16
_NAME_CACHE_S = 3.0
_MIGRATION_LOCK = 0x70656E73746F636B  # any constant; "penstock"
_logger = logging.getLogger("penstock.registry")
_w, _l = _schema.workspaces, _schema.locations
_FIND = sa.select(_w.c.id, _w.c.password).where(_w.c.name == sa.bindparam("name"))


@dataclass(frozen=True)
class WorkspaceKey:
    """What opens the database of a workspace; another workspace of the same name has another one."""

    id: str
    password: str | None = field(repr=False)


class Workspaces:
    """Creates, finds and drops workspaces; thread-safe.

    A process has up to 4 connections to the control database and one to each of the 16 workspaces that it used last:
    20 when it is idle, and up to 3 more for each workspace that several threads use at the moment.
    """

    def __init__(self, control: Database, now_us: Callable[[], int]) -> None:
        self._control = control
        self._now_us = now_us
        self._lock = threading.Lock()
        self._found: dict[str, tuple[WorkspaceKey, float]] = {}
        self._open: OrderedDict[str, Database] = OrderedDict()

    def migrate(self) -> None:
        """Bring the control database and every workspace to this version; processes that start at once take turns."""
        if not self._control.is_postgresql:
            create_sqlite_file(self._control.url)
        _wall.check_control(self._control)  # before anything is created
        with self._alone() as connection:
            if self._control.is_postgresql:
                connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {CONTROL_SCHEMA}")
            _migrations.upgrade(connection, _migrations.CONTROL, database=self._control.name)
            newest = _migrations.head(_migrations.WORKSPACE)
            for id, password, revision in connection.execute(sa.select(_w.c.id, _w.c.password, _w.c.revision)).all():
                _migrations.check_known(_migrations.WORKSPACE, revision, database=self._control.name)
                if revision != newest:
                    _wall.migrate(connection, self._control, id, password)
            connection.execute(sa.update(_w).where(_w.c.revision != newest).values(revision=newest))

    def check(self, sample: int) -> dict[str, PenstockError]:
        """Of some workspaces at random, those that cannot be used, and why; raises if the control database cannot."""
        if not sample:
            self._control.read(sa.select(1))
            return {}
        _wall.check_control(self._control)
        rows = self._control.read(sa.select(_w.c.name, _w.c.id, _w.c.password))
        chosen = random.sample(rows, min(sample, len(rows)))
        reasons = ((name, self._why_unusable(WorkspaceKey(id, password))) for name, id, password in sorted(chosen))
        return {name: reason for name, reason in reasons if reason is not None}

    def repair(self) -> dict[str, PenstockError]:
        """Give every workspace that its database refuses its role again; returns those that cannot be used even then.

        A restored dump has no roles, and a copy of roles may have no passwords.
        """
        unusable: dict[str, PenstockError] = {}
        for name, reason in self.check(sys.maxsize).items():
            left: PenstockError | None = reason
            # Never create what holds rows: empty tables would hide that those of a workspace were not restored.
            if self._control.is_postgresql and isinstance(reason, DatabaseRefusedError):
                key = self.find(name)
                try:
                    with self._alone() as connection:
                        _wall.migrate(connection, self._control, key.id, key.password)
                    _logger.warning("the role of the workspace %s was missing or refused, and was set up again", name)
                    left = self._why_unusable(key)
                except PenstockError as error:
                    left = error
            if left is not None:
                unusable[name] = left
        return unusable

    @contextmanager
    def _alone(self) -> Iterator[sa.Connection]:
        """A transaction on the control database that only one process has at a time."""
        with self._control.transaction() as connection:
            if self._control.is_postgresql:
                # Another process may migrate for longer than a statement should take.
                connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
                connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
            yield connection

    def _why_unusable(self, key: WorkspaceKey) -> PenstockError | None:
        database = self._new_database(key)  # a login of its own: pooled connections outlive their rights
        try:
            _wall.check(database, key.id)
        except PenstockError as error:
            return error if self._exists(key.id) else None  # else it was dropped just now
        finally:
            database.close()
        return None

    def create(self, connection: sa.Connection, name: str) -> None:
        """Create a workspace with its database in the caller's transaction; raises `AlreadyExistsError`."""
        check_workspace_name(name)
        id, password = secrets.token_hex(8), _wall.new_password(self._control)
        revision = _migrations.head(_migrations.WORKSPACE)
        values = {"id": id, "name": name, "revision": revision, "password": password, "created_us": self._now_us()}
        try:
            connection.execute(sa.insert(_w).values(values))
        except sa.exc.IntegrityError:
            raise AlreadyExistsError(f"there is a workspace {name!r} already; choose another name") from None
        _wall.create(connection, self._control, id, password)

    def drop(self, name: str) -> None:
        """Remove an empty workspace with its members, keys and audit log; raises `ConflictError`, `NotFoundError`."""
        with self._control.transaction() as connection:
            key = self._lock_in(connection, name)
            connection.execute(sa.delete(_w).where(_w.c.id == key.id))
            database = self.open(key)
            count = _wall.drop_if_empty(connection, self._control, database, key.id)
            if count:
                raise ConflictError(
                    f"workspace {name!r} has tables ({count}); drop them, and wait until dropped ones are purged"
                )
        with self._lock:
            self._found.pop(name, None)
            self._open.pop(key.id, None)
        database.close()
        _wall.remove_files(database)

    def all(self) -> list[WorkspaceInfo]:
        rows = self._control.read(sa.select(_w.c.name, _w.c.created_us).order_by(_w.c.name))
        return [WorkspaceInfo(name, created_us) for name, created_us in rows]

    def id_in(self, connection: sa.Connection, name: str) -> str:
        """The id of a workspace, which nobody changes before the transaction ends; raises `NotFoundError`."""
        return self._lock_in(connection, name).id

    def find(self, name: str) -> WorkspaceKey:
        """What opens a workspace, looked up every few seconds; raises `NotFoundError`."""
        key, found_at = self._found.get(name, (None, 0.0))
        now = time.monotonic()
        if key is None or now - found_at > _NAME_CACHE_S:
            check_workspace_name(name)
            rows = self._control.look_up(_FIND, name)
            if not rows:
                self._found.pop(name, None)
                raise NotFoundError(_not_found(name))
            key = WorkspaceKey(*rows[0])
            self._found[name] = (key, now)
        return key

    def open(self, key: WorkspaceKey) -> Database:
        """The database of a workspace; closed when others have been used since."""
        with self._lock:
            found = self._open.get(key.id)
            if found is None:
                self._close_unused()
                found = self._open[key.id] = self._new_database(key)
            self._open.move_to_end(key.id)
            return found

    @contextmanager
    def claimed(self, key: WorkspaceKey, location: str) -> Iterator[None]:
        """Let a workspace register a location, while nobody gives it up; raises `AlreadyExistsError`.

        The claim is committed before the block, so that a crash leaves at worst a location that this workspace alone
        can register.
        """
        parents = [location[:end] for end, letter in enumerate(location) if letter == "/"]
        below = sa.func.substr(_l.c.location, 1, len(location) + 1) == f"{location}/"
        overlapping = sa.or_(_l.c.location.in_([location, *parents]), below)
        with self._control.transaction() as connection:
            if self._control.is_postgresql:  # two claims that overlap may have different keys
                connection.exec_driver_sql("LOCK TABLE locations IN SHARE ROW EXCLUSIVE MODE")
            found = connection.execute(sa.select(_l.c.location, _l.c.workspace_id).where(overlapping)).all()
            if any((held, id) != (location, key.id) for held, id in found):
                raise AlreadyExistsError(
                    f"{location} is, contains, or is within the location of a registered table; remove that one first"
                )
            if not found:
                try:
                    connection.execute(sa.insert(_l).values(location=location, workspace_id=key.id))
                except sa.exc.IntegrityError:
                    raise NotFoundError("the workspace was dropped") from None
        with self._control.transaction() as connection:
            if not self._lock_claim(connection, key, location):
                raise ConflictError(f"{location} was removed from the workspace at the same time; retry")
            yield

    def unclaim(self, key: WorkspaceKey, location: str, is_used: Callable[[], bool]) -> None:
        """Let every workspace register a location, unless this one has registered it again."""
        with self._control.transaction() as connection:
            if self._lock_claim(connection, key, location) and not is_used():
                connection.execute(sa.delete(_l).where(_l.c.location == location))

    def close(self) -> None:
        with self._lock:
            databases = list(self._open.values())
            self._open.clear()
            self._found.clear()
        for database in databases:
            database.close()

    def _new_database(self, key: WorkspaceKey) -> Database:
        url = workspace_url(self._control.url, key.id, key.password)
        return Database(url, exists=partial(self._exists, key.id), kept=1)

    def _exists(self, id: str) -> bool:
        return bool(self._control.read(sa.select(_w.c.id).where(_w.c.id == id)))

    def _lock_claim(self, connection: sa.Connection, key: WorkspaceKey, location: str) -> bool:
        query = sa.select(_l.c.location).where(_l.c.location == location, _l.c.workspace_id == key.id)
        return connection.execute(query.with_for_update()).first() is not None

    def _lock_in(self, connection: sa.Connection, name: str) -> WorkspaceKey:
        check_workspace_name(name)
        row = connection.execute(_FIND.with_for_update(), {"name": name}).first()
        if row is None:
            raise NotFoundError(_not_found(name))
        return WorkspaceKey(*row)

    def _close_unused(self) -> None:
        """Close the least recently used databases to make room for one, but none that a thread is using."""
        idle = [id for id, database in self._open.items() if not database.in_use]
        for id in idle[: max(0, len(self._open) + 1 - _MAX_OPEN)]:
            self._open.pop(id).close()


def check_workspace_name(name: str) -> None:
    """Raise `InvalidInputError` unless the name can stand in a table address."""
    TableAddress(name, "table")


def plain_location(location: str) -> str:
    """One text for a location: a folder may be written as a path or as file://."""
    return location.removeprefix("file://").rstrip("/")


def _not_found(name: str) -> str:
    return f"there is no workspace {name!r}; check the name, or ask the server's admin to create it"
