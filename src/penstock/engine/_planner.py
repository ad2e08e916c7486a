"""Turn an epoch's order into spans and the blocks they need; the only I/O is reading manifests."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.engine._blocks import Span, WindowBlock
from penstock.engine._lanes import LaneBlock, LaneCursor, PartBlocks, walk
from penstock.engine._selection import Block, Selection
from penstock.plan import Epoch, OrderSpec, RankPartitioner
from penstock.storage import thread_map
from penstock.table import Int64Array

_MANIFEST_READERS = 32
_SECTIONS_CACHED = 64
_FIRST_STEPS = 8


PartBlocksOf = Callable[[int, int], list[Block]]
"""Returns the blocks of a part of a section, in table order."""


@dataclass(frozen=True)
class PlanOptions:
    """What a plan depends on besides the order."""

    span_rows: int
    """Rows of a span, at least one batch."""
    plan_rows: int
    """Rows planned together, at least a span."""
    page_bytes: int
    """If only some pages of blocks are read: about how many bytes of the heaviest column are read together."""
    by_blocks: bool
    """Whether whole blocks stay in the window; otherwise a span reads only the pages of its rows."""
    trim: bool
    """Whether a block may leave out rows consumed before a resume."""
    assign_destinations: bool
    """Whether blocks record the destinations of their rows."""


class BlockLocations(NamedTuple):
    """The blocks that hold some positions."""

    blocks: list[WindowBlock]
    block_index: Int64Array
    """For each position the index of its block."""
    rows: Int64Array
    """For each position its row in that block."""


class PlannedSpans(NamedTuple):
    """Spans planned together, and the blocks that no later span needs."""

    spans: list[Span]
    closed: list[WindowBlock]

    @property
    def has_open_blocks(self) -> bool:
        """Whether later spans may need some of the blocks."""
        return not all(window_block.closed for span in self.spans for window_block in span.blocks)


class Planner:
    """Plans the spans of one epoch after another."""

    def __init__(
        self, selection: Selection, order: OrderSpec, partitioner: RankPartitioner, options: PlanOptions
    ) -> None:
        self._selection, self._order, self._partitioner, self._options = selection, order, partitioner, options
        self._part_blocks: PartBlocksOf = lru_cache(_SECTIONS_CACHED)(partial(selection.blocks, order.shuffle))
        """Cached, because the split into blocks is the same in every epoch."""
        self._next_span = 0

    def planned_spans(self, number: int, consumed: int) -> Iterator[PlannedSpans]:
        """The spans of an epoch from a position on, planned a few thousand rows at a time."""
        epoch = self._epoch(number)
        partitioner, batch = self._partitioner, self._partitioner.batch_size
        full, steps = partitioner.full_steps(consumed), partitioner.steps(consumed)
        locator = self._locator(epoch, first=not self._next_span)
        per_span = max(1, self._options.span_rows // batch)
        most = max(per_span, self._options.plan_rows // batch)
        step, size = 0, min(per_span, _FIRST_STEPS)
        while step < full:
            count = min(size, full - step)
            start = consumed + step * partitioner.step_rows
            ends = range(
                start + partitioner.step_rows, start + count * partitioner.step_rows + 1, partitioner.step_rows
            )
            found = locator.find(partitioner.positions(start, count).reshape(-1))
            step += count
            of_span = min(per_span, size)
            size = min(2 * size, most)  # plan little at first, so that the first batch comes early
            yield self._plan_spans(epoch, locator, found, None, [batch] * count, list(ends), of_span, step == steps)
        if steps > full:
            positions, padding = partitioner.last_step(consumed + full * partitioner.step_rows)
            found = locator.find(positions, duplicates=True)
            yield self._plan_spans(epoch, locator, found, padding, [len(positions)], [epoch.rows], 1, True)

    def _epoch(self, number: int) -> Epoch:
        shuffle = self._order.shuffle
        reach = round(shuffle.spread * self._selection.block_rows(shuffle.block_bytes)) if self._order.shuffled else 0
        lanes = min(shuffle.lanes, max(1, self._order.rows))
        return Epoch(self._selection.section_rows, lanes, reach, self._order.seed, number, self._order.shuffled)

    def _locator(self, epoch: Epoch, *, first: bool) -> "_BlockLocator":
        if self._selection.scattered:
            return _ScatteredLocator(self._selection, self._options.page_bytes)
        if self._options.by_blocks:
            return _WholeBlocks(self._selection, self._part_blocks, epoch, trim=self._options.trim and first)
        return _PartialBlocks(self._selection, self._part_blocks, epoch, self._options.page_bytes)

    def _plan_spans(
        self,
        epoch: Epoch,
        locator: "_BlockLocator",
        found: BlockLocations,
        padding: npt.NDArray[np.bool_] | None,
        batch_rows: list[int],
        consumed: list[int],
        per_span: int,
        last: bool,
    ) -> PlannedSpans:
        spans: list[Span] = []
        row = 0
        local_index = np.empty(len(found.blocks), np.int64)
        for first in range(0, len(batch_rows), per_span):
            mine = batch_rows[first : first + per_span]
            here = slice(row, row + sum(mine))
            row = here.stop
            needed = np.flatnonzero(np.bincount(found.block_index[here]))
            local_index[needed] = np.arange(len(needed))
            block_index = local_index[found.block_index[here]]
            spans.append(
                Span(
                    number=self._next_span,
                    epoch=epoch.index,
                    batch_rows=mine,
                    consumed=consumed[first : first + per_span],
                    last=last and row == len(found.block_index),
                    blocks=[found.blocks[number] for number in needed.tolist()],
                    block_index=block_index,
                    rows=found.rows[here],
                    padding=padding,
                    blocks_drawn=_blocks_drawn(block_index, mine, len(needed)),
                )
            )
            self._next_span += 1
        if self._options.assign_destinations:
            for span in spans:
                span.assign_destinations()
        return PlannedSpans(spans, locator.take_closed() + (locator.open_blocks() if last else []))


def _blocks_drawn(block_index: Int64Array, batch_rows: list[int], blocks: int) -> int:
    """Sum over batches of the number of blocks that a batch draws from."""
    batch = np.repeat(np.arange(len(batch_rows)), batch_rows)
    return int(np.count_nonzero(np.bincount(batch * blocks + block_index)))


class _BlockLocator:
    """Finds the blocks that hold an epoch's positions; called with consecutive runs of positions."""

    def find(self, positions: Int64Array, *, duplicates: bool = False) -> BlockLocations:
        """The blocks that hold some positions; `duplicates` allows repeated positions."""
        raise NotImplementedError

    def take_closed(self) -> list[WindowBlock]:
        """Blocks that are no longer needed after the last `find`."""
        raise NotImplementedError

    def open_blocks(self) -> list[WindowBlock]:
        """Blocks that later positions still need."""
        return []


