"""The audit log: events of changes are written at once, those of reads in batches by a thread."""

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import fields

import sqlalchemy as sa

from penstock.catalog.registry._database import Database
from penstock.catalog.registry._records import AuditEvent
from penstock.catalog.registry._schema import control_audit, workspace_audit
from penstock.catalog.registry._workspaces import WorkspaceKey, Workspaces
from penstock.errors import InvalidInputError, NotFoundError, StorageError, escape_controls

_FLUSH_S = 1.0
_MAX_BUFFERED = 20_000
_BATCH = 500
_MAX_PAGE = 1000
_MAX_TEXT = 1000
_FIELDS = [each.name for each in fields(AuditEvent)]
# One statement with one parameter: a quarter of the processor time of one statement per event.
_INSERT_JSON = sa.text(
    "INSERT INTO audit (time_us, request_id, member, key_id, operation, target, outcome, detail) "
    "SELECT time_us, request_id, member, key_id, operation, target, outcome, detail "
    "FROM json_to_recordset(CAST(:rows AS json)) AS rows (time_us bigint, request_id text, member text, key_id text, "
    "operation text, target text, outcome integer, detail text)"
)
_logger = logging.getLogger("penstock.registry")


class AuditLog:
    """The logs of all workspaces and, under None, of the server; thread-safe.

    Memory is bounded: while the database is lost, events beyond the buffer are dropped and counted.
    """

    def __init__(self, control: Database, workspaces: Workspaces, on_dropped: Callable[[], None]) -> None:
        self._control = control
        self._workspaces = workspaces
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._buffers: dict[WorkspaceKey | None, list[AuditEvent]] = {}
        self._buffered = 0
        self._on_dropped = on_dropped

    def add(self, workspace: WorkspaceKey | None, event: AuditEvent, *, now: bool) -> None:
        """Log an event; one that cannot be written now is written later, since its request has happened."""
        if now:
            try:
                self._insert(workspace, [event])
                return
            except StorageError as error:
                _logger.warning("an audit event is delayed: %s", error)
        with self._lock:
            if self._buffered >= _MAX_BUFFERED:
                self._on_dropped()
                return
            self._buffers.setdefault(workspace, []).append(event)
            self._buffered += 1

    def events(self, workspace: WorkspaceKey | None, before: int | None, limit: int) -> list[AuditEvent]:
        """The newest events, or the newest before the event of that id."""
        if not 1 <= limit <= _MAX_PAGE:
            raise InvalidInputError(f"a page has 1 to {_MAX_PAGE} events, not {limit}")
        database, table = self._target(workspace)
        query = sa.select(*(table.c[name] for name in _FIELDS)).order_by(table.c.id.desc()).limit(limit)
        rows = database.read(query if before is None else query.where(table.c.id < before))
        return [AuditEvent(*row) for row in rows]

    def flush(self) -> None:
        """Write what is buffered; what cannot be written stays, and the last error is raised at the end."""
        failure: StorageError | None = None
        with self._flushing:  # batches are written once, in order
            for workspace in list(self._buffers):
                try:
                    self._flush_one(workspace)
                except StorageError as error:
                    failure = error
        if failure is not None:
            raise failure

    def _flush_one(self, workspace: WorkspaceKey | None) -> None:
        while True:
            with self._lock:
                batch = self._buffers[workspace][:_BATCH]
                if not batch:
                    del self._buffers[workspace]
                    return
            self._insert(workspace, batch)
            with self._lock:
                del self._buffers[workspace][: len(batch)]
                self._buffered -= len(batch)

    def _insert(self, workspace: WorkspaceKey | None, events: list[AuditEvent]) -> None:
        database, table = self._target(workspace)
        try:
            values = [_values(event) for event in events]
            with database.transaction() as connection:
                if database.is_postgresql:
                    connection.execute(_INSERT_JSON, {"rows": json.dumps(values)})
                else:
                    connection.execute(sa.insert(table), values)
        except NotFoundError:  # the log of a workspace ends with it
            _logger.info("audit events of a dropped workspace are gone with it: %d", len(events))

    def _target(self, workspace: WorkspaceKey | None) -> tuple[Database, sa.Table]:
        if workspace is None:
            return self._control, control_audit
        return self._workspaces.open(workspace), workspace_audit


class Flusher:
    """A thread that writes what is buffered every second, and once more when it is closed."""

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush = flush
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-registry", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stop.wait(_FLUSH_S)
            try:
                self._flush()
            except Exception as error:  # the thread goes on: the next attempt may succeed
                _logger.warning("audit events and last uses of keys are delayed: %s", error)


def _values(event: AuditEvent) -> dict[str, str | int]:
    """The columns of an event; its texts may come from anybody, in any length."""
    found = {name: getattr(event, name) for name in _FIELDS if name != "id"}
    return {
        name: escape_controls(value[:_MAX_TEXT]) if isinstance(value, str) else value for name, value in found.items()
    }
