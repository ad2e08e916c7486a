"""Walk along a lane: its rows in the order in which it is read, and which block holds each."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from penstock.engine.planning._selection import Selection
from penstock.engine.planning._spans import Planned
from penstock.plan import Epoch, LaneRows, distinct
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
    """Rows that the cursor has not passed yet; 0 of a part."""
    unread: Int64Array | None = None
    """Its rows that were not consumed before a resume; None for all."""
    parts: Sequence["LaneBlock"] = ()
    """Blocks that are read instead of it."""
    planned: Planned | None = None
    """What is read; None until a row is needed, and of a block that is read in parts."""


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


class LaneCursor(LaneRows):
    """Finds the blocks that hold the rows of a lane, from an offset on."""

    def __init__(self, blocks: EpochBlocks, lane: int, offset: int) -> None:
        super().__init__(blocks.epoch.lane_order(lane), offset)
        self._lane_start = blocks.epoch.lane_start(lane)
        first, end, read = self.near()
        self._rows_loaded = first
        self._blocks = blocks.between(self._lane_start + first, self._lane_start + self.order.length)
        self._set_active([])
        self._load_blocks(end)  # eagerly, because cursors are created concurrently
        unread = np.ones(self._rows_loaded - first, bool)
        unread[read - first] = False
        for number in distinct(np.searchsorted(self._ends, read, side="right"))[0].tolist():
            block = self._active[number]
            block.unread = np.flatnonzero(unread[block.first - first : block.end - first])
            block.remaining = len(block.unread)

    def locate(self, offsets: Int64Array) -> tuple[list[LaneBlock], Int64Array, Int64Array]:
        """For increasing offsets: the blocks that hold them, and for each the index of its block and its lane row."""
        wanted = offsets - self.next_offset
        rows = self.until(int(offsets[-1]) + 1)  # with those between, which others read
        self._load_blocks(int(rows.max()) + 1)
        holders = np.searchsorted(self._ends, rows, side="right")
        used, index = distinct(holders[wanted])
        blocks = [self._active[number] for number in used.tolist()]
        counts = np.bincount(holders)
        passed = False
        for number in np.flatnonzero(counts).tolist():
            block = self._active[number]
            block.remaining -= int(counts[number])
            passed |= not block.remaining
        if passed:
            self._set_active([block for block in self._active if block.remaining])
        return blocks, index, rows[wanted]

    def _load_blocks(self, row: int) -> None:
        """Load the blocks up to a lane row."""
        loaded: list[LaneBlock] = []
        while self._rows_loaded < row:
            block, first, end = next(self._blocks)
            self._rows_loaded = end - self._lane_start
            loaded.append(LaneBlock(block, first - self._lane_start, self._rows_loaded, len(block)))
        if loaded:
            self._set_active([*self._active, *loaded])

    def _set_active(self, blocks: list[LaneBlock]) -> None:
        """The loaded blocks that have rows left."""
        self._active, self._ends = blocks, np.array([block.end for block in blocks], np.int64)
