"""The bounded spread: a shuffle in which no row moves far, so that a small moving window holds all it needs.

Row i of a lane gets the key i + u(i), where u is random between 0 and the reach, and rows are read in key order. There
are no window edges: rows enter one by one as the stream moves on. Keys are cut into chunks of equal width; a chunk's
rows lie within one reach before it, and so does what is left of earlier ones, so any place can be reached at once.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.plan._mix import mix

Rows = npt.NDArray[np.int64]

_CHUNK_ROWS = 2048
_MAX_FRACTION_BITS = 24


@dataclass(frozen=True, slots=True)
class Spread:
    """The order of one lane's rows."""

    length: int
    reach: int
    """Rows behind its place that a row may be read, at most; 0 keeps the order."""
    key: int

    @property
    def width(self) -> int:
        """Keys in a chunk."""
        return max(_CHUNK_ROWS, self.reach)

    @property
    def chunks(self) -> int:
        return -(-(self.length + max(self.reach - 1, 0)) // self.width)

    def chunk(self, number: int) -> Rows:
        """The rows whose keys are in a chunk, in the order in which they are read."""
        start = number * self.width
        if not self.reach:
            return np.arange(start, min(start + self.width, self.length))
        first, keys = self._keys(start)
        bits, fraction = self._bits
        low, high = (start - first) << fraction, (start + self.width - first) << fraction
        inside = (keys >= low) & (keys < high)
        tagged = (keys[inside] << bits) | np.flatnonzero(inside)
        tagged.sort()  # sorting keys that carry their row is several times faster than an argsort
        return (tagged & ((1 << bits) - 1)) + first

    def before(self, number: int) -> int:
        """How many rows are read before a chunk."""
        return min(number * self.width, self.length) - len(self.left(number))

    def left(self, number: int) -> Rows:
        """The rows in front of a chunk that are read in it or later."""
        start = number * self.width
        if not self.reach:
            return np.zeros(0, np.int64)
        first, keys = self._keys(start)
        front = keys[: max(min(start, self.length) - first, 0)]
        return np.flatnonzero(front >= (start - first) << self._bits[1]) + first

    def find(self, index: int) -> int:
        """The chunk that holds the row that is read as number `index`."""
        number = index // self.width
        while number + 1 < self.chunks and self.before(number + 1) <= index:
            number += 1
        return number

    @property
    def _bits(self) -> tuple[int, int]:
        """Bits that number the rows near a chunk, and bits of a key behind the point."""
        bits = min(self.width + self.reach, self.length).bit_length()
        return bits, min(_MAX_FRACTION_BITS, 63 - bits - (self.width + 2 * self.reach).bit_length())

    def _keys(self, start: int) -> tuple[int, Rows]:
        """The first row that may have a key in the chunk, and the keys from it on, counted from that row."""
        first = max(start - self.reach, 0)
        rows = np.arange(first, min(start + self.width, self.length))
        fraction = self._bits[1]
        offsets = (mix(self.key, rows) >> np.uint64(64 - fraction)).astype(np.int64) * self.reach
        if self.reach >= self.length:  # a row may go anywhere, so its place need not count
            return first, offsets
        return first, ((rows - first) << fraction) + offsets
