"""Bytes in memory that processes share: what the columns of blocks and the tasks of builders need of it."""

from threading import Lock

import numpy as np
import numpy.typing as npt

from penstock.device import SharedRegions
from penstock.engine.window._slab import Runs

_CAPACITY = 1 << 37  # of addresses
_ALIGNMENT = 64


class Arena:
    """Allocates bytes of a reader's region; freed ones are used again, or given back to the system."""

    def __init__(self, regions: SharedRegions, reader: int = 0) -> None:
        self._regions, self._region, self._lock = regions, reader, Lock()
        self._runs = Runs(_CAPACITY, lambda start, end: regions.discard(reader, start, end))

    def allocate(self, size: int) -> int:
        """The start of `size` bytes; any thread may call this."""
        with self._lock:
            start = self._runs.allocate(_aligned(size))
        assert start is not None, "no addresses are left"
        return start

    def free(self, start: int, size: int) -> None:
        """Free what `allocate` returned."""
        with self._lock:
            self._runs.free(start, _aligned(size))

    def bytes(self, start: int, size: int) -> npt.NDArray[np.uint8]:
        """Some bytes."""
        with self._lock:
            return self._regions.bytes(self._region, start + size)[start : start + size]


def arena_bytes(regions: SharedRegions, reader: int, start: int, size: int) -> npt.NDArray[np.uint8]:
    """Bytes that a reader has written."""
    return regions.bytes(reader, start + size)[start : start + size]


def _aligned(size: int) -> int:
    return max(1, -(-size // _ALIGNMENT)) * _ALIGNMENT
