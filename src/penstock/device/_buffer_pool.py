"""Pools of host memory for batches, because fresh memory costs a page fault per page."""

import mmap
from collections import defaultdict, deque
from collections.abc import Callable, Container
from functools import partial
from math import prod
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.device._shared_memory import SharedMemory, forks

_MIN_POOLED_BYTES, _SIZE_CLASS_BITS = 64 << 10, 3
_MAX_OPEN = 128
"""Slots with a descriptor; more are used once."""

Allocator = Callable[[tuple[int, ...], npt.DTypeLike], npt.NDArray[Any]]
"""Returns an uninitialised array of a shape and a dtype."""
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
        return lease(memory, partial(self.release, memory))[:size].view(element).reshape(shape)

    def release(self, memory: npt.NDArray[np.uint8]) -> None:
        """Return memory to the pool, or to the system if the pool is full."""
        with self._lock:
            if self._idle_bytes + len(memory) <= self._max_idle_bytes:
                self._free[len(memory)].append(memory)
                self._idle_bytes += len(memory)


class Slot(NamedTuple):
    """Shared memory of a `SlotPool`."""

    number: int
    memory: SharedMemory


class SlotPool:
    """Shared memory for the results of other processes; it returns to the pool when its last array is dropped."""

    def __init__(self, size: int, max_idle: int, on_create: Callable[[SharedMemory], None] | None) -> None:
        """Up to `max_idle` unused slots are kept; `on_create` is called with new memory, such as to pin it."""
        self._size, self._max_idle, self._on_create = size, max_idle, on_create
        self._free: deque[Slot] = deque()  # the garbage collector appends to it, in any thread
        self._created = self._open = 0
        self.live: set[int] = set()
        """The numbers of all slots but those that were dropped, which processes can unmap."""

    def take(self, mapped: Container[int]) -> Slot:
        """A slot that nobody uses; if possible one of those that are `mapped`, because a new mapping costs faults."""
        for _ in range(len(self._free)):
            if self._free[0].number in mapped:
                break
            self._free.rotate(-1)
        while self._free:
            slot = self._free.popleft()
            if slot.memory.has_fd and len(self._free) <= self._max_idle and len(slot.memory.bytes) >= self._size:
                return slot
            self.drop(slot)
        self._created += 1
        self._open += 1
        self.live.add(self._created)
        slot = Slot(self._created, SharedMemory.create(self._size))
        if self._on_create is not None:
            self._on_create(slot.memory)
        return slot

    def grow(self, size: int) -> None:
        """Have slots of at least this size from now on."""
        self._size = max(self._size, size)

    def lease(self, slot: Slot) -> npt.NDArray[np.uint8]:
        """The memory of a slot; it returns to the pool when the last view of it is dropped."""
        if self._open > _MAX_OPEN:  # a user may hold more batches than descriptors are allowed
            self._close_fd(slot)
        return lease(slot.memory.bytes, partial(self._take_back, slot, forks()))

    def _take_back(self, slot: Slot, forks_before: int) -> None:
        """Take back a slot whose arrays were dropped, in any thread."""
        if forks() == forks_before:
            self._free.append(slot)
        else:  # a forked process may still read it
            self.drop(slot)

    def drop(self, slot: Slot) -> None:
        """Use a slot no more; processes may still write to it."""
        self.live.discard(slot.number)
        self._close_fd(slot)

    def _close_fd(self, slot: Slot) -> None:
        self._open -= slot.memory.has_fd
        slot.memory.close_fd()

    def abandon(self) -> None:
        """In a forked process: reuse no slot of the parent."""
        self._free.clear()


def lease(memory: npt.NDArray[np.uint8], on_dropped: Callable[[], None]) -> npt.NDArray[np.uint8]:
    """A view of some memory; a function is called, in any thread, when the last view of it is dropped."""
    return np.asarray(_Lease(memory, on_dropped))


class _Lease:
    """The base object of a leased array; numpy references it while any view of the array is alive."""

    def __init__(self, memory: npt.NDArray[np.uint8], on_dropped: Callable[[], None]) -> None:
        self._memory, self._on_dropped = memory, on_dropped
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._on_dropped()


def empty_small_pages(size: int) -> npt.NDArray[np.uint8]:
    """New memory without huge pages, for sparse writes: a huge page is cleared as a whole for its first row."""
    return np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
