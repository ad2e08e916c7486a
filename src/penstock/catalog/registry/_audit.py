"""The audit log: events of changes are written at once, those of reads in batches by a thread."""

import logging
import threading
from collections import deque
from dataclasses import astuple

import sqlalchemy as sa

from penstock.catalog.registry._database import Database
from penstock.catalog.registry._records import AuditEvent
from penstock.catalog.registry._schema import control_audit, workspace_audit
from penstock.catalog.registry._workspaces import Workspaces
from penstock.errors import InvalidInputError, NotFoundError, StorageError

_MAX_BUFFERED = 20_000
_BATCH = 500
_MAX_PAGE = 1000
_logger = logging.getLogger("penstock.registry")


class AuditLog:
    """The logs of all workspaces and, under None, of the server.

    Memory is bounded: while the database is lost, events beyond the buffer are dropped and counted.
    """

    def __init__(self, control: Database, workspaces: Workspaces) -> None:
        self._control = control
        self._workspaces = workspaces
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._buffer: deque[tuple[str | None, AuditEvent]] = deque()
        self.dropped = 0

    def add(self, workspace: str | None, event: AuditEvent, *, now: bool) -> None:
        """Log an event; one that cannot be written now is written later, as the request it belongs to has happened."""
        if now:
            try:
                self._insert(workspace, [event])
                return
            except StorageError as error:
                _logger.warning("an audit event is delayed: %s", error)
        with self._lock:
            if len(self._buffer) >= _MAX_BUFFERED:
                self.dropped += 1
            else:
                self._buffer.append((workspace, event))

    def events(self, workspace: str | None, before: int | None, limit: int) -> list[AuditEvent]:
        """The newest events, or the newest before the event of that id."""
        if not 1 <= limit <= _MAX_PAGE:
            raise InvalidInputError(f"a page has 1 to {_MAX_PAGE} events, not {limit}")
        database, table = self._target(workspace)
        columns = [table.c[name] for name in AuditEvent.__dataclass_fields__]
        query = sa.select(*columns).order_by(table.c.id.desc()).limit(limit)
        rows = database.read(query if before is None else query.where(table.c.id < before))
        return [AuditEvent(*row) for row in rows]

    def flush(self) -> None:
        """Write what is buffered; what cannot be written stays buffered, and the error is raised."""
        with self._flushing:
            while True:
                with self._lock:
                    batch = [self._buffer[i] for i in range(min(_BATCH, len(self._buffer)))]
                if not batch:
                    return
                by_workspace: dict[str | None, list[AuditEvent]] = {}
                for workspace, event in batch:
                    by_workspace.setdefault(workspace, []).append(event)
                for workspace, events in by_workspace.items():
                    self._insert(workspace, events)
                with self._lock:
                    for _ in batch:
                        self._buffer.popleft()

    def _insert(self, workspace: str | None, events: list[AuditEvent]) -> None:
        try:
            database, table = self._target(workspace)
            names = [name for name in AuditEvent.__dataclass_fields__ if name != "id"]
            values = [dict(zip(names, astuple(event), strict=False)) for event in events]
            with database.transaction() as connection:
                connection.execute(sa.insert(table).values(values))
        except NotFoundError:  # the log of a workspace ends with it
            pass

    def _target(self, workspace: str | None) -> tuple[Database, sa.Table]:
        if workspace is None:
            return self._control, control_audit
        return self._workspaces.database(workspace), workspace_audit
