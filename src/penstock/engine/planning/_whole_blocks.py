"""Whole blocks, held until their last row is read, or over epochs; at the start of a run they are read in parts."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from penstock.engine.planning._lanes import EpochBlocks, LaneBlock
from penstock.engine.planning._locators import BlockLocator, LaneLocator, PlanOptions, by_lane
from penstock.engine.planning._spans import LocatedRows, Planned, PlannedBlock
from penstock.plan import LaneRows, distinct
from penstock.table import Int64Array

_FIRST_BYTES, _FIRST_LOCAL_BYTES = 128 << 10, 1 << 20
"""Of the smallest parts; a local read has no latency that is worth many of them."""


class WholeBlocks(LaneLocator):
    """Whole blocks, each read once in an epoch and held until its last row has been read, or over epochs.

    In the first epoch of a run, blocks are split into parts, each of which is read when one of its rows is needed. So
    the first batches wait for little but their own rows. Neighbours that are needed in the same stretch of the plan
    are one part. Stretches grow, and parts with them, until blocks are read as a whole; only rows that were consumed
    before a resume are left out then.
    """

    def __init__(
        self,
        blocks: EpochBlocks,
        options: PlanOptions,
        closed: list[Planned],
        resident: list[PlannedBlock],
        *,
        first: bool,
        block_bytes: int,
    ) -> None:
        """The epoch may be the `first` one of a run; blocks that are held for later epochs are added to `resident`."""
        super().__init__(blocks, options, closed)
        self._opened: dict[int, dict[LaneBlock, None]] = defaultdict(dict)
        self._resident, self._first, self._block_bytes = resident, first, block_bytes
        self._part_bytes = _FIRST_LOCAL_BYTES if self._selection.reader.store.is_local else _FIRST_BYTES

    def find(self, positions: Int64Array) -> LocatedRows:
        located = super().find(positions)
        self._part_bytes = min(2 * self._part_bytes, self._block_bytes)
        return located

    def close(self) -> None:
        for opened in self._opened.values():
            self._close(list(opened))

    def _close(self, blocks: list[LaneBlock]) -> None:
        if not self._options.resident:
            self._closed += [
                part.planned for block in blocks for part in block.parts or (block,) if part.planned is not None
            ]

    def _plan(self, lane: int, blocks: list[LaneBlock], holders: Int64Array, rows: Int64Array) -> LocatedRows:
        opened = self._opened[lane]
        opened.update(dict.fromkeys(blocks))
        if self._first:
            blocks, holders = self._in_parts(blocks, holders, rows)
        local = rows - np.array([block.first for block in blocks])[holders]
        planned: list[Planned] = []
        for number, block in enumerate(blocks):
            if block.planned is None:
                block.planned = self._selection.planned(block.block)
                if self._options.resident and isinstance(block.planned, PlannedBlock):
                    self._resident.append(block.planned)
            if block.planned.inverse is not None:
                here = holders == number
                local[here] = block.planned.inverse[local[here]]
            planned.append(block.planned)
        read = [block for block in opened if not block.remaining]
        for block in read:
            del opened[block]
        self._close(read)
        return LocatedRows(planned, holders, local)

    def _in_parts(
        self, blocks: list[LaneBlock], holders: Int64Array, rows: Int64Array
    ) -> tuple[list[LaneBlock], Int64Array]:
        """The blocks that hold some lane rows and the index of each row's, with parts instead of blocks that are split.

        What is already planned stays as it is.
        """
        for block in blocks:
            if block.parts or (block.planned is None and self._splits(block)):
                block.parts = [part for known in block.parts or (block,) for part in self._split(known, rows)]
        if not any(block.parts for block in blocks):
            return blocks, holders
        parts = [part for block in blocks for part in block.parts or (block,)]
        parts.sort(key=lambda part: part.first)
        holders = np.searchsorted([part.end for part in parts], rows, side="right")
        used, index = distinct(holders)
        return [parts[number] for number in used.tolist()], index

    def _splits(self, block: LaneBlock) -> bool:
        return self._part_bytes < self._block_bytes or (self._options.trim and block.unread is not None)

    def _split(self, known: LaneBlock, rows: Int64Array) -> Iterator[LaneBlock]:
        """Split a part at the ends of what some lane rows need, without consumed rows there."""
        block, unread = known.block, known.unread if self._options.trim else None
        needed = rows[(rows >= known.first) & (rows < known.end)] - known.first
        points: set[int] = set()
        if known.planned is None and len(needed):
            if self._part_bytes < self._block_bytes:
                ends = self._selection.part_ends(block, self._part_bytes, pages_cached=self._options.pages_cached)
                used = np.bincount(np.searchsorted(ends, needed, side="right"), minlength=len(ends)) > 0
                points.update(ends[:-1][used[1:] != used[:-1]].tolist())
            if unread is not None:
                points.update(self._selection.split_points(block, unread))
        if known.planned is not None or (not points and unread is None):
            yield known
            return
        for start, end in pairwise((0, *sorted(points), len(block))):
            low, high, left = start, end, None
            if unread is not None:
                left = unread[np.searchsorted(unread, start) : np.searchsorted(unread, end)]
                low, high = (int(left[0]), int(left[-1]) + 1) if len(left) else (start, end)
                left = left - low
            part_end = known.first + end if end < len(block) else known.end
            yield LaneBlock(block.part(low, high), known.first + low, part_end, unread=left)


def _ranges(mask: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Where it is set."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


class ResidentBlocks(BlockLocator):
    """Blocks that stay in the window, where earlier epochs have read some of them, or all.

    Rows of the others have been read by other ranks, dropped by `drop_last`, or consumed before a resume.
    """

    def __init__(
        self, blocks: EpochBlocks, options: PlanOptions, closed: list[Planned], resident: list[PlannedBlock]
    ) -> None:
        """Unread blocks are added to `resident` once they are needed."""
        super().__init__(blocks, options, closed)
        self._epoch, self._resident = blocks.epoch, resident
        epoch, index = blocks.epoch, blocks.selection.index_of
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
        self._all = sorted([*resident, *self._unread], key=lambda block: block.source.position(0))
        """All blocks; when none is unread, they are given with every plan."""
        lengths = [block.rows for block in self._all]
        rows = np.concatenate([np.arange(first, first + len(block)) for first, block in firsts])
        self._block_index = np.repeat(np.arange(len(lengths)), lengths)[rows]
        """For each place of the epoch the index of the block that holds its row."""
        self._rows = rows - np.cumsum([0, *lengths])[self._block_index]
        """For each place of the epoch its row in that block."""
        self._lanes: dict[int, LaneRows] = {}

    def find(self, positions: Int64Array) -> LocatedRows:
        places = np.empty(len(positions), np.int64)
        for lane, here in by_lane(positions, self._epoch.lanes):
            places[here] = self._places(lane, positions[here] // self._epoch.lanes)
        located = LocatedRows(self._all, self._block_index[places], self._rows[places], not self._unread)
        if self._unread:
            added = self._unread.intersection(self._all[number] for number in np.unique(located.block_index))
            self._unread -= added
            self._resident += added
        return located

    def _places(self, lane: int, offsets: Int64Array) -> Int64Array:
        """The places of the epoch at some offsets of a lane."""
        first, rows = int(offsets.min()), self._lanes.get(lane)
        if rows is None or rows.next_offset > first:
            rows = self._lanes[lane] = LaneRows(self._epoch.lane_order(lane), first)
        start = rows.next_offset
        return rows.until(int(offsets.max()) + 1)[offsets - start] + self._epoch.lane_start(lane)
