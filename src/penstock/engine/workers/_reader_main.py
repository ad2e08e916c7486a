"""A process that plans, reads and verifies: it fills the window in shared memory, and publishes spans.

The contract; if the code disagrees with this list, the code is wrong:

- A span is published when all its blocks are verified and in the window, with the task that a builder needs. Of
  several readers each publishes every span, with the rows of its lanes, which may be none.
- A reader writes only to its own rows of the window.
- What a published span needs stays as it is until the span is released.
- The main thread only receives, so that the loop never waits for it; one thread publishes, others read and plan.
- A message of an earlier run is dropped.
"""

import sys
import time
from queue import SimpleQueue

from penstock.device import Arena, SharedRegions
from penstock.engine.planning import Span
from penstock.engine.window import WindowBlock
from penstock.engine.workers._messages import (
    KINDS,
    Failed,
    ProcessStats,
    Published,
    ReadTo,
    Release,
    Run,
    StatsUpdate,
    Stop,
    start_failure,
)
from penstock.engine.workers._reading import SpanReader
from penstock.engine.workers._source import LoaderSource
from penstock.runners import Channel, load_spec, portable, serve, start_thread, write_pickled

_STATS_S = 0.5
_SWITCH_S = 1e-4
"""A thread that has read gets the GIL this soon from one that plans: it needs it again after each system call."""


def main(channel_fd: int, spec_fd: int) -> None:
    """Serve the loader at the other end of a channel."""
    sys.setswitchinterval(_SWITCH_S)
    channel = Channel(channel_fd, KINDS)
    serve(channel, lambda: _Reader(channel, load_spec(spec_fd)).serve, start_failure)


class _Reader:
    def __init__(self, channel: Channel, source: LoaderSource) -> None:
        self.channel, self.source, self.stats = channel, source, ProcessStats(source)
        self.selections, self.page_caches = source.selections(), source.page_caches()
        self._run: _PublishingRun | None = None
        start_thread("penstock-stats", self._send_stats)

    def serve(self) -> None:
        """Receive messages until the channel is closed."""
        while True:
            message, descriptors = self.channel.receive()
            if isinstance(message, Run):
                if self._run is not None:
                    self._run.stop()
                self._run = _PublishingRun(self, message, SharedRegions(descriptors[0], writable=True))
                self._run.start(message.epoch, message.consumed, message.number, message.first)
            elif self._run is None or message.window != self._run.number:
                continue
            elif isinstance(message, Release):
                self._run.release(message)
            elif isinstance(message, ReadTo):
                self._run.read_to(message.epoch)
            elif isinstance(message, Stop):
                self._run.stop()
                self._run = None

    def _send_stats(self) -> None:
        while True:
            time.sleep(_STATS_S)
            if self.stats.age_s >= _STATS_S:
                self.channel.send(StatsUpdate(self.stats.all()))


class _PublishingRun(SpanReader):
    """Publishes the spans of one run."""

    def __init__(self, process: _Reader, run: Run, regions: SharedRegions) -> None:
        source, collector = process.source, process.stats.collector
        self._stats, self._channel = process.stats, process.channel
        self._arena = Arena(regions, run.reader)
        window = source.window(
            process.selections, collector, process.page_caches,
            regions=regions, arena=self._arena, reader=run.reader,
        )  # fmt: skip
        super().__init__(source, process.selections, window, collector, reader=run.reader)
        self.number, self._limit = run.window, run.limit
        self._published: dict[int, tuple[Span, tuple[int, int]]] = {}
        self._to_publish: SimpleQueue[Span | None] = SimpleQueue()
        start_thread("penstock-publish", self._publish_spans)

    def stop(self, *, wait: bool = False) -> None:
        super().stop(wait=wait)
        self._to_publish.put(None)

    def release(self, message: Release) -> None:
        """Free what some spans needed."""
        with self._lock:
            self._limit = max(self._limit, message.limit)
            for number in message.numbers:
                span, place = self._published.pop(number)
                if place[1]:
                    self._arena.free(*place)
                self._release(span, by_thread=False)
            if self._can_plan():
                self._turns.wake()

    def _on_ready(self, span: Span) -> None:
        self._to_publish.put(span)

    def _on_failure(self, error: BaseException, number: int) -> None:
        self._channel.send(Failed(self.number, portable(error), number, self._stats.all()))

    def _publish_spans(self) -> None:
        while (span := self._to_publish.get()) is not None:
            place, error = (0, 0), None
            try:
                place = write_pickled(self._task(span, _describe), self._arena)
            except BaseException as raised:
                error = portable(raised)
            with self._lock:
                self._published[span.number] = span, place
            drawn, padding, stats = span.blocks_drawn, span.padding, self._stats.new()
            self._channel.send(Published(self.number, span.number, place, drawn, padding, error, stats))


def _describe(block: WindowBlock) -> tuple[int, int, int, int]:
    """A block for another process: its number, start and size of its columns in shared memory, and its rows."""
    start, size = block.place or (0, 0)
    return block.number, start, size, block.plan.rows
