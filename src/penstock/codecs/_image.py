"""Encode and decode images of any supported format."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from penstock.codecs._errors import translate_errors
from penstock.codecs._format import CHANNELS, ColorMode, ImageFormat, PixelArray, check_pixels
from penstock.codecs._jpeg import JpegFormat, decode_exact, decode_many_exact
from penstock.codecs._pillow import PILLOW_FORMATS
from penstock.codecs._sniff import sniff
from penstock.codecs._spec import check_level, join_spec, split_spec
from penstock.errors import InvalidInputError, SampleError
from penstock.types import Buffer

_FORMATS: Final[dict[str, ImageFormat]] = {"jpeg": JpegFormat(), **PILLOW_FORMATS}
IMAGE_CODECS: Final = tuple(_FORMATS)
"""The names of the image formats."""
_LEVELS: Final = {name: image_format.levels for name, image_format in _FORMATS.items()}
_ALIASES: Final = {"jpg": "jpeg", "tif": "tiff"}
_UINT8, _UINT16 = np.dtype(np.uint8), np.dtype(np.uint16)
_MODES: Final = {channels: mode for mode, channels in CHANNELS.items()}


@dataclass(frozen=True, slots=True)
class ImageCodec:
    """One image format; thread-safe.

    Pixels are returned as stored: EXIF orientation is not applied (Pillow applies TIFF's own orientation tag), an
    animation yields its first frame, and converting to a mode without alpha drops alpha without blending.
    """

    name: str
    """`jpeg`, `png`, `webp`, `tiff`, `bmp` or `gif`."""
    level: int | None = None
    """Quality of jpeg (1 to 100, default 90) or webp (0 to 100, default 80); effort of png (0 to 9, default 6)."""

    def __post_init__(self) -> None:
        check_level(self.name, self.level, _LEVELS)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `png` or, with a level, `jpeg:90`; `jpg` and `tif` are accepted; raises `InvalidInputError`."""
        name, level = split_spec(text)
        return cls(_ALIASES.get(name, name), level)

    @property
    def spec(self) -> str:
        """The text that `parse` accepts."""
        return join_spec(self.name, self.level)

    def encode(self, array: PixelArray) -> bytes:
        """Encode HxW or HxWxC pixels; raises `InvalidInputError` for a dtype or shape that the format lacks."""
        image_format = _FORMATS[self.name]
        channels = {2: 1, 3: array.shape[-1]}.get(array.ndim, 0) if array.size else 0
        if (array.dtype.name, channels) not in image_format.layouts:
            allowed = ", ".join(f"{dtype} HxW{f'x{c}' if c > 1 else ''}" for dtype, c in image_format.layouts)
            raise InvalidInputError(f"{self.name} takes {allowed}, not {array.dtype} of shape {array.shape}")
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
        with translate_errors(InvalidInputError, f"cannot encode shape {array.shape} as {self.name}"):
            return image_format.encode(array.reshape(array.shape[:2]) if channels == 1 else array, self.level)

    def decode(self, data: Buffer, *, mode: ColorMode | None = None) -> PixelArray:
        """Decode to uint8 HxW or HxWxC as stored (uint16 HxW for 16-bit gray), or to 8 bits of `mode`.

        Raises `SampleError` for invalid bytes.
        """
        return self._decode(data, mode, None)

    def decode_into(self, data: Buffer, out: PixelArray, *, mode: ColorMode | None = None) -> None:
        """Decode into `out`, whose shape and dtype must match; after an error its content is undefined."""
        if not (out.flags.c_contiguous and out.flags.writeable):
            raise InvalidInputError("the buffer to decode into must be contiguous and writable")
        self._decode(data, mode, out)

    def image_size(self, data: Buffer) -> tuple[int, int, int]:
        """(height, width, channels) from the header, as `decode` without a mode returns them."""
        self._check_format(data)
        return _size(self.name, data)

    def _decode(self, data: Buffer, mode: ColorMode | None, out: PixelArray | None) -> PixelArray:
        if mode is not None and mode not in CHANNELS:
            raise InvalidInputError(f"unknown mode {mode!r}; choose one of {', '.join(CHANNELS)}")
        self._check_format(data)
        with translate_errors(SampleError, f"cannot decode {self.name}, {len(data)} bytes"):
            return _FORMATS[self.name].decode(data, mode, out, resize=False)

    def _check_format(self, data: Buffer) -> None:
        if (found := sniff(data)) != self.name:
            raise SampleError(f"expected {self.name}, found {found or 'an unknown format'}, {len(data)} bytes")


def decode_image(
    data: Buffer,
    *,
    mode: ColorMode | None = None,
    empty: Callable[[tuple[int, ...], np.dtype[Any]], PixelArray] | None = None,
) -> PixelArray:
    """Decode an image of any supported format, a JPEG into the memory of `empty`; raises `SampleError`."""
    name = _format_of(data)
    if empty is None or mode is not None or name != "jpeg":
        return ImageCodec(name).decode(data, mode=mode)
    height, width, channels = _size(name, data)
    check_pixels(height, width)
    out = empty((height, width, channels) if channels > 1 else (height, width), _UINT8)
    decode_image_into(data, out)
    return out


def decode_image_into(data: Buffer, out: PixelArray, *, resize: bool = False) -> None:
    """Decode an image of any supported format into one row of a batch, converted to the channels of `out`.

    `out` is contiguous uint8 HxW or HxWx1, x3 or x4; uint16 HxW or HxWx1 accepts only 16-bit gray. An image of another
    height or width raises `SampleError`, or is resized if `resize` is set. After an error `out` is undefined.
    """
    mode = _mode_of(out)
    if mode is None or resize or not decode_exact(data, mode, out):
        _decode_into(data, out, mode, resize=resize)


def _decode_into(data: Buffer, out: PixelArray, mode: ColorMode | None, *, resize: bool) -> None:
    name = _format_of(data)
    with translate_errors(SampleError, f"cannot decode {name}, {len(data)} bytes"):
        _FORMATS[name].decode(data, mode, out, resize=resize)


def decode_images_into(
    images: Sequence[Buffer | None], out: PixelArray, *, resize: bool = False
) -> dict[int, SampleError]:
    """Decode a batch of images, row by row; return the errors by index. Rows of None and of errors become zeros."""
    if not len(out):
        return {}
    mode = _mode_of(out[0])
    errors: dict[int, SampleError] = {}
    for index in range(len(out)) if mode is None or resize else decode_many_exact(images, mode, out):
        data = images[index]
        try:
            if data is not None:
                _decode_into(data, out[index], mode, resize=resize)
                continue
        except SampleError as error:
            errors[index] = error
        out[index] = 0
    return errors


def decode_images(
    images: Sequence[Buffer | None],
    shape: tuple[int, ...],
    *,
    resize: bool = False,
    empty: Callable[[tuple[int, ...], np.dtype[Any]], PixelArray] = np.empty,
) -> tuple[PixelArray, dict[int, SampleError]]:
    """A batch of images of one shape, and the errors by index; rows of None and of errors are zeros.

    HxWxC images are converted to uint8 and to C channels, whatever they are stored as. HxW images must be gray; the
    batch is uint16 if one of them is.
    """
    if len(shape) == 3 or resize:
        out = empty((len(images), *shape), _UINT8)
        return out, decode_images_into(images, out, resize=resize)
    errors: dict[int, SampleError] = {}
    found: dict[int, PixelArray] = {}
    for index, data in enumerate(images):
        try:
            if data is not None:
                found[index] = _decode_gray(data, shape)
        except SampleError as error:
            errors[index] = error
    out = empty((len(images), *shape), np.result_type(np.uint8, *{image.dtype for image in found.values()}))
    for index in range(len(images)):
        out[index] = found.get(index, 0)
    return out, errors


def _decode_gray(data: Buffer, shape: tuple[int, ...]) -> PixelArray:
    image = decode_image(data)
    if image.shape != shape:
        raise SampleError(f"an image has shape {image.shape}, not the column's {shape}")
    return image


def image_size(data: Buffer) -> tuple[int, int, int]:
    """(height, width, channels) from the header of any supported format, as `decode_image` returns them."""
    return _size(_format_of(data), data)


def _size(name: str, data: Buffer) -> tuple[int, int, int]:
    with translate_errors(SampleError, f"cannot read the header of {name}, {len(data)} bytes"):
        return _FORMATS[name].size(data)


def _format_of(data: Buffer) -> str:
    name = sniff(data)
    if name not in _FORMATS:
        raise SampleError(f"expected an image, found {name or 'an unknown format'}, {len(data)} bytes")
    return name


def _mode_of(out: PixelArray) -> ColorMode | None:
    """The color mode of `out`; None for 16 bits, which cannot be converted."""
    flags, shape = out.flags, out.shape
    if not (flags.c_contiguous and flags.writeable):
        raise InvalidInputError("the array to decode into must be contiguous and writable")
    mode = _MODES.get(shape[2] if len(shape) == 3 else 1) if len(shape) in (2, 3) and out.size else None
    if mode is not None and out.dtype == _UINT8:
        return mode
    if mode == "L" and out.dtype == _UINT16:
        return None
    raise InvalidInputError(
        f"an image decodes into uint8 HxW or HxWx1, x3 or x4, or uint16 HxW or HxWx1, not {out.dtype} of shape {shape}"
    )
