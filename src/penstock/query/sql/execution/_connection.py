"""Sandboxed connections to DuckDB, and the limits of a question."""

import atexit
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import InvalidInputError
from penstock.query.scan import ScanTrace

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_MAX_DATABASES = 4
_GRACE_S = 0.5
"""How long an interrupted statement is waited for; a batch in flight ends by itself."""
_POLL_S = 0.05
_T = TypeVar("_T")


@dataclass(frozen=True)
class QueryLimits:
    """What one question may use."""

    time_s: float | None = 600.0
    """Seconds until a question is ended; None for no limit."""
    memory_bytes: int = 4 << 30
    """Memory of the engine, and of the result."""
    read_ahead_bytes: int = 256 << 20
    """Bytes of pages that are read ahead or in use, for each relation."""
    threads: int | None = None
    """Threads of the engine; None for one per processor."""

    def __post_init__(self) -> None:
        if self.memory_bytes < 1 << 24 or self.read_ahead_bytes < 1 << 16:
            raise InvalidInputError("a question needs 16 MiB of memory and 64 KiB of read-ahead at least")
        if (self.time_s is not None and self.time_s <= 0) or (self.threads is not None and self.threads < 1):
            raise InvalidInputError("time_s and threads must be positive")


def import_duckdb() -> ModuleType:
    """The module `duckdb`; raises `InvalidInputError` if it is not installed."""
    try:
        import duckdb
    except ImportError:
        raise InvalidInputError("SQL needs DuckDB: pip install 'penstock[query]'") from None
    return duckdb


class _Databases:
    """Empty databases, one for each setting: to open one takes tens of milliseconds, a connection to it none.

    No statement can change a database: only one SELECT is run on a connection, relations are registered with the
    connection, and the configuration is locked.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self._lost: list[object] = []

    def connect(self, limits: QueryLimits) -> "DuckDBPyConnection":
        """A new connection."""
        key = limits.memory_bytes, limits.threads
        with self._lock:
            if key not in self._open:
                self._open[key] = _open_database(limits)
                if len(self._open) > _MAX_DATABASES:
                    self._open.popitem(last=False)
            self._open.move_to_end(key)
            return self._open[key].cursor()  # type: ignore[no-any-return]

    def discard(self, limits: QueryLimits) -> None:
        """Forget a database, after an error that may have damaged it."""
        with self._lock:
            self._open.pop((limits.memory_bytes, limits.threads), None)

    def close(self) -> None:
        """Close all, at the end of the program: the engine reports what is left open."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    def forget(self) -> None:
        """In a forked child: the threads of the databases do not exist there, and to close one would wait for them."""
        self._lost.append(self._open)
        self._lock, self._open = threading.Lock(), OrderedDict()


_databases = _Databases()
atexit.register(_databases.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_databases.forget)


def _open_database(limits: QueryLimits) -> "DuckDBPyConnection":
    config: dict[str, Any] = {
        "memory_limit": f"{limits.memory_bytes // 1024}KiB",
        "enable_external_access": False,
        "python_enable_replacements": False,
        "autoload_known_extensions": False,
        "autoinstall_known_extensions": False,
        "allow_community_extensions": False,
        "temp_directory": "",
        "max_temp_directory_size": "0B",
    }
    if limits.threads is not None:
        config["threads"] = limits.threads
    connection = import_duckdb().connect(config=config)
    connection.execute("SET lock_configuration=true")
    return connection  # type: ignore[no-any-return]


@contextmanager
def connected(limits: QueryLimits) -> Iterator["DuckDBPyConnection"]:
    """A fresh connection, closed at the end."""
    duckdb = import_duckdb()
    connection = _databases.connect(limits)
    try:
        yield connection
    except (duckdb.InternalException, duckdb.FatalException):
        _databases.discard(limits)
        raise
    finally:
        connection.close()


class Work:
    """What a question runs in a thread of its own, so that the thread that waits can end it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stops: list[Callable[[], None]] = []
        self._stopped = False

    @contextmanager
    def stopped_by(self, stop: Callable[[], None]) -> Iterator[None]:
        """Inside of the block, `stop` is called once to end the work."""
        with self._lock:
            self._check()
            self._stops.append(stop)
        try:
            yield
        finally:
            with self._lock:
                self._stops.remove(stop)

    @contextmanager
    def connected(self, limits: QueryLimits) -> Iterator["DuckDBPyConnection"]:
        """A fresh connection, closed by the thread that uses it: to close one that still runs would wait for it."""
        with connected(limits) as connection, self.stopped_by(connection.interrupt):
            yield connection

    def stop(self) -> None:
        """End the work at its next step."""
        with self._lock:
            self._stopped = True
            for stop in self._stops:
                stop()

    def check(self) -> None:
        """Raise if the work was stopped."""
        with self._lock:
            self._check()

    def _check(self) -> None:
        if self._stopped:
            raise InvalidInputError("the question was ended")


@dataclass(frozen=True)
class RunOptions:
    """How a question is answered, beside what it asks."""

    limits: QueryLimits
    trace: ScanTrace
    cancel: threading.Event | None
    started_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float | None:
        """Seconds until the time limit; None without one."""
        return None if self.limits.time_s is None else self.started_s + self.limits.time_s - time.monotonic()


def run_interruptibly(work: Callable[[Work], _T], options: RunOptions) -> _T:
    """Return `work(…)`, which runs in another thread, and perhaps runs statements of a connection.

    Ctrl-C, `cancel` and the time limit stop the work and end the wait at once; raises `InvalidInputError` for the last
    two.
    """
    done, own = threading.Event(), Work()
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((work(own), None))
        except BaseException as error:
            outcome.append((None, error))
        finally:
            done.set()

    threading.Thread(target=run, name="penstock-query", daemon=True).start()
    try:
        _wait(done, options)
    except BaseException:
        own.stop()
        done.wait(_GRACE_S)
        raise
    result, error = outcome[0]
    if error is not None:
        try:
            raise error
        finally:
            outcome.clear()
    return result  # type: ignore[no-any-return]


def _wait(done: threading.Event, options: RunOptions) -> None:
    while True:
        left = options.left_s
        if left is not None and left <= 0:
            raise InvalidInputError(
                f"the question took longer than its limit of {options.limits.time_s:g} s; ask for less, or raise it"
            )
        steps = [step for step in (left, None if options.cancel is None else _POLL_S) if step is not None]
        if done.wait(min(steps, default=None)):
            return
        if options.cancel is not None and options.cancel.is_set():
            raise InvalidInputError("the question was cancelled")
