"""Whole blocks, held until their last row is read, or over epochs; at the start of a run they are read in parts."""

from collections import defaultdict
from collections.abc import Container, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from penstock.engine.planning._lanes import EpochBlocks, LaneBlock
from penstock.engine.planning._locators import BlockLocations, BlockLocator, LaneLocator, by_lane
from penstock.engine.planning._selection import Selection
from penstock.engine.planning._spans import Planned, PlannedBlock
from penstock.table import Int64Array

_NO_ROWS = np.zeros(0, np.int64)
_FIRST_BYTES, _FIRST_LOCAL_BYTES = 128 << 10, 1 << 20
"""Of the smallest parts; a local read has no latency that is worth many of them."""


class WholeBlocks(LaneLocator):
    """Whole blocks, each read once in an epoch and held until its last row has been read."""

    def __init__(self, blocks: EpochBlocks, *, parts: "FirstParts | None", resident: list[PlannedBlock] | None) -> None:
        """With `parts`, blocks are split at first. With `resident`, all are held for later epochs and added to it."""
        super().__init__(blocks)
        self._opened: dict[int, dict[LaneBlock, Planned]] = defaultdict(dict)
        self._resident, self._parts = resident, parts

    def find(self, positions: Int64Array) -> BlockLocations:
        located = super().find(positions)
        if self._parts is not None:
            self._parts.grow()
        return located

    def open_blocks(self) -> list[Planned]:
        if self._resident is not None:
            return []
        return [planned for opened in self._opened.values() for planned in opened.values()]

    def _plan(self, lane: int, blocks: list[LaneBlock], holders: Int64Array, rows: Int64Array) -> BlockLocations:
        opened = self._opened[lane]
        if self._parts is not None:
            blocks, holders = self._parts.split(blocks, holders, rows, opened)
        local = rows - np.array([block.first for block in blocks])[holders]
        for number, block in enumerate(blocks):
            planned = opened.get(block)
            if planned is None:
                planned = opened[block] = self._selection.planned(block.block)
                if self._resident is not None and isinstance(planned, PlannedBlock):
                    self._resident.append(planned)
            if planned.inverse is not None:
                here = holders == number
                local[here] = planned.inverse[local[here]]
        planned_blocks = [opened[block] for block in blocks]
        next_offset = self._cursors[lane].next_offset
        for block in [block for block in opened if 0 <= (block.whole or block).last_offset < next_offset]:
            planned = opened.pop(block)
            if self._resident is None:
                self._closed.append(planned)
        return BlockLocations(planned_blocks, holders, local)


class FirstParts:
    """Splits the blocks of the first epoch of a run into parts, each of which is read when one of its rows is needed.

    So the first batches wait for little but their own rows. Neighbours that are needed in the same stretch of the plan
    are one part. Stretches grow, and parts with them, until blocks are read as a whole; only rows that were consumed
    before a resume are left out then.
    """

    def __init__(self, selection: Selection, block_bytes: int, *, trim: bool, pages_cached: bool) -> None:
        """With `trim`, parts leave out consumed rows; with `pages_cached`, those of small columns may share pages."""
        self._selection, self._trim, self._pages_cached = selection, trim, pages_cached
        self._bytes = _FIRST_LOCAL_BYTES if selection.reader.store.is_local else _FIRST_BYTES
        self._block_bytes = block_bytes

    def grow(self) -> None:
        """A stretch is planned: those of the next one are larger."""
        self._bytes = min(2 * self._bytes, self._block_bytes)

    def split(
        self, blocks: list[LaneBlock], holders: Int64Array, rows: Int64Array, planned: Container[LaneBlock]
    ) -> tuple[list[LaneBlock], Int64Array]:
        """The blocks that hold some lane rows and the index of each row's, with parts instead of blocks that are split.

        What is already `planned` stays as it is.
        """
        pieces: list[LaneBlock] = []
        for block in blocks:
            if block.parts or (block not in planned and self._splits(block)):
                known = block.parts or [block]
                block.parts = [part for each in known for part in self._split(each, rows, planned)]
            pieces += block.parts or [block]
        if not any(block.parts for block in blocks):
            return blocks, holders
        pieces.sort(key=lambda part: part.first)
        holders = np.searchsorted([part.end for part in pieces], rows, side="right")
        used = np.flatnonzero(np.bincount(holders))
        return [pieces[number] for number in used.tolist()], np.searchsorted(used, holders)

    def _splits(self, block: LaneBlock) -> bool:
        return self._bytes < self._block_bytes or (self._trim and block.unread is not None)

    def _split(self, known: LaneBlock, rows: Int64Array, planned: Container[LaneBlock]) -> Iterator[LaneBlock]:
        """Split a part at the ends of what some lane rows need, without consumed rows there."""
        block, unread = known.block, known.unread if self._trim else None
        needed = rows[(rows >= known.first) & (rows < known.end)] - known.first
        points: set[int] = set()
        if known not in planned and len(needed):
            if self._bytes < self._block_bytes:
                ends = self._selection.part_ends(block, self._bytes, pages_cached=self._pages_cached)
                points.update(_ends_of_needed(ends, needed))
            if unread is not None:
                points.update(self._selection.split_points(block, unread))
        if known in planned or (not points and unread is None):
            yield known
            return
        for start, end in pairwise((0, *sorted(points), len(block))):
            low, high, left = start, end, None
            if unread is not None:
                left = unread[np.searchsorted(unread, start) : np.searchsorted(unread, end)]
                low, high = (int(left[0]), int(left[-1]) + 1) if len(left) else (start, end)
                left = left - low
            yield replace(
                known,
                block=block.part(low, high),
                first=known.first + low,
                end=known.first + end if end < len(block) else known.end,
                unread=left,
                whole=known.whole or known,
                parts=(),
            )


