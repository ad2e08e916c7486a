"""The process that runs statements for another one: it asks that one for batches of scans and results of functions."""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.query.scan import TableScan
from penstock.query.sql.execution._connection import QueryLimits, connected
from penstock.query.sql.execution._statement import Apply, Statement

_HEADROOM_BYTES = 128 << 20
"""Memory beside the engine's: batches on their way, stacks of threads."""
_PARENT_CHECK_S = 30.0


class _Requests:
    """Requests to the other process, one at a time; the engine's threads make them."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def __call__(self, *request: Any) -> Any:
        with self._lock:
            self._connection.send(request)
            return self._connection.recv()


class _RemoteScan(TableScan):
    """A scan that the other process runs."""

    def __init__(self, name: str, schema: pa.Schema, rows: int, ask: _Requests) -> None:
        self._name, self._schema, self._rows, self._ask = name, schema, rows, ask

    def to_batches(
        self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any
    ) -> Iterator[pa.RecordBatch]:
        """The rows that match, in batches."""
        stream = self._ask("scan", self._name, self._names(columns), filter)
        while (batch := self._ask("next", stream)) is not None:
            yield batch

    def count_rows(self, filter: pc.Expression | None = None, **_: Any) -> int:  # noqa: ARG002
        """The number of all rows."""
        return self._rows


def _remote(name: str, ask: _Requests) -> Apply:
    return lambda arguments: ask("call", name, list(arguments))


def _run(job: tuple[Any, ...], ask: _Requests) -> None:
    text, params, scans, returns, limits = job
    statement = Statement(
        text,
        params,
        {name: _RemoteScan(name, schema, rows, ask) for name, (schema, rows) in scans.items()},
        {name: (_remote(name, ask), kind) for name, kind in returns.items()},
    )
    with connected(limits) as connection, _limited_memory(limits):
        for batch in statement.batches(connection):
            ask("batch", batch)


@contextmanager
def _limited_memory(limits: QueryLimits) -> Iterator[None]:
    """Let allocations beyond the limit fail; only Linux says what a process has already, and enforces it."""
    status = Path("/proc/self/status")
    if not status.exists():
        yield
        return
    import resource

    lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    used = int(lines["VmData"].split()[0]) << 10
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (used + limits.memory_bytes + _HEADROOM_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def main(descriptor: int) -> None:
    """Run statements until the other process closes the connection, or ends; it ends this one at Ctrl-C."""
    connection, parent = Connection(descriptor), os.getppid()
    while True:
        while not connection.poll(_PARENT_CHECK_S):
            if os.getppid() != parent:  # a forked child of it may hold its end of the connection
                return
        try:
            job = connection.recv()
        except EOFError:
            return
        try:
            _run(job, _Requests(connection))
        except (EOFError, BrokenPipeError):
            return
        except BaseException as error:
            connection.send(("failed", type(error).__name__, str(error)))
            return
        connection.send(("done",))
