"""What all worker processes do alike: start, say what is wrong, and end with the process of the loop.

The contract; if the code disagrees with this list, the code is wrong:

- A process is started by exec, and imports what the pickled functions need, and nothing else of the user's program.
- It exits at once when its channel is closed: also when the parent dies. It ignores Ctrl-C from the start.
- Whatever ends a thread of it ends the process, and so the loop sees it.
"""

import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from threading import Thread
from typing import Any, NoReturn, Protocol

import numpy as np
import pyarrow as pa

from penstock.engine._stats import Counters, StatsCollector
from penstock.engine.workers._messages import Channel, Failed
from penstock.engine.workers._source import LoaderSource
from penstock.engine.workers._transport import portable

_MIN_STATS_S = 0.1


class Role(Protocol):
    """What a process does."""

    def serve(self) -> None:
        """Handle messages until the channel is closed."""


def run_process(channel_fd: int, spec_fd: int, role: Callable[[Channel, Any], Role], *, threads: bool = True) -> None:
    """Serve the loader at the other end of a channel, in a process that was started by exec."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def new_role(channel: Channel) -> Role:
        spec = pickle.loads(os.pread(spec_fd, os.fstat(spec_fd).st_size, 0))
        os.close(spec_fd)
        _skip_pandas()
        return role(channel, spec)

    serve(channel_fd, new_role, threads=threads)


def serve(channel_fd: int, new_role: Callable[[Channel], Role], *, threads: bool = True) -> NoReturn:
    """Handle messages until the channel is closed; without `threads`, the process must stay without any."""
    channel = Channel(socket.socket(fileno=channel_fd))
    if threads:
        start_thread("penstock-parent", _exit_with_parent, channel.fileno())
    run_thread(_serve, channel, new_role)
    os._exit(0)  # threads may be inside a request


def _serve(channel: Channel, new_role: Callable[[Channel], Role]) -> None:
    try:
        process = new_role(channel)
    except BaseException as error:
        channel.send(Failed(None, portable(error), 0, StatsCollector().of_process(0)))
        while True:  # until the other end is closed
            for descriptor in channel.receive()[1]:
                os.close(descriptor)
    process.serve()


def _exit_with_parent(fd: int) -> None:
    """Exit when the other end of a socket is closed, whatever the main thread does."""
    closed = select.poll()
    closed.register(fd, 0)  # errors and the end are always reported
    closed.poll()
    os._exit(0)


def run_thread(function: Callable[..., None], *args: Any) -> None:
    """What a thread does; its error is the end of the process."""
    try:
        function(*args)
    except (EOFError, ConnectionError):
        pass  # the channel is closed
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def start_thread(name: str, function: Callable[..., None], *args: Any) -> None:
    """Start a thread; its error is the end of the process."""
    Thread(target=run_thread, args=(function, *args), name=name, daemon=True).start()


class ProcessStats:
    """The statistics of a process, for its messages."""

    def __init__(self, source: LoaderSource) -> None:
        self.collector, self._source = StatsCollector(), source
        self._sent_s = 0.0

    def new(self) -> Counters | None:
        """The statistics, unless they were sent a moment ago."""
        return self.all() if self.age_s > _MIN_STATS_S else None

    @property
    def age_s(self) -> float:
        """Seconds since statistics were sent."""
        return time.monotonic() - self._sent_s

    def all(self) -> Counters:
        self._sent_s = time.monotonic()
        return self.collector.of_process(sum(table.reader.store.retries for table in self._source.tables))


class _NoPandas(MetaPathFinder):
    """Lets pyarrow not find pandas, which it imports for its first array, in a second and 40 MB; conversions retry."""

    def find_spec(self, name: str, *_: object) -> None:
        """Refuse pandas."""
        if name == "pandas":
            raise ModuleNotFoundError(name)


def _skip_pandas() -> None:
    if "pandas" not in sys.modules:
        finder = _NoPandas()
        sys.meta_path.insert(0, finder)
        np.asarray(pa.array([0]))
        sys.meta_path.remove(finder)
