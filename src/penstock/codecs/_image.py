"""Images as encoded bytes, one sample at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from penstock.codecs._format import CHANNELS, ImageFormat, Mode, Pixels
from penstock.codecs._gate import translated
from penstock.codecs._jpeg import JpegFormat, decode_as_it_is, decode_each_as_it_is
from penstock.codecs._pillow import PILLOW_FORMATS
from penstock.codecs._sniff import sniff
from penstock.codecs._spec import check_level, join_spec, split_spec
from penstock.errors import InvalidInputError, SampleError
from penstock.types import Buffer

_FORMATS: Final[dict[str, ImageFormat]] = {"jpeg": JpegFormat(), **PILLOW_FORMATS}
IMAGE_CODECS: Final = tuple(_FORMATS)
"""The names of the image formats."""
_LEVELS: Final = {name: image_format.levels for name, image_format in _FORMATS.items()}
_UINT8, _UINT16 = np.dtype(np.uint8), np.dtype(np.uint16)
_MODES: Final = {channels: mode for mode, channels in CHANNELS.items()}


@dataclass(frozen=True, slots=True)
class ImageCodec:
    """One image format, safe to use from any thread.

    Pixels come as they are stored: EXIF orientation is not applied (only TIFF's own orientation tag is, by Pillow),
    an animation gives its first frame, and alpha is dropped, not blended, when another mode is asked for.
    """

    name: str
    """`jpeg`, `png`, `webp`, `tiff`, `bmp` or `gif`."""
    level: int | None = None
    """Quality of jpeg (1 to 100, default 90) or webp (0 to 100, default 80); effort of png (0 to 9, default 6)."""

    def __post_init__(self) -> None:
        check_level(self.name, self.level, _LEVELS)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `png` or, with a level, `jpeg:90`."""
        return cls(*split_spec(text))

    @property
    def spec(self) -> str:
        """The text that `parse` reads."""
        return join_spec(self.name, self.level)

    def encode(self, array: Pixels) -> bytes:
        """Write HxW or HxWxC pixels."""
        image_format = _FORMATS[self.name]
        channels = {2: 1, 3: array.shape[-1]}.get(array.ndim, 0) if array.size else 0
        if (array.dtype.name, channels) not in image_format.layouts:
            allowed = ", ".join(f"{dtype} HxW{f'x{c}' if c > 1 else ''}" for dtype, c in image_format.layouts)
            raise InvalidInputError(f"{self.name} takes {allowed}, not {array.dtype} of shape {array.shape}")
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
        with translated(InvalidInputError, f"cannot encode shape {array.shape} as {self.name}"):
            return image_format.encode(array.reshape(array.shape[:2]) if channels == 1 else array, self.level)

    def decode(self, data: Buffer, *, mode: Mode | None = None) -> Pixels:
        """Read uint8 HxW or HxWxC pixels as stored (uint16 HxW for 16-bit gray), or converted to 8 bits of `mode`."""
        return self._decode(data, mode, None)

    def decode_into(self, data: Buffer, out: Pixels, *, mode: Mode | None = None) -> None:
        """Decode into `out`, whose shape and dtype must be the image's own; after an error it may hold anything."""
        if not (out.flags.c_contiguous and out.flags.writeable):
            raise InvalidInputError("the buffer to decode into must be contiguous and writable")
        self._decode(data, mode, out)

    def image_size(self, data: Buffer) -> tuple[int, int, int]:
        """Read (height, width, channels) from the header, as `decode` without a mode would give them."""
        self._check_kind(data)
        return _size(self.name, data)

    def _decode(self, data: Buffer, mode: Mode | None, out: Pixels | None) -> Pixels:
        if mode is not None and mode not in CHANNELS:
            raise InvalidInputError(f"there is no mode {mode!r}: choose one of {', '.join(CHANNELS)}")
        self._check_kind(data)
        with translated(SampleError, f"cannot decode {self.name}, {len(data)} bytes"):
            return _FORMATS[self.name].decode(data, mode, out, resize=False)

    def _check_kind(self, data: Buffer) -> None:
        if (kind := sniff(data)) != self.name:
            raise SampleError(f"expected {self.name}, found {kind or 'something else'}, {len(data)} bytes")


def decode_image(data: Buffer, *, mode: Mode | None = None) -> Pixels:
    """Read pixels of any known image format."""
    return ImageCodec(_kind(data)).decode(data, mode=mode)


def decode_image_into(data: Buffer, out: Pixels, *, resize: bool = False) -> None:
    """Read an image of any known format into its place in a batch, converted to the channels that the place has.

    `out` is contiguous uint8 HxW or HxWx1, x3 or x4; one of uint16, HxW or HxWx1, takes 16-bit gray alone. An image of
    another height or width is a bad sample, or with `resize` scaled. After an error `out` may hold anything.
    """
    mode = _mode_of(out)
    if mode is None or resize or not decode_as_it_is(data, mode, out):
        _decode_into(data, out, mode, resize=resize)


def _decode_into(data: Buffer, out: Pixels, mode: Mode | None, *, resize: bool) -> None:
    kind = _kind(data)
    with translated(SampleError, f"cannot decode {kind}, {len(data)} bytes"):
        _FORMATS[kind].decode(data, mode, out, resize=resize)


def decode_images_into(
    pictures: Sequence[Buffer | None], out: Pixels, *, resize: bool = False
) -> dict[int, SampleError]:
    """The same for a batch of them, with a place for each, which is black where there is none; those that are bad."""
    if not len(out):
        return {}
    mode = _mode_of(out[0])
    bad: dict[int, SampleError] = {}
    for number in range(len(out)) if mode is None or resize else decode_each_as_it_is(pictures, mode, out):
        data = pictures[number]
        try:
            if data is not None:
                _decode_into(data, out[number], mode, resize=resize)
                continue
        except SampleError as error:
            bad[number] = error
        out[number] = 0
    return bad


def image_size(data: Buffer) -> tuple[int, int, int]:
    """Read (height, width, channels) of any known image format from the header, as `decode_image` would give them."""
    return _size(_kind(data), data)


def _size(kind: str, data: Buffer) -> tuple[int, int, int]:
    with translated(SampleError, f"cannot read the header of {kind}, {len(data)} bytes"):
        return _FORMATS[kind].size(data)


def _kind(data: Buffer) -> str:
    kind = sniff(data)
    if kind not in _FORMATS:
        raise SampleError(f"expected an image, found {kind or 'something else'}, {len(data)} bytes")
    return kind


def _mode_of(out: Pixels) -> Mode | None:
    """The mode that fills `out`; None for 16 bits, which exist only as stored."""
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
