"""Guess the columns of a table from its first rows."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from pathlib import PurePath
from typing import Any

import numpy as np
import PIL.Image
import pyarrow as pa

from penstock.codecs import IMAGE_CODECS, sniff
from penstock.errors import InvalidInputError
from penstock.format._schema import Column, Schema, kind_of_arrow, make_schema
from penstock.format.kinds import Audio, Bytes, Image, Json, Kind, Link, Linked, List, Tensor, Text, Video

_AUDIO = ("wav", "flac", "mp3", "ogg")
_VIDEO = ("mp4", "webm", "avi")


def infer_schema(columns: Mapping[str, Sequence[Any] | pa.Array]) -> Schema:
    """Find a kind for each column that takes all the values shown; a None among them makes it nullable."""
    return make_schema({name: _infer_column(name, values) for name, values in columns.items()})


def _infer_column(name: str, values: Sequence[Any] | pa.Array | pa.ChunkedArray) -> Column:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        stored = kind_of_arrow(pa.field(name, values.type))
        if isinstance(stored, Bytes):
            stored = _infer_bytes({sniff(value) for value in values.slice(0, 16).drop_null().to_pylist()})
        return Column(stored, nullable=values.null_count > 0)
    if hasattr(values, "__array__") and not isinstance(values, np.ndarray):
        values = np.asarray(values)
    if isinstance(values, np.ma.MaskedArray):
        return Column(_infer_arrays(name, list(values.data)), nullable=bool(np.ma.getmaskarray(values).any()))
    if isinstance(values, np.ndarray) and values.dtype.kind not in "OUS":
        return Column(_tensor(name, values.dtype, values.shape[1:]))
    present = [value for value in values if value is not None]
    kind = _infer_kind(name, present)
    if kind is None:
        seen = sorted({type(value).__name__ for value in present}) or ["nothing but None"]
        raise InvalidInputError(f"column {name!r}: no kind fits its first values ({', '.join(seen)}); give a schema")
    return Column(kind, nullable=len(present) < len(values))


def _infer_kind(name: str, values: Sequence[Any]) -> Kind | None:
    if not values:
        return None

    def all_are(*types: type) -> bool:
        return all(isinstance(value, types) for value in values)

    if all_are(str):
        return Text()
    if all_are(bytes, bytearray, memoryview):
        return _infer_bytes({sniff(value) for value in values})
    if all_are(PIL.Image.Image):
        return Image()
    if all_are(Link):
        return Linked(_infer_bytes({_extension(value.uri) for value in values}))
    if all_are(PurePath):
        return _infer_bytes({_extension(str(value)) for value in values})
    if all_are(dict):
        return Json()
    if all_are(datetime):
        return Tensor("datetime64[us]")
    if all_are(date):
        return Tensor("datetime64[s]")
    if all_are(timedelta) and not any(isinstance(value, np.generic) for value in values):
        return Tensor("timedelta64[us]")
    if all_are(int) and not -(1 << 63) <= min(values) <= max(values) < 1 << 63:  # numpy might make floats of these
        return Tensor("uint64") if min(values) >= 0 and max(values) < 1 << 64 else None
    if all_are(bool, np.bool_, int, float, complex, np.generic) or all(hasattr(value, "__array__") for value in values):
        return _infer_arrays(name, [np.asarray(value) for value in values])
    if all_are(list, tuple):
        items = [item for value in values for item in value if item is not None]
        inner = _infer_kind(name, items)
        if isinstance(inner, Tensor):
            return Tensor(inner.dtype, (None,) * (1 + len(inner.shape)))
        return None if inner is None else List(inner)
    return None


def _infer_arrays(name: str, values: Sequence[Any]) -> Kind:
    if len({value.ndim for value in values}) > 1:
        raise InvalidInputError(f"column {name!r}: its arrays have different numbers of dimensions; give a schema")
    shape = tuple(
        lengths.pop() if len(lengths) == 1 else None for lengths in map(set, zip(*_shapes(values), strict=True))
    )
    try:
        return _tensor(name, np.result_type(*{value.dtype for value in values}), shape)
    except TypeError:
        found = sorted({value.dtype.name for value in values})
        raise InvalidInputError(f"column {name!r}: no dtype fits {' and '.join(found)}; give a schema") from None


def _tensor(name: str, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> Tensor:
    if dtype.kind in "Mm" and np.datetime_data(dtype)[0] not in ("s", "ms", "us", "ns"):
        dtype = np.dtype(f"{dtype.kind}8[s]")
    try:
        return Tensor(dtype.name, shape)
    except InvalidInputError as error:
        raise InvalidInputError(f"column {name!r}: {error}; or give a schema") from None


def _shapes(values: Sequence[Any]) -> list[tuple[int, ...]]:
    return [value.shape for value in values]


def _infer_bytes(formats: set[str | None]) -> Kind:
    known = {found for found in formats if found is not None}
    if known and None not in formats:
        one = known.pop() if len(known) == 1 else None
        if formats <= set(IMAGE_CODECS):
            return Image(one or "png")
        if formats <= set(_AUDIO):
            return Audio(one)
        if formats <= set(_VIDEO):
            return Video(one)
    return Bytes()


def _extension(uri: str) -> str | None:
    ending = uri.rsplit(".", 1)[-1].lower()
    ending = {"jpg": "jpeg", "tif": "tiff", "m4v": "mp4", "mov": "mp4"}.get(ending, ending)
    return ending if ending in (*IMAGE_CODECS, *_AUDIO, *_VIDEO) else None
