"""Run statements whose values the engine does not bound in a process of their own, which can be ended.

The process computes and reads nothing: it asks for batches of scans and for results of functions, one request at a
time, and each has one answer. So a table in memory, its credentials and the functions of a program stay where they are.
"""

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa

from penstock.errors import InvalidInputError
from penstock.query.sql.execution._connection import QueryLimits, Work, import_duckdb
from penstock.query.sql.execution._statement import Statement
from penstock.runners import ConnectedProcess

_MAX_IDLE = 2


class _Process(ConnectedProcess):
    """A process that runs one statement after another."""

    def __init__(self) -> None:
        super().__init__("penstock.query.sql.execution._process_main")

    def run(self, statement: Statement, limits: QueryLimits) -> Iterator[pa.RecordBatch]:
        """The result in batches; raises the error of a scan or a function, and `InvalidInputError`."""
        scans = {name: (scan.schema, scan.count_rows()) for name, scan in statement.scans.items()}
        returns = {name: kind for name, (_, kind) in statement.functions.items()}
        streams: list[Iterator[pa.RecordBatch]] = []
        request = self._exchange((statement.text, dict(statement.params), scans, returns, limits))
        try:
            while request[0] not in ("done", "failed"):
                verb, *given = request
                answer: object = None
                if verb == "batch":
                    yield given[0]
                elif verb == "scan":
                    name, columns, condition = given
                    streams.append(statement.scans[name].to_batches(columns, condition))
                    answer = len(streams) - 1
                elif verb == "next":
                    answer = next(streams[given[0]], None)
                else:
                    name, arguments = given
                    answer = statement.functions[name][0](arguments)
                request = self._exchange(answer)
        finally:
            for stream in streams:
                stream.close()  # type: ignore[attr-defined]
        if request[0] == "failed":
            raise _engine_error(request[1], request[2], limits)

    def _exchange(self, answer: object) -> tuple[Any, ...]:
        """Send an answer, and return the next request; raises `InvalidInputError` if the process is gone."""
        try:
            self.connection.send(answer)
            return self.connection.recv()  # type: ignore[no-any-return]
        except (EOFError, OSError):
            code = self.wait()
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise InvalidInputError(f"the process of the question ended ({how}), as when memory is short") from None

    def close(self) -> None:
        """End the process and release it."""
        self.end()
        self.connection.close()


def _engine_error(kind: str, text: str, limits: QueryLimits) -> Exception:
    """An error of the engine in the other process."""
    duckdb = import_duckdb()
    if "memory" in kind.lower() or "bad_alloc" in text or "bad allocation" in text.lower():
        return InvalidInputError(
            f"a value that the question builds needs more memory than memory_limit ({limits.memory_bytes:,} bytes);"
            " build smaller values, select fewer columns or rows, or raise the limit"
        )
    found: Exception = getattr(duckdb, kind, duckdb.Error)(text)
    return found


class _Pool:
    """Processes that wait for their next statement: to start one takes a second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._closed = False

    def take(self) -> _Process:
        """A process that runs nothing."""
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.poll() is None:
                    return process
                process.close()
        return _Process()

    def give(self, process: _Process) -> None:
        """Keep a process whose statement ended."""
        with self._lock:
            if len(self._idle) < _MAX_IDLE:
                self._idle.append(process)
                return
        process.close()

    def replace(self, process: _Process) -> None:
        """End a process, and start one for the next statement if none waits."""
        process.close()
        with self._lock:
            if not self._idle and not self._closed:
                self._idle.append(_Process())

    def close(self) -> None:
        """End all, at the end of the program."""
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().close()

    def forget(self) -> None:
        """In a forked child: the processes are its parent's."""
        for process in self._idle:
            process.connection.close()
        self._lock, self._idle = threading.Lock(), []


_pool = _Pool()
atexit.register(_pool.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget)


def run_apart(statement: Statement, limits: QueryLimits, work: Work, take: Callable[[pa.RecordBatch], None]) -> None:
    """Run a statement in a process of its own, and pass on the batches of its result."""
    process = _pool.take()
    try:
        with work.stopped_by(process.end):
            for batch in process.run(statement, limits):
                take(batch)
    except BaseException:
        with suppress(OSError):
            _pool.replace(process)
        raise
    _pool.give(process)
