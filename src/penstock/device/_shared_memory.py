"""Anonymous shared memory: no name, so nothing is left in the system however the processes end.

It is a memfd and not in `/dev/shm`, which is small in containers. A fork sees the memory of every array that exists
then, for as long as it lives; so memory that existed at a fork of this process is not reused (`forks`).
"""

import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

_SIZE_STEP = 64 << 10

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(before=_count_fork, after_in_parent=_count_fork)


def forks() -> int:
    """A number that grows around each fork of this process."""
    return _forks


class SharedMemory:
    """Memory that other processes map when they get its descriptor; unmapped when its last array is dropped."""

    def __init__(self, fd: int) -> None:
        """Takes over the descriptor."""
        self._fd: int | None = fd
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(mmap.mmap(fd, os.fstat(fd).st_size), np.uint8)

    @classmethod
    def create(cls, size: int) -> "SharedMemory":
        """New memory of at least `size` bytes; raises `AttributeError` if the system has no `memfd_create`."""
        fd = os.memfd_create("penstock", os.MFD_CLOEXEC)
        try:
            os.truncate(fd, max(_SIZE_STEP, -(-size // _SIZE_STEP) * _SIZE_STEP))
            return cls(fd)
        except BaseException:
            os.close(fd)
            raise

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

    def __del__(self) -> Any:
        self.close_fd()
