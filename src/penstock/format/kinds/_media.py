"""Media kinds: encoded bytes, stored unchanged; images decode to arrays."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import PIL.Image
import pyarrow as pa

from penstock.codecs import IMAGE_CODECS, ImageCodec, decode_image, decode_images, image_size, sniff
from penstock.errors import InvalidInputError, SampleError
from penstock.format.kinds._kind import BadValueError, Kind, Values, as_shape, binary_array

_Bytes: TypeAlias = bytes | bytearray | memoryview
_SAMPLED_HEADERS = 128
"""Images of a file whose headers are read: enough for their average size."""


@dataclass(frozen=True)
class Image(Kind):
    """An image. Encoded bytes of a supported format are stored unchanged; arrays and PIL images are encoded by `codec`.

    Encoded bytes can be a one-dimensional array of uint8.

    With `shape` (height, width, channels), all images have that shape and a batch is one array; without, a batch is a
    list.
    """

    codec: str = "png"
    shape: tuple[int, ...] | None = None
    inferred: bool = False
    """Whether the shape is that of the images so far: one of another shape is not rejected, but ends it."""

    name: ClassVar[str] = "image"

    def __post_init__(self) -> None:
        object.__setattr__(self, "codec", ImageCodec.parse(self.codec).spec)
        if self.shape is not None:
            object.__setattr__(self, "shape", as_shape(self.shape))
        object.__setattr__(self, "inferred", self.shape is not None and bool(self.inferred))

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.binary()

    def to_array(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        codec = ImageCodec.parse(self.codec)
        return binary_array([self._encode(index, value, codec) for index, value in enumerate(values)])

    def to_values(self, array: pa.Array) -> Values:
        encoded = array.to_pylist()
        if self.shape is None:
            return [None if data is None else decode_image(data) for data in encoded]
        images, errors = decode_images(encoded, self.shape)
        for error in errors.values():
            raise error
        return images

    def invalid_reason(self, array: pa.Array) -> str | None:
        return _encode_error(self, array)

    def decoded_bytes(self, array: pa.Array) -> int | None:
        present = array.drop_null()
        sample = present.take(np.linspace(0, len(present) - 1, min(len(present), _SAMPLED_HEADERS)).astype(np.int64))
        sizes = [_decoded_size(data) for data in sample.to_pylist()]
        return round(len(present) * sum(sizes) / max(1, len(sizes)))

    def to_json(self) -> dict[str, Any]:
        described = {"codec": self.codec, "shape": None if self.shape is None else list(self.shape)}
        return described | ({"inferred": True} if self.inferred else {})

    def __str__(self) -> str:
        shape = "" if self.shape is None else f", {self.shape}{' inferred' if self.inferred else ''}"
        return f"{self.name}({self.codec}{shape})"

    def _encode(self, index: int, value: Any, codec: ImageCodec) -> _Bytes | None:
        value = encoded_bytes(value)
        if value is None:
            return None
        if isinstance(value, _Bytes):
            if sniff(value) not in IMAGE_CODECS:
                raise BadValueError(index, "these bytes are not of an image format that Penstock supports")
            if self.shape is not None:
                self._check_size(index, value)
            return value
        if isinstance(value, PIL.Image.Image):
            value = np.asarray(value)
        if not isinstance(value, np.ndarray):
            raise BadValueError(index, f"expected an array, a PIL image or encoded bytes, got {type(value).__name__}")
        if self.shape is not None and value.shape != self.shape:
            raise BadValueError(index, f"expected an image of shape {self.shape}, got {value.shape}")
        if value.dtype == bool:
            value = value.astype(np.uint8)
        try:
            return codec.encode(value)
        except InvalidInputError as error:
            first = value.ndim == 3 and value.shape[0] in (1, 3, 4) and value.shape[2] not in (1, 3, 4)
            hint = "; channels come last: transpose it by (1, 2, 0)" if first else ""
            raise BadValueError(index, f"{error}{hint}") from None

    def _check_size(self, index: int, data: _Bytes) -> None:
        """Compare height and width; readers convert channels."""
        try:
            height, width, _ = image_size(data)
        except SampleError as error:
            raise BadValueError(index, str(error)) from None
        if self.shape is not None and (height, width) != self.shape[:2]:
            raise BadValueError(index, f"expected an image of shape {self.shape}, got {height} x {width} pixels")


def _decoded_size(data: bytes) -> int:
    shape = encoded_shape(data)
    return len(data) if shape is None else prod(shape)


@dataclass(frozen=True)
class Mask(Image):
    """A segmentation mask of uint8 or uint16, with a lossless codec."""

    name: ClassVar[str] = "mask"

    def __post_init__(self) -> None:
        super().__post_init__()
        if ImageCodec.parse(self.codec).name not in ("png", "tiff", "bmp"):
            raise InvalidInputError(f"a mask needs a lossless codec (png, tiff, bmp), not {self.codec}")


@dataclass(frozen=True)
class Audio(Kind):
    """Encoded audio, stored unchanged."""

    codec: str | None = None
    """The format (wav, flac, mp3, ogg, …), or None for any; values of another detected format are rejected."""

    name: ClassVar[str] = "audio"

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.binary()

    def to_array(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        return binary_array([self._check(index, value) for index, value in enumerate(values)])

    def to_values(self, array: pa.Array) -> Values:
        return list(array.to_pylist())

    def invalid_reason(self, array: pa.Array) -> str | None:
        return _encode_error(self, array)

    def to_json(self) -> dict[str, Any]:
        return {"codec": self.codec}

    def _check(self, index: int, value: Any) -> _Bytes | None:
        value = encoded_bytes(value)
        if value is None:
            return None
        if not isinstance(value, _Bytes):
            raise BadValueError(index, f"expected encoded {self.name} as bytes, got {type(value).__name__}")
        found = sniff(value)
        if self.codec is not None and found not in (None, self.codec):
            raise BadValueError(index, f"expected {self.codec} bytes, these are {found}")
        return value


@dataclass(frozen=True)
class Video(Audio):
    """Encoded video, stored unchanged; large values become blobs."""

    name: ClassVar[str] = "video"


def any_shape(kind: Kind) -> Kind:
    """The kind without a shape that was inferred."""
    return replace(kind, shape=None) if isinstance(kind, Image) and kind.inferred else kind


def encoded_bytes(value: Any) -> Any:
    """The bytes of a one-dimensional array of uint8, which is an encoded value (`numpy.fromfile`); or the value."""
    is_encoded = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == np.uint8
    return np.ascontiguousarray(value).data if is_encoded else value


def encoded_shape(data: _Bytes) -> tuple[int, ...] | None:
    """The shape of an encoded image once it is decoded, from its header; None if that cannot be read."""
    try:
        height, width, channels = image_size(data)
    except SampleError:
        return None
    return (height, width) if channels == 1 else (height, width, channels)


def _encode_error(kind: Kind, array: pa.Array) -> str | None:
    try:
        kind.to_array(array.to_pylist())
    except BadValueError as bad:
        return bad.reason
    return None
