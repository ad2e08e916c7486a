"""The encodings of MDS columns; pickled columns are refused."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate
from math import prod
from struct import Struct, unpack_from
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.codecs import MAX_PIXELS, ImageCodec, image_size
from penstock.errors import InvalidInputError, SampleError
from penstock.format.kinds import Image, Json, Kind, List, Tensor, Text
from penstock.ingest.sources._values import parse_json, parse_text

_SCALARS = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float16": "e",
    "float32": "f",
    "float64": "d",
}
"""Scalar encodings and their `struct` format characters."""
_DTYPE_CODES = {
    8 * np.dtype(name).itemsize + {"u": 0, "i": 1, "f": 2}[np.dtype(name).kind]: np.dtype(name) for name in _SCALARS
}
"""Dtype codes of arrays whose dtype varies between values."""
_PIL_MODES = {"L": ("<u1", ()), "RGB": ("<u1", (3,)), "RGBA": ("<u1", (4,)), "I;16": ("<u2", ())}
_PNG = ImageCodec("png")


@dataclass(frozen=True)
class Encoding:
    """How the bytes of a column are decoded."""

    kind: Kind | None
    """None if the kind depends on the values."""
    read: Callable[[memoryview], Any]
    """Decodes a value; raises `SampleError`."""
    size: int | None = None
    """Bytes of every value; None if they vary."""


@cache
def encoding_of(text: str) -> Encoding:
    """The encoding that an index names; raises `InvalidInputError`, whose message lacks the column name."""
    name, _, parameters = text.partition(":")
    if name == "pkl":
        raise InvalidInputError("is pickled, and pickles are never loaded; write it again with another encoding")
    if name == "ndarray":
        return _array_encoding(text)
    if name not in _ENCODINGS or (parameters and name != "jpeg"):
        raise InvalidInputError(f"has the encoding {text!r}, which is unknown; known are {', '.join(_ENCODINGS)}")
    return _ENCODINGS[name]


def _scalar(name: str) -> Encoding:
    layout = Struct(f"<{_SCALARS[name]}")
    return Encoding(Tensor(name), lambda data: layout.unpack(data)[0], layout.size)


def _array_encoding(text: str) -> Encoding:
    _, dtype, shape = (*text.split(":", 2), "", "")[:3]
    if (dtype and dtype not in _SCALARS) or not re.fullmatch(r"(\d{1,9},)*\d{1,9}|", shape) or (shape and not dtype):
        raise InvalidInputError(f"has the encoding {text!r}, which is not a valid array encoding")
    element = np.dtype(dtype).newbyteorder("<") if dtype else None
    if not shape or element is None:
        return Encoding(None, partial(_array, element))
    lengths = tuple(map(int, shape.split(",")))
    return Encoding(
        Tensor(dtype, lengths),
        lambda data: np.frombuffer(data, element).reshape(lengths),
        prod(lengths) * element.itemsize,
    )


def _array(dtype: np.dtype[Any] | None, data: memoryview) -> npt.NDArray[Any]:
    """An array preceded by its shape, and before that by its dtype code if `dtype` is None."""
    rest = data
    if dtype is None:
        if not rest or rest[0] not in _DTYPE_CODES:
            raise SampleError("an array without a known dtype")
        dtype, rest = _DTYPE_CODES[rest[0]], rest[1:]
    dimensions, width = (rest[0] >> 2, 1 << (rest[0] & 3)) if rest else (0, 1)
    if not rest or len(rest) < 1 + dimensions * width:
        raise SampleError("an array without its shape")
    shape = np.frombuffer(rest, f"<u{width}", dimensions, 1).tolist()
    values = rest[1 + dimensions * width :]
    if prod(shape) * dtype.itemsize != len(values) or dimensions > 32:
        raise SampleError(f"an array of shape {tuple(shape)} and {dtype} does not have {len(values)} bytes")
    return np.frombuffer(values, dtype).reshape(shape)


def _number(convert: Callable[[str], Any], data: memoryview) -> Any:
    text = parse_text(data)
    try:
        return convert(text)
    except ValueError:
        raise SampleError(f"not a number: {text[:64]!r}") from None


def _decimal(data: memoryview) -> str:
    """Stored as text, because no dtype of a table has all its digits."""
    text = parse_text(data)
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(Infinity|s?NaN\d*)", text):
        raise SampleError(f"not a decimal number: {text[:64]!r}")
    return text


def _image(data: memoryview) -> memoryview:
    image_size(data)
    return data


def _pil(data: memoryview) -> bytes:
    """Raw pixels, preceded by width, height and mode, as PNG."""
    if len(data) < 12:
        raise SampleError("an image without its size")
    width, height, letters = unpack_from("<3I", data)
    mode, pixels = bytes(data[12 : 12 + letters]).decode("latin-1"), data[12 + letters :]
    if mode not in _PIL_MODES:
        raise SampleError(f"an image of PIL's mode {mode[:16]!r} is not one of {', '.join(_PIL_MODES)}")
    dtype, channels = _PIL_MODES[mode]
    wanted = width * height * prod(channels) * np.dtype(dtype).itemsize
    if wanted != len(pixels) or not 0 < width * height <= MAX_PIXELS:
        raise SampleError(f"an image of {width} x {height} pixels ({mode}) does not have {len(pixels)} bytes")
    return _PNG.encode(np.frombuffer(pixels, dtype).reshape(height, width, *channels))


def _list(start: int, read: Callable[[memoryview], Any], data: memoryview) -> list[Any]:
    """A list of values at offset `start`: the count, the sizes, then the values."""
    count = unpack_from("<I", data, start)[0] if len(data) >= start + 4 else 0
    at = start + 4 + 4 * count
    if len(data) < at:
        raise SampleError(f"a list of {count} values in {len(data)} bytes")
    sizes = np.frombuffer(data, "<u4", count, start + 4).tolist()
    if at + sum(sizes) != len(data):
        raise SampleError(f"a list whose values need {sum(sizes)} bytes and have {len(data) - at}")
    values = data[at:]
    return [read(values[end - size : end]) for end, size in zip(accumulate(sizes), sizes, strict=True)]


_JPEG, _PNG_IMAGE = Image("jpeg"), Image("png")
_ENCODINGS = {
    "bytes": Encoding(None, lambda data: data),
    "str": Encoding(Text(), parse_text),
    "int": _scalar("int64"),
    **{name: _scalar(name) for name in _SCALARS},
    "ndarray": Encoding(None, partial(_array, None)),
    "str_int": Encoding(Tensor("int64"), partial(_number, int)),
    "str_float": Encoding(Tensor("float64"), partial(_number, float)),
    "str_decimal": Encoding(Text(), _decimal),
    "json": Encoding(Json(), parse_json),
    "jpeg": Encoding(_JPEG, _image),
    "png": Encoding(_PNG_IMAGE, _image),
    "pil": Encoding(_PNG_IMAGE, _pil),
    "list[jpeg]": Encoding(List(_JPEG), partial(_list, 4, _image)),
    "list[png]": Encoding(List(_PNG_IMAGE), partial(_list, 4, _image)),
    "list[pil]": Encoding(List(_PNG_IMAGE), partial(_list, 4, _pil)),
    "jpeg_array": Encoding(List(_JPEG), partial(_list, 0, _image)),
    "jpegarray": Encoding(List(_JPEG), partial(_list, 0, _image)),
}