def _ends_of_needed(ends: Int64Array, rows: Int64Array) -> list[int]:
    """The ends of parts, without the last one, at which those that hold some rows begin or end."""
    needed = np.bincount(np.searchsorted(ends, rows, side="right"), minlength=len(ends)) > 0
    points: list[int] = ends[:-1][needed[1:] != needed[:-1]].tolist()
    return points


def _ranges(mask: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Where it is set."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


class ResidentBlocks(BlockLocator):
    """Blocks that stay in the window, where earlier epochs have read some of them, or all.

    Rows of the others have been read by other ranks, dropped by `drop_last`, or consumed before a resume.
    """

    def __init__(self, blocks: EpochBlocks, resident: list[PlannedBlock]) -> None:
        """Unread blocks are added to `resident` once they are needed."""
        super().__init__()
        epoch = self._epoch = blocks.epoch
        self._resident = resident
        index = blocks.selection.index_of
        held = np.zeros(epoch.rows, bool)
        for known in resident:
            first = index(known.source.position(0))
            held[first : first + known.rows] = True
        firsts = [
            (index(block.position(0)), block)
            for lane in range(epoch.lanes)
            for block, _, _ in blocks.between(epoch.lane_start(lane), epoch.lane_start(lane + 1))
        ]
        self._unread = {
            PlannedBlock(block.part(low, high))
            for first, block in ([] if held.all() else firsts)
            for low, high in _ranges(~held[first : first + len(block)])
        }
        self._blocks = sorted([*resident, *self._unread], key=lambda block: block.source.position(0))
        """All blocks; when none is unread, they are given with every plan."""
        lengths = [block.rows for block in self._blocks]
        rows = np.concatenate([np.arange(first, first + len(block)) for first, block in firsts])
        self._block_index = np.repeat(np.arange(len(lengths)), lengths)[rows]
        """For each place of the epoch the index of the block that holds its row."""
        self._rows = rows - np.cumsum([0, *lengths])[self._block_index]
        """For each place of the epoch its row in that block."""
        self._read: dict[int, tuple[int, Int64Array, int]] = {}
        """For each lane some offsets of it: the first one, the places there, and the chunk that follows them."""

    def find(self, positions: Int64Array) -> BlockLocations:
        places = np.empty(len(positions), np.int64)
        for lane, here in by_lane(positions, self._epoch.lanes):
            places[here] = self._lane(lane, positions[here] // self._epoch.lanes)
        located = BlockLocations(self._blocks, self._block_index[places], self._rows[places], not self._unread)
        if self._unread:
            added = self._unread.intersection(self._blocks[number] for number in np.unique(located.block_index))
            self._unread -= added
            self._resident += added
        return located

    def _lane(self, lane: int, offsets: Int64Array) -> Int64Array:
        """The places of the epoch at some offsets of a lane."""
        first, last = int(offsets.min()), int(offsets.max())
        start, places, number = self._read.get(lane, (0, _NO_ROWS, 0))
        if first < start or last >= start + len(places):
            order, lane_start = self._epoch.lane_order(lane), self._epoch.lane_start(lane)
            if first < start or not number:
                number = order.chunk_of(first)
                start, places = order.rows_before(number), _NO_ROWS
            while last >= start + len(places):
                kept = places[max(0, first - start) :]
                start += len(places) - len(kept)
                places, number = np.concatenate([kept, order.chunk(number) + lane_start]), number + 1
            self._read[lane] = start, places, number
        return places[offsets - start]
