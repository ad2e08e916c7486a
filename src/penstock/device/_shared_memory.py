"""Anonymous shared memory: no name, so nothing is left in the system however the processes end.

It is a memfd and not in `/dev/shm`, which is small in containers. It is mapped by the C library, because a mapping of
Python's holds a descriptor (before Python 3.13), and a user may hold thousands of batches.

A fork sees the memory of every array that exists then, for as long as it lives; so memory that existed at a fork of
this process is not reused (`forks`).
"""

import ctypes
import mmap
import os
import sys
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

_SIZE_STEP = 64 << 10
_ALIGNMENT = 64

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
if hasattr(_libc, "fallocate"):
    _libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_PUNCH_HOLE = 0x01 | 0x02  # and keep the size
_PAGE_BYTES = mmap.PAGESIZE
_FAILED = ctypes.c_void_p(-1).value
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(before=_count_fork, after_in_parent=_count_fork)


def aligned(size: int) -> int:
    """A number of bytes, rounded up so that an array can follow."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def forks() -> int:
    """A number that grows around each fork of this process."""
    return _forks


class _Mapping:
    """Mapped memory; numpy references it while any array of it is alive."""

    def __init__(self, fd: int, size: int, start: int = 0, *, writable: bool = True) -> None:
        self._size = size
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._address = _libc.mmap(None, size, access, mmap.MAP_SHARED | _NO_RESERVE, fd, start)
        if self._address == _FAILED:
            error = ctypes.get_errno()
            raise OSError(error, f"cannot map {size} bytes of shared memory: {os.strerror(error)}")
        shape, data = (size,), (self._address, not writable)
        self.__array_interface__ = {"data": data, "shape": shape, "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        if self._address != _FAILED:
            _libc.munmap(self._address, self._size)


class SharedMemory:
    """Memory that other processes map when they get its descriptor; unmapped when its last array is dropped."""

    def __init__(self, fd: int) -> None:
        """Takes over the descriptor."""
        self._fd: int | None = fd
        self.bytes: npt.NDArray[np.uint8] = np.asarray(_Mapping(fd, os.fstat(fd).st_size))

    @classmethod
    def create(cls, size: int) -> "SharedMemory":
        """New memory of at least `size` bytes; raises `AttributeError` if the system has no `memfd_create`."""
        fd = os.memfd_create("penstock", os.MFD_CLOEXEC)
        os.truncate(fd, max(_SIZE_STEP, -(-size // _SIZE_STEP) * _SIZE_STEP))
        return cls(fd)

    @property
    def fd(self) -> int:
        """The descriptor; only until `close_fd`."""
        assert self._fd is not None
        return self._fd

    @property
    def has_fd(self) -> bool:
        return self._fd is not None

    @property
    def address(self) -> int:
        return int(self.bytes.ctypes.data)

    def close_fd(self) -> None:
        """Close the descriptor; the memory stays mapped, here and where it was sent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        self.close_fd()


class SharedRegions:
    """Regions of one sparse memfd, which grow without moving and have memory only where they were written."""

    STEP = 1 << 40
    """Distance of regions in the file; an offset costs nothing."""

    def __init__(self, fd: int, *, writable: bool) -> None:
        """Takes over the descriptor; without `writable`, the arrays are read-only."""
        self.fd, self._writable = fd, writable
        self._mapped: dict[int, npt.NDArray[np.uint8]] = {}

    @classmethod
    def create(cls) -> "SharedRegions":
        """New memory, none of it in use; raises `AttributeError` if the system has no `memfd_create`."""
        return cls(os.memfd_create("penstock-window", os.MFD_CLOEXEC), writable=True)

    def bytes(self, region: int, size: int) -> npt.NDArray[np.uint8]:
        """A region from its start, at least `size` bytes of it."""
        mapped = self._mapped.get(region)
        if mapped is None or len(mapped) < size:
            twice = 0 if mapped is None else min(2 * len(mapped), self.STEP)
            size = -(-max(size, twice, 1) // _PAGE_BYTES) * _PAGE_BYTES  # nothing at all cannot be mapped
            start = region * self.STEP
            if self._writable and os.fstat(self.fd).st_size < start + size:
                os.truncate(self.fd, start + size)
            mapped = self._mapped[region] = np.asarray(_Mapping(self.fd, size, start, writable=self._writable))
        return mapped

    def array(self, region: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """A region as an array; a larger one later begins with the same memory."""
        size = prod(shape) * np.dtype(dtype).itemsize
        return self.bytes(region, max(1, size))[:size].view(dtype).reshape(shape)

    def discard(self, region: int, start: int, end: int) -> None:
        """Give the memory of some bytes back to the system, as far as they are whole pages."""
        start, end = -(-start // _PAGE_BYTES) * _PAGE_BYTES, end // _PAGE_BYTES * _PAGE_BYTES
        if end > start:
            _libc.fallocate(self.fd, _PUNCH_HOLE, region * self.STEP + start, end - start)

    def __del__(self) -> None:
        os.close(self.fd)
