"""Memory that objects are read to."""

import mmap
from collections.abc import Sequence

import numpy as np

_OWN_MAP_BYTES = 1 << 20
MAX_BUFFERS = 1024
"""What one call of the system fills, on every system we know."""


def new_buffer(size: int) -> memoryview:
    """Memory of any content."""
    if size >= _OWN_MAP_BYTES:  # malloc would keep it, once it is free, for the thread that asked for it
        return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    return np.empty(size, np.uint8).data  # not bytearray: it would be zeroed first


def fill(buffers: Sequence[memoryview], data: memoryview) -> None:
    """Copy data to one buffer after the other."""
    for buffer in buffers:
        buffer[:] = data[: len(buffer)]
        data = data[len(buffer) :]
