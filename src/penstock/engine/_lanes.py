"""Walk along a lane: which block holds each row, in the order in which the lane is read."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from penstock.engine._selection import Block, Parts
from penstock.plan import Epoch, Spread
from penstock.table import Rows

_NONE = np.zeros(0, np.int64)


@dataclass(slots=True, eq=False)
class LaneBlock:
    """A block, as far as it is in one lane and not read yet."""

    block: Block
    first: int
    """The lane's row that the block starts with."""
    end: int
    """The lane's row up to which those that are not in an earlier block are in this one, or have been read."""
    unread: int
    """Rows of the block that were still to be read when the lane was entered."""
    left: int
    """Rows that the lane has not come to."""
    closes: int = -1
    """The turn after which no row is left; -1 while that is not known."""


Cut = Callable[[Block, Rows, Rows], Sequence[int]]
"""Where to cut a block that is not read as a whole; told which rows are left, and which of them are needed first."""


class PartBlocks(NamedTuple):
    """The blocks of one part of a section in the order of an epoch."""

    blocks: Sequence[Block]
    ends: Rows
    """Rows of the part up to the end of each."""


class Blocks(Protocol):
    """Where the blocks of an epoch come from."""

    def parts(self, section: int) -> Parts:
        """The parts of a section."""

    def blocks(self, section: int, part: int) -> PartBlocks:
        """The blocks of a part."""


def walk(epoch: Epoch, source: Blocks, start: int, end: int) -> Iterator[tuple[Block, int, int]]:
    """The blocks that lie between two places, cut to them: each with its first place and the one behind its last."""
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
    """Reads a lane from some turn on; a turn is a row's number in the order in which the lane is read."""

    def __init__(
        self,
        spread: Spread,
        blocks: Callable[[int, int], Iterator[tuple[Block, int, int]]],
        turn: int,
        last: int,
        cut: Cut | None,
    ) -> None:
        """Begins with the turns from `turn` to `last`; without `cut`, blocks are whole, whatever is left of them."""
        self._spread = spread
        number = spread.find(turn)
        self._next_chunk = number
        self._chunk_start = self._chunk_end = spread.before(number)
        first = max(number * spread.width - spread.reach, 0)
        self._blocks = blocks(first, spread.length)
        self._near: list[LaneBlock] = []
        self._holders = np.zeros(0, np.int64)
        self._rows = np.zeros(0, np.int64)
        self._seen = first
        """Rows of the lane up to here belong to blocks that are known."""
        self.passed = turn
        """Turns before this one are over."""
        if turn < spread.length:
            chunk = spread.chunk(number)  # here, and not when it is asked for, because many cursors are made at once
            self._begin(chunk, number, turn, last, cut)
            self._read_chunk(chunk)

    def take(self, turns: Rows) -> tuple[list[LaneBlock], Rows, Rows]:
        """For turns, rising: the blocks that hold them; for each turn the number of its block and the lane's row."""
        holders, rows, base = [], [], 0
        blocks: list[LaneBlock] = []
        done, last = 0, int(turns[-1])
        while done < len(turns):
            while int(turns[done]) >= self._chunk_end:
                self._read_chunk(self._spread.chunk(self._next_chunk))
            upto = int(np.searchsorted(turns, self._chunk_end)) if last >= self._chunk_end else len(turns)
            inside = turns[done:upto] - self._chunk_start
            holders.append(self._holders[inside] + base)
            rows.append(self._rows[inside])
            blocks += self._near
            base += len(self._near)
            done = upto
        self.passed = last + 1
        if len(rows) == 1:
            return blocks, holders[0], rows[0]
        return blocks, np.concatenate(holders), np.concatenate(rows)

    def _begin(self, chunk: Rows, number: int, turn: int, last: int, cut: Cut | None) -> None:
        """Know the blocks of the first chunk, and which of their rows have been read, so that nobody fetches those."""
        start, first = number * self._spread.width, self._seen
        self._reach(int(chunk.max()) + 1)
        left = np.zeros(self._seen - first, bool)  # as it was before the chunk, for reading that counts its rows
        left[self._spread.left(number) - first] = True
        left[start - first :] = True
        soon, unread = np.zeros(len(left), bool), left.copy()
        read = turn - self._chunk_start
        unread[chunk[:read] - first] = False
        soon[chunk[read : read + last + 1 - turn] - first] = True
        near, self._near = self._near, []
        ends = np.array([known.end for known in near]) - first
        special = set(np.searchsorted(ends, np.flatnonzero(soon | ~unread), side="right").tolist())
        for index, known in enumerate(near):
            if index not in special:
                self._near.append(known)
                continue
            here = slice(known.first - first, known.end - first)
            known.left = int(np.count_nonzero(left[here]))
            rows, needed = np.flatnonzero(unread[here]), np.flatnonzero(soon[here])
            if cut is None or not len(rows):
                self._near.append(known)
            else:
                self._near += _parts(known, left[here], rows, cut(known.block, rows, needed))

    def _reach(self, row: int) -> None:
        """Know the blocks up to a row of the lane."""
        while self._seen < min(row, self._spread.length):
            block, first, end = next(self._blocks)
            self._near.append(LaneBlock(block, first, end, len(block), len(block)))
            self._seen = end

    def _read_chunk(self, rows: Rows) -> None:
        self._next_chunk += 1
        self._near = [known for known in self._near if known.left]
        if len(rows):
            self._reach(int(rows.max()) + 1)
        ends = np.array([known.end for known in self._near], np.int64)
        holders = np.searchsorted(ends, rows, side="right")
        counts = np.bincount(holders, minlength=len(self._near)).tolist()
        self._chunk_start = self._chunk_end
        self._chunk_end += len(rows)
        last = np.full(len(self._near), -1)
        last[holders] = np.arange(len(rows))
        for number, known in enumerate(self._near):
            known.left -= counts[number]
            if not known.left:
                known.closes = self._chunk_start + int(last[number])
        self._holders, self._rows = holders, rows


def _parts(known: LaneBlock, left: npt.NDArray[np.bool_], unread: Rows, cuts: Sequence[int]) -> Iterator[LaneBlock]:
    """A block in parts, each without what has been read at its ends."""
    for begin, end in pairwise((0, *cuts, len(known.block))):
        mine = unread[np.searchsorted(unread, begin) : np.searchsorted(unread, end)]
        low, high = (int(mine[0]), int(mine[-1]) + 1) if len(mine) else (begin, end)
        count = int(np.count_nonzero(left[begin:end]))
        yield LaneBlock(known.block.part(low, high), known.first + low, known.first + end, len(mine), count)
