"""What is planned: blocks to read, and spans of steps whose batches are built together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.format import Fragment
from penstock.plan import Places, SpanSteps, distinct, flat_ranges, groups, take_positions
from penstock.table import FragmentRows, Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Rows of one fragment that are read together; the same object in every epoch, so results can be cached."""

    fragment: Fragment
    start: int
    """Table position of the fragment's first live row."""
    selected: range | Int64Array
    """Indices among the fragment's live rows, in increasing order."""
    fields: frozenset[int] | None = None
    """The columns to read, by field id; None for all."""

    def __len__(self) -> int:
        return len(self.selected)

    def reads(self, field_id: int) -> bool:
        """Whether a column is read."""
        return self.fields is None or field_id in self.fields

    def part(self, first: int, end: int) -> "Block":
        """A block of some consecutive rows."""
        if first == 0 and end == len(self.selected):
            return self
        return Block(self.fragment, self.start, self.selected[first:end], self.fields)

    def take(self, rows: Int64Array) -> "Block":
        """A block of some of the rows."""
        if isinstance(self.selected, range):
            return Block(self.fragment, self.start, self.selected.start + rows, self.fields)
        return Block(self.fragment, self.start, self.selected[rows], self.fields)

    def position(self, row: int) -> int:
        """A row's position in the table."""
        return self.start + int(self.selected[row])

    @property
    def stored_rows(self) -> Int64Array:
        """The rows as indices among stored rows, deleted ones included."""
        selected = self.selected
        live = np.arange(selected.start, selected.stop) if isinstance(selected, range) else selected
        return self.fragment.stored_rows(live)


class PlannedBlock:
    """Rows of one fragment that are read together, once; equal only to itself."""

    __slots__ = ("_row_ids", "fragment_rows", "inverse", "parts", "rows", "source", "whole")

    def __init__(self, source: Block, whole: "PlannedBlock | None" = None) -> None:
        self.inverse: Int64Array | None = None
        """For each row of the source its row here, if some are selected more than once."""
        if not isinstance(source.selected, range) and not (source.selected[1:] > source.selected[:-1]).all():
            _, firsts, self.inverse = np.unique(source.selected, return_index=True, return_inverse=True)
            source = source.take(firsts)
        self.source, self.rows = source, len(source)
        self.fragment_rows = FragmentRows(source.fragment, source.stored_rows)
        self._row_ids: range | Int64Array | None = None
        self.whole = whole
        """What it is read with, if it is a part."""
        self.parts: tuple[PlannedBlock, ...] = ()
        """Blocks that hold its rows instead of it, each of which leaves the window by itself."""

    @property
    def positions(self) -> range | Int64Array:
        """The positions of the rows in the table."""
        selected, start = self.source.selected, self.source.start
        if isinstance(selected, range):
            return range(start + selected.start, start + selected.stop)
        return start + selected

    @property
    def row_ids(self) -> range | Int64Array:
        """The ids of the rows."""
        if self._row_ids is None:
            ids = self.fragment_rows.fragment.row_ids_at(self.fragment_rows.rows)
            first = int(ids[0]) if len(ids) else 0
            rising = bool((ids == np.arange(first, first + len(ids))).all())
            self._row_ids = range(first, first + len(ids)) if rising else ids
        return self._row_ids


@dataclass(frozen=True, slots=True, eq=False)
class SampleBlock:
    """Samples that are read together."""

    samples: range | Int64Array
    """In increasing order."""

    def __len__(self) -> int:
        return len(self.samples)

    def part(self, first: int, end: int) -> "SampleBlock":
        """A block of some consecutive samples."""
        return SampleBlock(self.samples[first:end])

    def take(self, rows: Int64Array) -> "SampleBlock":
        """A block of some of the samples."""
        return SampleBlock(take_positions(self.samples, rows))


@dataclass(slots=True, eq=False)
class PlannedSamples:
    """The blocks that hold the rows of some samples, and where each sample finds its rows."""

    inverse: ClassVar[None] = None

    samples: Int64Array
    offsets: Int64Array
    blocks: list[PlannedBlock]
    block_index: Int64Array
    rows: Int64Array


Planned = PlannedBlock | PlannedSamples


class SpanSamples(NamedTuple):
    """The samples of a span, if they are composed of several rows."""

    numbers: Int64Array
    offsets: Int64Array
    """Where the rows of each sample start, and the end."""

    def part(self, first: int, end: int) -> "SpanSamples":
        """Some consecutive samples."""
        offsets = self.offsets[first : end + 1]
        return SpanSamples(self.numbers[first:end], offsets - offsets[0])


