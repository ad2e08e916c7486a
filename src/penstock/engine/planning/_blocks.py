"""Blocks: rows, or samples that are composed of rows, that are read together."""

from dataclasses import dataclass

import numpy as np

from penstock.format import Fragment
from penstock.table import FragmentRows, Int64Array, take_positions


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
        return live if self.fragment.deleted is None else self.fragment.live_rows[live]


class PlannedBlock:
    """Rows of one fragment that are read together, once; equal only to itself."""

    __slots__ = ("fragment_rows", "inverse", "rows", "source", "unread")

    def __init__(self, source: Block, unread: int | None = None) -> None:
        """`unread` is the number of rows that were not consumed before a resume; by default all."""
        self.inverse: Int64Array | None = None
        """For each row of the source its row here, if some are selected more than once."""
        if not isinstance(source.selected, range) and not (source.selected[1:] > source.selected[:-1]).all():
            _, firsts, self.inverse = np.unique(source.selected, return_index=True, return_inverse=True)
            source = source.take(firsts)
        self.source, self.rows = source, len(source)
        self.unread = self.rows if unread is None else unread
        self.fragment_rows = FragmentRows(source.fragment, source.stored_rows)


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


class PlannedSamples:
    """The blocks that hold the rows of some samples, and where each sample finds its rows."""

    __slots__ = ("block_index", "blocks", "offsets", "rows", "samples")

    inverse: Int64Array | None = None

    def __init__(
        self,
        samples: Int64Array,
        offsets: Int64Array,
        blocks: list[PlannedBlock],
        block_index: Int64Array,
        rows: Int64Array,
    ) -> None:
        self.samples, self.offsets, self.blocks = samples, offsets, blocks
        self.block_index, self.rows = block_index, rows


Planned = PlannedBlock | PlannedSamples
