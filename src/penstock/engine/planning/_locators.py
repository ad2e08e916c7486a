"""Find the blocks that hold an epoch's positions; the only I/O is reading manifests."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.engine.planning._lanes import EpochBlocks, LaneBlock, LaneCursor
from penstock.engine.planning._samples import flat_ranges, groups
from penstock.engine.planning._selection import Selection
from penstock.engine.planning._spans import Planned, PlannedSamples, SpanSamples
from penstock.storage import thread_map
from penstock.table import Int64Array

_MANIFEST_READERS = 32


class BlockLocations(NamedTuple):
    """The blocks that hold some positions."""

    blocks: Sequence[Planned]
    block_index: Int64Array
    """For each position the index of its block."""
    rows: Int64Array
    """For each position its row in that block."""
    resident: bool = False
    """Whether `blocks` are all blocks of the table, which stay in the window."""

    def part(self, here: slice) -> "BlockLocations":
        """Those of some of the positions, with the blocks that hold these, or with all if they are resident."""
        block_index, rows = self.block_index[here], self.rows[here]
        if self.resident:
            return BlockLocations(self.blocks, block_index, rows, resident=True)
        needed = np.flatnonzero(np.bincount(block_index))
        number = np.empty(len(self.blocks), np.int64)
        number[needed] = np.arange(len(needed))
        return BlockLocations([self.blocks[each] for each in needed.tolist()], number[block_index], rows)

    def drawn(self) -> tuple["BlockLocations", SpanSamples]:
        """Of samples that are composed of rows: the rows that they draw."""
        counts, numbers = np.empty(len(self.rows), np.int64), np.empty(len(self.rows), np.int64)
        blocks: list[Planned] = []
        parts: list[tuple[Int64Array, Int64Array, Int64Array]] = []
        for index, here in groups(self.block_index):
            block, local = self.blocks[index], self.rows[here]
            assert isinstance(block, PlannedSamples)
            starts = block.offsets[local]
            numbers[here], counts[here] = block.samples[local], block.offsets[local + 1] - starts
            source, _ = flat_ranges(starts, counts[here])
            parts.append((here, block.block_index[source] + len(blocks), block.rows[source]))
            blocks += block.blocks
        offsets = np.append(0, np.cumsum(counts))
        block_index, rows = np.empty(offsets[-1], np.int64), np.empty(offsets[-1], np.int64)
        for here, *drawn in parts:
            target, _ = flat_ranges(offsets[here], counts[here])
            block_index[target], rows[target] = drawn
        return BlockLocations(blocks, block_index, rows), SpanSamples(numbers, offsets)


class BlockLocator:
    """Finds the blocks that hold an epoch's positions; called with consecutive runs of positions."""

    def __init__(self) -> None:
        self._closed: list[Planned] = []

    def find(self, positions: Int64Array) -> BlockLocations:
        """The blocks that hold some positions."""
        raise NotImplementedError

    def take_closed(self) -> list[Planned]:
        """Blocks that are no longer needed after the last `find`."""
        closed, self._closed = self._closed, []
        return closed

    def open_blocks(self) -> list[Planned]:
        """Blocks that later positions still need."""
        return []

    def _read_at_once(self, selection: Selection, blocks: Iterable[Any], inverse: Int64Array) -> BlockLocations:
        """Plan blocks for these positions alone; `inverse` has the index of each among the rows of all of them."""
        plans = [(len(block), selection.planned(block)) for block in blocks]
        lengths = np.array([length for length, _ in plans], np.int64)
        block_index, (rows, _) = np.repeat(np.arange(len(plans)), lengths), flat_ranges(0 * lengths, lengths)
        for number, (_, planned) in enumerate(plans):
            if planned.inverse is not None:
                rows[block_index == number] = planned.inverse
        self._closed += [planned for _, planned in plans]
        return BlockLocations([planned for _, planned in plans], block_index[inverse], rows[inverse])


