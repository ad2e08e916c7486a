"""Tensors: scalars, fixed-shape and ragged tensors, and kinds that specialise them."""

from collections.abc import Iterable, Mapping, Sequence
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
from penstock.format.kinds._kind import BadValueError, Kind, Values, as_shape, drop_nulls, null_mask, validity_bitmap


@dataclass(frozen=True)
class Tensor(Kind):
    """A tensor of one dtype; shape () is a scalar, and None is a dimension whose length varies by row.

    Stored as an Arrow primitive (scalar), a fixed-shape tensor (no None), a list (one ragged dimension) or a struct of
    flat `data` and `shape` (other ragged tensors), in C order.
    """

    dtype: str
    shape: tuple[int | None, ...] = ()

    name: ClassVar[str] = "tensor"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", Dtype.parse(self.dtype).name)
        object.__setattr__(self, "shape", as_shape(self.shape))
        if any(n is not None and n < 0 for n in self.shape):
            raise InvalidInputError(
                f"a tensor shape must not be negative, got {self.shape}; write None for a ragged dimension"
            )
        if prod(n for n in self.shape if n) * self.element.logical.itemsize >= 1 << 62:
            raise InvalidInputError(f"a tensor of shape {self.shape} is larger than any memory")

    @property
    def ragged(self) -> bool:
        """Whether a dimension differs from row to row."""
        return None in self.shape

    @property
    def element(self) -> Dtype:
        """The dtype of the elements, and how they are stored."""
        return Dtype.parse(self.dtype)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of one row as stored; only for tensors that are not ragged."""
        inner = tuple(n for n in self.shape if n is not None)
        return (*inner, 2) if self.element.components == 2 else inner

    @property
    def fixed_row_bytes(self) -> int | None:
        return None if self.ragged else prod(self.stored_shape) * self.element.stored.itemsize

    @property
    def arrow_type(self) -> pa.DataType:
        return _arrow_type(self)

    def _arrow_type(self) -> pa.DataType:
        stored = pa.from_numpy_dtype(self.element.stored)
        if not self.ragged:
            return pa.fixed_shape_tensor(stored, self.stored_shape) if self.stored_shape else stored
        if len(self.shape) == 1:
            return pa.list_(stored)
        return pa.struct([("data", pa.list_(stored)), ("shape", pa.list_(pa.int32(), len(self.shape)))])

    def to_array(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        values = _unmasked(values)
        return self._ragged_array(values) if self.ragged else self._fixed_array(values)

    def to_values(self, array: pa.Array) -> Values:
        return self._ragged_values(array) if self.ragged else self.view(array)

    def invalid_reason(self, array: pa.Array) -> str | None:
        present = drop_nulls(array.storage if isinstance(array, pa.ExtensionArray) else array)
        elements = present
        if self.ragged:
            if (reason := self.corrupt_reason(present)) is not None:
                return reason
            elements = (present if len(self.shape) == 1 else present.field("data")).flatten()
        elif self.stored_shape:
            elements = present.flatten()
        if elements.null_count:
            return "an element is null"
        if self.dtype == "bool" and len(elements) and pc.max(elements).as_py() > 1:
            return "bool must be stored as 1 and 0"
        return None

    def corrupt_reason(self, array: pa.Array) -> str | None:
        if not self.ragged or not len(array):
            return None
        data = array if len(self.shape) == 1 else array.field("data")
        if data.values.null_count and _elements(data).null_count:
            return "an element is null"
        components = self.element.components
        if len(self.shape) == 1 and components == 1:
            return None
        offsets = np.asarray(data.offsets)
        lengths = offsets[1:] - offsets[:-1]
        if components > 1 and (lengths % components).any():
            return "a complex element needs two stored values"
        if len(self.shape) == 1:
            return None
        # Floats, because integers would wrap around; axis by axis, because rows are many and axes few.
        elements, size = (
            np.full(len(array), float(components)),
            np.full(len(array), float(self.element.logical.itemsize)),
        )
        fit = np.ones(len(array), bool)
        for n, found in zip(self.shape, _stored_shapes(array).T, strict=True):
            fit &= found >= 0 if n is None else found == n
            elements *= found
            size *= np.maximum(found, 1)
        fit &= (elements == lengths) & (size < 2.0**62)
        return None if (fit | ~np.asarray(array.is_valid())).all() else "its shape does not match its data"

    def view(self, array: pa.Array) -> npt.NDArray[Any]:
        """The rows of a fixed-shape tensor, without a copy."""
        storage = array.storage if isinstance(array, pa.ExtensionArray) else array
        stored_dtype, width, count = self.element.stored, prod(self.stored_shape), len(array)
        if not self.stored_shape:
            data, start = storage.buffers()[1], storage.offset
        else:
            data, start = storage.values.buffers()[1], storage.offset * width + storage.values.offset
        if count * width == 0 or data is None:
            stored = np.zeros((count, *self.stored_shape), stored_dtype)
        else:
            flat = np.frombuffer(data, stored_dtype, count * width, start * stored_dtype.itemsize)
            stored = flat.reshape(count, *self.stored_shape)
        return self.element.from_stored(stored)

    def to_json(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "shape": list(self.shape)}

    def __str__(self) -> str:
        shape = f"[{', '.join('?' if n is None else str(n) for n in self.shape)}]" if self.shape else ""
        return f"{self.dtype}{shape}" if type(self) is Tensor else f"{self.name}({self.dtype}{shape})"

    @classmethod
    def from_json(cls, parameters: Mapping[str, Any]) -> Kind:
        return cls(parameters["dtype"], tuple(parameters["shape"]))

    def _fixed_array(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        nulls = null_mask(values)
        stored = self.element.to_stored(np.ascontiguousarray(self._stack(values, nulls)))
        elements = pa.Array.from_buffers(
            pa.from_numpy_dtype(stored.dtype), stored.size, [None, pa.py_buffer(stored.reshape(-1))]
        )
        bitmap = validity_bitmap(nulls)
        if not self.stored_shape:
            return pa.Array.from_buffers(elements.type, len(values), [bitmap, elements.buffers()[1]])
        arrow_type = self.arrow_type
        storage = pa.Array.from_buffers(arrow_type.storage_type, len(values), [bitmap], children=[elements])
        return pa.ExtensionArray.from_storage(arrow_type, storage)

    def _stack(self, values: Sequence[Any] | npt.NDArray[Any], nulls: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        """One array of all rows, with zeros for nulls."""
        shape = (len(values), *(n for n in self.shape if n is not None))
        if not nulls.any():
            try:  # one call for uniform rows; the loop below reports the exact error otherwise
                whole = np.asarray(values)
                if whole.shape == shape and whole.dtype != object:
                    return self.element.cast(whole)
            except (ValueError, TypeError):
                pass
        whole = np.zeros(shape, self.element.logical)
        for index, value in enumerate(values):
            if not nulls[index]:
                whole[index] = self._row(index, value)
        return whole

    def _row(self, index: int, value: Any) -> npt.NDArray[Any]:
        """One value as an array of this dtype and shape; raises `BadValueError`."""
        try:
            row = np.asarray(value)
        except ValueError:
            raise BadValueError(index, f"expected {self._expected}, got nested lists of unequal length") from None
        if row.shape == (0,) and not isinstance(value, np.ndarray) and self.ragged:  # an empty list has no inner shape
            row = np.zeros(tuple(n or 0 for n in self.shape), self.element.logical)
        if row.ndim != len(self.shape) or any(n not in (None, m) for n, m in zip(self.shape, row.shape, strict=True)):
            got = f"shape {row.shape}" if row.dtype != object else type(value).__name__
            raise BadValueError(index, f"expected {self._expected}, got {got}")
        return self._cast(index, row)

    def _cast(self, index: int, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        try:
            return self.element.cast(values)
        except ValueError as error:
            raise BadValueError(index, str(error)) from None

    @property
    def _expected(self) -> str:
        return f"{self.dtype} of shape {self.shape}" if self.shape else f"a {self.dtype} scalar"

    def _ragged_array(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        nulls = null_mask(values)
        empty = np.zeros(tuple(n or 0 for n in self.shape), self.element.logical)
        rows = [empty if value is None else self._row(index, value) for index, value in enumerate(values)]
        components = self.element.components
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([row.size * components for row in rows], out=offsets[1:])
        flat = np.concatenate([row.reshape(-1) for row in rows]) if rows else empty.reshape(-1)
        stored = self.element.to_stored(np.ascontiguousarray(flat)).reshape(-1)
        data = _list_array(offsets, pa.array(stored), nulls)
        if len(self.shape) == 1:
            return data
        shapes = np.array([row.shape for row in rows], np.int32).reshape(-1)
        shape = pa.FixedSizeListArray.from_arrays(pa.array(shapes), len(self.shape))
        return pa.StructArray.from_arrays(
            [_list_array(offsets, pa.array(stored), np.zeros(len(rows), bool)), shape],
            fields=list(self.arrow_type),
            mask=pa.array(nulls),
        )

    def _ragged_values(self, array: pa.Array) -> list[Any]:
        data = array if len(self.shape) == 1 else array.field("data")
        offsets = np.asarray(data.offsets)
        flat = np.asarray(_elements(data))
        rows = [flat[a:b] for a, b in pairwise(offsets - offsets[0])]
        if self.element.components == 2:
            rows = [row.reshape(-1, 2) for row in rows]
        rows = [self.element.from_stored(row) for row in rows]
        present = np.asarray(array.is_valid())
        if len(self.shape) > 1:  # the shape of a null row is undefined
            shapes = zip(rows, _stored_shapes(array), present, strict=True)
            rows = [row.reshape(shape) if valid else row for row, shape, valid in shapes]
        return [row if valid else None for row, valid in zip(rows, present, strict=True)]


def nat_as_null(kind: Kind, array: pa.Array) -> pa.Array:
    """A column with null for every time that is "not a time"; elements of tensors have no null and stay as they are."""
    if not isinstance(kind, Tensor) or kind.shape != () or kind.element.logical.kind not in "Mm":
        return array
    nat = np.isnat(kind.view(array))
    if not (nat & np.asarray(array.is_valid())).any():
        return array
    return pa.array(kind.view(array).view(np.int64), pa.int64(), mask=nat | np.asarray(array.is_null()))


def _elements(lists: pa.Array) -> pa.Array:
    """The elements of all rows of a list array; those of a slice only."""
    offsets = np.asarray(lists.offsets)
    return lists.values.slice(offsets[0], offsets[-1] - offsets[0])


def _stored_shapes(array: pa.Array) -> npt.NDArray[np.int32]:
    """The shape of each row of a ragged tensor, negative where it is null."""
    shape = array.field("shape")
    lengths = np.asarray(shape.values.fill_null(-1)).reshape(-1, shape.type.list_size)
    return lengths[shape.offset : shape.offset + len(shape)]


@cache
def _arrow_type(kind: Tensor) -> pa.DataType:
    return kind._arrow_type()


def _list_array(offsets: npt.NDArray[np.int64], values: pa.Array, nulls: npt.NDArray[np.bool_]) -> pa.Array:
    if offsets[-1] > np.iinfo(np.int32).max:
        raise InvalidInputError("one batch has more than 2^31 ragged elements; append it in smaller batches")
    buffers = [validity_bitmap(nulls), pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(pa.list_(values.type), len(nulls), buffers, children=[values])


def _unmasked(values: Sequence[Any] | npt.NDArray[Any]) -> Sequence[Any] | npt.NDArray[Any]:
    """Convert masked rows of a numpy masked array to None."""
    if not isinstance(values, np.ma.MaskedArray) or values.size == 0:
        return values
    masked = np.ma.getmaskarray(values).reshape(len(values), -1)
    if (part := masked.any(axis=1) & ~masked.all(axis=1)).any():
        raise BadValueError(int(part.argmax()), "the value is partly masked; mask all of it or nothing")
    return [None if is_masked else row for row, is_masked in zip(values.data, masked[:, 0], strict=True)]


@dataclass(frozen=True, init=False)
class Embedding(Tensor):
    """A vector of fixed length, for similarity search."""

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
    """Any number of bounding boxes per row, four coordinates each."""

    dtype: str = "float32"
    shape: tuple[int | None, ...] = (None, 4)
    layout: str = "xyxy"
    """Meaning of the coordinates: xyxy (two corners), xywh (corner and size) or cxcywh (centre and size)."""

    name: ClassVar[str] = "boxes"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layout not in ("xyxy", "xywh", "cxcywh"):
            raise InvalidInputError(f"the layout of boxes is xyxy, xywh or cxcywh, not {self.layout!r}")

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
    """A class index. Values are given as indices or names, and are read as indices."""

    names: tuple[str, ...] = ()

    name: ClassVar[str] = "label"

    def __post_init__(self) -> None:
        if isinstance(self.names, str) or not isinstance(self.names, Iterable):
            raise InvalidInputError(f"the names of a label are a list of strings, not {self.names!r}")
        object.__setattr__(self, "names", tuple(self.names))
        if not all(isinstance(name, str) for name in self.names):
            raise InvalidInputError(f"the names of a label are a list of strings, not {self.names!r}")
        if len(set(self.names)) != len(self.names):
            raise InvalidInputError("the names of a label must be unique")

    @property
    def fixed_row_bytes(self) -> int:
        return 8

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.int64()

    def to_array(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        values = _unmasked(values)
        if not isinstance(values, np.ndarray) or values.dtype.kind in "OUS":
            values = [self._class_index(index, value) for index, value in enumerate(values)]
        array = _INT64.to_array(values)
        invalid = self._out_of_range(array)
        if invalid.any():
            index = int(invalid.argmax())
            raise BadValueError(index, f"class {array[index]} is not one of the {len(self.names)} classes")
        return array

    def invalid_reason(self, array: pa.Array) -> str | None:
        return f"a class is not one of the {len(self.names)} classes" if self._out_of_range(array).any() else None

    def _out_of_range(self, array: pa.Array) -> npt.NDArray[np.bool_]:
        indices = _INT64.view(array)
        invalid: npt.NDArray[np.bool_] = (indices < 0) | (indices >= len(self.names))
        return invalid & np.asarray(array.is_valid()) if self.names else np.zeros(len(array), bool)

    def to_values(self, array: pa.Array) -> Values:
        return _INT64.to_values(array)

    def to_json(self) -> dict[str, Any]:
        return {"names": list(self.names)}

    def __str__(self) -> str:
        return f"label({len(self.names)} classes)" if self.names else "label"

    def _class_index(self, index: int, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.names.index(value)
        except ValueError:
            raise BadValueError(index, f"{value!r} is not one of the {len(self.names)} class names") from None


_INT64 = Tensor("int64")
