"""Walk along a lane: which block holds each row, in the order in which the lane is read."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from penstock.engine.planning._selection import Parts
from penstock.engine.planning._spans import Block
from penstock.plan import BoundedSpread, Epoch
from penstock.table import Int64Array

_NONE = np.zeros(0, np.int64)


@dataclass(slots=True, eq=False)
class LaneBlock:
    """The unread part of a block in one lane."""

    block: Block
    first: int
    """Lane row at which the block starts."""
    end: int
    """Lane row before which rows belong to this or an earlier block, or have been read."""
    remaining: int
    """Rows that the lane has not reached yet."""
    last_offset: int = -1
    """The offset of its last row; -1 while unknown."""
    unread: Int64Array | None = None
    """Its rows that were not consumed before a resume; None for all."""
    whole: "LaneBlock | None" = None
    """The block of which it is a part, whose last row counts."""


class PartBlocks(NamedTuple):
    """The blocks of one part of a section in the order of an epoch."""

    blocks: Sequence[Block]
    ends: Int64Array
    """Cumulative rows of the part at the end of each block."""


class Blocks(Protocol):
    """Source of an epoch's blocks."""

    def parts(self, section: int) -> Parts:
        """The parts of a section."""

    def blocks(self, section: int, part: int) -> PartBlocks:
        """The blocks of a part."""


def walk(epoch: Epoch, source: Blocks, start: int, end: int) -> Iterator[tuple[Block, int, int]]:
    """The blocks between two places of the epoch, clipped to them: each with its start and end place."""
    number = int(np.searchsorted(epoch.section_ends, start, side="right"))
    while start < end:
        section = int(epoch.sections[number])
        base = int(epoch.section_ends[number] - epoch.section_rows[section])
        parts = source.parts(section) if epoch.section_rows[section] else Parts(_NONE, _NONE)
        first = int(np.searchsorted(parts.ends, start - base, side="right"))
        for part, part_base in zip(parts.order[first:].tolist(), [0, *parts.ends.tolist()][first:], strict=False):
            inside = source.blocks(section, part)
            index = int(np.searchsorted(inside.ends, start - base - part_base, side="right"))
            for block, block_end in zip(inside.blocks[index:], inside.ends[index:].tolist(), strict=True):
                place = base + part_base + block_end
                stop = min(place, end)
                yield block.part(start - place + len(block), stop - place + len(block)), start, stop
                start = stop
                if start >= end:
                    return
        number += 1


class LaneCursor:
    """Reads a lane from an offset on; offsets count rows in the order in which the lane is read."""

    def __init__(
        self,
        spread: BoundedSpread,
        blocks: Callable[[int, int], Iterator[tuple[Block, int, int]]],
        offset: int,
    ) -> None:
        self._spread = spread
        number = spread.chunk_of(offset)
        self._next_chunk = number
        self._chunk_start = self._chunk_end = spread.rows_before(number)
        first = max(number * spread.chunk_width - spread.spread_rows, 0)
        self._blocks = blocks(first, spread.length)
        self._active: list[LaneBlock] = []
        self._holders = np.zeros(0, np.int64)
        self._rows = np.zeros(0, np.int64)
        self._rows_loaded = first
        """Lane rows before this one belong to loaded blocks."""
        self.next_offset = offset
        """Offsets before this one have been read."""
        if offset < spread.length:
            chunk = spread.chunk(number)  # eagerly, because cursors are created concurrently
            self._enter(chunk, number, offset)
            self._read_chunk(chunk)

    def locate(self, offsets: Int64Array) -> tuple[list[LaneBlock], Int64Array, Int64Array]:
        """For increasing offsets: the blocks that hold them, and for each the index of its block and its lane row."""
        holders, rows, base = [], [], 0
        blocks: list[LaneBlock] = []
        done, last = 0, int(offsets[-1])
        while done < len(offsets):
            while int(offsets[done]) >= self._chunk_end:
                self._read_chunk(self._spread.chunk(self._next_chunk))
            upto = int(np.searchsorted(offsets, self._chunk_end)) if last >= self._chunk_end else len(offsets)
            inside = offsets[done:upto] - self._chunk_start
            holders.append(self._holders[inside] + base)
            rows.append(self._rows[inside])
            blocks += self._active
            base += len(self._active)
            done = upto
        self.next_offset = last + 1
        if len(rows) == 1:
            return blocks, holders[0], rows[0]
        return blocks, np.concatenate(holders), np.concatenate(rows)

    def _enter(self, chunk: Int64Array, number: int, offset: int) -> None:
        """Load the blocks of the first chunk, and note which of their rows were consumed before."""
        start, first = number * self._spread.chunk_width, self._rows_loaded
        self._load_blocks(int(chunk.max()) + 1)
        remaining = np.zeros(self._rows_loaded - first, bool)  # as before the chunk: `_read_chunk` subtracts its rows
        remaining[self._spread.pending_rows(number) - first] = True
        remaining[start - first :] = True
        unread = remaining.copy()
        unread[chunk[: offset - self._chunk_start] - first] = False
        ends = np.array([lane_block.end for lane_block in self._active]) - first
        for index in np.flatnonzero(np.bincount(np.searchsorted(ends, np.flatnonzero(~unread), side="right"))).tolist():
            lane_block = self._active[index]
            here = slice(lane_block.first - first, lane_block.end - first)
            lane_block.remaining = int(np.count_nonzero(remaining[here]))
            lane_block.unread = np.flatnonzero(unread[here])

    def _load_blocks(self, row: int) -> None:
        """Load the blocks up to a lane row."""
        while self._rows_loaded < min(row, self._spread.length):
            block, first, end = next(self._blocks)
            self._active.append(LaneBlock(block, first, end, len(block)))
            self._rows_loaded = end

    def _read_chunk(self, rows: Int64Array) -> None:
        self._next_chunk += 1
        self._active = [lane_block for lane_block in self._active if lane_block.remaining]
        if len(rows):
            self._load_blocks(int(rows.max()) + 1)
        ends = np.array([lane_block.end for lane_block in self._active], np.int64)
        holders = np.searchsorted(ends, rows, side="right")
        counts = np.bincount(holders, minlength=len(self._active)).tolist()
        self._chunk_start = self._chunk_end
        self._chunk_end += len(rows)
        last = np.full(len(self._active), -1)
        last[holders] = np.arange(len(rows))
        for number, lane_block in enumerate(self._active):
            lane_block.remaining -= counts[number]
            if not lane_block.remaining:
                lane_block.last_offset = self._chunk_start + int(last[number])
        self._holders, self._rows = holders, rows
