"""Numbers between Arrow and numpy: pyarrow's own conversions import pandas, which takes a third of a second."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def numbers_of(array: pa.Array) -> npt.NDArray[Any]:
    """A view of an array of numbers that has no nulls."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    values = array.buffers()[1]
    return np.frombuffer(values or b"", dtype, len(array), array.offset * dtype.itemsize if values else 0)


def array_of(numbers: npt.NDArray[np.int64]) -> pa.Array:
    """The inverse, for indices."""
    return pa.Array.from_buffers(
        pa.int64(), len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers, np.int64))]
    )
