"""Selections that draw other rows in each epoch."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from penstock.engine.planning._composed import ComposedSelection
from penstock.engine.planning._row_sizes import RowSizes
from penstock.engine.planning._samples import ComposedRows, Rows, digest_of
from penstock.engine.planning._selection import Selection
from penstock.engine.planning._spans import Block
from penstock.format import Node
from penstock.plan import ShuffleLayout, WeightedDraw
from penstock.table import Int64Array, Reader, take_positions
from penstock.types import cached_property

_EPOCHS_CACHED = 2
"""Later epochs that are held: the one being read, and the next one, which is prefetched."""


def make_selection(
    reader: Reader,
    names: Sequence[str],
    rows: Rows,
    *,
    shuffled: bool,
    draw: WeightedDraw | None,
    seed: int,
) -> Selection:
    """All of some rows, or samples, in each epoch, or with `draw` those that it draws."""
    if isinstance(rows, ComposedRows):
        if draw is None:
            return ComposedSelection(reader, names, rows, shuffled=shuffled)
        return WeightedSamples(reader, names, rows, draw, seed)
    if draw is None:
        return Selection(reader, names, rows, shuffled=shuffled)
    return WeightedSelection(reader, names, rows, draw, seed)


class _DrawnRows(Selection):
    """Rows with repeats, in table order."""

    def __init__(self, reader: Reader, names: Sequence[str], rows: Int64Array) -> None:
        super().__init__(reader, names, rows, shuffled=True)

    @property
    def repeats_rows(self) -> bool:
        """True, because some epoch may repeat rows."""
        return True

    def blocks(self, shuffle: ShuffleLayout, section: int, part: int) -> list[Block]:
        """The blocks of a part of a section, in table order.

        Where rows do not move across their whole lane, blocks have no more rows than without repeats: all draws of a
        row in one block would come one soon after the other. Those blocks fetch no more bytes than they deliver.
        """
        found, most = super().blocks(shuffle, section, part), self.block_rows(shuffle.block_bytes)
        if not shuffle.spread or shuffle.spread * most * shuffle.lanes >= len(self):
            return found
        return [
            block.part(start, min(start + most, len(block))) for block in found for start in range(0, len(block), most)
        ]


class WeightedSelection(_DrawnRows):
    """Rows drawn in each epoch. By itself it is the selection of epoch 0, from which sizes are estimated."""

    def __init__(
        self, reader: Reader, names: Sequence[str], rows: range | Int64Array, draw: WeightedDraw, seed: int
    ) -> None:
        self._population, self._draw, self._seed = rows, draw, seed
        super().__init__(reader, names, self._drawn(0))
        self._later = lru_cache(_EPOCHS_CACHED)(self._later_epoch)

    def at(self, epoch: int) -> Selection:
        """The rows of an epoch."""
        return self._later(epoch) if epoch else self

    @cached_property
    def digest(self) -> str:
        """A digest of the columns, the rows that can be drawn, and their weights."""
        population = Selection(self.reader, self.names, self._population, shuffled=True).digest
        seen = hashlib.blake2b(population.encode(), digest_size=16)
        seen.update(np.ascontiguousarray(self._draw.ends, "<f8").tobytes())
        return seen.hexdigest()

    def _drawn(self, epoch: int) -> Int64Array:
        """The table positions of an epoch's rows, in increasing order."""
        return np.sort(take_positions(self._population, self._draw.rows(self._seed, epoch)))

    def _later_epoch(self, epoch: int) -> Selection:
        return _LaterEpoch(self, self._drawn(epoch))


class _LaterEpoch(_DrawnRows):
    """The rows of a later epoch, with the sizes of the first one: the order must not depend on where a run starts."""

    def __init__(self, first: Selection, rows: Int64Array) -> None:
        super().__init__(first.reader, first.names, rows)
        self._first = first

    @property
    def leaves(self) -> list[Node]:
        """See `Selection`."""
        return self._first.leaves

    @property
    def _sizes(self) -> RowSizes:
        return self._first._sizes


class WeightedSamples(ComposedSelection):
    """Drawn samples; by itself it is the selection of epoch 0."""

    def __init__(self, reader: Reader, names: Sequence[str], rows: ComposedRows, draw: WeightedDraw, seed: int) -> None:
        self._population, self._draw, self._seed = rows, draw, seed
        super().__init__(reader, names, self._drawn(0), shuffled=True)
        self._later = lru_cache(_EPOCHS_CACHED)(self._later_epoch)

    def at(self, epoch: int) -> Selection:
        """The samples of an epoch."""
        return self._later(epoch) if epoch else self

    @cached_property
    def digest(self) -> str:
        """A digest of the samples that can be drawn, and of their weights."""
        population = ComposedSelection(self.reader, self._delivered, self._population, shuffled=True).digest
        return digest_of(population, np.ascontiguousarray(self._draw.ends, "<f8"))

    def _drawn(self, epoch: int) -> ComposedRows:
        drawn = take_positions(self._population.samples, self._draw.rows(self._seed, epoch))
        return ComposedRows(self._population.composition, np.sort(drawn))

    def _later_epoch(self, epoch: int) -> Selection:
        return ComposedSelection(self.reader, self._delivered, self._drawn(epoch), shuffled=True)