class _ScatteredLocator(_BlockLocator):
    """For selections with an order of their own: each span reads the pages of its rows."""

    def __init__(self, selection: Selection, page_bytes: int) -> None:
        self._selection, self._page_bytes = selection, page_bytes
        self._found: list[WindowBlock] = []

    def take_closed(self) -> list[WindowBlock]:
        return self._found

    def find(self, positions: Int64Array, *, duplicates: bool = False) -> BlockLocations:  # noqa: ARG002
        wanted, inverse = np.unique(self._selection.positions(positions), return_inverse=True)
        block_index, rows = np.empty(len(wanted), np.int64), np.empty(len(wanted), np.int64)
        blocks: list[WindowBlock] = []
        for block, inside in self._selection.scatter(wanted, self._page_bytes):
            block_index[inside], rows[inside] = len(blocks), np.arange(len(inside))
            blocks.append(WindowBlock(block))
        self._found = blocks
        return BlockLocations(blocks, block_index[inverse], rows[inverse])


class _LaneLocator(_BlockLocator):
    """One cursor per lane."""

    def __init__(self, selection: Selection, part_blocks: PartBlocksOf, epoch: Epoch, trim: bool) -> None:
        self._selection, self._epoch = selection, epoch
        self._trim = trim
        self._cursors: dict[int, LaneCursor] = {}
        self._source = _BlockCache(selection, epoch, part_blocks)
        self._closed: list[WindowBlock] = []

    def take_closed(self) -> list[WindowBlock]:
        closed, self._closed = self._closed, []
        return closed

    def find(self, positions: Int64Array, *, duplicates: bool = False) -> BlockLocations:
        lanes = self._epoch.lanes
        block_index, rows = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        blocks: list[WindowBlock] = []
        by_lane = list(self._by_lane(positions))
        self._open_cursors([(lane, positions[here] // lanes) for lane, here in by_lane if lane not in self._cursors])
        for lane, here in by_lane:
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

    def _by_lane(self, positions: Int64Array) -> Iterator[tuple[int, slice | Int64Array]]:
        """The lanes of some positions, each with the indices of its positions."""
        lanes = self._epoch.lanes
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

    def _lane(self, lane: int, offsets: Int64Array) -> BlockLocations:
        """The blocks of one lane for some increasing offsets."""
        cursor = self._cursors.get(lane)
        if cursor is None or cursor.next_offset > offsets[0]:
            cursor = self._cursors[lane] = self._cursor(lane, offsets)
        found = self._to_window_blocks(lane, *cursor.locate(offsets))
        self._close(lane, int(offsets[-1]))
        return found

    def _cursor(self, lane: int, offsets: Int64Array) -> LaneCursor:
        """A cursor that starts at some increasing offsets of a lane."""
        start = self._epoch.lane_start(lane)
        spread = self._epoch.lane_order(lane)

        def blocks(first: int, end: int) -> Iterator[tuple[Block, int, int]]:
            for block, here, stop in walk(self._epoch, self._source, start + first, start + end):
                yield block, here - start, stop - start

        return LaneCursor(
            spread, blocks, int(offsets[0]), int(offsets[-1]), self._selection.split_points if self._trim else None
        )

    def _to_window_blocks(
        self, lane: int, blocks: list[LaneBlock], holders: Int64Array, rows: Int64Array
    ) -> BlockLocations:
        raise NotImplementedError

    def _close(self, lane: int, offset: int) -> None:
        """Release blocks whose last row is at or before an offset."""


class _BlockCache:
    """The blocks of an epoch, with an LRU cache because lanes share sections."""

    def __init__(self, selection: Selection, epoch: Epoch, part_blocks: PartBlocksOf) -> None:
        self.parts = lru_cache(_SECTIONS_CACHED)(partial(selection.parts, epoch))
        self.blocks = lru_cache(_SECTIONS_CACHED)(partial(_ordered, epoch, part_blocks))


def _ordered(epoch: Epoch, part_blocks: PartBlocksOf, section: int, part: int) -> PartBlocks:
    blocks = part_blocks(section, part)
    ordered = [blocks[number] for number in epoch.block_order(section, part, len(blocks)).tolist()]
    return PartBlocks(ordered, np.cumsum([len(block) for block in ordered]))


class _WholeBlocks(_LaneLocator):
    """Whole blocks, each read once and held until its last row has been read."""

    def __init__(self, selection: Selection, part_blocks: PartBlocksOf, epoch: Epoch, trim: bool) -> None:
        super().__init__(selection, part_blocks, epoch, trim)
        self._open_blocks: dict[int, dict[LaneBlock, WindowBlock]] = {}

    def open_blocks(self) -> list[WindowBlock]:
        return [window_block for opened in self._open_blocks.values() for window_block in opened.values()]

    def _to_window_blocks(
        self, lane: int, blocks: list[LaneBlock], holders: Int64Array, rows: Int64Array
    ) -> BlockLocations:
        opened = self._open_blocks.setdefault(lane, {})
        used = np.flatnonzero(np.bincount(holders))
        known = [blocks[number] for number in used.tolist()]
        number = np.empty(len(blocks), np.int64)
        number[used] = np.arange(len(used))
        block_index = number[holders]
        local = rows - np.array([block.first for block in known])[block_index]
        window_blocks: list[WindowBlock] = []
        for index, block in enumerate(known):
            window_block = opened.get(block)
            if window_block is None:
                window_block = opened[block] = WindowBlock(block.block, block.unread)
            if window_block.inverse is not None:
                here = block_index == index
                local[here] = window_block.inverse[local[here]]
            window_blocks.append(window_block)
        return BlockLocations(window_blocks, block_index, local)

    def _close(self, lane: int, offset: int) -> None:
        opened = self._open_blocks[lane]
        for known in [known for known in opened if 0 <= known.last_offset <= offset]:
            self._closed.append(opened.pop(known))


class _PartialBlocks(_LaneLocator):
    """Only the pages of a span's rows: for windows larger than the budget, and for lanes shared by ranks."""

    def __init__(self, selection: Selection, part_blocks: PartBlocksOf, epoch: Epoch, page_bytes: int) -> None:
        super().__init__(selection, part_blocks, epoch, trim=False)
        self._page_bytes = page_bytes

    def _to_window_blocks(
        self,
        lane: int,  # noqa: ARG002
        blocks: list[LaneBlock],
        holders: Int64Array,
        rows: Int64Array,
    ) -> BlockLocations:
        window_blocks: list[WindowBlock] = []
        block_index, local = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        for number in np.unique(holders).tolist():
            here = np.flatnonzero(holders == number)
            inside, unique = np.unique(rows[here] - blocks[number].first, return_inverse=True)
            first = 0
            for part in self._selection.split(blocks[number].block.take(inside), self._page_bytes):
                mine = (unique >= first) & (unique < first + len(part))
                window_block = WindowBlock(part)
                place = unique[mine] - first
                block_index[here[mine]] = len(window_blocks)
                local[here[mine]] = place if window_block.inverse is None else window_block.inverse[place]
                window_blocks.append(window_block)
                first += len(part)
        self._closed += window_blocks
        return BlockLocations(window_blocks, block_index, local)
