"""Lists of small arrays on their way between processes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_LARGE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class _Arrays:
    """Arrays of one dtype, one after the other; to pickle each of them would take longer than to read it."""

    values: npt.NDArray[Any]
    shapes: list[tuple[int, ...] | None]
    """None for a null."""

    def split(self) -> list[npt.NDArray[Any] | None]:
        """Views of the values."""
        arrays: list[npt.NDArray[Any] | None] = []
        end = 0
        for shape in self.shapes:
            if shape is None:
                arrays.append(None)
                continue
            start, end = end, end + int(np.prod(shape, dtype=np.int64))
            arrays.append(self.values[start:end].reshape(shape))
        return arrays


def compact(batch: Any) -> Any:
    """A batch in which lists of small arrays are compact; large ones are not worth a copy."""
    return {name: _compact(values) for name, values in batch.items()} if type(batch) is dict else batch


def expand(batch: Any) -> Any:
    """Inverse of `compact`."""
    if type(batch) is not dict:
        return batch
    return {name: values.split() if isinstance(values, _Arrays) else values for name, values in batch.items()}


def _compact(values: Any) -> Any:
    if type(values) is not list or not all(value is None or type(value) is np.ndarray for value in values):
        return values
    arrays = [value for value in values if value is not None]
    if not arrays or arrays[0].dtype.hasobject or any(array.dtype != arrays[0].dtype for array in arrays):
        return values
    if sum(array.nbytes for array in arrays) > _LARGE_BYTES * len(arrays):
        return values
    joined = np.concatenate([array.reshape(-1) for array in arrays])
    return _Arrays(joined, [None if value is None else value.shape for value in values])