@dataclass(frozen=True, eq=False)
class LocatedRows:
    """Rows, or samples, and the blocks that hold them."""

    blocks: Sequence[Planned]
    block_index: Int64Array
    """For each row, or each draw of a composed sample, the index of its block in `blocks`."""
    rows: Int64Array
    """For each of them its index in that block."""
    resident: bool = False
    """Whether `blocks` are all blocks of the table, in the same list for each span, and stay in the window."""
    samples: SpanSamples | None = None
    """The samples, if they are composed of rows."""

    def part(self, first: int, end: int) -> "LocatedRows":
        """Some consecutive rows or samples, with the blocks that hold these, or with all if they are resident."""
        samples = self.samples
        if samples is not None:
            samples, first, end = samples.part(first, end), int(samples.offsets[first]), int(samples.offsets[end])
        block_index, rows = self.block_index[first:end], self.rows[first:end]
        if self.resident:
            return LocatedRows(self.blocks, block_index, rows, resident=True)
        needed, index = distinct(block_index)
        return LocatedRows([self.blocks[number] for number in needed.tolist()], index, rows, samples=samples)

    def drawn(self) -> "LocatedRows":
        """Samples that are composed of rows, and the blocks of the rows that they draw."""
        counts, numbers = np.empty(len(self.rows), np.int64), np.empty(len(self.rows), np.int64)
        blocks: list[PlannedBlock] = []
        parts: list[tuple[Int64Array, Int64Array, Int64Array]] = []
        for index, here in groups(self.block_index):
            block, local = self.blocks[index], self.rows[here]
            assert isinstance(block, PlannedSamples)
            starts = block.offsets[local]
            numbers[here], counts[here] = block.samples[local], block.offsets[local + 1] - starts
            source, _ = flat_ranges(starts, counts[here])
            parts.append((here, block.block_index[source] + len(blocks), block.rows[source]))
            blocks += block.blocks
        offsets = np.append(0, np.cumsum(counts))
        block_index, rows = np.empty(offsets[-1], np.int64), np.empty(offsets[-1], np.int64)
        for here, *drawn in parts:
            target, _ = flat_ranges(offsets[here], counts[here])
            block_index[target], rows[target] = drawn
        return LocatedRows(blocks, block_index, rows, samples=SpanSamples(numbers, offsets))


class RowIdentity(NamedTuple):
    """Which row of which table a row of a batch is."""

    table: int
    """Index of the table in a mixture; else 0."""
    position: int
    """In the table, or the number of a sample."""
    epoch: int
    """Of the table."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TableRows(LocatedRows):
    """The rows of a span that come from one table."""

    blocks: Sequence[PlannedBlock]
    table: int
    places: Places
    """Which rows of the span these are."""
    anchor: int | None
    """The draw of each sample that stands for it; None if there is none."""
    padding: npt.NDArray[np.bool_] | None
    """Mask of the rows that only pad the epoch's last step."""
    epochs: int | Int64Array
    """The epoch of all rows, or of each."""
    blocks_drawn: int
    """Sum over batches of the number of blocks that a batch draws from."""

    def __len__(self) -> int:
        return len(self.block_index if self.samples is None else self.samples.numbers)

    @property
    def positions(self) -> Int64Array:
        """The positions of the rows in the table, or the numbers of samples."""
        if self.samples is not None:
            return self.samples.numbers
        return _values_at([block.positions for block in self.blocks], self.block_index, self.rows)

    @property
    def row_ids(self) -> Int64Array:
        """The row ids of the rows; of samples, those of the rows that stand for them, or their numbers."""
        block_index, rows = self.block_index, self.rows
        if self.samples is not None:
            if self.anchor is None:
                return self.samples.numbers
            draws = self.samples.offsets[:-1] + self.anchor
            block_index, rows = block_index[draws], rows[draws]
        return _values_at([block.row_ids for block in self.blocks], block_index, rows)


def _values_at(values: Sequence[range | Int64Array], block_index: Int64Array, rows: Int64Array) -> Int64Array:
    """The values of some rows, given those of each block."""
    firsts = np.array([each.start if isinstance(each, range) else 0 for each in values], np.int64)
    at = firsts[block_index] + rows
    for number, each in enumerate(values):
        if not isinstance(each, range):
            here = block_index == number
            at[here] = each[rows[here]]
    return at


@dataclass(frozen=True, eq=False, slots=True)
class Span:
    """The rows of some steps, whose batches are built together."""

    steps: SpanSteps
    tables: list[TableRows]
    """The rows of each table that has some."""

    @property
    def number(self) -> int:
        return self.steps.number

    @property
    def blocks_drawn(self) -> int:
        return sum(rows.blocks_drawn for rows in self.tables)

    @property
    def padding(self) -> int:
        """How many rows only pad the last step."""
        return sum(int(np.count_nonzero(rows.padding)) for rows in self.tables if rows.padding is not None)
