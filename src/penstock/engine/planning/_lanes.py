"""Walk along a lane: which block holds each row, in the order in which the lane is read."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from penstock.engine.planning._selection import Selection
from penstock.engine.planning._spans import Planned
from penstock.plan import Epoch
from penstock.table import Int64Array

SECTIONS_CACHED = 64

ItemT = TypeVar("ItemT")


@dataclass(slots=True, eq=False)
class LaneBlock:
    """The unread part of a block in one lane."""

    block: Any
    first: int
    """Lane row at which the block starts."""
    end: int
    """Lane row before which rows belong to this or an earlier block, or have been read."""
    remaining: int = 0
    """Rows that the lane has not reached yet."""
    last_offset: int = -1
    """The offset of its last row; -1 while unknown."""
    unread: Int64Array | None = None
    """Its rows that were not consumed before a resume; None for all."""
    parts: Sequence["LaneBlock"] = ()
    """Blocks that are read instead of it."""
    planned: Planned | None = None


class _Ordered(NamedTuple, Generic[ItemT]):
    """Sections, parts or blocks in the order of an epoch."""

    items: Sequence[ItemT]
    ends: Int64Array
    """Cumulative rows at the end of each."""

    def between(self, start: int, end: int) -> Iterator[tuple[ItemT, int]]:
        """Those that have rows between two places, each with the place at which it starts."""
        first = int(np.searchsorted(self.ends, start, side="right"))
        item_start = int(self.ends[first - 1]) if first else 0
        for index in range(first, len(self.items)):  # no copies: each lane has one of these
            if item_start >= end:
                return
            item_end = int(self.ends[index])
            if item_start < item_end:
                yield self.items[index], item_start
            item_start = item_end


class EpochBlocks:
    """The blocks of a selection in the order of an epoch: sections, their parts, and the blocks of each.

    Each part is read to its end before the next. The last ones are cached, because lanes share sections.
    """

    def __init__(self, selection: Selection, epoch: Epoch, blocks_of_part: Callable[[int, int], list[Any]]) -> None:
        """`blocks_of_part` has the blocks of a part of a section, in table order."""
        self.selection, self.epoch = selection, epoch
        self._sections = _Ordered(epoch.sections.tolist(), epoch.section_ends)

        def parts(section: int) -> _Ordered[int]:
            rows = selection.part_rows(section)
            order = epoch.part_order(section, len(rows))
            return _Ordered(order.tolist(), np.cumsum(rows[order]))

        def blocks(section: int, part: int) -> _Ordered[Any]:
            unordered = blocks_of_part(section, part)
            ordered = [unordered[number] for number in epoch.block_order(section, part, len(unordered)).tolist()]
            return _Ordered(ordered, np.cumsum([len(block) for block in ordered]))

        self._parts, self._blocks = lru_cache(SECTIONS_CACHED)(parts), lru_cache(SECTIONS_CACHED)(blocks)

    def between(self, start: int, end: int) -> Iterator[tuple[Any, int, int]]:
        """The blocks between two places of the epoch, clipped to them: each with its start and end place."""
        for section, base in self._sections.between(start, end):
            for part, part_start in self._parts(section).between(start - base, end - base):
                part_base = base + part_start
                for block, block_start in self._blocks(section, part).between(start - part_base, end - part_base):
                    place = part_base + block_start
                    first, stop = max(start, place), min(end, place + len(block))
                    yield block.part(first - place, stop - place), first, stop


class LaneCursor:
    """Reads a lane from an offset on; offsets count rows in the order in which the lane is read."""

    def __init__(self, blocks: EpochBlocks, lane: int, offset: int) -> None:
        self._start, self._spread = blocks.epoch.lane_start(lane), blocks.epoch.lane_order(lane)
        number = self._spread.chunk_of(offset)
        self._next_chunk = number
        self._chunk_start = self._chunk_end = self._spread.rows_before(number)
        first = max(number * self._spread.chunk_width - self._spread.spread_rows, 0)
        self._blocks = blocks.between(self._start + first, self._start + self._spread.length)
        self._active: list[LaneBlock] = []
        self._holders = self._rows = np.zeros(0, np.int64)
        self._rows_loaded = first
        """Lane rows before this one belong to loaded blocks."""
        self.next_offset = offset
        """Offsets before this one have been read."""
        if offset < self._spread.length:
            chunk = self._spread.chunk(number)  # eagerly, because cursors are created concurrently
            self._enter(chunk, number, offset)
            self._read_chunk(chunk)

    def locate(self, offsets: Int64Array) -> tuple[list[LaneBlock], Int64Array, Int64Array]:
        """For increasing offsets: the blocks that hold them, and for each the index of its block and its lane row."""
        index_of: dict[LaneBlock, int] = {}
        holders, rows = np.empty(len(offsets), np.int64), np.empty(len(offsets), np.int64)
        done, last = 0, int(offsets[-1])
        while done < len(offsets):
            while int(offsets[done]) >= self._chunk_end:
                self._read_chunk(self._spread.chunk(self._next_chunk))
            upto = int(np.searchsorted(offsets, self._chunk_end)) if last >= self._chunk_end else len(offsets)
            inside = offsets[done:upto] - self._chunk_start
            active = self._holders[inside]
            used = np.flatnonzero(np.bincount(active))
            number = np.empty(len(self._active), np.int64)
            number[used] = [index_of.setdefault(self._active[each], len(index_of)) for each in used.tolist()]
            holders[done:upto], rows[done:upto] = number[active], self._rows[inside]
            done = upto
        self.next_offset = last + 1
        return list(index_of), holders, rows

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
            self._rows_loaded = end - self._start
            self._active.append(LaneBlock(block, first - self._start, self._rows_loaded, len(block)))

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
