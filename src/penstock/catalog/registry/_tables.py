"""A workspace: its tables, and its audit log."""

import json
import secrets
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import sqlalchemy as sa

from penstock.catalog._address import TableAddress
from penstock.catalog.registry._audit import AuditLog
from penstock.catalog.registry._database import Database
from penstock.catalog.registry._records import AuditEvent, TableRow
from penstock.catalog.registry._schema import tables as _t
from penstock.catalog.registry._workspaces import Workspaces, plain_location
from penstock.errors import AlreadyExistsError, ConflictError, InvalidInputError, NotFoundError

_MAX_PAGE = 1000
_CLAIM_US = 3_600_000_000  # a cleaner that died leaves its tables to others after an hour
_COLUMNS = (
    _t.c.id, _t.c.name, _t.c.location, _t.c.owned, _t.c.created_us, _t.c.dropped_us, _t.c.purge_us, _t.c.created_by,
    _t.c.properties,
)  # fmt: skip
_live = _t.c.dropped_us.is_(None)
_restorable = sa.and_(_t.c.dropped_us.is_not(None), _t.c.claimed_us.is_(None))
_FIND = sa.select(*_COLUMNS).where(_t.c.name == sa.bindparam("name"), _live)
_AT_LOCATION = sa.select(*_COLUMNS).where(_t.c.location == sa.bindparam("location"), _live)


