"""Numbers: scalars, tensors of one shape, ragged tensors, and the kinds that only add a meaning to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import prod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInputError
from penstock.format._dtypes import Dtype
from penstock.format.kinds._kind import BadValue, Kind, Values, missing_rows, present_rows, validity


@dataclass(frozen=True)
class Tensor(Kind):
    """Numbers of one dtype; `shape` () is a scalar, and a None in it a length that differs from row to row.

    On disk: a scalar is an Arrow number, one shape is Arrow's fixed-shape tensor, one ragged dimension is a list, and
    anything else ragged is a struct of the flat `data` and the `shape`. Rows are in C order.
    """

    dtype: str
    shape: tuple[int | None, ...] = ()

    name: ClassVar[str] = "tensor"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", Dtype.of(self.dtype).name)
        object.__setattr__(self, "shape", tuple(None if n is None else int(n) for n in self.shape))
        if any(n is not None and n < 0 for n in self.shape):
            raise InvalidInputError(
                f"a tensor's shape has no negative lengths, got {self.shape}; write None for ragged"
            )

    @property
    def ragged(self) -> bool:
        return None in self.shape

    @property
    def element(self) -> Dtype:
        return Dtype.of(self.dtype)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of one row's stored numbers; only for tensors that are not ragged."""
        inner = tuple(n for n in self.shape if n is not None)
        return (*inner, 2) if self.element.parts == 2 else inner

    @property
    def stored_bytes(self) -> int | None:
        return None if self.ragged else prod(self.stored_shape) * self.element.stored.itemsize

    @property
    def arrow_type(self) -> pa.DataType:
        return _arrow_type(self)

    def _arrow_type(self) -> pa.DataType:
        number = pa.from_numpy_dtype(self.element.stored)
        if not self.ragged:
            return pa.fixed_shape_tensor(number, self.stored_shape) if self.stored_shape else number
        if len(self.shape) == 1:
            return pa.list_(number)
        return pa.struct([("data", pa.list_(number)), ("shape", pa.list_(pa.int32(), len(self.shape)))])

    def to_array(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        values = _unmasked(values)
        return self._ragged_array(values) if self.ragged else self._fixed_array(values)

    def to_values(self, array: pa.Array) -> Values:
        return self._ragged_values(array) if self.ragged else self.view(array)

    def flaw(self, array: pa.Array) -> str | None:
        present = present_rows(array.storage if isinstance(array, pa.ExtensionArray) else array)
        numbers = present
        if self.ragged:
            data = present if len(self.shape) == 1 else present.field("data")
            lengths = np.diff(np.asarray(data.offsets)) if len(data) else np.zeros(0, np.int32)
            if len(self.shape) > 1 and not self._shapes_fit(present.field("shape"), lengths):
                return "its shape does not fit its data"
            if (lengths % self.element.parts).any():
                return "a complex number is two numbers"
            numbers = data.flatten()
        elif self.stored_shape:
            numbers = present.flatten()
        if numbers.null_count:
            return "a number inside it is missing"
        if self.dtype == "bool" and len(numbers) and pc.max(numbers).as_py() > 1:
            return "true and false are stored as 1 and 0"
        return None

    def _shapes_fit(self, shape: pa.Array, lengths: npt.NDArray[Any]) -> bool:
        flat = shape.flatten()
        if flat.null_count or len(flat) != len(lengths) * len(self.shape):
            return False
        shapes = np.asarray(flat).reshape(-1, len(self.shape)).astype(np.int64)
        fixed = [n is None or bool((shapes[:, axis] == n).all()) for axis, n in enumerate(self.shape)]
        sizes = shapes.prod(axis=1) * self.element.parts
        return all(fixed) and bool((shapes >= 0).all()) and bool((sizes == lengths).all())

    def view(self, array: pa.Array) -> npt.NDArray[Any]:
        """The rows of a tensor that is not ragged, without a copy."""
        storage = array.storage if isinstance(array, pa.ExtensionArray) else array
        number, width, count = self.element.stored, prod(self.stored_shape), len(array)
        if not self.stored_shape:
            data, start = storage.buffers()[1], storage.offset
        else:
            data, start = storage.values.buffers()[1], storage.offset * width + storage.values.offset
        if count * width == 0 or data is None:
            stored = np.zeros((count, *self.stored_shape), number)
        else:
            flat = np.frombuffer(data, number, count * width, start * number.itemsize)
            stored = flat.reshape(count, *self.stored_shape)
        return self.element.from_stored(stored)

    def to_json(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "shape": list(self.shape)}

    def __str__(self) -> str:
        numbers = self.dtype + (
            f"[{', '.join('?' if n is None else str(n) for n in self.shape)}]" if self.shape else ""
        )
        return numbers if type(self) is Tensor else f"{self.name}({numbers})"

    @classmethod
    def from_json(cls, parameters: Mapping[str, Any]) -> Kind:
        return cls(parameters["dtype"], tuple(parameters["shape"]))

    def _fixed_array(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        missing = missing_rows(values)
        whole = np.ascontiguousarray(self._stack(values, missing))
        stored = self.element.to_stored(whole)
        numbers = pa.Array.from_buffers(
            pa.from_numpy_dtype(stored.dtype), stored.size, [None, pa.py_buffer(stored.reshape(-1))]
        )
        bitmap = validity(missing)
        if not self.stored_shape:
            return pa.Array.from_buffers(numbers.type, len(values), [bitmap, numbers.buffers()[1]])
        kind = self.arrow_type
        storage = pa.Array.from_buffers(kind.storage_type, len(values), [bitmap], children=[numbers])
        return pa.ExtensionArray.from_storage(kind, storage)

    def _stack(self, values: Sequence[Any] | npt.NDArray[Any], missing: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        """One array of all rows, with zeros for those that are missing."""
        shape = (len(values), *(n for n in self.shape if n is not None))
        if not missing.any():
            try:  # one call for rows that are alike: fast, and exact errors below where it does not work
                whole = np.asarray(values)
                if whole.shape == shape and whole.dtype != object:
                    return self.element.cast(whole)
            except (ValueError, TypeError):
                pass
        whole = np.zeros(shape, self.element.logical)
        for index, value in enumerate(values):
            if not missing[index]:
                whole[index] = self._row(index, value)
        return whole

    def _row(self, index: int, value: Any) -> npt.NDArray[Any]:
        """One value as an array of this dtype and shape, or `BadValue`."""
        try:
            row = np.asarray(value)
        except ValueError:
            raise BadValue(index, f"expected {self._wanted}, got nested lists of unequal length") from None
        if (
            row.shape == (0,) and not isinstance(value, np.ndarray) and self.ragged
        ):  # an empty list has no shape to lose
            row = np.zeros(tuple(n or 0 for n in self.shape), self.element.logical)
        if row.ndim != len(self.shape) or any(n not in (None, m) for n, m in zip(self.shape, row.shape, strict=True)):
            got = f"shape {row.shape}" if row.dtype != object else type(value).__name__
            raise BadValue(index, f"expected {self._wanted}, got {got}")
        return self._cast(index, row)

    def _cast(self, index: int, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        try:
            return self.element.cast(values)
        except ValueError as error:
            raise BadValue(index, str(error)) from None

    @property
    def _wanted(self) -> str:
        return f"{self.dtype} of shape {self.shape}" if self.shape else f"a {self.dtype} number"

    def _ragged_array(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        missing = missing_rows(values)
        empty = np.zeros(tuple(n or 0 for n in self.shape), self.element.logical)
        rows = [empty if value is None else self._row(index, value) for index, value in enumerate(values)]
        parts = self.element.parts
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([row.size * parts for row in rows], out=offsets[1:])
        flat = np.concatenate([row.reshape(-1) for row in rows]) if rows else empty.reshape(-1)
        stored = self.element.to_stored(np.ascontiguousarray(flat)).reshape(-1)
        data = _list_array(offsets, pa.array(stored), missing)
        if len(self.shape) == 1:
            return data
        shapes = np.array([row.shape for row in rows], np.int32).reshape(-1)
        shape = pa.FixedSizeListArray.from_arrays(pa.array(shapes), len(self.shape))
        return pa.StructArray.from_arrays(
            [_list_array(offsets, pa.array(stored), np.zeros(len(rows), bool)), shape],
            fields=list(self.arrow_type),
            mask=pa.array(missing),
        )

    def _ragged_values(self, array: pa.Array) -> list[Any]:
        present = np.asarray(array.is_valid())
        data = array if len(self.shape) == 1 else array.field("data")
        offsets = np.asarray(data.offsets)
        flat = np.asarray(data.values)
        rows = [flat[a:b] for a, b in pairwise(offsets)]
        if self.element.parts == 2:
            rows = [row.reshape(-1, 2) for row in rows]
        rows = [self.element.from_stored(row) for row in rows]
        if len(self.shape) > 1:
            shape = array.field("shape")
            numbers = shape.values.fill_null(0)  # a missing row may lack its shape too
            shapes = np.asarray(numbers)[shape.offset * len(self.shape) :].reshape(-1, len(self.shape))
            rows = [row.reshape(shape) for row, shape in zip(rows, shapes[: len(rows)], strict=True)]
        return [row if there else None for row, there in zip(rows, present, strict=True)]


@cache
def _arrow_type(kind: Tensor) -> pa.DataType:
    return kind._arrow_type()


def _list_array(offsets: npt.NDArray[np.int64], values: pa.Array, missing: npt.NDArray[np.bool_]) -> pa.Array:
    if offsets[-1] > np.iinfo(np.int32).max:
        raise InvalidInputError("one batch holds more than 2^31 ragged elements; append it in smaller pieces")
    buffers = [validity(missing), pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(pa.list_(values.type), len(missing), buffers, children=[values])


def _unmasked(values: Sequence[Any] | npt.NDArray[Any]) -> Sequence[Any] | npt.NDArray[Any]:
    """Rows that numpy has masked become None."""
    if not isinstance(values, np.ma.MaskedArray) or values.size == 0:
        return values
    masked = np.ma.getmaskarray(values).reshape(len(values), -1)
    if (part := masked.any(axis=1) & ~masked.all(axis=1)).any():
        raise BadValue(int(part.argmax()), "a part of the value is masked; a value is there or not")
    return [None if gone else row for row, gone in zip(values.data, masked[:, 0], strict=True)]


@dataclass(frozen=True, init=False)
class Embedding(Tensor):
    """A vector of one length, to be searched by similarity."""

    name: ClassVar[str] = "embedding"

    def __init__(self, length: int, dtype: str = "float32") -> None:
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", (length,))
        self.__post_init__()

    def to_json(self) -> dict[str, Any]:
        return {"length": self.shape[0], "dtype": self.dtype}

    @classmethod
    def from_json(cls, parameters: Mapping[str, Any]) -> Kind:
        return cls(parameters["length"], parameters["dtype"])


@dataclass(frozen=True)
class Boxes(Tensor):
    """Any number of boxes per row, four numbers each."""

    dtype: str = "float32"
    shape: tuple[int | None, ...] = (None, 4)
    layout: str = "xyxy"
    """What the four numbers are: xyxy (two corners), xywh (corner and size) or cxcywh (centre and size)."""

    name: ClassVar[str] = "boxes"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layout not in ("xyxy", "xywh", "cxcywh"):
            raise InvalidInputError(f"boxes are laid out as xyxy, xywh or cxcywh, not {self.layout!r}")

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "layout": self.layout}

    @classmethod
    def from_json(cls, parameters: Mapping[str, Any]) -> Kind:
        return cls(parameters["dtype"], tuple(parameters["shape"]), parameters["layout"])


@dataclass(frozen=True)
class Points(Tensor):
    """Any number of points per row, with the same number of coordinates each."""

    dtype: str = "float32"
    shape: tuple[int | None, ...] = (None, 3)
    name: ClassVar[str] = "points"


@dataclass(frozen=True)
class Label(Kind):
    """A class, stored as its number; values are given as numbers or as names, and come back as numbers."""

    names: tuple[str, ...] = ()

    name: ClassVar[str] = "label"

    def __post_init__(self) -> None:
        if isinstance(self.names, str) or not all(isinstance(name, str) for name in self.names):
            raise InvalidInputError(f"a label's names are a list of strings, not {self.names!r}")
        object.__setattr__(self, "names", tuple(self.names))
        if len(set(self.names)) != len(self.names):
            raise InvalidInputError("a label's names must differ from each other")

    @property
    def stored_bytes(self) -> int:
        return 8

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.int64()

    def to_array(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        values = _unmasked(values)
        if not isinstance(values, np.ndarray) or values.dtype.kind in "OUS":
            values = [self._number(index, value) for index, value in enumerate(values)]
        array = _NUMBER.to_array(values)
        outside = self._outside(array)
        if outside.any():
            index = int(outside.argmax())
            raise BadValue(index, f"class {array[index]} is not one of the {len(self.names)} classes")
        return array

    def flaw(self, array: pa.Array) -> str | None:
        return f"a class is not one of the {len(self.names)} classes" if self._outside(array).any() else None

    def _outside(self, array: pa.Array) -> npt.NDArray[np.bool_]:
        numbers = _NUMBER.view(array)
        wrong: npt.NDArray[np.bool_] = (numbers < 0) | (numbers >= len(self.names))
        return wrong & np.asarray(array.is_valid()) if self.names else np.zeros(len(array), bool)

    def to_values(self, array: pa.Array) -> Values:
        return _NUMBER.to_values(array)

    def to_json(self) -> dict[str, Any]:
        return {"names": list(self.names)}

    def __str__(self) -> str:
        return f"label({len(self.names)} classes)" if self.names else "label"

    def _number(self, index: int, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.names.index(value)
        except ValueError:
            raise BadValue(index, f"{value!r} is not one of the {len(self.names)} class names") from None


_NUMBER = Tensor("int64")
