"""Partition positions over ranks: each step is the next range of positions, whatever the number of ranks."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

import numpy as np
import numpy.typing as npt

from penstock.plan._steps import SourceRows, SpanSteps
from penstock.types import World

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RankPartitioner:
    """Partitions an epoch's positions over ranks.

    If the number of ranks divides the number of lanes, each rank owns its lanes and no byte is read twice. Otherwise a
    step's positions are ordered by lane and split evenly, so that only neighbouring ranks share a lane.
    """

    rows: int
    lanes: int
    world: World
    batch_size: int
    drop_last: bool

    @property
    def step_rows(self) -> int:
        """Positions in a step, over all ranks."""
        return self.world.num_ranks * self.batch_size

    @property
    def owns_lanes(self) -> bool:
        """Whether each lane is read by a single rank."""
        return self.lanes % self.world.num_ranks == 0

    @property
    def lanes_per_rank(self) -> int:
        """The largest number of lanes that a rank reads from."""
        if self.owns_lanes:
            return self.lanes // self.world.num_ranks
        return _count_lanes(self.lanes, self.world.num_ranks, self.batch_size)[0]

    @property
    def read_amplification(self) -> float:
        """The approximate number of times that each byte is read, over all ranks."""
        if self.owns_lanes:
            return 1.0
        return _count_lanes(self.lanes, self.world.num_ranks, self.batch_size)[1] / self.lanes

    def steps(self, start: int = 0) -> int:
        """Steps from a position to the end of the epoch; equal on all ranks."""
        remaining = max(self.rows - start, 0)
        return remaining // self.step_rows if self.drop_last else -(-remaining // self.step_rows)

    def full_steps(self, start: int) -> int:
        """Steps from a position to the end of the epoch that need no padding."""
        return max(self.rows - start, 0) // self.step_rows

    def source_rows(self, span: SpanSteps) -> list[SourceRows]:
        """This rank's rows in a span, for each source: a table is the only source of its rows."""
        positions, padding = self.span_positions(span)
        return [SourceRows(slice(None), span.epoch * self.rows + positions, padding, None)]

    def span_positions(self, span: SpanSteps) -> tuple[Int64Array, npt.NDArray[np.bool_] | None]:
        """This rank's positions in a span, and a mask of those that are padding; None if none can be."""
        if not span.complete:
            return self.last_step(span.start)
        return self.positions(span.start, len(span.batch_rows)).reshape(-1), None

    def positions(self, start: int, steps: int) -> Int64Array:
        """This rank's positions in full steps, as an array of shape (steps, batch_size)."""
        rank, ranks = self.world.rank, self.world.num_ranks
        if self.owns_lanes:
            first = start + (rank - start) % ranks
            return np.arange(first, first + steps * self.step_rows, ranks).reshape(steps, self.batch_size)
        return np.stack([self._split_by_lane(start + step * self.step_rows) for step in range(steps)])

    def last_step(self, start: int) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
        """This rank's positions in the incomplete last step, and a mask of those that are padding.

        A single rank gets a short batch. With several ranks, each pads its batch by repeating its own positions, or
        those of other ranks if it has none.
        """
        if self.world.num_ranks == 1:
            positions = np.arange(start, self.rows)
            return positions, np.zeros(len(positions), bool)
        positions = self.positions(start, 1)[0]
        padding = positions >= self.rows
        real = positions[~padding] if not padding.all() else np.arange(start, self.rows)
        positions[padding] = np.resize(real, int(padding.sum()))
        return positions, padding

    def _split_by_lane(self, start: int) -> Int64Array:
        """This rank's share of one step, with the step's positions ordered by lane."""
        firsts = start + (np.arange(self.lanes) - start) % self.lanes
        counts = np.maximum(-(-(start + self.step_rows - firsts) // self.lanes), 0)
        ends = np.cumsum(counts)
        indices = np.arange(self.batch_size) + self.world.rank * self.batch_size
        lanes = np.searchsorted(ends, indices, side="right")
        return np.asarray(firsts[lanes] + (indices - (ends - counts)[lanes]) * self.lanes, np.int64)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The spans of a rank: which of its steps are built together."""

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

    def _spans(self, epoch: int, consumed: int, number: int) -> Iterator[SpanSteps]:
        partitioner, each = self.partitioner, self.partitioner.step_rows
        full, steps = partitioner.full_steps(consumed), partitioner.steps(consumed)
        step, size = 0, 1  # one at first, so that the first batch comes early
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


@lru_cache(maxsize=64)
def _count_lanes(lanes: int, num_ranks: int, batch_size: int) -> tuple[int, int]:
    """The largest number of lanes that a rank reads in any step, and the sum over ranks.

    Steps start at different lanes, so a lane's share of a step varies by one row and shifts the share of later lanes.
    With few rows per lane and step, a rank reads many lanes over time.
    """
    step_rows = num_ranks * batch_size
    changes = np.zeros((num_ranks + 1, lanes), np.int32)
    for start in range(0, lanes, gcd(step_rows, lanes)):
        counts = np.maximum(-(-(step_rows - (np.arange(lanes) - start) % lanes) // lanes), 0)
        ends = np.cumsum(counts)
        used = np.flatnonzero(counts)
        changes[(ends - counts)[used] // batch_size, used] += 1
        changes[(ends[used] - 1) // batch_size + 1, used] -= 1
    read = np.cumsum(changes[:-1], axis=0) > 0
    return int(read.sum(axis=1).max()), int(read.sum())
