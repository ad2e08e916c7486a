"""Where the values of batches are written."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.table import Allocator, Int64Array

Allocators = Callable[[str], Allocator]
"""Allocates the values of a column, given its name."""


class RowsAt:
    """Some rows of an array, which need not be evenly spaced; what is assigned to it is written to their places."""

    __slots__ = ("array", "places")

    def __init__(self, array: npt.NDArray[Any], places: Int64Array) -> None:
        self.array, self.places = array, places

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.places), *self.array.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, key: Any) -> Any:
        return self.array[self.places[key]]

    def __setitem__(self, key: Any, values: Any) -> None:
        self.array[self.places[key]] = values
