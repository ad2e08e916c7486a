"""Host memory for batches, used again when nobody holds the batch: fresh memory costs a fault per page."""

import mmap
from collections import defaultdict
from collections.abc import Callable
from math import prod
from threading import RLock
from typing import Any

import numpy as np
import numpy.typing as npt

_SIZE_STEP, _SIZE_BITS = 64 << 10, 3

Allocate = Callable[[int], npt.NDArray[np.uint8]]
"""Gives memory of so many bytes."""


class HostBuffers:
    """Gives out arrays whose memory comes back by itself when the last view of them is gone."""

    def __init__(self, keep_bytes: int, allocate: Allocate | None = None) -> None:
        self._keep_bytes, self._allocate = keep_bytes, allocate
        self._free: defaultdict[int, list[npt.NDArray[np.uint8]]] = defaultdict(list)
        self._kept = 0
        self._lock = RLock()  # the garbage collector may give memory back in the middle of `empty`

    def __reduce__(self) -> tuple[type["HostBuffers"], tuple[int]]:
        return HostBuffers, (self._keep_bytes,)

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array of any content."""
        element = np.dtype(dtype)
        size = prod(shape) * element.itemsize
        if size < _SIZE_STEP:
            return np.empty(shape, element)
        step = max(_SIZE_STEP, 1 << (size.bit_length() - 1 - _SIZE_BITS))  # sizes that are about the same share memory
        room = -(-size // step) * step
        with self._lock:
            free = self._free[room]
            memory = free.pop() if free else None
            self._kept -= room if memory is not None else 0
        if memory is None:
            memory = np.empty(room, np.uint8) if self._allocate is None else self._allocate(room)
        loan = _Loan(self, memory)
        return np.asarray(loan)[:size].view(element).reshape(shape)

    def give_back(self, memory: npt.NDArray[np.uint8]) -> None:
        """Keep memory for the next one who asks."""
        with self._lock:
            if self._kept + len(memory) <= self._keep_bytes:
                self._free[len(memory)].append(memory)
                self._kept += len(memory)


class _Loan:
    """What an array given out is based on: numpy keeps it as long as any view of the array lives."""

    def __init__(self, owner: HostBuffers, memory: npt.NDArray[np.uint8]) -> None:
        self._owner, self._memory = owner, memory
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._owner.give_back(self._memory)


def in_small_pages(size: int) -> npt.NDArray[np.uint8]:
    """New memory that is filled here and there: of large pages, as numpy asks for, much would be cleared for a row."""
    return np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
