"""Large arrays whose pages the system allocates on first write."""

import mmap
import sys
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0  # the module has no name for it before Python 3.13
_MIN_MMAP_BYTES = 1 << 20


def lazy_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An uninitialised array. Unlike `np.empty`, a large one does not fail under strict overcommit limits."""
    element = np.dtype(dtype)
    size = prod(shape) * element.itemsize
    if size < _MIN_MMAP_BYTES or not hasattr(mmap, "MAP_PRIVATE"):
        return np.empty(shape, element)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # as numpy does for its own arrays
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8).view(element).reshape(shape)
