"""Find the blocks that hold an epoch's positions; the only I/O is reading manifests."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from penstock.engine.planning._lanes import LaneBlock, LaneCursor, PartBlocks, walk
from penstock.engine.planning._parts import FirstParts
from penstock.engine.planning._samples import flat_ranges
from penstock.engine.planning._selection import Selection
from penstock.engine.planning._spans import Block, Planned, PlannedBlock
from penstock.plan import Epoch
from penstock.storage import thread_map
from penstock.table import Int64Array

_MANIFEST_READERS = 32
SECTIONS_CACHED = 64
_NO_ROWS = np.zeros(0, np.int64)

PartBlocksOf = Callable[[int, int], list[Block]]
"""Returns the blocks of a part of a section, in table order."""


class BlockLocations(NamedTuple):
    """The blocks that hold some positions."""

    blocks: Sequence[Planned]
    block_index: Int64Array
    """For each position the index of its block."""
    rows: Int64Array
    """For each position its row in that block."""


class BlockLocator:
    """Finds the blocks that hold an epoch's positions; called with consecutive runs of positions."""

    def find(self, positions: Int64Array, *, duplicates: bool = False) -> BlockLocations:
        """The blocks that hold some positions; `duplicates` allows repeated positions."""
        raise NotImplementedError

    def take_closed(self) -> list[Planned]:
        """Blocks that are no longer needed after the last `find`."""
        raise NotImplementedError

    def open_blocks(self) -> list[Planned]:
        """Blocks that later positions still need."""
        return []


class ScatteredLocator(BlockLocator):
    """For selections with an order of their own: each span reads the pages of its rows."""

    def __init__(self, selection: Selection, page_bytes: int) -> None:
        self._selection, self._page_bytes = selection, page_bytes
        self._planned: list[Planned] = []

    def take_closed(self) -> list[Planned]:
        return self._planned

    def find(self, positions: Int64Array, *, duplicates: bool = False) -> BlockLocations:  # noqa: ARG002
        wanted, inverse = np.unique(self._selection.positions(positions), return_inverse=True)
        blocks = list(self._selection.scatter(wanted, self._page_bytes))
        lengths = np.array([len(block) for block in blocks], np.int64)
        block_index, (rows, _) = np.repeat(np.arange(len(blocks)), lengths), flat_ranges(0 * lengths, lengths)
        self._planned = [self._selection.planned(block) for block in blocks]
        return BlockLocations(self._planned, block_index[inverse], rows[inverse])


