"""Element dtypes: the logical dtype of values and the dtype that stores them.

Arrow tensors reject bool and complex, and Arrow lacks bfloat16 and float8: these are stored as unsigned bits or
pairs of floats, under their logical name.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidInputError
from penstock.types import SMALL_FLOATS

_NATIVE = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
_DATETIMES = tuple(f"datetime64[{unit}]" for unit in ("s", "ms", "us", "ns"))
_TIMEDELTAS = tuple(f"timedelta64[{unit}]" for unit in ("s", "ms", "us", "ns"))


@dataclass(frozen=True, slots=True)
class Dtype:
    """A logical element dtype and its stored dtype."""

    name: str
    logical: np.dtype[np.generic]
    stored: np.dtype[np.generic]
    components: int
    """Stored values per element: 2 for complex, else 1."""

    @staticmethod
    def parse(dtype: npt.DTypeLike) -> "Dtype":
        """The dtype of a name, a numpy dtype or a Python type; raises `InvalidInputError`."""
        if dtype is None:  # numpy would return float64
            raise InvalidInputError("None is not an element type")
        name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
        try:
            return _by_name(name)
        except KeyError:
            pass
        try:
            return _by_name(np.dtype(name).name)
        except (KeyError, TypeError):
            supported = ", ".join((*_NATIVE, "bool", "complex64", "complex128", *SMALL_FLOATS, *_DATETIMES))
            raise InvalidInputError(f"{name!r} is not an element type; choose one of {supported}") from None

    def to_stored(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """View contiguous values as their stored dtype, with a last axis of 2 for complex."""
        if self.components == 2:
            return values.view(self.stored).reshape(*values.shape, 2)
        return values.view(self.stored)

    def from_stored(self, stored: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Inverse of `to_stored`, also a view."""
        if self.components == 2:
            return stored.view(self.logical)[..., 0]
        return stored if self.stored == self.logical else stored.view(self.logical)

    def cast(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Convert values to this dtype; raises `ValueError` if more than float precision would be lost."""
        source, target = values.dtype, self.logical
        if source == target:
            return values
        if target.kind in "Mm" and source.kind in (target.kind, "O"):
            return self._cast_times(values)
        if source.name in SMALL_FLOATS:
            return self.cast(values.astype(np.float32))
        if target.kind in "iu" and source.kind in "iu":
            info = np.iinfo(self.name)
            if values.size and not (info.min <= int(values.min()) and int(values.max()) <= info.max):
                raise ValueError(f"a value does not fit {self.name}: found {values.min()} to {values.max()}")
            return values.astype(target)
        small = self.name in SMALL_FLOATS and source.kind in "biuf"
        if source.kind not in "biufc" or not (small or np.can_cast(source, target, "same_kind")):
            raise ValueError(f"{_describe(values)} cannot be stored as {self.name}; convert them first")
        with np.errstate(over="ignore"):
            cast: npt.NDArray[Any] = values.astype(target)
        if small or not np.can_cast(source, target):
            given: npt.NDArray[Any] = values
            lost = (np.isfinite(given) & ~np.isfinite(cast)) | (np.isinf(given) & ~np.isinf(cast))
            if lost.any():
                raise ValueError(f"a value does not fit {self.name}: found {given[lost][0]}")
        return cast

    def _cast_times(self, values: npt.NDArray[Any]) -> npt.NDArray[np.generic]:
        """Convert numpy and Python times without loss; times with a time zone are converted to UTC."""
        if values.dtype == object:
            if not all(isinstance(value, date if self.logical.kind == "M" else timedelta) for value in values.flat):
                raise ValueError(f"{_describe(values)} cannot be stored as {self.name}; convert them first")
            values = np.array([_numpy_time(value) for value in values.flat]).reshape(values.shape)
        cast = values.astype(self.logical)
        if (cast.astype(values.dtype).astype(np.int64) != values.astype(np.int64)).any():
            raise ValueError(f"a {values.dtype.name} value cannot be stored as {self.name} without loss")
        return cast


def _numpy_time(value: Any) -> Any:
    if hasattr(value, "to_numpy"):  # pandas: preserves nanoseconds
        return value.to_numpy()
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    return np.timedelta64(value) if isinstance(value, timedelta) else np.datetime64(value)


def _describe(values: npt.NDArray[np.generic]) -> str:
    if values.dtype != object:
        return {"U": "strings", "S": "bytes"}.get(values.dtype.kind, f"{values.dtype.name} values")
    found = sorted({type(value).__name__ for value in values.flat})
    return "integers this large" if found == ["int"] else f"values of type {', '.join(found)}"


@cache
def _by_name(name: str) -> Dtype:
    if name in _NATIVE:
        return Dtype(name, np.dtype(name), np.dtype(name), 1)
    if name in _DATETIMES or name in _TIMEDELTAS:
        return Dtype(name, np.dtype(name), np.dtype("int64"), 1)
    if name in SMALL_FLOATS:
        logical = SMALL_FLOATS[name]
        return Dtype(name, logical, np.dtype(f"uint{8 * logical.itemsize}"), 1)
    return {
        "bool": Dtype("bool", np.dtype("bool"), np.dtype("uint8"), 1),
        "complex64": Dtype("complex64", np.dtype("complex64"), np.dtype("float32"), 2),
        "complex128": Dtype("complex128", np.dtype("complex128"), np.dtype("float64"), 2),
    }[name]


def numbers_of(array: pa.Array) -> npt.NDArray[Any]:
    """A view of the numbers of an array without nulls.

    pyarrow's own conversions, to and from numpy, import pandas, which takes a third of a second.
    """
    dtype = np.dtype(array.type.to_pandas_dtype())
    values = array.buffers()[1]
    return np.frombuffer(values or b"", dtype, len(array), array.offset * dtype.itemsize if values else 0)


def array_of(indices: npt.NDArray[np.int64]) -> pa.Array:
    """Indices as an array."""
    return pa.Array.from_buffers(
        pa.int64(), len(indices), [None, pa.py_buffer(np.ascontiguousarray(indices, np.int64))]
    )
