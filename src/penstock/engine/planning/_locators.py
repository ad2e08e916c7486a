"""Find the blocks that hold an epoch's positions; the only I/O is reading manifests."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.engine.planning._lanes import EpochBlocks, LaneBlock, LaneCursor
from penstock.engine.planning._spans import LocatedRows, Planned
from penstock.plan import flat_ranges, groups
from penstock.storage import thread_map
from penstock.table import Int64Array

_MANIFEST_READERS = 32


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What the plan of a table depends on besides its order."""

    page_bytes: int
    """If only some pages of blocks are read: about how many bytes of the heaviest column are read together."""
    by_blocks: bool
    """Whether blocks stay in the window over several spans; otherwise a span reads only the pages of its rows."""
    page_reads: float
    """How often the pages of a block are read, on average; 0 if whole blocks stay in the window."""
    resident: bool
    """Whether blocks stay in the window over all epochs."""
    trim: bool
    """Whether a block may leave out rows consumed before a resume."""
    pages_cached: bool
    """Whether pages of all columns but the heaviest are cached."""

    @property
    def reads_again(self) -> bool:
        """Whether pages are read repeatedly."""
        return not self.by_blocks or self.page_reads > 0


class BlockLocator:
    """Finds the blocks that hold an epoch's positions; called with consecutive runs of positions."""

    def __init__(self, blocks: EpochBlocks, options: PlanOptions, closed: list[Planned]) -> None:
        """Blocks that no later position needs are added to `closed`."""
        self._blocks, self._options, self._closed = blocks, options, closed
        self._selection = blocks.selection

    def find(self, positions: Int64Array) -> LocatedRows:
        """The blocks that hold some positions."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the blocks that are open: no later position needs them."""

    def _read_at_once(self, blocks: Iterable[Any], inverse: Int64Array) -> LocatedRows:
        """Plan pages of blocks for these positions alone; `inverse` has the index of each among the blocks' rows."""
        parts = [part for block in blocks for part in self._selection.split(block, self._options.page_bytes)]
        planned = [self._selection.planned(part) for part in parts]
        lengths = np.array([len(part) for part in parts], np.int64)
        block_index, (rows, _) = np.repeat(np.arange(len(parts)), lengths), flat_ranges(0 * lengths, lengths)
        for number, each in enumerate(planned):
            if each.inverse is not None:
                rows[block_index == number] = each.inverse
        self._closed += planned
        return LocatedRows(planned, block_index[inverse], rows[inverse])


class ScatteredLocator(BlockLocator):
    """For selections with an order of their own: each span reads the pages of its rows."""

    def find(self, positions: Int64Array) -> LocatedRows:
        wanted, inverse = np.unique(self._selection.positions(positions), return_inverse=True)
        return self._read_at_once(self._selection.blocks_at(wanted), inverse)


class LaneLocator(BlockLocator):
    """One cursor per lane."""

    def __init__(self, blocks: EpochBlocks, options: PlanOptions, closed: list[Planned]) -> None:
        super().__init__(blocks, options, closed)
        self._cursors: dict[int, LaneCursor] = {}

    def find(self, positions: Int64Array) -> LocatedRows:
        blocks: list[Planned] = []
        block_index, rows = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        parts: list[tuple[int, slice | Int64Array, Int64Array, slice | Int64Array]] = []
        lanes = self._blocks.epoch.lanes
        for lane, here in by_lane(positions, lanes):
            offsets = positions[here] // lanes
            rising = (offsets[1:] > offsets[:-1]).all()  # unless some rows pad a step
            parts.append((lane, here, *((offsets, slice(None)) if rising else np.unique(offsets, return_inverse=True))))
        self._open_cursors([(lane, int(offsets[0])) for lane, _, offsets, _ in parts])
        for lane, here, offsets, back in parts:
            located = self._plan(lane, *self._cursors[lane].locate(offsets))
            block_index[here], rows[here] = located.block_index[back] + len(blocks), located.rows[back]
            blocks += located.blocks
        return LocatedRows(blocks, block_index, rows)

    def _open_cursors(self, starts: Sequence[tuple[int, int]]) -> None:
        """Have a cursor in some lanes at or before an offset; concurrently, where each may fetch manifests."""
        cursors = self._cursors
        new = [at for at in starts if at[0] not in cursors or cursors[at[0]].next_offset > at[1]]
        workers = _MANIFEST_READERS if self._selection.coarse else 1
        opened = thread_map(lambda at: LaneCursor(self._blocks, *at), new, max_workers=workers)
        cursors.update(zip((lane for lane, _ in new), opened, strict=True))

    def _plan(self, lane: int, blocks: list[LaneBlock], holders: Int64Array, rows: Int64Array) -> LocatedRows:
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

    def _plan(self, lane: int, blocks: list[LaneBlock], holders: Int64Array, rows: Int64Array) -> LocatedRows:  # noqa: ARG002
        wanted, inverse = np.unique(rows, return_inverse=True)
        blocks = sorted(blocks, key=lambda block: block.first)
        starts = np.searchsorted(wanted, [block.first for block in blocks])
        each = zip(blocks, np.split(wanted, starts[1:]), strict=True)
        return self._read_at_once((block.block.take(inside - block.first) for block, inside in each), inverse)
