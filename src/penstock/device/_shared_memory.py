"""Anonymous shared memory: no name, so nothing is left in the system however the processes end.

It is a memfd and not in `/dev/shm`, which is small in containers. It is mapped by the C library, because a mapping of
Python's holds a descriptor (before Python 3.13), and a user may hold thousands of batches.

A fork sees the memory of every array that exists then, for as long as it lives; so memory that existed at a fork of
this process is not reused (`forks`).
"""

import ctypes
import mmap
import os

import numpy as np
import numpy.typing as npt

_SIZE_STEP = 64 << 10

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(before=_count_fork, after_in_parent=_count_fork)


def forks() -> int:
    """A number that grows around each fork of this process."""
    return _forks


class _Mapping:
    """Mapped memory; numpy references it while any array of it is alive."""

    def __init__(self, fd: int, size: int) -> None:
        self._size = size
        self._address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
        if self._address == _FAILED:
            error = ctypes.get_errno()
            raise OSError(error, f"cannot map {size} bytes of shared memory: {os.strerror(error)}")
        self.__array_interface__ = {"data": (self._address, False), "shape": (size,), "typestr": "|u1", "version": 3}

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
    def address(self) -> int:
        return int(self.bytes.ctypes.data)

    def close_fd(self) -> None:
        """Close the descriptor; the memory stays mapped, here and where it was sent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        self.close_fd()
