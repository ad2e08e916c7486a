"""What worker processes of a loader send: why they cannot start, and their statistics."""

import time

from penstock.engine._stats import Counters, StatsCollector
from penstock.engine.workers._messages import Failed
from penstock.engine.workers._source import LoaderSource
from penstock.runners import portable

_STATS_PER_S = 30
"""Of all workers together: statistics are the largest message, and take the loop longest to receive."""


def start_failure(error: BaseException) -> Failed:
    """The message of a process that cannot start."""
    return Failed(None, portable(error), 0, None)


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
