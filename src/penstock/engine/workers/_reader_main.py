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
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from penstock.device import Arena, SharedRegions
from penstock.engine.planning import Span
from penstock.engine.window import WindowBlock
from penstock.engine.workers._messages import Failed, Published, ReadTo, Release, Run, StatsUpdate, Stop
from penstock.engine.workers._process import ProcessStats, run_process
from penstock.engine.workers._reading import SpanReader
from penstock.engine.workers._source import LoaderSource
from penstock.runners import Channel, portable, start_thread, write_pickled

_STATS_S = 0.5
_SWITCH_S = 1e-4
"""A thread that has read gets the GIL this soon from one that plans: it needs it again after each system call."""


@dataclass(frozen=True, slots=True)
class ReaderSpec:
    """Everything that the process has to know."""

    source: LoaderSource
    keys: bool
    """Whether tasks have keys of random numbers."""
    positions: bool
    """Whether tasks have the positions of rows."""


def main(channel_fd: int, spec_fd: int) -> None:
    """Serve the loader at the other end of a channel."""
    sys.setswitchinterval(_SWITCH_S)
    run_process(channel_fd, spec_fd, _Reader)


class _Reader:
    def __init__(self, channel: Channel, spec: ReaderSpec) -> None:
        self.channel, self.spec, self.stats = channel, spec, ProcessStats(spec.source)
        self.selections, self.page_caches = spec.source.selections(), spec.source.page_caches()
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
            elif self._run is None or message.run != self._run.number:
                continue
            elif isinstance(message, Release):
                self._run.release(message)
            elif isinstance(message, ReadTo):
                if message.epoch is None:
                    self._run.pause()
                else:
                    self._run.resume(message.epoch)
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
        source, collector = process.spec.source, process.stats.collector
        self._spec, self._stats, self._channel = process.spec, process.stats, process.channel
        self._arena = Arena(regions, run.reader)
        window = source.window(
            process.selections, collector, process.page_caches,
            regions=regions, arena=self._arena, reader=run.reader,
        )  # fmt: skip
        super().__init__(
            source.planner(process.selections, run.reader), window, source.fetcher(collector),
            threads=source.pipeline.threads, tolerant=source.options.bad_samples.tolerant, collector=collector,
        )  # fmt: skip
        self.number, self._memory, self._limit = run.run, run.memory, run.limit
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

    def _on_failure(self, error: BaseException, *, broken: bool) -> None:
        number = 0 if broken else self._next_number
        self._channel.send(Failed(self.number, portable(error), number, self._stats.all()))

    def _publish_spans(self) -> None:
        while (span := self._to_publish.get()) is not None:
            place, error = (0, 0), None
            try:
                if (failure := self._read_error(span)) is not None:
                    raise failure
                place = write_pickled(self._task(span), self._arena)
            except BaseException as raised:
                error = portable(raised)
            with self._lock:
                self._published[span.number] = span, place
            stats = self._stats.new()
            drawn, padding = span.blocks_drawn, span.padding
            self._channel.send(Published(self.number, span.number, self._memory, place, drawn, padding, error, stats))

    def _task(self, span: Span) -> Any:
        keys = self._spec.source.key_ids(span) if self._spec.keys else None
        return self._window.task(span, keys, positions=self._spec.positions, columns=_describe)


def _describe(block: WindowBlock) -> tuple[int, int, int, int]:
    """A block for another process: its number, start and size of its columns in shared memory, and its rows."""
    start, size = block.place or (0, 0)
    return block.number, start, size, block.plan.rows
