"""Memory for arrays that another process takes over, used again when that one lets go of them.

To send an array costs as little as to send a few words, because memory that is used again is neither cleared by the
system nor mapped page by page. It is not memory of `/dev/shm`, which containers keep small.
"""

import mmap
import os
from collections import OrderedDict, deque
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.device._shared import SharedMemory

_START = 64
"""Where arrays start; the first byte before them says that another process has them."""
MIN_BYTES = 64 << 10
"""Smaller arrays are not worth it: they are sent as they are."""
_SLACK = 1 << 20
_MOST_IDLE, _MOST_MAPS = 4, 8


class Parcel(NamedTuple):
    """Where another process finds an array's memory."""

    pid: int
    fd: int
    inode: int
    """Tells memory from other memory that had the same descriptor before."""
    bytes: int


class Outbox:
    """Gives out arrays that can be sent."""

    def __init__(self, most: int = 64) -> None:
        """At most so many at a time: each is an open file for whoever has it."""
        self._most = most
        self._begin()

    def __reduce__(self) -> tuple[type["Outbox"], tuple[int]]:
        return Outbox, (self._most,)

    def _begin(self) -> None:
        """Start anew in this process; what was made before a fork is the parent's."""
        self._pid, self._made = os.getpid(), 0
        self._able = hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")
        self._idle: deque[SharedMemory] = deque()
        self._lent: dict[int, SharedMemory] = {}

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array of any content; one that cannot be sent where that is not worth it, or not possible."""
        if self._pid != os.getpid():
            self._begin()
        element = np.dtype(dtype)
        size = prod(shape) * element.itemsize
        memory = self._memory(_START + size) if self._able and size >= MIN_BYTES else None
        if memory is None:
            return np.empty(shape, element)
        whole = np.asarray(_Lent(memory, self._lent, self._idle))
        return whole[:size].view(element).reshape(shape)

    def post(self, address: int, size: int) -> Parcel | None:
        """Leave the array at an address to whoever opens the parcel; None where it is none of these, or sent."""
        memory = self._lent.get(address)
        if memory is None or memory.view[0] or _START + size > memory.size or self._pid != os.getpid():
            return None
        memory.view[0] = 1
        return Parcel(self._pid, memory.fd, memory.inode, size)

    def _memory(self, size: int) -> SharedMemory | None:
        """Memory that nobody has any more, or new memory; None where there is too much of it."""
        found = None
        idle = 0
        for _ in range(len(self._idle)):
            memory = self._idle.popleft()
            if memory.view[0]:
                self._idle.append(memory)
            elif found is None and size <= memory.size <= 2 * size + _SLACK:
                found = memory
            elif idle < _MOST_IDLE:
                self._idle.append(memory)
                idle += 1
            else:
                memory.close()
                self._made -= 1
        if found is None and self._made < self._most:
            found = SharedMemory.create(size)
            self._made += 1
        return found


class _Lent:
    """What an array given out is based on: numpy keeps it as long as any view of the array lives."""

    def __init__(self, memory: SharedMemory, lent: dict[int, SharedMemory], idle: deque[SharedMemory]) -> None:
        array = np.frombuffer(memory.view, np.uint8, offset=_START)
        self.__array_interface__ = array.__array_interface__
        self._memory, self._lent, self._idle = memory, lent, idle
        self._address = array.ctypes.data
        lent[self._address] = memory

    def __del__(self) -> None:
        del self._lent[self._address]
        self._idle.append(self._memory)


class Inbox:
    """Opens parcels of processes that use their memory again, and maps it once: that costs as much as a copy."""

    def __init__(self) -> None:
        self._maps: OrderedDict[tuple[int, int, int], memoryview] = OrderedDict()

    def open(self, parcel: Parcel) -> npt.NDArray[np.uint8]:
        """The bytes of an array that was posted; they are its owner's again when nobody here holds them."""
        where = parcel.pid, parcel.fd, parcel.inode
        memory = self._maps.pop(where, None)
        self._maps[where] = memory = _mapped(parcel) if memory is None else memory
        if len(self._maps) > _MOST_MAPS:
            self._maps.popitem(last=False)
        return np.asarray(_Held(memory))[: parcel.bytes]


def opened(parcel: Parcel) -> npt.NDArray[np.uint8]:
    """The same for one parcel, of memory that need not come again."""
    return Inbox().open(parcel)


def _mapped(parcel: Parcel) -> memoryview:
    fd = os.open(f"/proc/{parcel.pid}/fd/{parcel.fd}", os.O_RDWR)
    try:
        return memoryview(mmap.mmap(fd, 0))
    finally:
        os.close(fd)


class _Held:
    """What an array from another process is based on."""

    def __init__(self, memory: memoryview) -> None:
        self.__array_interface__ = np.frombuffer(memory, np.uint8, offset=_START).__array_interface__
        self._memory, self._pid = memory, os.getpid()

    def __del__(self) -> None:
        if self._pid == os.getpid():  # a copy of this process has only a copy
            self._memory[0] = 0
