"""Partition the rows of a mixture over ranks: each step is the next range of rows, whatever the number of ranks."""

from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.plan._partition import RankPartitioner
from penstock.plan._steps import SourceRows, SpanSteps
from penstock.plan.mixture._order import MixtureOrder
from penstock.types import cached_property

Int64Array = npt.NDArray[np.int64]

_MEASURED_ROWS = 1 << 16


class RankRows(NamedTuple):
    """The rows of a rank in a span."""

    sources: Int64Array
    numbers: Int64Array
    padding: npt.NDArray[np.bool_] | None
    moved: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class MixturePartitioner(RankPartitioner):
    """Partitions the rows of a mixture over ranks.

    A rank owns the rows of each source whose number leaves the remainder `rank`, which are those of some of its lanes;
    for every second source it counts backwards, so that two sources fill all ranks equally. With more sources, a few
    rows of a step are read by another rank than their owner's.
    """

    order: MixtureOrder
    source_lanes: tuple[int, ...]
    """Lanes of each source."""
    origin: tuple[int, int, int] = (0, 0, 0)
    """An epoch, a position in it, and the row of the mixture, over all epochs, that is there."""
    whole_batches: bool = False
    """Whether all rows of a batch come from one source; `order` then counts batches."""

    @property
    def owns_lanes(self) -> bool:
        return not self.whole_batches and all(lanes % self.world.num_ranks == 0 for lanes in self.source_lanes)

    @property
    def lanes_per_rank(self) -> int:
        """The largest number of lanes that a rank reads from, of any source."""
        return max(map(self.source_lanes_per_rank, self.source_lanes))

    def source_lanes_per_rank(self, lanes: int) -> int:
        """Of a source with so many lanes, how many a rank reads from."""
        return lanes if self.whole_batches else lanes // gcd(lanes, self.world.num_ranks)

    @cached_property
    def read_amplification(self) -> float:
        """See `RankPartitioner`; measured in the first steps."""
        ranks = self.world.num_ranks
        if ranks == 1 or not self.rows:
            return 1.0
        steps = max(1, _MEASURED_ROWS // self.step_rows)
        sources, numbers = self._rows_from(self.origin[2], steps * self.step_rows)
        readers = np.array([ranks // gcd(lanes, ranks) for lanes in self.source_lanes])
        if self.whole_batches:
            readers = np.minimum(ranks, self.source_lanes)
        owners, final = self._owners(sources, numbers)
        return float(np.mean(readers[sources])) + float(np.mean(owners != final))

    def row(self, epoch: int, position: int) -> int:
        """The row of the mixture, over all epochs, at a position of an epoch."""
        return self.origin[2] + (epoch - self.origin[0]) * self.rows + position - self.origin[1]

    def source_rows(self, span: SpanSteps) -> list[SourceRows]:
        sources, numbers, padding, moved = self.rank_rows(span)
        each: list[SourceRows] = []
        for source in range(len(self.source_lanes)):
            places = np.flatnonzero(sources == source)
            mask = None if padding is None else padding[places]
            each.append(SourceRows(places, numbers[places], mask, moved[places]))
        return each

    def rank_rows(self, span: SpanSteps) -> RankRows:
        """The source of each row of this rank in a span, and its number in the source."""
        count = min(len(span.batch_rows) * self.step_rows, self.rows - span.start)
        sources, numbers = self._rows_from(self.row(span.epoch, span.start), count)
        if self.world.num_ranks == 1:
            return RankRows(sources.reshape(-1), numbers.reshape(-1), None, np.zeros(count, bool))
        owners, readers = self._owners(sources, numbers)
        mine = readers == self.world.rank
        moved = owners != self.world.rank
        if span.complete:
            return RankRows(sources[mine], numbers[mine], None, moved[mine])
        chosen = np.flatnonzero(mine)
        padding = np.arange(self.batch_size) >= len(chosen)
        chosen = np.resize(chosen if len(chosen) else np.arange(count), self.batch_size)
        return RankRows(sources[0, chosen], numbers[0, chosen], padding, moved[0, chosen])

    def _rows_from(self, first: int, count: int) -> tuple[Int64Array, Int64Array]:
        """The sources and numbers of the rows of all ranks, by step; a single step may be incomplete."""
        size = self.batch_size
        if self.whole_batches:
            sources, numbers = self.order.rows(first // size, (first + count) // size)
            sources = np.repeat(sources, size)
            numbers = (numbers[:, None] * size + np.arange(size)).reshape(-1)
        else:
            sources, numbers = self.order.rows(first, first + count)
        width = min(self.step_rows, count)
        return sources.reshape(-1, width), numbers.reshape(-1, width)

    def _owners(self, sources: Int64Array, numbers: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For the rows of some steps the rank that owns each, and the one that reads it."""
        ranks, size = self.world.num_ranks, self.batch_size
        if self.whole_batches:
            by_batch = np.broadcast_to(np.arange(sources.shape[1]) // size, sources.shape)
            return by_batch, by_batch
        owners = np.where(sources % 2, -1 - numbers, numbers) % ranks
        order = np.argsort(owners, axis=1, kind="stable")
        step = np.arange(len(sources))[:, None]
        counts = np.bincount((step * ranks + owners).reshape(-1), minlength=len(sources) * ranks).reshape(-1, ranks)
        ordered, firsts = np.take_along_axis(owners, order, axis=1), np.cumsum(counts, axis=1) - counts
        over = np.arange(sources.shape[1]) - np.take_along_axis(firsts, ordered, axis=1) >= size
        if not over.any():
            return owners, owners
        room = np.maximum(size - counts, 0)
        room = np.clip(over.sum(axis=1, keepdims=True) - (np.cumsum(room, axis=1) - room), 0, room)
        ordered[over] = np.repeat(np.tile(np.arange(ranks), len(sources)), room.reshape(-1))
        readers = np.empty_like(owners)
        np.put_along_axis(readers, order, ordered, axis=1)
        return owners, readers
