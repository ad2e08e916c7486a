"""Spans of steps whose batches are built together, and the blocks that hold their rows."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.engine.planning._blocks import PlannedBlock
from penstock.engine.planning._samples import Composition
from penstock.plan import Places, SpanSteps
from penstock.table import Int64Array
from penstock.types import cached_property


@dataclass(frozen=True, eq=False, slots=True)
class SpanSamples:
    """The samples of a span, if they are composed of several rows."""

    composition: Composition
    numbers: Int64Array
    offsets: Int64Array
    """Where the rows of each sample start, and the end."""

    def __len__(self) -> int:
        return len(self.numbers)


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
    """For each row, or each draw of a composed sample, the index of its block in `blocks`."""
    rows: Int64Array
    """For each of them its index in that block."""
    samples: SpanSamples | None
    """The samples, if they are composed of rows."""
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
        return len(self.block_index if self.samples is None else self.samples)

    @property
    def number(self) -> int:
        return self.steps.number

    @property
    def epoch(self) -> int:
        return self.steps.epoch

    def position(self, index: int) -> int:
        """A row's position in the table, or a sample's number."""
        if self.samples is not None:
            return int(self.samples.numbers[index])
        return self.blocks[int(self.block_index[index])].source.position(int(self.rows[index]))

    def identity(self, index: int) -> RowIdentity:
        """Which row of the table a row is."""
        epoch = self.epoch if self.epochs is None else int(self.epochs[index])
        return RowIdentity(self.table, self.position(index), int(self.row_ids[index]), epoch)

    @cached_property
    def positions(self) -> Int64Array:
        """The positions of all rows in the table, or the numbers of samples."""
        if self.samples is not None:
            return self.samples.numbers
        found = np.empty(len(self), np.int64)
        for block_index, block in enumerate(self.blocks):
            mask = self.block_index == block_index
            found[mask] = block.source.start + np.asarray(block.source.selected)[self.rows[mask]]
        return found

    @cached_property
    def row_ids(self) -> Int64Array:
        """The row ids of all rows; of samples, those of the rows that stand for them, or their numbers."""
        block_index, rows = self.block_index, self.rows
        if self.samples is not None:
            anchor = self.samples.composition.anchor
            if anchor is None:
                return self.samples.numbers
            draws = self.samples.offsets[:-1] + anchor
            block_index, rows = block_index[draws], rows[draws]
        ids = np.empty(len(rows), np.int64)
        for number, block in enumerate(self.blocks):
            mask = block_index == number
            ids[mask] = block.fragment_rows.fragment.row_ids_at(block.fragment_rows.rows[rows[mask]])
        return ids