class ScatteredLocator(BlockLocator):
    """For selections with an order of their own: each span reads the pages of its rows."""

    def __init__(self, selection: Selection, page_bytes: int) -> None:
        super().__init__()
        self._selection, self._page_bytes = selection, page_bytes

    def find(self, positions: Int64Array) -> BlockLocations:
        wanted, inverse = np.unique(self._selection.positions(positions), return_inverse=True)
        return self._read_at_once(self._selection, self._selection.scatter(wanted, self._page_bytes), inverse)


class LaneLocator(BlockLocator):
    """One cursor per lane."""

    def __init__(self, blocks: EpochBlocks) -> None:
        super().__init__()
        self._blocks, self._selection, self._lanes = blocks, blocks.selection, blocks.epoch.lanes
        self._cursors: dict[int, LaneCursor] = {}

    def find(self, positions: Int64Array) -> BlockLocations:
        block_index, rows = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        blocks: list[Planned] = []
        parts: list[tuple[int, slice | Int64Array, Int64Array, slice | Int64Array]] = []
        for lane, here in by_lane(positions, self._lanes):
            offsets = positions[here] // self._lanes
            rising = (offsets[1:] > offsets[:-1]).all()  # unless some rows pad a step
            parts.append((lane, here, *((offsets, slice(None)) if rising else np.unique(offsets, return_inverse=True))))
        self._open_cursors([(lane, int(offsets[0])) for lane, _, offsets, _ in parts])
        for lane, here, offsets, back in parts:
            located = self._plan(lane, *self._cursors[lane].locate(offsets))
            block_index[here], rows[here] = located.block_index[back] + len(blocks), located.rows[back]
            blocks += located.blocks
        return BlockLocations(blocks, block_index, rows)

    def _open_cursors(self, starts: Sequence[tuple[int, int]]) -> None:
        """Have a cursor in some lanes at or before an offset; concurrently, where each may fetch manifests."""
        cursors = self._cursors
        new = [at for at in starts if at[0] not in cursors or cursors[at[0]].next_offset > at[1]]
        workers = _MANIFEST_READERS if self._selection.coarse else 1
        opened = thread_map(lambda at: LaneCursor(self._blocks, *at), new, max_workers=workers)
        cursors.update(zip((lane for lane, _ in new), opened, strict=True))

    def _plan(self, lane: int, blocks: list[LaneBlock], holders: Int64Array, rows: Int64Array) -> BlockLocations:
        """The blocks to read for some rows of a lane, given the ones that hold them."""
        raise NotImplementedError


def by_lane(positions: Int64Array, lanes: int) -> Iterator[tuple[int, slice | Int64Array]]:
    """The lanes of some positions, each with the indices of its positions."""
    stride = int(positions[1] - positions[0]) if len(positions) > 1 else 1
    if stride > 0 and lanes % stride == 0 and (np.diff(positions) == stride).all():
        period = lanes // stride  # positions of one rank visit its lanes in a fixed cycle
        for first, lane in enumerate((positions[:period] % lanes).tolist()):
            yield lane, slice(first, None, period)
    else:
        yield from groups(positions % lanes)


class PartialBlocks(LaneLocator):
    """Only the pages of a span's rows: for windows larger than the budget, and for lanes shared by ranks."""

    def __init__(self, blocks: EpochBlocks, page_bytes: int) -> None:
        super().__init__(blocks)
        self._page_bytes = page_bytes

    def _plan(self, lane: int, blocks: list[LaneBlock], holders: Int64Array, rows: Int64Array) -> BlockLocations:  # noqa: ARG002
        wanted, inverse = np.unique(rows, return_inverse=True)
        blocks = sorted(blocks, key=lambda block: block.first)
        starts = np.searchsorted(wanted, [block.first for block in blocks])
        parts = (
            part
            for block, inside in zip(blocks, np.split(wanted, starts[1:]), strict=True)
            for part in self._selection.split(block.block.take(inside - block.first), self._page_bytes)
        )
        return self._read_at_once(self._selection, parts, inverse)