class Workspace:
    """The tables of one workspace; every change is one transaction, and unique indexes decide races."""

    def __init__(
        self, name: str, workspaces: Workspaces, audit: AuditLog, *, now_us: Callable[[], int], retention_s: float
    ) -> None:
        self.name = name
        self._key = workspaces.find(name)
        self._workspaces = workspaces
        self._audit = audit
        self._now_us = now_us
        self._retention_s = retention_s

    def find(self, table: str) -> TableRow:
        """A table that is not dropped; raises `NotFoundError`."""
        _check(self.name, table)
        rows = self._database.look_up(_FIND, table)
        if not rows:
            raise NotFoundError(self._not_found(table))
        return _row(rows[0])

    def at(self, location: str) -> TableRow:
        """The table at a location, whatever its name is by now; raises `NotFoundError` if it was dropped."""
        rows = self._database.look_up(_AT_LOCATION, location)
        if not rows:
            raise NotFoundError(f"workspace {self.name!r} has no table at this location; it was dropped")
        return _row(rows[0])

    def tables(self, after: str | None = None, limit: int = _MAX_PAGE, dropped: bool = False) -> list[TableRow]:
        """A page of tables sorted by name; or of dropped tables that can be restored, sorted by id.

        `after` is the name of the last table of the page before; or its id, since dropped tables may share a name.
        """
        if not 1 <= limit <= _MAX_PAGE:
            raise InvalidInputError(f"a page has 1 to {_MAX_PAGE} tables, not {limit}")
        order = _t.c.id if dropped else _t.c.name
        query = sa.select(*_COLUMNS).where(_restorable if dropped else _live).order_by(order).limit(limit)
        return list(map(_row, self._database.read(query if after is None else query.where(order > after))))

    def declare(
        self,
        table: str,
        location: str,
        *,
        owned: bool = True,
        properties: Mapping[str, str] | None = None,
        created_by: str = "",
    ) -> TableRow:
        """Add a table; raises `AlreadyExistsError` if the name or the location is taken.

        A location is taken by dropped tables as well: purging those deletes its objects. One that is not `owned` is
        taken by the registered tables of all workspaces, and so is what contains it or is within it.
        """
        _check(self.name, table)
        if not owned:
            location = plain_location(location)
        row = TableRow(
            secrets.token_hex(16),
            table,
            location,
            owned,
            self._now_us(),
            None,
            None,
            created_by,
            dict(properties or {}),
        )
        values = {name: getattr(row, name) for name in TableRow.__dataclass_fields__}
        insert = sa.insert(_t).values(values | {"properties": json.dumps(row.properties)})
        claim = nullcontext() if owned else self._workspaces.claimed(self._key, location)
        with claim, self._database.transaction() as connection:
            try:
                connection.execute(insert)
                return row
            except sa.exc.IntegrityError:
                taken = self._taken(table)
        holder = self._database.read(sa.select(_t.c.name).where(_t.c.location == location))
        if holder:
            taken = f"the location belongs to table {holder[0][0]!r}, perhaps a dropped one; restore or rename that one"
        raise AlreadyExistsError(taken)

    def rename(self, table: str, new: str) -> TableRow:
        """Give a table another name; raises `NotFoundError`, `AlreadyExistsError`."""
        _check(self.name, new)
        return self._update_live(table, {"name": new}, taken=new)

    def drop(self, table: str, *, location: str | None = None, retention_s: float | None = None) -> TableRow:
        """Drop a table; until `purge_us` it can be restored, and meanwhile its name can be used for another one.

        `location` is that of the table which is meant: `ConflictError` if the name is another one's by now.
        """
        now_us = self._now_us()
        retention_us = int((self._retention_s if retention_s is None else retention_s) * 1e6)
        values = {"dropped_us": now_us, "purge_us": now_us + retention_us}
        return self._update_live(table, values, taken=table, location=location)

    def restore(self, table: str, *, location: str | None = None) -> TableRow:
        """Bring back the table of that name that was dropped last; raises `NotFoundError`, `AlreadyExistsError`.

        `location` is that of the table which is meant; nothing happens if it is not dropped, whatever its name is.
        """
        _check(self.name, table)
        if location is not None and (rows := self._database.look_up(_AT_LOCATION, location)):
            return _row(rows[0])
        newest_first = (_t.c.dropped_us.desc(), _t.c.created_us.desc(), _t.c.id)
        meant = sa.true() if location is None else _t.c.location == location
        last = sa.select(_t.c.id).where(_t.c.name == table, meant, _restorable).order_by(*newest_first).limit(1)
        values = {"dropped_us": None, "purge_us": None}
        # The second condition holds when another process has restored that row or claimed it meanwhile.
        query = sa.update(_t).where(_t.c.id == last.scalar_subquery(), _restorable).values(values).returning(*_COLUMNS)
        with self._database.transaction() as connection:
            row = self._execute_unique(connection, query, taken=table)
            if row is None and connection.execute(_FIND, {"name": table}).first() is not None:
                raise AlreadyExistsError(self._taken(table))
        if row is None:
            raise NotFoundError(
                f"no table {TableAddress(self.name, table)} was dropped, or it was purged; list the dropped tables"
            )
        return row

    def forget(self, table: str) -> TableRow:
        """Remove a table from the catalog for ever, and leave its objects; raises `NotFoundError`."""
        _check(self.name, table)
        with self._database.transaction() as connection:
            query = sa.delete(_t).where(_t.c.name == table, _live).returning(*_COLUMNS)
            row = connection.execute(query).first()
        if row is None:
            raise NotFoundError(self._not_found(table))
        self._unclaim(forgotten := _row(row))
        return forgotten

    def expired(self, now: float | None = None) -> list[TableRow]:
        """Claim the dropped tables whose time is over: they can no longer be restored, and no other process gets them.

        `now` is a time in seconds. The caller deletes the objects of those that are owned, then calls `purge`; tables
        that are not purged within an hour are claimed again.
        """
        now_us = self._now_us() if now is None else int(now * 1e6)
        unclaimed = sa.or_(_t.c.claimed_us.is_(None), _t.c.claimed_us <= now_us - _CLAIM_US)
        query = sa.update(_t).where(_t.c.purge_us <= now_us, unclaimed).values(claimed_us=now_us).returning(*_COLUMNS)
        with self._database.transaction() as connection:
            return list(map(_row, connection.execute(query).all()))

    def purge(self, id: str) -> None:
        """Remove a claimed table for ever; nothing happens if it is not claimed, or gone."""
        with self._database.transaction() as connection:
            query = sa.delete(_t).where(_t.c.id == id, _t.c.claimed_us.is_not(None)).returning(*_COLUMNS)
            row = connection.execute(query).first()
        if row is not None:
            self._unclaim(_row(row))

    def audit(self, event: AuditEvent, *, now: bool = False) -> None:
        """Log an event: `now` for changes, else within about a second."""
        self._audit.add(self._key, event, now=now)

    def audit_events(self, before: int | None = None, limit: int = 100) -> list[AuditEvent]:
        """The newest events first; `before` is the id of the last event of the page before."""
        return self._audit.events(self._key, before, limit)

    @property
    def _database(self) -> Database:
        return self._workspaces.open(self._key)

    def _unclaim(self, row: TableRow) -> None:
        if not row.owned:
            query = sa.select(_t.c.id).where(_t.c.location == row.location)
            self._workspaces.unclaim(self._key, row.location, lambda: bool(self._database.read(query)))

    def _update_live(
        self, table: str, values: Mapping[str, Any], *, taken: str, location: str | None = None
    ) -> TableRow:
        _check(self.name, table)
        meant = sa.true() if location is None else _t.c.location == location
        query = sa.update(_t).where(_t.c.name == table, meant, _live).values(values).returning(*_COLUMNS)
        with self._database.transaction() as connection:
            row = self._execute_unique(connection, query, taken=taken)
        if row is None:
            self.find(table)  # raises `NotFoundError`
            raise ConflictError(f"{TableAddress(self.name, table)} is another table by now; look at it")
        return row

    def _execute_unique(self, connection: sa.Connection, query: sa.Executable, *, taken: str) -> TableRow | None:
        try:
            row = connection.execute(query).first()
        except sa.exc.IntegrityError:
            raise AlreadyExistsError(self._taken(taken)) from None
        return None if row is None else _row(row)

    def _taken(self, table: str) -> str:
        return f"table {TableAddress(self.name, table)} exists already; rename or drop it first, or choose another name"

    def _not_found(self, table: str) -> str:
        return f"there is no table {TableAddress(self.name, table)}; list the tables, or declare it"


def _check(workspace: str, table: str) -> None:
    TableAddress(workspace, table)


def _row(row: Any) -> TableRow:
    id, name, location, owned, created_us, dropped_us, purge_us, created_by, text = row
    properties = {} if text == "{}" else json.loads(text)
    return TableRow(id, name, location, bool(owned), created_us, dropped_us, purge_us, created_by, properties)
