"""How an Arrow column of a file becomes a column of a table: by its type, its metadata and its first values.

What `penstock.format` understands of an Arrow type is left to it. Beyond that:

- A struct of `bytes` and `path`, as Hugging Face's `datasets` writes media, becomes the bytes: a picture, a sound or a
  video by what the metadata says, else by what the first bytes look like. Lists of such structs become lists of these.
- `ClassLabel` becomes a label, and its -1 no value; `Array2D` and its like, and lists of a length that the metadata
  gives, become tensors.
- Lists of floats whose name speaks of an embedding or a vector, and which all have one length in the first rows, become
  embeddings of that length. That is a promise which later rows may break: such a row is rejected.
- Decimals become float64 (digits beyond the 15th are lost), times of day become text, dictionaries their values, a
  column of nothing but nulls text, and what no kind can hold (maps, intervals, …) JSON, with bytes in base64.
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
from penstock.format.kinds import Audio, Bytes, Embedding, Image, Json, Kind, Label, List, Tensor, Video

_VECTOR_NAME = re.compile(r"vector|emb(?!er)", re.IGNORECASE)  # not: members, december
_TOLD_MEDIA: dict[str, Kind] = {"Image": Image(), "Audio": Audio(), "Video": Video()}
_REASON_LENGTH = 200

Converted: TypeAlias = tuple[pa.Array, dict[int, str]]
"""A column, and what is wrong with those of its rows that could not be converted and hold anything."""
Convert: TypeAlias = Callable[[pa.Array], Converted]


@dataclass(frozen=True)
class ColumnPlan:
    """How one column is made; can be pickled."""

    name: str
    convert: Convert
    type: pa.DataType
    """What `convert` gives."""
    column: Column | None
    """None where the kind is what anyone would infer."""


def plan_column(name: str, values: pa.Array, *, feature: Any, has_nulls: bool) -> ColumnPlan:
    """Look at the first values of a column, and at what `datasets` says of it, and decide."""
    kind, convert = _choose(name, values, feature if isinstance(feature, dict) else {})
    converted, flaws = convert(values)
    good = converted.take(pa.array([n for n in range(len(converted)) if n not in flaws], pa.int64()))
    [inferred] = infer_schema({"column": good})
    column = None
    if kind is not None or (has_nulls and not good.null_count):
        column = Column(kind or inferred.kind, nullable=has_nulls or inferred.nullable)
    return ColumnPlan(name, convert, converted.type, column)


def features_of(schema: pa.Schema) -> Mapping[str, Any]:
    """What Hugging Face's `datasets` has written about the columns of a file, if it wrote the file."""
    try:
        found = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def is_vector_name(name: str) -> bool:
    """Whether a column of that name holds embeddings, if it holds lists of numbers of one length."""
    return _VECTOR_NAME.search(name) is not None


def cast_to(array: pa.Array, type: pa.DataType) -> Converted:
    """Another Arrow type where no value changes; a value that would is a flaw of its row."""
    if isinstance(array, pa.ExtensionArray) and array.type != type:
        array = array.storage
    if array.type == type:
        return array, {}
    try:
        return array.cast(type), {}
    except pa.ArrowInvalid:
        flaws = {index: flaw for index in range(len(array)) if (flaw := _flaw(array.slice(index, 1), type))}
    good = array.take(pa.array([None if n in flaws else n for n in range(len(array))], pa.int64()))
    return good.cast(type), flaws


def _flaw(one: pa.Array, type: pa.DataType) -> str | None:
    try:
        one.cast(type)
    except pa.ArrowInvalid as error:
        return f"is no {type}: {str(error)[:_REASON_LENGTH]}"
    return None


def _choose(name: str, values: pa.Array, told: Mapping[str, Any]) -> tuple[Kind | None, Convert]:
    """The kind, None for what anyone would infer, and the way there."""
    given = values.type
    if told.get("_type") == "ClassLabel" and pa.types.is_integer(given):
        return _label(told), _classes
    if (media := _media_kind(values, told)) is not None:
        return media, _media_bytes
    if pa.types.is_list(given) and (media := _media_kind(values.flatten(), _inside(told))) is not None:
        return List(media), _media_lists
    stored = _storable(given)
    if (tensor := _tensor_kind(name, values, told)) is not None:
        return tensor, partial(cast_to, type=stored) if tensor.ragged else partial(_tensors, kind=tensor)
    if stored is None:
        return Json(), _as_json
    is_json = isinstance(given, pa.BaseExtensionType) and given.extension_name == "arrow.json"
    return Json() if is_json else None, partial(cast_to, type=stored)


def _storable(given: pa.DataType) -> pa.DataType | None:
    """The Arrow type nearest to one that a kind can hold; None where there is none."""
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
    if any(is_one(given) for is_one in (types.is_list, types.is_large_list, types.is_list_view)):
        item = _storable(given.value_type)
        return None if item is None else pa.list_(item)
    try:
        as_column("column", given)
    except InvalidInputError:
        return None
    return given


