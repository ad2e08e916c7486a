"""Anonymous shared memory: no name, so nothing is left in the system however the processes end."""

import mmap
import os
import weakref
from contextlib import suppress

_SIZE_STEP = 1 << 20


class SharedMemory:
    """A memory-mapped file descriptor that another process can open."""

    def __init__(self, fd: int) -> None:
        self.fd, self.retired = fd, False
        stat = os.fstat(fd)
        self.size, self.inode = stat.st_size, stat.st_ino
        self.view = memoryview(mmap.mmap(fd, self.size))
        self._close_fd = weakref.finalize(self, os.close, fd)

    @classmethod
    def create(cls, size: int) -> "SharedMemory":
        """New memory of at least `size` bytes; raises `AttributeError` if the system has no `memfd_create`."""
        fd = os.memfd_create("penstock")
        os.truncate(fd, max(_SIZE_STEP, -(-size // _SIZE_STEP) * _SIZE_STEP))
        return cls(fd)

    def close(self) -> None:
        """Close the descriptor, and unmap the memory once no array is a view of it."""
        self._close_fd()
        with suppress(BufferError):
            self.view.release()