class LaneLocator(BlockLocator):
    """One cursor per lane."""

    def __init__(self, selection: Selection, part_blocks: PartBlocksOf, epoch: Epoch) -> None:
        self._selection, self._epoch = selection, epoch
        self._cursors: dict[int, LaneCursor] = {}
        self._source = _BlockCache(selection, epoch, part_blocks)
        self._closed: list[Planned] = []

    def take_closed(self) -> list[Planned]:
        closed, self._closed = self._closed, []
        return closed

    def find(self, positions: Int64Array, *, duplicates: bool = False) -> BlockLocations:
        lanes = self._epoch.lanes
        block_index, rows = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        blocks: list[Planned] = []
        lane_positions = list(by_lane(positions, lanes))
        self._open_cursors(
            [(lane, positions[here] // lanes) for lane, here in lane_positions if lane not in self._cursors]
        )
        for lane, here in lane_positions:
            offsets = positions[here] // lanes
            back = None
            if duplicates:
                offsets, back = np.unique(offsets, return_inverse=True)
            found = self._lane(lane, offsets)
            block_index[here] = (found.block_index if back is None else found.block_index[back]) + len(blocks)
            rows[here] = found.rows if back is None else found.rows[back]
            blocks += found.blocks
        return BlockLocations(blocks, block_index, rows)

    def _open_cursors(self, fresh: Sequence[tuple[int, Int64Array]]) -> None:
        """Create the cursors of several lanes concurrently, because each may fetch manifests."""
        if len(fresh) > 1 and self._selection.coarse:
            cursors = thread_map(lambda new: self._cursor(*new), fresh, max_workers=_MANIFEST_READERS)
            self._cursors.update(zip((lane for lane, _ in fresh), cursors, strict=True))

    def _lane(self, lane: int, offsets: Int64Array) -> BlockLocations:
        """The blocks of one lane for some increasing offsets."""
        cursor = self._cursors.get(lane)
        if cursor is None or cursor.next_offset > offsets[0]:
            cursor = self._cursors[lane] = self._cursor(lane, offsets)
        found = self._to_planned_blocks(lane, *cursor.locate(offsets))
        self._close(lane, int(offsets[-1]))
        return found

    def _cursor(self, lane: int, offsets: Int64Array) -> LaneCursor:
        """A cursor that starts at some increasing offsets of a lane."""
        start = self._epoch.lane_start(lane)
        spread = self._epoch.lane_order(lane)

        def blocks(first: int, end: int) -> Iterator[tuple[Block, int, int]]:
            for block, here, stop in walk(self._epoch, self._source, start + first, start + end):
                yield block, here - start, stop - start

        return LaneCursor(spread, blocks, int(offsets[0]))

    def _to_planned_blocks(
        self, lane: int, blocks: list[LaneBlock], holders: Int64Array, rows: Int64Array
    ) -> BlockLocations:
        raise NotImplementedError

    def _close(self, lane: int, offset: int) -> None:
        """Release blocks whose last row is at or before an offset."""


def by_lane(positions: Int64Array, lanes: int) -> Iterator[tuple[int, slice | Int64Array]]:
    """The lanes of some positions, each with the indices of its positions."""
    stride = int(positions[1] - positions[0]) if len(positions) > 1 else 1
    if stride > 0 and lanes % stride == 0 and (np.diff(positions) == stride).all():
        period = lanes // stride  # positions of one rank visit its lanes in a fixed cycle
        for first, lane in enumerate((positions[:period] % lanes).tolist()):
            yield lane, slice(first, None, period)
        return
    in_lane = positions % lanes
    order = np.argsort(in_lane, kind="stable")
    bounds = np.flatnonzero(np.diff(in_lane[order], prepend=-1, append=-1)).tolist()
    for first, end in pairwise(bounds):
        yield int(in_lane[order[first]]), order[first:end]


class _BlockCache:
    """The blocks of an epoch, with an LRU cache because lanes share sections."""

    def __init__(self, selection: Selection, epoch: Epoch, part_blocks: PartBlocksOf) -> None:
        self.parts = lru_cache(SECTIONS_CACHED)(partial(selection.parts, epoch))
        self.blocks = lru_cache(SECTIONS_CACHED)(partial(_ordered, epoch, part_blocks))


def _ordered(epoch: Epoch, part_blocks: PartBlocksOf, section: int, part: int) -> PartBlocks:
    blocks = part_blocks(section, part)
    ordered = [blocks[number] for number in epoch.block_order(section, part, len(blocks)).tolist()]
    return PartBlocks(ordered, np.cumsum([len(block) for block in ordered]))


class WholeBlocks(LaneLocator):
    """Whole blocks, each read once in an epoch and held until its last row has been read."""

    def __init__(
        self,
        selection: Selection,
        part_blocks: PartBlocksOf,
        epoch: Epoch,
        *,
        parts: FirstParts | None,
        resident: list[PlannedBlock] | None,
    ) -> None:
        """With `parts`, blocks are split at first. With `resident`, all are held for later epochs and added to it."""
        super().__init__(selection, part_blocks, epoch)
        self._open_blocks: dict[int, dict[LaneBlock, Planned]] = {}
        self._resident, self._parts = resident, parts

    def find(self, positions: Int64Array, *, duplicates: bool = False) -> BlockLocations:
        found = super().find(positions, duplicates=duplicates)
        if self._parts is not None:
            self._parts.grow()
        return found

    def open_blocks(self) -> list[Planned]:
        if self._resident is not None:
            return []
        return [planned for opened in self._open_blocks.values() for planned in opened.values()]

    def _to_planned_blocks(
        self, lane: int, blocks: list[LaneBlock], holders: Int64Array, rows: Int64Array
    ) -> BlockLocations:
        opened = self._open_blocks.setdefault(lane, {})
        if self._parts is not None:
            blocks, holders = self._parts.split(blocks, holders, rows, opened)
        used = np.flatnonzero(np.bincount(holders))
        known = [blocks[number] for number in used.tolist()]
        number = np.empty(len(blocks), np.int64)
        number[used] = np.arange(len(used))
        block_index = number[holders]
        local = rows - np.array([block.first for block in known])[block_index]
        found: list[Planned] = []
        for index, block in enumerate(known):
            planned = opened.get(block)
            if planned is None:
                planned = opened[block] = self._selection.planned(block.block)
                if self._resident is not None and isinstance(planned, PlannedBlock):
                    self._resident.append(planned)
            if planned.inverse is not None:
                here = block_index == index
                local[here] = planned.inverse[local[here]]
            found.append(planned)
        return BlockLocations(found, block_index, local)

    def _close(self, lane: int, offset: int) -> None:
        opened = self._open_blocks[lane]
        for known in [known for known in opened if 0 <= (known.whole or known).last_offset <= offset]:
            planned = opened.pop(known)
            if self._parts is not None and known.whole is not None:
                self._parts.forget(known.whole)
            if self._resident is None:
                self._closed.append(planned)


class ResidentBlocks(BlockLocator):
    """Blocks that an earlier epoch has read, all of which stay in the window; all of them are given each time."""

    def __init__(
        self, selection: Selection, part_blocks: PartBlocksOf, epoch: Epoch, resident: "ResidentTable"
    ) -> None:
        self._table, self._epoch = resident, epoch
        source = _BlockCache(selection, epoch, part_blocks)
        indices = [
            np.arange(first, first + len(block))
            for block, _, _ in walk(epoch, source, 0, epoch.rows)
            for first in (selection.index_of(block.position(0)),)
        ]
        self._index = np.concatenate(indices)
        """For each place of the epoch the index of its row among the selected ones."""
        self._lanes: dict[int, tuple[int, int, Int64Array]] = {}
        """For each lane its next chunk, the offset at which the one before starts, and the rows of that."""

    def take_closed(self) -> list[Planned]:
        return []

    def find(self, positions: Int64Array, *, duplicates: bool = False) -> BlockLocations:  # noqa: ARG002
        places = np.empty(len(positions), np.int64)
        for lane, here in by_lane(positions, self._epoch.lanes):
            places[here] = self._lane(lane, positions[here] // self._epoch.lanes)
        index = self._index[places]
        number = self._table.block_of[index]
        return BlockLocations(self._table.blocks, number, index - self._table.starts[number])

    def _lane(self, lane: int, offsets: Int64Array) -> Int64Array:
        """The places of the epoch at some offsets of a lane."""
        spread = self._epoch.lane_order(lane)
        rows = np.empty(len(offsets), np.int64)
        left = np.arange(len(offsets))
        while len(left):
            first = int(offsets[left].min())
            number, start, chunk = self._lanes.get(lane, (0, 0, _NO_ROWS))
            if first < start or number == 0:
                number = spread.chunk_of(first)
                start, chunk = spread.rows_before(number), spread.chunk(number)
                number += 1
            while first >= start + len(chunk):
                start, chunk, number = start + len(chunk), spread.chunk(number), number + 1
            self._lanes[lane] = number, start, chunk
            inside = offsets[left] < start + len(chunk)
            rows[left[inside]] = chunk[offsets[left[inside]] - start]
            left = left[~inside]
        return rows + self._epoch.lane_start(lane)


class ResidentTable:
    """All blocks of a table in table order, and which of them holds each row."""

    def __init__(self, selection: Selection, blocks: Sequence[PlannedBlock]) -> None:
        self.blocks = sorted(blocks, key=lambda block: block.source.position(0))
        self.starts = np.array([selection.index_of(block.source.position(0)) for block in self.blocks], np.int64)
        self.block_of = np.repeat(np.arange(len(self.blocks)), [block.rows for block in self.blocks])


class PartialBlocks(LaneLocator):
    """Only the pages of a span's rows: for windows larger than the budget, and for lanes shared by ranks."""

    def __init__(self, selection: Selection, part_blocks: PartBlocksOf, epoch: Epoch, page_bytes: int) -> None:
        super().__init__(selection, part_blocks, epoch)
        self._page_bytes = page_bytes

    def _to_planned_blocks(
        self,
        lane: int,  # noqa: ARG002
        blocks: list[LaneBlock],
        holders: Int64Array,
        rows: Int64Array,
    ) -> BlockLocations:
        found: list[Planned] = []
        block_index, local = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        for number in np.unique(holders).tolist():
            here = np.flatnonzero(holders == number)
            inside, unique = np.unique(rows[here] - blocks[number].first, return_inverse=True)
            first = 0
            for part in self._selection.split(blocks[number].block.take(inside), self._page_bytes):
                mine = (unique >= first) & (unique < first + len(part))
                planned = self._selection.planned(part)
                place = unique[mine] - first
                block_index[here[mine]] = len(found)
                local[here[mine]] = place if planned.inverse is None else planned.inverse[place]
                found.append(planned)
                first += len(part)
        self._closed += found
        return BlockLocations(found, block_index, local)
