"""Walk along a lane: which block holds each row, in the order in which the lane is read."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

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
    unread: int
    """Rows of the block that were unread when the lane was entered."""
    remaining: int
    """Rows that the lane has not reached yet."""
    last_offset: int = -1
    """The offset of its last row; -1 while unknown."""


SplitBlock = Callable[[Block, Int64Array, Int64Array], Sequence[int]]
"""Where to split a block that is not read as a whole, given the unread rows and those needed first."""


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
        last: int,
        split: SplitBlock | None,
    ) -> None:
        """Starts with the offsets from `offset` to `last`; without `split`, blocks stay whole even if partly read."""
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
            self._enter(chunk, number, offset, last, split)
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

    def _enter(self, chunk: Int64Array, number: int, offset: int, last: int, split: SplitBlock | None) -> None:
        """Load the blocks of the first chunk without the rows that were consumed before."""
        start, first = number * self._spread.chunk_width, self._rows_loaded
        self._load_blocks(int(chunk.max()) + 1)
        remaining = np.zeros(self._rows_loaded - first, bool)  # as before the chunk: `_read_chunk` subtracts its rows
        remaining[self._spread.pending_rows(number) - first] = True
        remaining[start - first :] = True
        soon, unread = np.zeros(len(remaining), bool), remaining.copy()
        read = offset - self._chunk_start
        unread[chunk[:read] - first] = False
        soon[chunk[read : read + last + 1 - offset] - first] = True
        active, self._active = self._active, []
        ends = np.array([lane_block.end for lane_block in active]) - first
        special = set(np.searchsorted(ends, np.flatnonzero(soon | ~unread), side="right").tolist())
        for index, lane_block in enumerate(active):
            if index not in special:
                self._active.append(lane_block)
                continue
            here = slice(lane_block.first - first, lane_block.end - first)
            lane_block.remaining = int(np.count_nonzero(remaining[here]))
            rows, needed = np.flatnonzero(unread[here]), np.flatnonzero(soon[here])
            if split is None or not len(rows):
                self._active.append(lane_block)
            else:
                self._active += _split(lane_block, remaining[here], rows, split(lane_block.block, rows, needed))

    def _load_blocks(self, row: int) -> None:
        """Load the blocks up to a lane row."""
        while self._rows_loaded < min(row, self._spread.length):
            block, first, end = next(self._blocks)
            self._active.append(LaneBlock(block, first, end, len(block), len(block)))
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


def _split(
    lane_block: LaneBlock, remaining: npt.NDArray[np.bool_], unread: Int64Array, split_points: Sequence[int]
) -> Iterator[LaneBlock]:
    """Split a block into parts without the consumed rows at their ends."""
    for begin, end in pairwise((0, *split_points, len(lane_block.block))):
        mine = unread[np.searchsorted(unread, begin) : np.searchsorted(unread, end)]
        low, high = (int(mine[0]), int(mine[-1]) + 1) if len(mine) else (begin, end)
        count = int(np.count_nonzero(remaining[begin:end]))
        yield LaneBlock(
            lane_block.block.part(low, high), lane_block.first + low, lane_block.first + end, len(mine), count
        )
