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
        self._suspended: Iterator[Any] | None = None
        """The rest of an epoch that was not read to its end."""
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
        self.in_progress = True
        self._stream.read_to(self.position.epoch)
        self._mark_s, self._cpu_mark_s = time.perf_counter(), time.process_time()
        batches, self._suspended = self._suspended or self._read(), None
        for count, batch in enumerate(batches, 1):
            yield batch
            del batch
            if count == limit and self.partitioner.steps(self.position.consumed):
                self._suspended = batches
                break
        else:
            self.position = Position(self.position.epoch + 1, 0)
        self._stream.read_to(None)
        self.in_progress = False

    def _read(self) -> Iterator[Any]:
        """The batches up to the end of the epoch."""
        collector, placement = self._collector, self._placement
        began = self._mark_s
        first = True
        epoch_rows = bad_count = 0
        last = not self.partitioner.steps(self.position.consumed)
        while not last:
            self._check()
            span = self._stream.next_span()
            if span is None:
                raise InvalidInputError(self._closed_because)
            cpu_before_s, self._cpu_mark_s = self._cpu_mark_s, time.process_time()
            collector.cpu_s += self._cpu_mark_s - cpu_before_s
            steps = span.steps
            collector.blocks_drawn += span.blocks_drawn
            collector.batches_drawn += len(steps.batch_rows)
            waiting = list(zip(span.batches, steps.batch_rows, steps.consumed, strict=False))[::-1]
            bad, padding = sorted(span.bad.items(), reverse=True), span.padding
            del span  # or it would hold batches that the loop has dropped
            end = 0
            while waiting:
                self._check()
                batch, rows, consumed = waiting.pop()
                if isinstance(batch, Failure):
                    raise batch.error
                end += rows
                real = rows - padding
                epoch_rows += real
                while bad and bad[-1][0] < end:
                    bad_count += 1
                    self._report_bad(bad.pop()[1], bad_count, epoch_rows)
                last = steps.last and not waiting
                self.position = Position(steps.epoch, consumed)
                self._lap()
                if first:
                    collector.first_batch_s, first = self._mark_s - began, False
                collector.rows += real
                collector.batches += 1
                yield batch if placement is None else placement.make_ready(batch)
                del batch
                collector.add_time("loop", "busy", self._lap())

    def _report_bad(self, bad: BadSample, count: int, rows: int) -> None:
        """Record a bad sample, the `count`th in `rows` rows of this epoch.

        Raises `SampleError` over the limit, or what the callback raises.
        """
        policy, partitioner = self._bad_samples, self.partitioner
        self._collector.record_bad(bad)
        if policy.callback is not None:
            policy.callback(bad)
        policy.check(count, rows, -(-partitioner.rows // partitioner.world.num_ranks))

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
