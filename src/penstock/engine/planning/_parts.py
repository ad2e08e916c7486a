"""At the start of a run, blocks are read in parts, so that the first batches wait for little but their own rows."""

from collections.abc import Container, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from penstock.engine.planning._lanes import LaneBlock
from penstock.engine.planning._selection import Selection
from penstock.table import Int64Array

_FIRST_BYTES, _FIRST_LOCAL_BYTES = 128 << 10, 1 << 20
"""Of the smallest parts; a local read has no latency that is worth many of them."""


class FirstParts:
    """Splits the blocks of the first epoch of a run into parts, each of which is read when one of its rows is needed.

    Neighbours that are needed in the same stretch of the plan are one part. Stretches grow, and parts with them, until
    blocks are read as a whole; only rows that were consumed before a resume are left out then.
    """

    def __init__(self, selection: Selection, block_bytes: int, *, trim: bool, pages_cached: bool) -> None:
        """With `trim`, parts leave out consumed rows; with `pages_cached`, those of small columns may share pages."""
        self._selection, self._trim, self._pages_cached = selection, trim, pages_cached
        self._bytes = _FIRST_LOCAL_BYTES if selection.reader.store.is_local else _FIRST_BYTES
        self._block_bytes = block_bytes
        self._parts: dict[LaneBlock, list[LaneBlock]] = {}

    def grow(self) -> None:
        """A stretch is planned: those of the next one are larger."""
        self._bytes = min(2 * self._bytes, self._block_bytes)

    def forget(self, block: LaneBlock) -> None:
        """All rows of a block have been planned."""
        self._parts.pop(block, None)

    def split(
        self, blocks: list[LaneBlock], holders: Int64Array, rows: Int64Array, planned: Container[LaneBlock]
    ) -> tuple[list[LaneBlock], Int64Array]:
        """The blocks that hold some lane rows and the index of each row's, with parts instead of blocks that are split.

        What is already `planned` stays as it is.
        """
        parts, firsts = list(blocks), dict[LaneBlock, int]()
        holders = np.array([firsts.setdefault(block, number) for number, block in enumerate(blocks)])[holders]
        for number in np.flatnonzero(np.bincount(holders)).tolist():
            block = blocks[number]
            if block not in self._parts and (block in planned or not self._splits(block)):
                continue
            here = np.flatnonzero(holders == number)
            known = self._parts.get(block, [block])
            found = [part for each in known for part in ([each] if each in planned else self._split(each, rows[here]))]
            self._parts[block] = found
            holders[here] = len(parts) + np.searchsorted([part.end for part in found], rows[here], side="right")
            parts += found
        return parts, holders

    def _splits(self, block: LaneBlock) -> bool:
        return self._bytes < self._block_bytes or (self._trim and block.unread is not None)

    def _split(self, known: LaneBlock, rows: Int64Array) -> Iterator[LaneBlock]:
        """Split a part that is not planned at the ends of what some lane rows need, without consumed rows there."""
        block, unread = known.block, known.unread if self._trim else None
        needed = rows[(rows >= known.first) & (rows < known.end)] - known.first
        points: set[int] = set()
        if len(needed) and self._bytes < self._block_bytes:
            ends = self._selection.part_ends(block, self._bytes, pages_cached=self._pages_cached)
            points.update(_ends_of_needed(ends, needed))
        if len(needed) and unread is not None:
            points.update(self._selection.split_points(block, unread))
        if not points and unread is None:
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
            )


def _ends_of_needed(ends: Int64Array, rows: Int64Array) -> list[int]:
    """The ends of parts, without the last one, at which those that hold some rows begin or end."""
    needed = np.bincount(np.searchsorted(ends, rows, side="right"), minlength=len(ends)) > 0
    points: list[int] = ends[:-1][needed[1:] != needed[:-1]].tolist()
    return points
