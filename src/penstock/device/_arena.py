"""Allocates parts of memory that grows in place: rows of an array, and bytes that processes share."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from threading import Lock

import numpy as np
import numpy.typing as npt

from penstock.device._shared_memory import SharedRegions, aligned

_CAPACITY = 1 << 37  # of addresses
_IDLE_SHARE = 4
"""Fraction (1/n) of the memory in use that may be free and not given back to the system."""


class Runs:
    """Allocates runs of a range of numbers, the first that fits; a run that is freed joins its neighbours."""

    def __init__(self, capacity: int, discard: Callable[[int, int], None] | None = None, first: int = 0) -> None:
        """Numbers from `first` to `capacity`; `discard` gives the memory of a free run back to the system."""
        self._starts, self._ends = [first], [capacity]
        self._first, self._capacity, self._discard = first, capacity, discard
        self._used, self._touched = 0, first
        self._too_short = 0, first
        """A size, and the number below which no free run is that long."""

    def allocate(self, size: int) -> int | None:
        """The start of a run; None if no free one is long enough."""
        least, searched = self._too_short
        first = bisect_left(self._starts, searched) if size >= least else 0
        for index in range(first, len(self._starts)):
            start, end = self._starts[index], self._ends[index]
            if end - start >= size:
                self._too_short = size, start
                if end - start == size:
                    del self._starts[index], self._ends[index]
                else:
                    self._starts[index] = start + size
                self._used += size
                if start + size > self._touched:
                    self._touch(start + size)
                return start
        return None

    def _touch(self, end: int) -> None:
        """Use memory that was not used before; what is free of the rest may be given back."""
        free = self._touched - self._first - self._used
        if self._discard is not None and free > self._used // _IDLE_SHARE:
            for first, last in zip(self._starts, self._ends, strict=True):
                if first < self._touched:
                    self._discard(first, min(last, self._touched))
        self._touched = end

    def grow(self, size: int) -> tuple[int, int]:
        """A run beyond the capacity, and the new capacity."""
        start, self._capacity = self._capacity, 2 * self._capacity - self._first + size
        self._used += self._capacity - start
        self._touched = start + size
        self.free(start + size, self._capacity - start - size)
        return start, self._capacity

    def free(self, start: int, size: int) -> None:
        """Free a run."""
        end = start + size
        self._used -= size
        index = bisect_left(self._starts, start)
        joins_front = index > 0 and self._ends[index - 1] == start
        joins_back = index < len(self._starts) and self._starts[index] == end
        if joins_front and joins_back:
            self._ends[index - 1] = self._ends[index]
            del self._starts[index], self._ends[index]
        elif joins_front:
            self._ends[index - 1] = end
        elif joins_back:
            self._starts[index] = start
        else:
            self._starts.insert(index, start)
            self._ends.insert(index, end)
        self._too_short = self._too_short[0], min(self._too_short[1], self._starts[index - joins_front])

    def used(self) -> Iterator[tuple[int, int]]:
        """The runs in use, each with its end."""
        return zip([self._first, *self._ends], [*self._starts, self._capacity], strict=True)


class Arena:
    """Allocates bytes of a reader's region; freed ones are used again, or given back to the system."""

    def __init__(self, regions: SharedRegions, reader: int = 0) -> None:
        self._regions, self._region, self._lock = regions, reader, Lock()
        self._runs = Runs(_CAPACITY, lambda start, end: regions.discard(reader, start, end))

    def allocate(self, size: int) -> int:
        """The start of `size` bytes; any thread may call this."""
        with self._lock:
            start = self._runs.allocate(aligned(max(1, size)))
        assert start is not None, "no addresses are left"
        return start

    def free(self, start: int, size: int) -> None:
        """Free what `allocate` returned."""
        with self._lock:
            self._runs.free(start, aligned(max(1, size)))

    def bytes(self, start: int, size: int) -> npt.NDArray[np.uint8]:
        """Some bytes."""
        with self._lock:
            return arena_bytes(self._regions, self._region, start, size)


def arena_bytes(regions: SharedRegions, reader: int, start: int, size: int) -> npt.NDArray[np.uint8]:
    """Bytes that a reader has written."""
    return regions.bytes(reader, start + size)[start : start + size]