def _label(told: Mapping[str, Any]) -> Label:
    names = told.get("names")
    try:
        return Label(tuple(names) if isinstance(names, list) else ())
    except InvalidInputError:  # two classes of one name
        return Label()


def _classes(array: pa.Array) -> Converted:
    numbers, flaws = cast_to(array, pa.int64())
    return pc.if_else(pc.equal(numbers, -1), pa.scalar(None, pa.int64()), numbers), flaws


def _inside(told: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = told.get("feature")
    return inner if isinstance(inner, dict) else {}


def _media_kind(values: pa.Array, told: Mapping[str, Any]) -> Kind | None:
    given = values.type
    if not pa.types.is_struct(given) or {field.name for field in given} != {"bytes", "path"}:
        return None
    inner = given.field("bytes").type
    if not any(is_one(inner) for is_one in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)):
        return None
    [found] = infer_schema({"column": _media_bytes(values)[0]})
    kind = _TOLD_MEDIA.get(str(told.get("_type")))
    if kind is None:
        return None if isinstance(found.kind, Bytes) else found.kind
    return found.kind if isinstance(kind, Image) and isinstance(found.kind, Image) else kind


def _media_bytes(array: pa.Array) -> Converted:
    data, flaws = cast_to(pc.struct_field(array, "bytes"), pa.binary())
    path = pc.struct_field(array, "path")
    for index in np.flatnonzero(np.asarray(pc.and_(data.is_null(), path.is_valid()))).tolist():
        where = str(path[index].as_py())[:_REASON_LENGTH]
        flaws[index] = f"holds no bytes, only the path {where!r} of a file that is not in this one"
    return data, flaws


def _media_lists(array: pa.Array) -> Converted:
    items, inner_flaws = _media_bytes(array.flatten())
    lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    owners = np.repeat(np.arange(len(array)), lengths).tolist()
    lists = pa.ListArray.from_arrays(offsets, items, mask=array.is_null() if array.null_count else None)
    return lists, {owners[index]: flaw for index, flaw in inner_flaws.items()}


def _tensor_kind(name: str, values: pa.Array, told: Mapping[str, Any]) -> Tensor | None:
    """A tensor where somebody promises its shape: the metadata, or one length in all values and a name that says so."""
    number, depth = values.type, 0
    while pa.types.is_list(number) or pa.types.is_large_list(number) or pa.types.is_fixed_size_list(number):
        number, depth = number.value_type, depth + 1
    if not depth or not (pa.types.is_integer(number) or pa.types.is_floating(number) or pa.types.is_boolean(number)):
        return None
    dtype = np.dtype(number.to_pandas_dtype()).name
    vector = depth == 1 and pa.types.is_floating(number) and is_vector_name(name)
    shape = _told_shape(told)
    if len(shape) != depth:
        lengths = set(pc.list_value_length(values).drop_null().to_pylist()) if vector else set()
        shape = (lengths.pop(),) if len(lengths) == 1 else ()
    if not shape or 0 in shape:
        return None
    return Embedding(int(shape[0] or 0), dtype) if vector and None not in shape else Tensor(dtype, shape)


def _told_shape(told: Mapping[str, Any]) -> tuple[int | None, ...]:
    """The shape that `datasets` gives an array, or lists of fixed length in each other; () where it gives none."""
    if re.fullmatch(r"Array[2-5]D", str(told.get("_type"))):
        shape = told.get("shape")
        sound = isinstance(shape, list) and all(n is None or (isinstance(n, int) and n > 0) for n in shape)
        return tuple(shape) if sound and isinstance(shape, list) else ()
    length = told.get("length")
    if not isinstance(length, int) or length < 1:
        return ()
    return (length, *_told_shape(_inside(told)))


def _tensors(array: pa.Array, kind: Tensor) -> Converted:
    """Lists of numbers as tensors of one shape, ready to be stored."""
    nested: pa.DataType = pa.from_numpy_dtype(kind.element.stored)
    for length in reversed(kind.shape):
        nested = pa.list_(nested, length)
    lists, flaws = cast_to(array, nested)
    there = np.asarray(lists.is_valid())
    inner = lists
    for length in kind.stored_shape:
        inner = inner.values.slice(inner.offset * length, len(inner) * length)
        if inner.null_count:
            holes = np.asarray(inner.is_null()).reshape(len(lists), -1).any(axis=1) & there
            flaws |= dict.fromkeys(np.flatnonzero(holes).tolist(), "has a number missing inside")
    mask = pa.array(~there) if lists.null_count else None
    flat = pa.FixedSizeListArray.from_arrays(inner, prod(kind.stored_shape), mask=mask)
    return pa.ExtensionArray.from_storage(kind.arrow_type, flat), flaws


def _as_json(array: pa.Array) -> Converted:
    texts: list[str | None] = []
    flaws: dict[int, str] = {}
    for index, value in enumerate(array.to_pylist()):
        text = None
        try:
            text = None if value is None else json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            flaws[index] = f"cannot be written as JSON: {error}"
        texts.append(text)
    return pa.array(texts, pa.string()), flaws


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list) and value and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
        return {str(key): _plain(inner) for key, inner in value}  # Arrow's maps
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
