"""Values of batches: where they are written, and those inside nested ones."""

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.device import Allocator
from penstock.table import Int64Array

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


def map_leaves(fn: Callable[[Any], Any], value: Any, *, leaf_type: type | None = None) -> Any:
    """Apply `fn` to the leaves of nested dictionaries, lists and tuples; values of type `leaf_type` are leaves too."""
    if leaf_type is not None and isinstance(value, leaf_type):
        return fn(value)
    if isinstance(value, dict):
        mapped = {key: map_leaves(fn, inner, leaf_type=leaf_type) for key, inner in value.items()}
        if type(value) is dict:
            return mapped
        same = copy(value)
        same.update(mapped)
        return same
    if type(value) in (list, tuple):
        return type(value)(map_leaves(fn, inner, leaf_type=leaf_type) for inner in value)
    if type(value).__bases__ == (tuple,) and hasattr(value, "_fields"):
        return type(value)(*(map_leaves(fn, inner, leaf_type=leaf_type) for inner in value))
    return fn(value)


def has_lists(columns: Mapping[str, Any]) -> bool:
    """Whether some columns are lists of values, so that batches are no views of arrays."""
    return any(isinstance(values, list) for values in columns.values())


def array_bytes(value: Any) -> int:
    """Bytes of the arrays and tensors in nested dictionaries, lists and tuples; other values count as nothing."""
    if isinstance(value, dict):
        return sum(map(array_bytes, value.values()))
    if isinstance(value, list | tuple):
        return 0 if value and isinstance(value[0], str | bytes | int | float) else sum(map(array_bytes, value))
    return int(getattr(value, "nbytes", 0))
