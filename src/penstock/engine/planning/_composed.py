"""Samples as a selection: blocks are runs of samples, read with all rows that they draw."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from penstock.engine.planning._selection import EpochRows, Selection, row_blocks, sorted_rows
from penstock.engine.planning._shared_images import shared_images
from penstock.engine.planning._spans import PlannedBlock, PlannedSamples, SampleBlock
from penstock.plan import (
    ComposedRows,
    Composition,
    Rows,
    ShuffleLayout,
    WeightedDraw,
    WindowSamples,
    digest_of,
    groups,
    take_positions,
)
from penstock.table import Int64Array, Leaves, Reader, RowSizes
from penstock.types import cached_property

_HEAVY_BYTES = 4 << 10
"""From this size of a value on, a column is not read for rows that only other columns need."""
_MIN_PART_BYTES = 1 << 20
"""Of blocks that are split: both parts read the rows that samples on both sides share."""
_OVERLAP = 1.2
"""Bytes in the window relative to those of the rows, because blocks share rows."""


def make_selection(
    reader: Reader, names: Sequence[str], rows: Rows, *, shuffled: bool, draw: WeightedDraw | None, seed: int
) -> Selection:
    """All of some rows, or samples, in each epoch, or with `draw` those that it draws."""
    if not isinstance(rows, ComposedRows):
        return Selection(Leaves(reader, names), EpochRows(rows, draw, seed), shuffled=shuffled)
    composition, epoch_rows = rows.composition, EpochRows(rows.samples, draw, seed)
    leaves = Leaves(reader, composition.stored_columns(names))
    sizes = RowSizes(leaves, sorted_rows(composition.rows, shuffled=True), len(composition.rows))
    return SampleSelection(leaves, epoch_rows, composition, names, shuffled=shuffled, epoch=0, sizes=sizes)


class SampleSelection(Selection):
    """Samples of a composition, read with all rows that they draw; all of them are one section and one part."""

    composition: Composition
    repeats_rows, coarse = True, False  # neighbouring samples share rows

    def __init__(
        self,
        leaves: Leaves,
        epoch_rows: EpochRows,
        composition: Composition,
        delivered: Sequence[str],
        *,
        shuffled: bool,
        epoch: int,
        sizes: RowSizes,
    ) -> None:
        """The samples of an epoch; `sizes` are those of the rows that they may draw, and `delivered` their columns."""
        super().__init__(leaves, epoch_rows, shuffled=shuffled, epoch=epoch, sizes=sizes)
        self.composition, self._delivered = composition, tuple(delivered)
        self.rows_per_sample = composition.rows_per_sample
        if isinstance(composition, WindowSamples):
            self.shared_images = shared_images(composition, self.fields, self.average_bytes)

    def _later_epoch(self, epoch: int) -> "SampleSelection":
        return SampleSelection(
            self.leaves, self.epoch_rows, self.composition, self._delivered,
            shuffled=True, epoch=epoch, sizes=self.row_sizes,
        )  # fmt: skip

    @cached_property
    def digest(self) -> str:
        population = digest_of(self.composition.digest, self._delivered, self.epoch_rows.population)
        draw = self.epoch_rows.draw
        return population if draw is None else digest_of(population, np.ascontiguousarray(draw.ends, "<f8"))

    def largest_rows_bytes(self, count: float) -> float:
        return max(count, _OVERLAP * super().largest_rows_bytes(count * self.rows_per_sample))

    @cached_property
    def section_rows(self) -> Int64Array:
        return np.array([len(self)])

    def blocks(self, shuffle: ShuffleLayout, section: int, part: int) -> list[SampleBlock]:  # noqa: ARG002
        assert self.rows is not None
        count = max(1, round(len(self.rows) / self.block_rows(shuffle.block_bytes)))
        ends = self._clean(np.arange(1, count + 1) * len(self.rows) // count, self.rows)
        return [SampleBlock(self.rows[start:end]) for start, end in pairwise([0, *ends.tolist()]) if end > start]

    def split(self, block: SampleBlock, block_bytes: int) -> Iterator[SampleBlock]:  # noqa: ARG002
        yield block

    def blocks_at(self, positions: Int64Array) -> list[SampleBlock]:
        return [SampleBlock(positions)]

    def part_ends(self, block: SampleBlock, part_bytes: int, *, pages_cached: bool) -> Int64Array:  # noqa: ARG002
        step = self.block_rows(max(part_bytes, _MIN_PART_BYTES))
        return self._clean(np.append(np.arange(step, len(block), step), len(block)), block.samples)

    def split_points(self, block: SampleBlock, left: Int64Array) -> list[int]:  # noqa: ARG002
        return []

    @cached_property
    def _boundaries(self) -> Int64Array | None:
        return self.composition.boundaries

    def _clean(self, ends: Int64Array, samples: range | Int64Array) -> Int64Array:
        """Ends of runs of samples, moved to where samples on both sides share no rows, if there are such places."""
        clean = self._boundaries
        if clean is None:
            return ends
        last = take_positions(samples, ends - 1)
        return np.unique(np.searchsorted(samples, clean[np.searchsorted(clean, last + 1)]))

    def planned(self, block: SampleBlock) -> PlannedSamples:
        samples = np.asarray(block.samples, np.int64)
        draws = self.composition.draw(samples)
        wanted, inverse = np.unique(draws.positions, return_inverse=True)
        needs = np.zeros(len(wanted), np.int64)
        for bit, (columns, _) in enumerate(self._selective):
            needs[inverse[(draws.offsets[:-1, None] + columns).reshape(-1)]] |= 1 << bit
        blocks: list[PlannedBlock] = []
        block_of, row_of = np.empty(len(wanted), np.int64), np.empty(len(wanted), np.int64)
        for mask, chosen in groups(needs):
            left_out = [ids for bit, (_, ids) in enumerate(self._selective) if not mask >> bit & 1]
            fields = frozenset(field.id for field in self.fields).difference(*left_out) if left_out else None
            for part in row_blocks(self.reader, wanted[chosen], fields):
                here, chosen = chosen[: len(part)], chosen[len(part) :]
                block_of[here], row_of[here] = len(blocks), np.arange(len(part))
                blocks.append(PlannedBlock(part))
        return PlannedSamples(samples, draws.offsets, blocks, block_of[inverse], row_of[inverse])

    @cached_property
    def _selective(self) -> list[tuple[Int64Array, frozenset[int]]]:
        """Columns that are read only for some draws of each sample, and these draws: heavy columns, and videos."""
        names = self.composition.videos
        videos = [field for field in self.fields if field.name in names]
        others = [field for field in self.fields if field.name not in names]
        heavy = [field for field in others if self.average_bytes(field) >= _HEAVY_BYTES]
        selective = []
        for columns in (videos, heavy if len(heavy) < len(others) else []):
            draws = self.composition.draws_of([field.name for field in columns]) if columns else None
            if draws is not None:
                selective.append((draws, frozenset(field.id for field in columns)))
        return selective
