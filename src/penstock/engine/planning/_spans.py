"""What is planned: blocks to read, and spans of steps whose batches are built together; nothing here changes."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.engine.planning._selection import Block
from penstock.plan import Places, SpanSteps
from penstock.table import FragmentRows, Int64Array
from penstock.types import cached_property


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


class RowIdentity(NamedTuple):
    """Which row of which table a row of a batch is."""

    table: int
    """Index of the table in a mixture; else 0."""
    position: int
    """In the table."""
    row_id: int
    epoch: int
    """Of the table."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Span:
    """The rows of some steps that this process builds, and the blocks that hold them."""

    steps: SpanSteps
    places: Places
    """Which rows of the steps these are."""
    blocks: list[PlannedBlock]
    block_index: Int64Array
    """For each row the index of its block in `blocks`."""
    rows: Int64Array
    """For each row its index in that block."""
    padding: npt.NDArray[np.bool_] | None
    """Mask of the rows that only pad the epoch's last step."""
    blocks_drawn: int
    """Sum over batches of the number of blocks that a batch draws from."""
    resident: bool
    """Whether `blocks` are all blocks of the table, in the same list for each span, and stay in the window."""
    table: int = 0
    """Index of the table in a mixture."""
    epochs: Int64Array | None = None
    """In a mixture, the epoch of each row; else they have that of the steps."""

    def __len__(self) -> int:
        return len(self.block_index)

    @property
    def number(self) -> int:
        return self.steps.number

    @property
    def epoch(self) -> int:
        return self.steps.epoch

    def position(self, index: int) -> int:
        """A row's position in the table."""
        return self.blocks[int(self.block_index[index])].source.position(int(self.rows[index]))

    def identity(self, index: int) -> RowIdentity:
        """Which row of the table a row is."""
        epoch = self.epoch if self.epochs is None else int(self.epochs[index])
        return RowIdentity(self.table, self.position(index), int(self.row_ids[index]), epoch)

    @cached_property
    def positions(self) -> Int64Array:
        """The positions of all rows in the table."""
        found = np.empty(len(self), np.int64)
        for block_index, block in enumerate(self.blocks):
            mask = self.block_index == block_index
            found[mask] = block.source.start + np.asarray(block.source.selected)[self.rows[mask]]
        return found

    @cached_property
    def row_ids(self) -> Int64Array:
        """The row ids of all rows."""
        ids = np.empty(len(self), np.int64)
        for block_index, block in enumerate(self.blocks):
            mask = self.block_index == block_index
            ids[mask] = block.fragment_rows.fragment.row_ids_at(block.fragment_rows.rows[self.rows[mask]])
        return ids
