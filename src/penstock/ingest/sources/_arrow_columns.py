"""How an Arrow column of a file becomes a column of a table, by its type, its metadata and its first values.

`penstock.format` maps the Arrow types that it supports. In addition:

- A struct of `bytes` and `path`, as Hugging Face's `datasets` writes media, becomes the bytes: an image, audio or
  video according to the metadata, else to the first bytes. Lists of such structs become lists of these.
- `ClassLabel` becomes a label, with null for -1; `Array2D` to `Array5D`, and lists whose length the metadata declares,
  become tensors.
- Lists of floats of equal length in the first rows, in a column whose name suggests an embedding, become embeddings. A
  later row of another length is rejected.
- Decimals become float64 (digits beyond the 15th are lost), times of day text, dictionaries their values, a column of
  nulls text, and types without a kind (maps, intervals, …) JSON, with bytes in base64.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from math import prod
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInputError
from penstock.format import Column, as_column, infer_schema
from penstock.format.kinds import Audio, Bytes, Embedding, Image, Json, Kind, Label, List, Tensor, Video, any_shape

_VECTOR_NAME = re.compile(r"vector|emb(?!er)", re.IGNORECASE)  # not: members, december
_FEATURE_KINDS: dict[str, Kind] = {"Image": Image(), "Audio": Audio(), "Video": Video()}
_MAX_REASON_CHARS = 200

Converted: TypeAlias = tuple[pa.Array, dict[int, str]]
"""A column, and row index to reason for the rows that could not be converted."""
Convert: TypeAlias = Callable[[pa.Array], Converted]


@dataclass(frozen=True)
class ColumnPlan:
    """How one column is converted; can be pickled."""

    name: str
    convert: Convert
    type: pa.DataType
    """The type of the converted column."""
    column: Column | None
    """None if the kind is inferred from the converted values."""
    note: str | None = None
    """What the conversion changes; None if it changes nothing."""


def plan_column(name: str, values: pa.Array, *, feature: Any, has_nulls: bool) -> ColumnPlan:
    """Decide the conversion from the first values of a column and its `datasets` feature."""
    kind, convert = _choose(name, values, feature if isinstance(feature, dict) else {})
    converted, errors = convert(values)
    good = converted.take(pa.array([n for n in range(len(converted)) if n not in errors], pa.int64()))
    [inferred] = infer_schema({"column": good})
    column = None
    if kind is not None or (has_nulls and not good.null_count):
        column = Column(kind or inferred.kind, nullable=has_nulls or inferred.nullable)
    stored = None if isinstance(kind, Tensor | List) else _changed_form(values.type, kind)
    note = None if stored is None else f"column {name!r} is {values.type} in the source and is stored as {stored}"
    return ColumnPlan(name, convert, converted.type, column, note)


def features_of(schema: pa.Schema) -> Mapping[str, Any]:
    """The features that Hugging Face's `datasets` stored in a schema; empty if it did not write the file."""
    try:
        found = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def is_vector_name(name: str) -> bool:
    """Whether the name suggests embeddings, for a column of float lists of equal length."""
    return _VECTOR_NAME.search(name) is not None


def cast_to(array: pa.Array, type: pa.DataType) -> Converted:
    """Cast to another Arrow type; a value that would change is an error of its row."""
    if isinstance(array, pa.ExtensionArray) and array.type != type:
        array = array.storage
    if array.type == type:
        return array, {}
    try:
        return array.cast(type), {}
    except pa.ArrowInvalid:
        errors = {index: error for index in range(len(array)) if (error := _cast_error(array.slice(index, 1), type))}
    good = array.take(pa.array([None if n in errors else n for n in range(len(array))], pa.int64()))
    return good.cast(type), errors


def _cast_error(one: pa.Array, type: pa.DataType) -> str | None:
    try:
        one.cast(type)
    except pa.ArrowInvalid as error:
        return f"is not {type}: {str(error)[:_MAX_REASON_CHARS]}"
    return None


