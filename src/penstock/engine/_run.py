"""Deliver the batches of a run to the loop, and record its position."""

import os
import time
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.engine._options import BadSamples
from penstock.engine._stats import BadSample, StatsCollector
from penstock.engine.assembly import Failure, Placement
from penstock.engine.workers import ProcessRun, ThreadedRun
from penstock.errors import InvalidInputError
from penstock.plan import RankPartitioner

_FORKED = (
    "this iterator belongs to the process that was forked, with its threads and worker processes; make a loader in the "
    "child process, and iterate over that"
)


class Position(NamedTuple):
    """A place between two steps."""

    epoch: int
    consumed: int
    """Positions of the epoch read so far, over all ranks."""


class EngineRun:
    """A pass over the rest of an epoch and the following ones; dropping or closing it stops it."""

    def __init__(
        self,
        stream: ThreadedRun | ProcessRun,
        position: Position,
        *,
        partitioner: RankPartitioner,
        placement: Placement | None,
        collector: StatsCollector,
        bad_samples: BadSamples,
    ) -> None:
        self._stream, self.partitioner, self._placement = stream, partitioner, placement
        self._collector, self._bad_samples = collector, bad_samples
        self.position = position
        """After the last delivered batch."""
        self.in_progress = False
        """Whether an epoch was started and not finished; only its own iterator can continue it."""
        self._waiting: list[tuple[Any, int, int]] = []
        """Of the last span, in reverse: batches that are not delivered, their rows, and what is consumed after each."""
        self._bad: list[tuple[int, BadSample]] = []
        """Of the last span, in reverse: rows that were replaced and are not reported, by index."""
        self._span_rows = self._padding = 0
        """Of the last span: the rows that were delivered, and how many of its rows only pad the last step."""
        self._epoch_rows = self._epoch_bad = 0
        self._mark_s = self._cpu_mark_s = 0.0
        self._closed_because = "this loader was closed while it was read"
        self._pid = os.getpid()
        self._stop = weakref.finalize(self, _stop, stream, self._pid)
        stream.start(*position)

    def epoch(self, limit: int | None = None) -> Iterator[Any]:
        """The batches up to the end of the epoch; then the position is the start of the next one.

        After `limit` batches it ends before, and the next call continues there.
        """
        self._check()
        collector, placement, fresh = self._collector, self._placement, not self._epoch_rows
        self.in_progress = True
        self._stream.read_to(self.position.epoch)
        began = self._mark_s = time.perf_counter()
        self._cpu_mark_s = time.process_time()
        left = self.partitioner.steps(self.position.consumed)
        steps = left if limit is None else min(left, limit)
        for step in range(steps):
            batch = self._next()
            self._lap()
            if fresh and not step:
                collector.first_batch_s = self._mark_s - began
            yield batch if placement is None else placement.make_ready(batch)
            del batch
            collector.times["loop", "busy"] += self._lap()
        if steps == left:
            self.position = Position(self.position.epoch + 1, 0)
            self._epoch_rows = self._epoch_bad = 0
        self._stream.read_to(None)
        self.in_progress = False

    def _next(self) -> Any:
        """The next batch, which the position then includes."""
        self._check()
        if not self._waiting:
            self._take_span()
        batch, rows, consumed = self._waiting.pop()
        if isinstance(batch, Failure):
            raise batch.error
        real = rows - self._padding
        self._span_rows += rows
        self._epoch_rows += real
        while self._bad and self._bad[-1][0] < self._span_rows:
            self._report_bad(self._bad.pop()[1])
        self.position = Position(self.position.epoch, consumed)
        self._collector.rows += real
        self._collector.batches += 1
        return batch

    def _take_span(self) -> None:
        """Wait for the next span."""
        span, collector = self._stream.next_span(), self._collector
        if span is None:
            raise InvalidInputError(self._closed_because)
        cpu_before_s, self._cpu_mark_s = self._cpu_mark_s, time.process_time()
        collector.cpu_s += self._cpu_mark_s - cpu_before_s
        collector.blocks_drawn += span.blocks_drawn
        collector.batches_drawn += len(span.steps.batch_rows)
        self._waiting = list(zip(span.batches, span.steps.batch_rows, span.steps.consumed, strict=False))[::-1]
        self._bad, self._padding, self._span_rows = sorted(span.bad.items(), reverse=True), span.padding, 0

    def _report_bad(self, bad: BadSample) -> None:
        """Record a bad sample; raises `SampleError` over the limit, or what the callback raises."""
        policy, partitioner = self._bad_samples, self.partitioner
        self._epoch_bad += 1
        self._collector.record_bad(bad)
        if policy.callback is not None:
            policy.callback(bad)
        policy.check(self._epoch_bad, self._epoch_rows, -(-partitioner.rows // partitioner.world.num_ranks))

    def _lap(self) -> float:
        """Count the seconds since the last call, and return them."""
        before, self._mark_s = self._mark_s, time.perf_counter()
        self._collector.seconds += self._mark_s - before
        return self._mark_s - before

    @property
    def closed(self) -> bool:
        """Whether nothing more can be read, in this process."""
        return not self._stop.alive or self._pid != os.getpid()

    def _check(self) -> None:
        """Raise `InvalidInputError` if this run cannot continue."""
        if self._pid != os.getpid():
            raise InvalidInputError(_FORKED)
        if self.closed:
            raise InvalidInputError(self._closed_because)

    def stop(self) -> None:
        """Stop the threads without joining them."""
        self._stop()

    def close(self, because: str | None = None) -> None:
        """Stop the threads and join them for a moment; `because` is what its iterator then raises."""
        self._closed_because = because or self._closed_because
        self._stop.detach()
        _stop(self._stream, self._pid, wait=True)


def _stop(stream: ThreadedRun | ProcessRun, pid: int, *, wait: bool = False) -> None:
    if pid == os.getpid():  # a forked process has no threads to stop, and their locks may be held for ever
        stream.stop(wait=wait)
