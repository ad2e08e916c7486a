"""A pool of shared memory for arrays that another process receives, reused when that process releases them.

Memory that a process could see when it was forked is not reused, because the fork may still use it.

Sending an array then costs a few words, because reused memory is neither cleared by the system nor mapped page by page.
The memory is a memfd and not in `/dev/shm`, which is small in containers.
"""

import mmap
import os
from collections import OrderedDict, deque
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.device._shared_memory import SharedMemory

_HEADER_BYTES = 64
"""The offset of the array in its segment; byte 0 of the segment is its state."""
_FREE, _EXPORTED, _RETIRED = 0, 1, 2
"""Not used by another process; used by one; used by a process that was forked while it could see the array."""
MIN_SHARED_BYTES = 64 << 10
"""Smaller arrays are cheaper to pickle."""
_SIZE_SLACK = 1 << 20
_MAX_IDLE, _MAX_MAPPINGS = 4, 8


_forks = 0
"""Grows around each fork of this process. A fork sees the memory of every array that exists then, for as long as it
lives, so that memory is never reused."""


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(before=_count_fork, after_in_parent=_count_fork)


class SharedMemoryHandle(NamedTuple):
    """Identifies an exported array to another process."""

    pid: int
    fd: int
    inode: int
    """Distinguishes a segment from an earlier one with the same descriptor."""
    nbytes: int


class SharedMemoryPool:
    """Allocates arrays that can be exported to another process."""

    def __init__(self, max_segments: int = 64) -> None:
        """Each segment is an open file in every process that uses it, so their number is limited."""
        self._max_segments = max_segments
        self._reset()

    def __reduce__(self) -> tuple[type["SharedMemoryPool"], tuple[int]]:
        return SharedMemoryPool, (self._max_segments,)

    def _reset(self) -> None:
        """Start empty in this process; segments created before a fork belong to the parent."""
        self._pid, self._num_segments = os.getpid(), 0
        self._supported = hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")
        self._idle: deque[SharedMemory] = deque()
        self._in_use: dict[int, SharedMemory] = {}

    def allocate(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An uninitialised array; in private memory if it is small, or if no segment is available."""
        if self._pid != os.getpid():
            self._reset()
        element = np.dtype(dtype)
        size = prod(shape) * element.itemsize
        large = self._supported and size >= MIN_SHARED_BYTES
        segment = self._acquire(_HEADER_BYTES + size) if large else None
        if segment is None:
            return np.empty(shape, element)
        data = np.asarray(_PooledSegment(segment, self._in_use, self._idle))
        return data[:size].view(element).reshape(shape)

    def export(self, address: int, size: int) -> SharedMemoryHandle | None:
        """A handle to the array at an address; None if it is not from this pool, or is exported already."""
        segment = self._in_use.get(address)
        if (
            segment is None
            or segment.view[0] != _FREE
            or _HEADER_BYTES + size > segment.size
            or self._pid != os.getpid()
        ):
            return None
        segment.view[0] = _EXPORTED
        return SharedMemoryHandle(self._pid, segment.fd, segment.inode, size)

    def _acquire(self, size: int) -> SharedMemory | None:
        """A segment that no process uses, or a new one; None if the pool is at its limit."""
        found = None
        idle = 0
        for _ in range(len(self._idle)):
            segment = self._idle.popleft()
            reusable = segment.view[0] == _FREE and not segment.retired
            if segment.view[0] == _EXPORTED:
                self._idle.append(segment)
            elif reusable and found is None and size <= segment.size <= 2 * size + _SIZE_SLACK:
                found = segment
            elif reusable and idle < _MAX_IDLE:
                self._idle.append(segment)
                idle += 1
            else:
                segment.close()
                self._num_segments -= 1
        if found is None and self._num_segments < self._max_segments:
            found = SharedMemory.create(size)
            self._num_segments += 1
        return found


class _PooledSegment:
    """The base object of an allocated array; numpy references it while any view of the array is alive."""

    def __init__(self, segment: SharedMemory, in_use: dict[int, SharedMemory], idle: deque[SharedMemory]) -> None:
        array = np.frombuffer(segment.view, np.uint8, offset=_HEADER_BYTES)
        self.__array_interface__ = array.__array_interface__
        self._segment, self._in_use, self._idle, self._forks = segment, in_use, idle, _forks
        self._address = array.ctypes.data
        in_use[self._address] = segment

    def __del__(self) -> None:
        del self._in_use[self._address]
        self._segment.retired = self._forks != _forks
        self._idle.append(self._segment)


class SharedMemoryReceiver:
    """Attaches to exported arrays; caches mappings, because mapping a segment costs as much as a copy."""

    def __init__(self) -> None:
        self._mappings: OrderedDict[tuple[int, int, int], memoryview] = OrderedDict()

    def attach(self, handle: SharedMemoryHandle) -> npt.NDArray[np.uint8]:
        """The bytes of an exported array; their memory returns to its pool when the last view of them is gone."""
        key = handle.pid, handle.fd, handle.inode
        memory = self._mappings.pop(key, None)
        self._mappings[key] = memory = _map(handle) if memory is None else memory
        if len(self._mappings) > _MAX_MAPPINGS:
            self._mappings.popitem(last=False)
        return np.asarray(_AttachedSegment(memory))[: handle.nbytes]


def _map(handle: SharedMemoryHandle) -> memoryview:
    fd = os.open(f"/proc/{handle.pid}/fd/{handle.fd}", os.O_RDWR)
    try:
        return memoryview(mmap.mmap(fd, 0))
    finally:
        os.close(fd)


class _AttachedSegment:
    """The base object of an attached array."""

    def __init__(self, memory: memoryview) -> None:
        self.__array_interface__ = np.frombuffer(memory, np.uint8, offset=_HEADER_BYTES).__array_interface__
        self._memory, self._pid, self._forks = memory, os.getpid(), _forks

    def __del__(self) -> None:
        if self._pid == os.getpid():  # a forked child holds a copy of this object, and does not release the segment
            self._memory[0] = _FREE if self._forks == _forks else _RETIRED
