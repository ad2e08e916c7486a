"""JPEG by libjpeg-turbo, which decodes strictly, straight into a buffer and without the GIL.

Pillow takes over only where libjpeg-turbo cannot read the header (chroma sampled in an unusual way), because it
lets corrupt entropy data pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import simplejpeg
from PIL import Image, JpegImagePlugin

from penstock.codecs._format import CHANNELS, Mode, Pixels, check_out, check_pixels, deliver
from penstock.codecs._pillow import PillowFormat
from penstock.types import Buffer

_DEFAULT_QUALITY: Final = 90
_FRAMES: Final = frozenset({0xC0, 0xC1, 0xC2})  # markers of frames that libjpeg-turbo reads
_UINT8: Final = np.dtype(np.uint8)
_PILLOW: Final = PillowFormat(
    plugin=JpegImagePlugin.JpegImageFile,
    # An EXIF thumbnail has an end marker too, but before the last scan of the image.
    complete=lambda data, _: data.rfind(b"\xff\xd9") > data.rfind(b"\xff\xda"),
)


@dataclass(frozen=True, slots=True)
class JpegFormat:
    """Colour is written with 4:2:0 chroma; CMYK is read as RGB."""

    levels: ClassVar = range(1, 101)
    layouts: ClassVar = (("uint8", 1), ("uint8", 3))

    def encode(self, array: Pixels, level: int | None) -> bytes:
        """See `ImageFormat`."""
        gray = array.ndim == 2
        encoded: bytes = simplejpeg.encode_jpeg(
            array[..., None] if gray else array,
            quality=level or _DEFAULT_QUALITY,
            colorspace="GRAY" if gray else "RGB",
            colorsubsampling="Gray" if gray else "420",
        )
        return encoded

    def decode(self, data: Buffer, mode: Mode | None, out: Pixels | None, *, resize: bool) -> Pixels:
        """See `ImageFormat`."""
        view = memoryview(data).cast("B")
        if (
            out is not None
            and mode is not None
            and out.shape[:2] == (_ordinary_size(view) or ())[:2]
            and decode_as_it_is(view, mode, out)
        ):
            return out
        if (header := _header(view)) is None:
            return _PILLOW.decode(data, mode, out, resize=resize)
        height, width, space = header
        check_pixels(height, width)
        mode = mode or _natural_mode(space)
        if space in ("CMYK", "YCCK"):
            # Adobe's convention: every CMYK JPEG in the wild is stored inverted.
            inks = 255 - simplejpeg.decode_jpeg(view, colorspace="CMYK")
            image = Image.frombytes("CMYK", (width, height), inks.tobytes()).convert("RGB").convert(mode)
            return deliver(np.array(image), out, resize=resize)
        colorspace = "GRAY" if mode == "L" else mode
        if out is not None:
            if resize and out.shape[:2] != (height, width):
                return deliver(_reduced(view, colorspace, out.shape[0], out.shape[1]), out, resize=True)
            check_out(out, height=height, width=width, channels=CHANNELS[mode], dtype=_UINT8)
        pixels: Pixels = simplejpeg.decode_jpeg(view, colorspace=colorspace, buffer=out)
        return pixels.reshape(height, width) if mode == "L" else pixels

    def size(self, data: Buffer) -> tuple[int, int, int]:
        """See `ImageFormat`."""
        view = memoryview(data).cast("B")
        if (ordinary := _ordinary_size(view)) is not None:
            return ordinary
        if (header := _header(view)) is None:
            return _PILLOW.size(data)
        height, width, space = header
        return height, width, CHANNELS[_natural_mode(space)]


def decode_as_it_is(data: Buffer, mode: Mode, out: Pixels) -> bool:
    """Decode a JPEG of just the size of `out`; False for everything else, and then `out` may hold anything.

    Whether it is one is asked afterwards: for nearly all it is, and to look first would cost as much as the call.
    """
    try:
        pixels = simplejpeg.decode_jpeg(data, colorspace="GRAY" if mode == "L" else mode, buffer=out)
    except ValueError:
        return False
    return bool(pixels.shape[:2] == out.shape[:2])


def decode_each_as_it_is(pictures: Sequence[Buffer | None], mode: Mode, out: Pixels) -> list[int]:
    """The same for many, with a place in `out` for each, in a loop that is done soon: but for decoding it has the GIL.

    The numbers of those that are something else, or are not there.
    """
    decode, colorspace, size = simplejpeg.decode_jpeg, "GRAY" if mode == "L" else mode, out.shape[1:3]
    others = []
    for number, data in enumerate(pictures):
        try:
            if data is not None and decode(data, colorspace, buffer=out[number]).shape[:2] == size:
                continue
        except ValueError:
            pass
        others.append(number)
    return others


def _ordinary_size(view: memoryview) -> tuple[int, int, int] | None:
    """Height, width and components, one or three, of a JPEG; found without a call that gives up the GIL."""
    at, end = 2, len(view) - 9
    while at < end and view[at] == 0xFF:
        marker = view[at + 1]
        if marker in _FRAMES:
            height, width = (view[at + 5] << 8) + view[at + 6], (view[at + 7] << 8) + view[at + 8]
            return (height, width, view[at + 9]) if height and width and view[at + 9] in (1, 3) else None
        at += 2 + (view[at + 2] << 8) + view[at + 3]
    return None


def _header(view: memoryview) -> tuple[int, int, str] | None:
    """Height, width and colour space, or None where libjpeg-turbo gives up."""
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(view)
    except ValueError:
        return None
    return height, width, space


def _reduced(view: memoryview, colorspace: str, min_height: int, min_width: int) -> Pixels:
    """Decode at the smallest scale that is still large enough; most of the work of a full decode is saved."""
    # Scales between a half and one take longer than full size.
    pixels: Pixels = simplejpeg.decode_jpeg(
        view, colorspace=colorspace, min_height=min_height, min_width=min_width, min_factor=2
    )
    return pixels


def _natural_mode(space: str) -> Mode:
    return "L" if space == "Gray" else "RGB"
