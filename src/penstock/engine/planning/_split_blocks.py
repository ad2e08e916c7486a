"""Blocks in parts, by when their rows are read, for windows larger than the budget of memory."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.engine.planning._lanes import EpochBlocks, LaneBlock
from penstock.engine.planning._locators import LaneLocator, PlanOptions
from penstock.engine.planning._selection import Selection
from penstock.engine.planning._spans import LocatedRows, Planned, PlannedBlock
from penstock.plan import STRETCH_PARTS, groups, stretch_parts
from penstock.table import Int64Array

Floats = npt.NDArray[np.float64]


class SplitBlocks(LaneLocator):
    """Blocks in parts, by when their rows are read: for windows larger than the budget.

    The rows of a block are divided, by the time at which they are read, into one or more stretches. The pages of each
    stretch are fetched when its first row is needed, and its rows are held in parts, each until its last row is read.
    So the window holds few rows that have been read, and few that are read much later.
    """

    def __init__(self, blocks: EpochBlocks, options: PlanOptions, closed: list[Planned]) -> None:
        super().__init__(blocks, options, closed)
        self._opened: dict[int, dict[LaneBlock, _SplitBlock]] = defaultdict(dict)
        self._divided = 0

    def close(self) -> None:
        self._closed += [
            part for lane in self._opened.values() for block in lane.values() for part in block.close(np.inf)
        ]

    def _plan(self, lane: int, blocks: list[LaneBlock], holders: Int64Array, rows: Int64Array) -> LocatedRows:
        opened = self._opened[lane]
        parts: list[Planned] = []
        block_index, local = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        now = -np.inf
        for number, here in groups(holders):
            block = blocks[number]
            split = opened[block] = opened.get(block) or self._new_split(lane, block)
            inside = rows[here] - block.first
            split.open(inside)
            block_index[here], local[here] = split.block_index[inside] + len(parts), split.rows[inside]
            parts += split.planned
            now = max(now, float(split.times[inside[-1]]))
        for block, split in list(opened.items()):
            self._closed += split.close(now)
            if not block.remaining:
                del opened[block]
        return LocatedRows(parts, block_index, local)

    def _new_split(self, lane: int, block: LaneBlock) -> "_SplitBlock":
        order = self._blocks.epoch.lane_order(lane)
        times = order.read_times(block.first, block.first + len(block.block))
        self._divided += 1
        reads = self._options.page_reads
        parts = stretch_parts(times, self._divided, page_reads=reads, whole_lanes=order.is_whole)
        return _SplitBlock(self._selection, block.block, times, parts, self._options.page_bytes)


class _SplitBlock:
    """A block, the parts of it that have been planned, and which of them holds each row."""

    def __init__(self, selection: Selection, block: Any, times: Floats, parts: Int64Array, page_bytes: int) -> None:
        """`times` says when each row is read, and `parts` in which part it is."""
        self._selection, self._block, self._page_bytes = selection, block, page_bytes
        self.times, self._part = times, parts
        self.planned: list[PlannedBlock] = []
        self._last: list[float] = []
        """When the last row of each of them is read; not a number once it is closed."""
        self.block_index, self.rows = np.full(len(times), -1), np.empty(len(times), np.int64)

    def open(self, rows: Int64Array) -> None:
        """Plan the parts that hold some rows, and the later ones that are read with them."""
        missing = rows[self.block_index[rows] < 0]
        while len(missing):
            self._open_parts(int(self._part[missing].min()))
            missing = missing[self.block_index[missing] < 0]

    def _open_parts(self, first: int) -> None:
        """Plan a part and the later ones of its stretch, which are read together."""
        rows = np.flatnonzero((self._part >= first) & (self._part // STRETCH_PARTS == first // STRETCH_PARTS))
        source = self._block if len(rows) == len(self._block) else self._block.take(rows)
        for block in self._selection.split(source, self._page_bytes):
            here, rows = rows[: len(block)], rows[len(block) :]
            whole = PlannedBlock(block)
            for number in np.unique(self._part[here]).tolist():
                mine = here[self._part[here] == number]
                part = PlannedBlock(self._block.take(mine), whole)
                whole.parts += (part,)
                self.block_index[mine] = len(self.planned)
                self.rows[mine] = np.arange(len(mine)) if part.inverse is None else part.inverse
                self.planned.append(part)
                self._last.append(float(self.times[mine].max()))

    def close(self, now: float) -> Iterator[PlannedBlock]:
        """The parts whose last row has been read."""
        for number, last in enumerate(self._last):
            if last <= now:
                self._last[number] = np.nan
                self.block_index[self.block_index == number] = -1
                yield self.planned[number]