def _choose(name: str, values: pa.Array, feature: Mapping[str, Any]) -> tuple[Kind | None, Convert]:
    """The kind, None if it can be inferred, and the conversion."""
    given = values.type
    if feature.get("_type") == "ClassLabel" and pa.types.is_integer(given):
        return _label(feature), _classes
    if (media := _media_kind(values, feature)) is not None:
        return media, _media_bytes
    if pa.types.is_list(given) and (media := _media_kind(values.flatten(), _inner_feature(feature))) is not None:
        return List(media), _media_lists
    stored = _storable(given)
    if (tensor := _tensor_kind(name, values, feature)) is not None:
        return tensor, partial(cast_to, type=stored) if tensor.ragged else partial(_tensors, kind=tensor)
    if stored is None:
        return Json(), _as_json
    is_json = isinstance(given, pa.BaseExtensionType) and given.extension_name == "arrow.json"
    return Json() if is_json else None, partial(cast_to, type=stored)


def _storable(given: pa.DataType) -> pa.DataType | None:
    """The closest Arrow type that has a kind, or None."""
    types = pa.types
    if isinstance(given, pa.FixedShapeTensorType):
        return given
    if isinstance(given, pa.BaseExtensionType):
        return _storable(given.storage_type)
    if types.is_dictionary(given):
        return _storable(given.value_type)
    if types.is_null(given) or types.is_time(given):
        return pa.string()
    if types.is_decimal(given):
        return pa.float64()
    if types.is_struct(given):
        inner = [(field.name, _storable(field.type)) for field in given]
        return pa.struct(inner) if inner and all(type is not None for _, type in inner) else None
    if types.is_fixed_size_list(given):
        item = _storable(given.value_type)
        return None if item is None else pa.list_(item, given.list_size)
    if any(matches(given) for matches in (types.is_list, types.is_large_list, types.is_list_view)):
        item = _storable(given.value_type)
        return None if item is None else pa.list_(item)
    try:
        as_column("column", given)
    except InvalidInputError:
        return None
    return given


def _changed_form(given: pa.DataType, kind: Kind | None) -> str | None:
    """How values are stored whose form changes; None for a type that is stored as it is."""
    types = pa.types
    if isinstance(kind, Json) and not isinstance(given, pa.BaseExtensionType):
        return "JSON"
    if types.is_decimal(given):
        return "float64, with about 15 digits"
    if types.is_time(given) or types.is_null(given):
        return "text"
    if types.is_timestamp(given) and given.tz is not None:
        return f"datetime64[{given.unit}] in UTC, without the time zone"
    if types.is_nested(given) and kind is None:
        inner = (given.field(index).type for index in range(given.num_fields))
        return next(filter(None, (_changed_form(type, None) for type in inner)), None)
    return None


def _label(feature: Mapping[str, Any]) -> Label:
    names = feature.get("names")
    try:
        return Label(tuple(names) if isinstance(names, list) else ())
    except InvalidInputError:  # duplicate class names
        return Label()


def _classes(array: pa.Array) -> Converted:
    indices, errors = cast_to(array, pa.int64())
    return pc.if_else(pc.equal(indices, -1), pa.scalar(None, pa.int64()), indices), errors


def _inner_feature(feature: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = feature.get("feature")
    return inner if isinstance(inner, dict) else {}


def _media_kind(values: pa.Array, feature: Mapping[str, Any]) -> Kind | None:
    given = values.type
    if not pa.types.is_struct(given) or {field.name for field in given} != {"bytes", "path"}:
        return None
    inner = given.field("bytes").type
    if not any(matches(inner) for matches in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)):
        return None
    [found] = infer_schema({"column": _media_bytes(values)[0]})
    kind = _FEATURE_KINDS.get(str(feature.get("_type")))
    if kind is None:
        return None if isinstance(found.kind, Bytes) else any_shape(found.kind)
    return any_shape(found.kind) if isinstance(kind, Image) and isinstance(found.kind, Image) else kind


def _media_bytes(array: pa.Array) -> Converted:
    data, errors = cast_to(pc.struct_field(array, "bytes"), pa.binary())
    path = pc.struct_field(array, "path")
    for index in np.flatnonzero(np.asarray(pc.and_(data.is_null(), path.is_valid()))).tolist():
        where = str(path[index].as_py())[:_MAX_REASON_CHARS]
        errors[index] = f"has no bytes, only the path {where!r} of another file"
    return data, errors


