"""Which steps of a rank are built together, and which of their rows each worker builds."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.plan._partition import RankPartitioner

Int64Array = npt.NDArray[np.int64]

_FIRST_STEPS = 8

Places = slice | Int64Array
"""Which rows of a span, in order; a slice where they are evenly spaced."""


@dataclass(frozen=True, slots=True)
class SpanSteps:
    """Consecutive steps of one epoch whose batches are built together."""

    number: int
    """Counts the spans of a run, over all its epochs."""
    epoch: int
    start: int
    """The position at which the first step starts, over all ranks."""
    batch_rows: tuple[int, ...]
    """Rows of each batch."""
    consumed: tuple[int, ...]
    """Positions consumed by all ranks after each batch."""
    complete: bool
    """Whether no batch is short or padded."""
    last: bool
    """Whether the epoch ends with it."""

    @property
    def rows(self) -> int:
        """Rows of all batches."""
        return sum(self.batch_rows)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The spans of a rank; the same for each of its workers."""

    partitioner: RankPartitioner
    steps_per_span: int

    def run(self, epoch: int, consumed: int, number: int = 0) -> Iterator[SpanSteps]:
        """The spans from a position of an epoch on, counted from `number`, and those of all later epochs."""
        while True:
            span = None
            for span in self._spans(epoch, consumed, number):
                yield span
            if span is None and not consumed:
                return
            epoch, consumed = epoch + 1, 0
            number = number if span is None else span.number + 1

    def positions(self, span: SpanSteps) -> tuple[Int64Array, npt.NDArray[np.bool_] | None]:
        """The positions of a span's rows, and a mask of those that are padding; None if none can be."""
        if not span.complete:
            return self.partitioner.last_step(span.start)
        return self.partitioner.positions(span.start, len(span.batch_rows)).reshape(-1), None

    def _spans(self, epoch: int, consumed: int, number: int) -> Iterator[SpanSteps]:
        partitioner, each = self.partitioner, self.partitioner.step_rows
        full, steps = partitioner.full_steps(consumed), partitioner.steps(consumed)
        step, size = 0, min(self.steps_per_span, _FIRST_STEPS)  # few at first, so that the first batch comes early
        while step < steps:
            complete = step < full
            count = min(size, full - step) if complete else 1
            start = consumed + step * each
            ends = tuple(min(start + (k + 1) * each, partitioner.rows) for k in range(count))
            rows = (partitioner.batch_size,) * count
            if not complete and partitioner.world.num_ranks == 1:
                rows = (partitioner.rows - start,)
            step, size, number = step + count, min(2 * size, self.steps_per_span), number + 1
            yield SpanSteps(number - 1, epoch, start, rows, ends, complete, step == steps)


@dataclass(frozen=True, slots=True)
class LaneShare:
    """The rows of a rank that one of its workers builds.

    A worker owns some lanes of its rank, so that workers read no byte twice. If there are fewer lanes than workers, as
    without shuffle, a worker owns whole spans instead.
    """

    worker: int
    num_workers: int
    partitioner: RankPartitioner

    @property
    def by_lane(self) -> bool:
        return self.partitioner.lanes_per_rank >= self.num_workers

    def owns(self, span: SpanSteps) -> bool:
        """Whether the worker builds some rows of a span, or, by lanes, could."""
        return self.by_lane or span.number % self.num_workers == self.worker

    def places(self, span: SpanSteps, positions: Int64Array) -> Places:
        """Which of a span's rows the worker builds, given their positions."""
        if not self.by_lane or self.num_workers == 1:
            return slice(None)
        partitioner, count = self.partitioner, self.num_workers
        even = partitioner.owns_lanes and partitioner.lanes_per_rank % count == 0
        even = even and (span.complete or partitioner.world.num_ranks == 1)  # positions are evenly spaced
        ranks = partitioner.world.num_ranks if partitioner.owns_lanes else 1
        index = (positions[:1] if even else positions) % partitioner.lanes // ranks % count
        return (
            slice(int((self.worker - index[0]) % count), None, count) if even else np.flatnonzero(index == self.worker)
        )
