"""Columns of variable size on their way between processes: compact, and joined from the rows of several processes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.plan import Places

_LARGE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class _Arrays:
    """Arrays of one dtype, one after the other; to pickle each of them would take longer than to read it."""

    values: npt.NDArray[Any]
    shapes: list[tuple[int, ...] | None]
    """None for a null."""

    def split(self) -> list[npt.NDArray[Any] | None]:
        """Views of the values."""
        found: list[npt.NDArray[Any] | None] = []
        end = 0
        for shape in self.shapes:
            if shape is None:
                found.append(None)
                continue
            start, end = end, end + int(np.prod(shape, dtype=np.int64))
            found.append(self.values[start:end].reshape(shape))
        return found


def pack_rows(values: Any) -> Any:
    """The values of a column, compact if they are small arrays; large ones are not worth a copy."""
    if not isinstance(values, list) or not all(value is None or type(value) is np.ndarray for value in values):
        return values
    arrays = [value for value in values if value is not None]
    if not arrays or arrays[0].dtype.hasobject or any(array.dtype != arrays[0].dtype for array in arrays):
        return values
    if sum(array.nbytes for array in arrays) > _LARGE_BYTES * len(arrays):
        return values
    joined = np.concatenate([array.reshape(-1) for array in arrays])
    return _Arrays(joined, [None if value is None else value.shape for value in values])


def join_rows(parts: Sequence[tuple[Places, dict[str, Any]]], rows: int) -> dict[str, Any]:
    """Columns of `rows` rows, of which each part has those at some places."""
    found: dict[str, Any] = {}
    for name in next((part for _, part in parts if part), {}):  # a process without rows has sent no columns
        columns = [(places, part[name]) for places, part in parts if name in part]
        if all(isinstance(values, np.ndarray) for _, values in columns):
            dtype = np.result_type(*(values for _, values in columns if len(values)))
            whole = np.empty((rows, *columns[0][1].shape[1:]), dtype)
            for places, values in columns:
                whole[places] = values
            found[name] = whole
            continue
        listed: list[Any] = [None] * rows
        for places, values in columns:
            items = values.split() if isinstance(values, _Arrays) else list(values)
            if isinstance(places, slice):
                listed[places] = items
            else:
                for place, item in zip(places.tolist(), items, strict=True):
                    listed[place] = item
        found[name] = listed
    return found