def _media_lists(array: pa.Array) -> Converted:
    items, item_errors = _media_bytes(array.flatten())
    lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    owners = np.repeat(np.arange(len(array)), lengths).tolist()
    lists = pa.ListArray.from_arrays(offsets, items, mask=array.is_null() if array.null_count else None)
    return lists, {owners[index]: error for index, error in item_errors.items()}


def _tensor_kind(name: str, values: pa.Array, feature: Mapping[str, Any]) -> Tensor | None:
    """A tensor if its shape is known from the metadata, or from equal lengths and a name that suggests embeddings."""
    element, depth = values.type, 0
    while pa.types.is_list(element) or pa.types.is_large_list(element) or pa.types.is_fixed_size_list(element):
        element, depth = element.value_type, depth + 1
    if not depth or not (pa.types.is_integer(element) or pa.types.is_floating(element) or pa.types.is_boolean(element)):
        return None
    dtype = np.dtype(element.to_pandas_dtype()).name
    vector = depth == 1 and pa.types.is_floating(element) and is_vector_name(name)
    shape = _declared_shape(feature)
    if len(shape) != depth:
        lengths = set(pc.list_value_length(values).drop_null().to_pylist()) if vector else set()
        shape = (lengths.pop(),) if len(lengths) == 1 else ()
    if not shape or 0 in shape:
        return None
    return Embedding(int(shape[0] or 0), dtype) if vector and None not in shape else Tensor(dtype, shape)


def _declared_shape(feature: Mapping[str, Any]) -> tuple[int | None, ...]:
    """The shape that `datasets` declares for an array or nested lists of fixed length; () if it declares none."""
    if re.fullmatch(r"Array[2-5]D", str(feature.get("_type"))):
        shape = feature.get("shape")
        valid = isinstance(shape, list) and all(n is None or (isinstance(n, int) and n > 0) for n in shape)
        return tuple(shape) if valid and isinstance(shape, list) else ()
    length = feature.get("length")
    if not isinstance(length, int) or length < 1:
        return ()
    return (length, *_declared_shape(_inner_feature(feature)))


def _tensors(array: pa.Array, kind: Tensor) -> Converted:
    """Lists as tensors of one shape."""
    nested: pa.DataType = pa.from_numpy_dtype(kind.element.stored)
    for length in reversed(kind.shape):
        nested = pa.list_(nested, length)
    lists, errors = cast_to(array, nested)
    present = np.asarray(lists.is_valid())
    inner = lists
    for length in kind.stored_shape:
        inner = inner.values.slice(inner.offset * length, len(inner) * length)
        if inner.null_count:
            with_nulls = np.asarray(inner.is_null()).reshape(len(lists), -1).any(axis=1) & present
            errors |= dict.fromkeys(np.flatnonzero(with_nulls).tolist(), "has a null element")
    mask = pa.array(~present) if lists.null_count else None
    flat = pa.FixedSizeListArray.from_arrays(inner, prod(kind.stored_shape), mask=mask)
    return pa.ExtensionArray.from_storage(kind.arrow_type, flat), errors


def _as_json(array: pa.Array) -> Converted:
    texts: list[str | None] = []
    errors: dict[int, str] = {}
    for index, value in enumerate(array.to_pylist()):
        text = None
        try:
            text = None if value is None else _dump_json(value)
        except (TypeError, ValueError, RecursionError) as error:
            errors[index] = f"cannot be written as JSON: {error}"
        texts.append(text)
    return pa.array(texts, pa.string()), errors


def _dump_json(value: Any) -> str:
    return json.dumps(_to_json(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _to_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _to_json(inner) for key, inner in value.items()}
    if isinstance(value, list) and value and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
        return {str(key): _to_json(inner) for key, inner in value}  # an Arrow map
    if isinstance(value, list | tuple):
        return [_to_json(inner) for inner in value]
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
