"""The bounded spread: a shuffle that limits how far each row moves, so that a small sliding window suffices.

Row i of a lane gets the sort key i + u(i), with u uniform in [0, spread_rows), and rows are read in key order. There
are no window edges: rows enter the window one by one. Keys are split into chunks of equal width. The rows of a chunk
start at most `spread_rows` before it, and so do rows pending from earlier chunks, so any chunk is computed directly.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.plan._random import derive_key, random_u64

Int64Array = npt.NDArray[np.int64]

_CHUNK_ROWS = 2048
_MAX_FRACTION_BITS = 24


@dataclass(frozen=True, slots=True)
class BoundedSpread:
    """The read order of one lane's rows."""

    length: int
    spread_rows: int
    """Every row moves by less than this many rows; 0 preserves the order."""
    key: int
    run_rows: int = 1
    """Rows that stay near each other: runs are spread, and the rows of a run only by `jitter_rows` relative to it."""
    jitter_rows: int = 0

    @property
    def chunk_width(self) -> int:
        """The number of keys in a chunk."""
        return max(_CHUNK_ROWS, self.spread_rows)

    @property
    def num_chunks(self) -> int:
        return -(-(self.length + max(self.spread_rows - 1, 0)) // self.chunk_width)

    def chunk(self, index: int) -> Int64Array:
        """The rows whose keys are in a chunk, in read order."""
        start = index * self.chunk_width
        if not self.spread_rows:
            return np.arange(start, min(start + self.chunk_width, self.length))
        first, keys = self._keys(start)
        bits, fraction = self._bits
        low, high = (start - first) << fraction, (start + self.chunk_width - first) << fraction
        inside = (keys >= low) & (keys < high)
        tagged = (keys[inside] << bits) | np.flatnonzero(inside)
        tagged.sort()  # sorting keys tagged with their row is several times faster than argsort
        return (tagged & ((1 << bits) - 1)) + first

    def rows_before(self, index: int) -> int:
        """The number of rows read before a chunk."""
        return min(index * self.chunk_width, self.length) - len(self.pending_rows(index))

    def pending_rows(self, index: int) -> Int64Array:
        """The rows before the start of a chunk that are read in it or later."""
        start = index * self.chunk_width
        if not start or not self.spread_rows:
            return np.zeros(0, np.int64)
        first, keys = self._keys(start)
        earlier = keys[: max(min(start, self.length) - first, 0)]
        return np.flatnonzero(earlier >= (start - first) << self._bits[1]) + first

    def chunk_of(self, offset: int) -> int:
        """The chunk that contains the row at an offset of the read order."""
        index = offset // self.chunk_width
        while index + 1 < self.num_chunks and self.rows_before(index + 1) <= offset:
            index += 1
        return index

    def read_times(self, first: int, end: int) -> npt.NDArray[np.float64]:
        """For each row of a range a number that increases in read order."""
        rows = np.arange(first, end)
        moves = self._moves(rows)
        return moves if self.is_whole else rows + moves

    @property
    def is_whole(self) -> bool:
        """Whether a row may move anywhere in the lane, so that its index is irrelevant."""
        return self.spread_rows >= self.length

    @property
    def _bits(self) -> tuple[int, int]:
        """Bits of a row index within a chunk's range, and fraction bits of a key."""
        bits = min(self.chunk_width + self.spread_rows, self.length).bit_length()
        return bits, min(_MAX_FRACTION_BITS, 63 - bits - (self.chunk_width + 2 * self.spread_rows).bit_length())

    def _keys(self, start: int) -> tuple[int, Int64Array]:
        """The first row that may have a key in the chunk, and the keys of rows from it on, relative to that row."""
        first = max(start - self.spread_rows, 0)
        rows = np.arange(first, min(start + self.chunk_width, self.length))
        fraction = self._bits[1]
        offsets = (self._moves(rows) * 2.0**fraction).astype(np.int64)  # of all random bits: few would repeat
        if self.is_whole:
            return first, offsets
        return first, ((rows - first) << fraction) + offsets

    def _moves(self, rows: Int64Array) -> npt.NDArray[np.float64]:
        """How far some rows move."""
        jitter = min(self.jitter_rows, self.spread_rows // 2)
        moves = _uniform(self.key, rows // self.run_rows) * (self.spread_rows - jitter)
        if jitter:
            moves += _uniform(derive_key(self.key, 1), rows) * jitter
        return moves


class LaneRows:
    """Reads the rows of a lane in order, from an offset on; offsets count rows in that order."""

    def __init__(self, order: BoundedSpread, offset: int) -> None:
        self.order, self._chunk = order, order.chunk_of(offset)
        self._rows, self._first_offset = order.chunk(self._chunk), order.rows_before(self._chunk)
        """The rows at some offsets, up to the end of the chunk."""
        self.next_offset = offset
        """Offsets before this one have been read."""

    def until(self, offset: int) -> Int64Array:
        """The rows from the next offset to another."""
        while self._first_offset + len(self._rows) < offset:
            left = self._rows[self.next_offset - self._first_offset :]
            self._chunk, self._first_offset = self._chunk + 1, self.next_offset
            self._rows = np.concatenate([left, self.order.chunk(self._chunk)])
        rows = self._rows[self.next_offset - self._first_offset : offset - self._first_offset]
        self.next_offset = offset
        return rows

    def near(self) -> tuple[int, int, Int64Array]:
        """A range of rows with all that are read in this chunk, and those in it that have been read.

        No row before the range is unread.
        """
        start, end = self._chunk * self.order.chunk_width, int(self._rows.max(initial=-1)) + 1
        first = max(start - self.order.spread_rows, 0)
        earlier = np.ones(max(min(start, end) - first, 0), bool)
        earlier[self.order.pending_rows(self._chunk) - first] = False
        read = self._rows[: self.next_offset - self._first_offset]
        return first, end, np.append(np.flatnonzero(earlier) + first, read)


def _uniform(key: int, counters: Int64Array) -> npt.NDArray[np.float64]:
    """Random numbers in [0, 1)."""
    return (random_u64(key, counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53
