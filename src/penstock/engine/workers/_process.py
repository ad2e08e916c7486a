"""How a worker process of a loader starts, and its statistics.

The contract; if the code disagrees with this list, the code is wrong:

- A process is started by exec, and imports what the pickled functions need, and nothing else of the user's program.
"""

import os
import pickle
import sys
import time
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from penstock.engine._stats import Counters, StatsCollector
from penstock.engine.workers._messages import KINDS, Failed
from penstock.engine.workers._source import LoaderSource
from penstock.runners import Channel, Role, ignore_interrupts, portable, serve

_STATS_PER_S = 30
"""Of all workers together: statistics are the largest message, and take the loop longest to receive."""


def run_process(channel_fd: int, spec_fd: int, role: Callable[[Channel, Any], Role], *, threads: bool = True) -> None:
    """Serve the loader at the other end of a channel, in a process that was started by exec."""
    ignore_interrupts()

    def new_role(channel: Channel) -> Role:
        spec = pickle.loads(os.pread(spec_fd, os.fstat(spec_fd).st_size, 0))
        os.close(spec_fd)
        _skip_pandas()
        return role(channel, spec)

    serve_loader(channel_fd, new_role, threads=threads)


def serve_loader(channel_fd: int, new_role: Callable[[Channel], Role], *, threads: bool = True) -> NoReturn:
    """Handle messages until the channel is closed; without `threads`, the process must stay without any."""
    serve(channel_fd, new_role, _failed, kinds=KINDS, threads=threads)


def _failed(error: BaseException) -> Failed:
    return Failed(None, portable(error), 0, StatsCollector().of_process(0))


class ProcessStats:
    """The statistics of a process, for its messages."""

    def __init__(self, source: LoaderSource) -> None:
        self.collector, self._source = StatsCollector(), source
        self._sent_s = 0.0

    def new(self) -> Counters | None:
        """The statistics, unless they were sent a moment ago."""
        return self.all() if self.age_s > self._source.options.workers.count / _STATS_PER_S else None

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
