"""Allocate, view and fill byte buffers."""

import mmap
from collections.abc import Sequence

import numpy as np

from penstock.types import Buffer

_MMAP_BYTES = 1 << 20
MAX_BUFFERS = 1024
"""Buffers that one vectored read takes (IOV_MAX of Linux and macOS)."""


def new_buffer(size: int) -> memoryview:
    """Allocate an uninitialised buffer."""
    if size >= _MMAP_BYTES:  # malloc would keep freed memory in the arena of the allocating thread
        return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    return np.empty(size, np.uint8).data  # bytearray would zero it first


def fill(buffers: Sequence[memoryview], data: memoryview) -> None:
    """Copy data into consecutive buffers."""
    for buffer in buffers:
        buffer[:] = data[: len(buffer)]
        data = data[len(buffer) :]


def byte_view(data: Buffer) -> memoryview:
    """View a buffer of any shape and type as plain bytes, without a copy."""
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")  # a shape with a zero in it cannot be cast
