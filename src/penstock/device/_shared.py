"""Memory that two processes share without a name, so that nothing is left behind however they end."""

import mmap
import os
import weakref
from contextlib import suppress

_STEP = 1 << 20


class SharedMemory:
    """Bytes behind a file descriptor that can be handed to another process."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        known = os.fstat(fd)
        self.size, self.inode = known.st_size, known.st_ino
        self.view = memoryview(mmap.mmap(fd, self.size))
        self._give_up = weakref.finalize(self, os.close, fd)

    @classmethod
    def create(cls, size: int) -> "SharedMemory":
        """New memory of at least this size, where the system has `memfd_create`."""
        fd = os.memfd_create("penstock")
        os.truncate(fd, max(_STEP, -(-size // _STEP) * _STEP))
        return cls(fd)

    def close(self) -> None:
        """Give the memory up; arrays that are views of it keep it until they are gone."""
        self._give_up()
        with suppress(BufferError):
            self.view.release()
