"""A pool of host memory for batches, because fresh memory costs a page fault per page."""

import mmap
from collections import defaultdict
from collections.abc import Callable
from math import prod
from threading import RLock
from typing import Any

import numpy as np
import numpy.typing as npt

_MIN_POOLED_BYTES, _SIZE_CLASS_BITS = 64 << 10, 3

ByteAllocator = Callable[[int], npt.NDArray[np.uint8]]
"""Allocates memory of a given size in bytes."""


class BufferPool:
    """Allocates arrays whose memory returns to the pool when their last view is garbage-collected."""

    def __init__(self, max_idle_bytes: int, allocator: ByteAllocator | None = None) -> None:
        """`max_idle_bytes` limits free memory, not memory in use; `allocator` replaces `np.empty` for new memory."""
        self._max_idle_bytes, self._allocator = max_idle_bytes, allocator
        self._free: defaultdict[int, list[npt.NDArray[np.uint8]]] = defaultdict(list)
        self._idle_bytes = 0
        self._lock = RLock()  # the garbage collector may call `release` in the middle of `allocate`

    def __reduce__(self) -> tuple[type["BufferPool"], tuple[int]]:
        return BufferPool, (self._max_idle_bytes,)

    def allocate(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An uninitialised array."""
        element = np.dtype(dtype)
        size = prod(shape) * element.itemsize
        if size < _MIN_POOLED_BYTES:
            return np.empty(shape, element)
        step = max(_MIN_POOLED_BYTES, 1 << (size.bit_length() - 1 - _SIZE_CLASS_BITS))
        size_class = -(-size // step) * step
        with self._lock:
            free = self._free[size_class]
            memory = free.pop() if free else None
            self._idle_bytes -= size_class if memory is not None else 0
        if memory is None:
            memory = np.empty(size_class, np.uint8) if self._allocator is None else self._allocator(size_class)
        owner = _PooledMemory(self, memory)
        return np.asarray(owner)[:size].view(element).reshape(shape)

    def release(self, memory: npt.NDArray[np.uint8]) -> None:
        """Return memory to the pool, or to the system if the pool is full."""
        with self._lock:
            if self._idle_bytes + len(memory) <= self._max_idle_bytes:
                self._free[len(memory)].append(memory)
                self._idle_bytes += len(memory)


class _PooledMemory:
    """The base object of an allocated array; numpy references it while any view of the array is alive."""

    def __init__(self, pool: BufferPool, memory: npt.NDArray[np.uint8]) -> None:
        self._pool, self._memory = pool, memory
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._pool.release(self._memory)


def empty_small_pages(size: int) -> npt.NDArray[np.uint8]:
    """New memory without huge pages, for sparse writes: a huge page is cleared as a whole for its first row."""
    return np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
