"""Arrays of which only the parts that are used take memory, however large they are."""

import mmap
import sys
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # the module has no name for it before Python 3.13
_SMALL_BYTES = 1 << 20


def reserved(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array of any content. A system may refuse a large one that it would have to keep memory for; not this one."""
    element = np.dtype(dtype)
    size = prod(shape) * element.itemsize
    if size < _SMALL_BYTES or not hasattr(mmap, "MAP_PRIVATE"):
        return np.empty(shape, element)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # as numpy does for its own
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8).view(element).reshape(shape)
