"""Samples as a selection: blocks are runs of samples, read with all rows that they draw."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from penstock.engine.planning._samples import ComposedRows, Composition, WindowSamples, digest_of, shared_images
from penstock.engine.planning._selection import Parts, Selection, sorted_rows
from penstock.engine.planning._spans import Block, PlannedBlock, PlannedSamples, SampleBlock
from penstock.format import Field
from penstock.plan import Epoch, ShuffleLayout
from penstock.table import Int64Array, Reader, take_positions
from penstock.types import cached_property

_HEAVY_BYTES = 4 << 10
"""From this size of a value on, a column is not read for rows that only other columns need."""
_FIRST_READ_BYTES = 1 << 20
_OVERLAP = 1.2
"""Bytes in the window relative to those of the rows, because blocks share rows."""


class ComposedSelection(Selection):
    """Some samples of a composition."""

    def __init__(self, reader: Reader, names: Sequence[str], rows: ComposedRows, *, shuffled: bool) -> None:
        composition = rows.composition
        super().__init__(reader, composition.stored_columns(names), composition.rows, shuffled=True)
        self.composition: Composition = composition
        self.rows_per_sample = composition.rows_per_sample
        self._base = Selection(reader, self.names, composition.rows, shuffled=True)
        self._delivered, self._all_samples = tuple(names), rows.samples
        consecutive = isinstance(rows.samples, range) and rows.samples.step == 1
        self._samples = rows.samples if consecutive else sorted_rows(rows.samples, shuffled)
        if isinstance(composition, WindowSamples):
            self.shared_images = shared_images(composition, self.fields, self._base.average_bytes)

    def __len__(self) -> int:
        return len(self._all_samples)

    @property
    def scattered(self) -> bool:
        return self._samples is None

    @property
    def repeats_rows(self) -> bool:
        return True  # neighbouring samples share rows

    def positions(self, places: Int64Array) -> Int64Array:
        """The samples at some indices of the selection."""
        return take_positions(self._all_samples, places)

    @cached_property
    def digest(self) -> str:
        samples = self._all_samples
        return digest_of(self.composition.digest, self._delivered, samples)

    @property
    def section_rows(self) -> Int64Array:
        return np.array([len(self)])

    @property
    def coarse(self) -> bool:
        return False

    @cached_property
    def row_bytes(self) -> float:
        return max(1.0, self._base.row_bytes * self.rows_per_sample)

    @property
    def heaviest(self) -> Field | None:
        return self._base.heaviest

    @property
    def stored_row_bytes(self) -> float:
        return max(1.0, self._base.stored_row_bytes * self.rows_per_sample)

    @property
    def heavy_row_bytes(self) -> float:
        return max(1.0, self._base.heavy_row_bytes * self.rows_per_sample)

    def largest_rows_bytes(self, count: float) -> float:
        return max(count, _OVERLAP * self._base.largest_rows_bytes(count * self.rows_per_sample))

    def parts(self, epoch: Epoch, section: int) -> Parts:  # noqa: ARG002
        return Parts(np.zeros(1, np.int64), self.section_rows)

    def blocks(self, shuffle: ShuffleLayout, section: int, part: int) -> list[SampleBlock]:  # type: ignore[override]  # noqa: ARG002
        assert self._samples is not None
        count = max(1, round(len(self._samples) / self.block_rows(shuffle.block_bytes)))
        ends = np.arange(1, count + 1) * len(self._samples) // count
        clean = self.composition.boundaries
        if clean is not None:  # samples on both sides of another place would share rows
            last = take_positions(self._samples, ends - 1)
            ends = np.unique(np.searchsorted(self._samples, clean[np.searchsorted(clean, last + 1)]))
        return [SampleBlock(self._samples[start:end]) for start, end in pairwise([0, *ends.tolist()]) if end > start]

    def split(self, block: SampleBlock, block_bytes: int) -> Iterator[SampleBlock]:  # type: ignore[override]  # noqa: ARG002
        yield block

    def scatter(self, positions: Int64Array, block_bytes: int) -> Iterator[tuple[SampleBlock, Int64Array]]:  # type: ignore[override]  # noqa: ARG002
        yield SampleBlock(positions), np.arange(len(positions))

    def split_points(self, block: SampleBlock, left: Int64Array, soon: Int64Array) -> list[int]:  # type: ignore[override]  # noqa: ARG002
        step = self.block_rows(_FIRST_READ_BYTES)
        ends = np.append(np.arange(step, len(block), step), len(block))
        needed = np.bincount(np.searchsorted(ends, soon, side="right"), minlength=len(ends)) > 0
        found: list[int] = ends[:-1][needed[1:] != needed[:-1]].tolist()
        return found

    def planned(self, block: SampleBlock, unread: int | None = None) -> PlannedSamples:  # type: ignore[override]  # noqa: ARG002
        samples = np.asarray(block.samples, np.int64)
        draws = self.composition.draw(samples)
        wanted, inverse = np.unique(draws.positions, return_inverse=True)
        needs = np.zeros(len(wanted), np.int64)
        for bit, (columns, _) in enumerate(self._selective):
            needs[inverse[(draws.offsets[:-1, None] + columns).reshape(-1)]] |= 1 << bit
        blocks: list[PlannedBlock] = []
        block_of, row_of = np.empty(len(wanted), np.int64), np.empty(len(wanted), np.int64)
        for mask in np.unique(needs).tolist():
            chosen, done = np.flatnonzero(needs == mask), 0
            left_out = [ids for bit, (_, ids) in enumerate(self._selective) if not mask >> bit & 1]
            fields = frozenset(field.id for field in self.fields).difference(*left_out) if left_out else None
            with self.reader.missing_as_corrupt():
                for fragment, start, inside in self.reader.tree.fragments_at(
                    self.reader.snapshot.nodes, wanted[chosen]
                ):
                    here = chosen[done : done + len(inside)]
                    block_of[here], row_of[here] = len(blocks), np.arange(len(inside))
                    blocks.append(PlannedBlock(Block(fragment, start, _as_range(inside - start), fields)))
                    done += len(inside)
        return PlannedSamples(samples, draws.offsets, blocks, block_of[inverse], row_of[inverse])

    @cached_property
    def _selective(self) -> list[tuple[Int64Array, frozenset[int]]]:
        """Columns that are read only for some draws of each sample, and these draws: heavy columns, and videos."""
        names = self.composition.videos if isinstance(self.composition, WindowSamples) else frozenset()
        videos = [field for field in self.fields if field.name in names]
        others = [field for field in self.fields if field.name not in names]
        heavy = [field for field in others if self._base.average_bytes(field) >= _HEAVY_BYTES]
        found = []
        for columns in (videos, heavy if len(heavy) < len(others) else []):
            draws = self.composition.draws_of([field.name for field in columns]) if columns else None
            if draws is not None:
                found.append((draws, frozenset(field.id for field in columns)))
        return found


def _as_range(rows: Int64Array) -> range | Int64Array:
    """Rows as a range if they are consecutive."""
    first, end = int(rows[0]), int(rows[-1]) + 1
    return range(first, end) if end - first == len(rows) else rows
