"""Infer a schema from the first rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import PurePath
from typing import Any

import numpy as np
import PIL.Image
import pyarrow as pa

from penstock.codecs import IMAGE_CODECS, sniff
from penstock.errors import InvalidInputError
from penstock.format._schema import Column, Schema, kind_from_arrow, make_schema
from penstock.format.kinds import (
    Audio,
    Bytes,
    Image,
    Json,
    Kind,
    Link,
    Linked,
    List,
    Tensor,
    Text,
    Video,
    any_shape,
    encoded_shape,
    to_numpy,
)

_AUDIO = ("wav", "flac", "mp3", "ogg")
_VIDEO = ("mp4", "webm", "avi")


def infer_schema(columns: Mapping[str, Sequence[Any] | pa.Array]) -> Schema:
    """Infer a kind for each column that fits all given values; a None or a NaT makes the column nullable.

    Raises `InvalidInputError` if no kind fits.
    """
    return make_schema({name: _infer_column(name, values) for name, values in columns.items()})


def _infer_column(name: str, values: Sequence[Any] | pa.Array | pa.ChunkedArray) -> Column:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        stored = kind_from_arrow(pa.field(name, values.type))
        if isinstance(stored, Bytes):
            stored = _infer_bytes(values.slice(0, 16).drop_null().to_pylist())
        return Column(stored, nullable=values.null_count > 0)
    values = to_numpy(values)
    if hasattr(values, "__array__") and not isinstance(values, np.ndarray):
        values = np.asarray(values)
    if isinstance(values, np.ma.MaskedArray):
        return Column(_infer_arrays(name, list(values.data)), nullable=bool(np.ma.getmaskarray(values).any()))
    if isinstance(values, np.ndarray) and values.dtype.kind not in "OUS":
        has_nat = values.dtype.kind in "Mm" and values.ndim == 1 and bool(np.isnat(values).any())
        return Column(_tensor(name, values.dtype, values.shape[1:]), nullable=has_nat)
    present = [value for value in values if value is not None and not _is_nat(value)]
    kind = _infer_kind(name, present)
    if kind is None:
        seen = sorted({type(value).__name__ for value in present}) or ["nothing but None"]
        raise InvalidInputError(f"column {name!r}: no kind fits its first values ({', '.join(seen)}); give a schema")
    return Column(kind, nullable=len(present) < len(values))


def _is_nat(value: Any) -> bool:
    """Whether a value is "not a time", of numpy or pandas: it equals nothing."""
    return isinstance(value, np.datetime64 | np.timedelta64 | date) and bool(value != value)


def _infer_kind(name: str, values: Sequence[Any]) -> Kind | None:
    if not values:
        return None

    def all_are(*types: type) -> bool:
        return all(isinstance(value, types) for value in values)

    if all_are(str):
        return Text()
    if all_are(bytes, bytearray, memoryview):
        return _infer_bytes(values)
    if all_are(PIL.Image.Image):
        return with_inferred_shape(Image(), values)
    if all_are(Link):
        return Linked(_infer_media({_format_from_extension(value.uri) for value in values}))
    if all_are(PurePath):
        return _infer_media({_format_from_extension(str(value)) for value in values})
    if all_are(dict):
        return Json()
    if all_are(datetime):
        return Tensor("datetime64[us]")
    if all_are(date):
        return Tensor("datetime64[s]")
    if all_are(timedelta) and not any(isinstance(value, np.generic) for value in values):
        return Tensor("timedelta64[us]")
    if all_are(int) and not -(1 << 63) <= min(values) <= max(values) < 1 << 63:  # numpy may convert these to float
        return Tensor("uint64") if min(values) >= 0 and max(values) < 1 << 64 else None
    if all_are(bool, np.bool_, int, float, complex, np.generic) or all(hasattr(value, "__array__") for value in values):
        return _infer_arrays(name, [np.asarray(value) for value in values])
    if all_are(list, tuple):
        items = [item for value in values for item in value if item is not None]
        inner = _infer_kind(name, items)
        if isinstance(inner, Tensor):
            return Tensor(inner.dtype, (None,) * (1 + len(inner.shape)))
        return None if inner is None else List(any_shape(inner))
    return None


def with_inferred_shape(kind: Image, values: Iterable[Any]) -> Image:
    """A kind of images with the shape of these values if all have the same; nulls do not count."""
    shapes = {_image_shape(value) for value in values if value is not None}
    shape = shapes.pop() if len(shapes) == 1 else None
    return replace(kind, shape=shape, inferred=True)


def _image_shape(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, PIL.Image.Image):
        channels = len(value.getbands())
        return (value.height, value.width) if channels == 1 else (value.height, value.width, channels)
    return encoded_shape(value) if isinstance(value, bytes | bytearray | memoryview) else None


def _infer_arrays(name: str, values: Sequence[Any]) -> Kind:
    if len({value.ndim for value in values}) > 1:
        raise InvalidInputError(f"column {name!r}: its arrays have different numbers of dimensions; give a schema")
    shape = tuple(
        lengths.pop() if len(lengths) == 1 else None
        for lengths in map(set, zip(*(value.shape for value in values), strict=True))
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


def _infer_bytes(values: Sequence[Any]) -> Kind:
    kind = _infer_media({sniff(value) for value in values})
    return with_inferred_shape(kind, values) if isinstance(kind, Image) else kind


def _infer_media(formats: set[str | None]) -> Kind:
    names = {name for name in formats if name is not None}
    if names and None not in formats:
        codec = names.pop() if len(names) == 1 else None
        if formats <= set(IMAGE_CODECS):
            return Image(codec or "png")
        if formats <= set(_AUDIO):
            return Audio(codec)
        if formats <= set(_VIDEO):
            return Video(codec)
    return Bytes()


def _format_from_extension(uri: str) -> str | None:
    extension = uri.rsplit(".", 1)[-1].lower()
    extension = {"jpg": "jpeg", "tif": "tiff", "m4v": "mp4", "mov": "mp4"}.get(extension, extension)
    return extension if extension in (*IMAGE_CODECS, *_AUDIO, *_VIDEO) else None
