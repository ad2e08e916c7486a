"""The layout of slots, shared memory for the batches of one span each."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.device import aligned
from penstock.engine.assembly import ColumnShape


class SlotLayout:
    """Which columns a slot has; they lie one after the other, for as many rows as its span has."""

    def __init__(self, columns: Mapping[str, ColumnShape], rows: int) -> None:
        """Columns of at most some rows of a fixed shape, with their masks."""
        self.columns: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        """The type and shape of a row."""
        for name, column in columns.items():
            self.columns[name] = column.dtype, column.shape
            if column.mask_shape is not None:
                self.columns[f"{name}_mask"] = np.dtype(bool), column.mask_shape
        self.size = sum(aligned(rows * prod(shape) * dtype.itemsize) for dtype, shape in self.columns.values())

    def arrays(self, memory: "SlotMemory", rows: int) -> dict[str, npt.NDArray[Any]]:
        """The columns of a slot, for a span of some rows."""
        return {name: memory.allocate((rows, *shape), dtype) for name, (dtype, shape) in self.columns.items()}


class SlotMemory:
    """Allocates arrays in a slot, one after the other, as far as there is room; else, and of objects, elsewhere."""

    def __init__(self, slot: npt.NDArray[np.uint8]) -> None:
        self._slot, self._end = slot, 0

    def allocate(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array of undefined content."""
        dtype, start = np.dtype(dtype), self._end
        size = prod(shape) * dtype.itemsize
        if start + size > len(self._slot) or dtype.hasobject:
            return np.empty(shape, dtype)
        self._end = aligned(start + size)
        return self._slot[start : start + size].view(dtype).reshape(shape)
