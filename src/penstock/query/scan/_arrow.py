"""Columns as query engines see them: plain Arrow types without extensions."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.format import Field, value_kind
from penstock.format.kinds import Kind, Label, Tensor
from penstock.table import RawColumn, Reader


def column_type(field: Field) -> pa.DataType:
    """The Arrow type of a column in a question."""
    kind = value_kind(field.kind)
    if isinstance(kind, Tensor) and not kind.ragged:
        found = _element_type(kind)
        for length in reversed(_list_shape(kind)):
            found = pa.list_(found, length)
        return found
    if kind.arrow_type == pa.binary():
        return pa.large_binary()
    return _plain_type(kind.arrow_type)


def is_stored_type(field: Field) -> bool:
    """Whether a filter compares the same values here and in `Reader.arrow`."""
    kind = field.kind
    return not isinstance(kind, Tensor) or (
        kind.shape == () and not _is_small_float(kind) and "complex" not in kind.dtype
    )


def column_array(reader: Reader, field: Field, raw: RawColumn) -> pa.Array:
    """A column of some rows with the type of `column_type`; blobs and links are loaded."""
    kind: Kind = value_kind(field.kind)
    if raw.dense is not None:
        return pa.array(raw.dense) if isinstance(kind, Label) else _tensor_array(kind, raw.dense, None)
    array = reader.load_external(field, raw)
    if isinstance(kind, Tensor) and not kind.ragged:
        missing = np.asarray(array.is_null()) if array.null_count else None
        return _tensor_array(kind, kind.view(array), missing)
    found = column_type(field)
    array = _plain_array(array)
    return array if array.type == found else array.cast(found)


def _is_small_float(kind: Tensor) -> bool:
    return kind.element.logical.itemsize < 4 and "float" in kind.dtype


def _element_type(kind: Tensor) -> pa.DataType:
    if kind.dtype == "bool":
        return pa.bool_()
    if kind.element.logical.kind in "Mm":
        unit = kind.dtype.partition("[")[2].rstrip("]")
        return pa.timestamp(unit) if kind.element.logical.kind == "M" else pa.duration(unit)
    return pa.float32() if _is_small_float(kind) else pa.from_numpy_dtype(kind.element.stored)


def _list_shape(kind: Tensor) -> tuple[int, ...]:
    return kind.stored_shape


def _tensor_array(kind: Kind, values: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None) -> pa.Array:
    assert isinstance(kind, Tensor)
    if kind.element.components == 2:
        values = np.ascontiguousarray(values).view(kind.element.stored).reshape(len(values), *kind.stored_shape)
    elif _is_small_float(kind):
        values = values.astype(np.float32)
    element, shape = _element_type(kind), _list_shape(kind)
    if not shape:
        return pa.array(values, element, mask=missing)
    found = pa.array(values.reshape(-1), element)
    for axis, length in reversed(list(enumerate(shape))):
        mask = pa.array(missing) if missing is not None and axis == 0 else None
        if not found or not length:
            count = len(values) * int(np.prod(shape[:axis], dtype=np.int64))
            found = pa.array([[]] * count if not length else [], pa.list_(found.type, length))
        else:
            found = pa.FixedSizeListArray.from_arrays(found, length, mask=mask)
    return found


def _plain_type(given: pa.DataType) -> pa.DataType:
    """A type with extensions replaced by their storage."""
    if isinstance(given, pa.BaseExtensionType):
        return _plain_type(given.storage_type)
    if pa.types.is_struct(given):
        return pa.struct([pa.field(member.name, _plain_type(member.type)) for member in given])
    if pa.types.is_fixed_size_list(given):
        return pa.list_(_plain_type(given.value_type), given.list_size)
    if pa.types.is_list(given):
        return pa.list_(_plain_type(given.value_type))
    return pa.float32() if given == pa.float16() else given


def _plain_array(array: pa.Array) -> pa.Array:
    """An array of `_plain_type`."""
    if isinstance(array, pa.ExtensionArray):
        return _plain_array(array.storage)
    if _plain_type(array.type) == array.type:
        return array
    if pa.types.is_struct(array.type):
        members = [_plain_array(member) for member in array.flatten()]
        names = [member.name for member in array.type]
        return pa.StructArray.from_arrays(members, names, mask=array.is_null())
    if pa.types.is_list(array.type):
        offsets = array.offsets
        values = array.values.slice(offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py())
        starts = pa.array(np.asarray(offsets) - offsets[0].as_py(), pa.int32())
        return pa.ListArray.from_arrays(starts, _plain_array(values), mask=array.is_null())
    return array.cast(_plain_type(array.type))
