"""Bytes in memory that processes share: what the columns of blocks and the tasks of builders need of it."""

from threading import Lock

import numpy as np
import numpy.typing as npt

from penstock.device import SharedRegions
from penstock.engine.window._slab import Runs

_REGION = 0
_CAPACITY = 1 << 37  # of addresses
_ALIGNMENT = 64


class Arena:
    """Allocates bytes of a shared region; freed ones are used again, or given back to the system."""

    def __init__(self, regions: SharedRegions) -> None:
        self._regions, self._lock = regions, Lock()
        self._runs = Runs(_CAPACITY, lambda start, end: regions.discard(_REGION, start, end))

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
            return self._regions.bytes(_REGION, start + size)[start : start + size]


def arena_bytes(regions: SharedRegions, start: int, size: int) -> npt.NDArray[np.uint8]:
    """Bytes that another process has written."""
    return regions.bytes(_REGION, start + size)[start : start + size]


def _aligned(size: int) -> int:
    return max(1, -(-size // _ALIGNMENT)) * _ALIGNMENT
