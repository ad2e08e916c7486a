"""Media: encoded bytes kept as they came; images decode to arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import PIL.Image
import pyarrow as pa

from penstock.codecs import IMAGE_CODECS, ImageCodec, decode_image, sniff
from penstock.errors import InvalidInputError, SampleError
from penstock.format.kinds._kind import BadValue, Kind, Values, binary_array

_Bytes: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Image(Kind):
    """A picture. Bytes of any known image format are kept byte for byte; arrays and PIL images are encoded by `codec`.

    With `shape` (height, width, channels) every picture has that shape and a batch of them is one array; without, a
    batch is a list.
    """

    codec: str = "png"
    shape: tuple[int, ...] | None = None

    name: ClassVar[str] = "image"

    def __post_init__(self) -> None:
        object.__setattr__(self, "codec", ImageCodec.parse(self.codec).spec)
        if self.shape is not None:
            object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.binary()

    def to_array(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        codec = ImageCodec.parse(self.codec)
        return binary_array([self._encode(index, value, codec) for index, value in enumerate(values)])

    def to_values(self, array: pa.Array) -> Values:
        if self.shape is None:
            return [None if data is None else decode_image(data) for data in array.to_pylist()]
        pictures = [None if data is None else decode_image(data) for data in array.to_pylist()]
        dtype = np.result_type(np.uint8, *{picture.dtype for picture in pictures if picture is not None})
        out = np.zeros((len(array), *self.shape), dtype)
        for row, picture in enumerate(pictures):
            if picture is not None:
                if picture.shape != self.shape:
                    raise SampleError(f"a picture has shape {picture.shape}, not the column's {self.shape}")
                out[row] = picture
        return out

    def flaw(self, array: pa.Array) -> str | None:
        return _refused(self, array)

    def to_json(self) -> dict[str, Any]:
        return {"codec": self.codec, "shape": None if self.shape is None else list(self.shape)}

    def __str__(self) -> str:
        return f"{self.name}({self.codec}{'' if self.shape is None else f', {self.shape}'})"

    def _encode(self, index: int, value: Any, codec: ImageCodec) -> _Bytes | None:
        if value is None:
            return None
        if isinstance(value, _Bytes):
            if sniff(value) not in IMAGE_CODECS:
                raise BadValue(index, "these bytes are not of an image format Penstock knows")
            return value
        if isinstance(value, PIL.Image.Image):
            value = np.asarray(value)
        if not isinstance(value, np.ndarray):
            raise BadValue(index, f"expected an array, a PIL image or encoded bytes, got {type(value).__name__}")
        if self.shape is not None and value.shape != self.shape:
            raise BadValue(index, f"expected a picture of shape {self.shape}, got {value.shape}")
        if value.dtype == bool:
            value = value.astype(np.uint8)
        try:
            return codec.encode(value)
        except InvalidInputError as error:
            raise BadValue(index, str(error)) from None


@dataclass(frozen=True)
class Mask(Image):
    """A segmentation mask of uint8 or uint16, stored without loss."""

    name: ClassVar[str] = "mask"

    def __post_init__(self) -> None:
        super().__post_init__()
        if ImageCodec.parse(self.codec).name not in ("png", "tiff", "bmp"):
            raise InvalidInputError(f"a mask needs a codec without loss (png, tiff, bmp), not {self.codec}")


@dataclass(frozen=True)
class Audio(Kind):
    """Encoded sound, kept byte for byte."""

    codec: str | None = None
    """What the bytes are (wav, flac, mp3, ogg, …); values that are clearly something else are refused."""

    name: ClassVar[str] = "audio"

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.binary()

    def to_array(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        return binary_array([self._check(index, value) for index, value in enumerate(values)])

    def to_values(self, array: pa.Array) -> Values:
        return list(array.to_pylist())

    def flaw(self, array: pa.Array) -> str | None:
        return _refused(self, array)

    def to_json(self) -> dict[str, Any]:
        return {"codec": self.codec}

    def _check(self, index: int, value: Any) -> _Bytes | None:
        if value is None:
            return None
        if not isinstance(value, _Bytes):
            raise BadValue(index, f"expected encoded {self.name} as bytes, got {type(value).__name__}")
        found = sniff(value)
        if self.codec is not None and found not in (None, self.codec):
            raise BadValue(index, f"expected {self.codec} bytes, these are {found}")
        return value


@dataclass(frozen=True)
class Video(Audio):
    """Encoded video, kept byte for byte; large ones are objects of their own."""

    name: ClassVar[str] = "video"


def _refused(kind: Kind, array: pa.Array) -> str | None:
    try:
        kind.to_array(array.to_pylist())
    except BadValue as bad:
        return bad.reason
    return None
