"""What a loader and its worker processes tell each other.

A message is a tuple, because the loop's process unpickles several for each batch. The loop sends a builder no more than
a few messages that are not answered, and the main thread of a reader does nothing but receive: so the loop never waits
for a process that waits for it.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

from penstock.engine._stats import BadSample, Counters, StatsCollector
from penstock.engine.workers._source import LoaderSource
from penstock.runners import RemoteError, Shipment, portable

_STATS_PER_S = 30
"""Of all workers together: statistics are the largest message, and take the loop longest to receive."""

RowRange = tuple[int, int]


class Run(NamedTuple):
    """To a reader: start to read at a position of an epoch, into shared memory whose descriptor accompanies this.

    Ends any earlier run.
    """

    window: int
    """The number of the shared memory, which all messages about what is read into it have."""
    epoch: int
    consumed: int
    number: int
    """Of the first span from there on."""
    first: int
    """The first span to publish: this process may replace one that published those before."""
    limit: int
    """Spans below this number can be built next."""
    reader: int
    """Its number among those of the loader, each of which has a share of the rows."""


class Release(NamedTuple):
    """To a reader: some spans are built, so that their rows can be freed; those below `limit` can be built next."""

    window: int
    numbers: Sequence[int]
    limit: int


class ReadTo(NamedTuple):
    """To a reader: read, at most up to the end of the epoch after this one; if it is None, start no more requests."""

    window: int
    epoch: int | None


class Stop(NamedTuple):
    """To a reader: end a run."""

    window: int


class Published(NamedTuple):
    """From a reader: its rows of a span are in the window, or cannot be because of an error."""

    window: int
    number: int
    place: tuple[int, int]
    """Start and size of its task in shared memory."""
    blocks_drawn: int
    padding: int
    error: RemoteError | None
    stats: Counters | None
    """None shortly after the last ones."""


class Build(NamedTuple):
    """To a builder: make the batches of a span, or write some of its rows.

    The descriptors of the window and of the slot accompany it if the builder has not mapped them.
    """

    window: int
    number: int
    places: Sequence[tuple[int, int]]
    """Start and size there of the task of each reader."""
    slot: int
    rows: RowRange | None
    """The rows to write to the slot; None to make all batches."""
    dropped: Sequence[int]
    """Slots that are not used any more."""


class Built(NamedTuple):
    """From a builder: what was built of a span."""

    window: int
    number: int
    rows: RowRange | None
    batches: Shipment | RemoteError | None
    """The batches, or the error if the first one failed; None if all is in the slot."""
    bad: dict[int, BadSample]
    """By index in the span."""
    failure: tuple[int, RemoteError] | None
    """The first row that could not be used, and why."""
    stats: Counters | None
    """None shortly after the last ones."""


class Failed(NamedTuple):
    """The process cannot start, or, of the reader, the run has failed."""

    window: int | None
    """None if the process could not start."""
    error: RemoteError
    number: int
    """The first span that will not be published or built."""
    stats: Counters | None


class StatsUpdate(NamedTuple):
    """Statistics of a process that has sent nothing else for a moment."""

    stats: Counters


KINDS = (Run, Release, ReadTo, Stop, Published, Build, Built, Failed, StatsUpdate)
"""A message has the place of its class here."""


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
