"""JPEG with libjpeg-turbo, which decodes strictly, directly into a buffer, and releases the GIL.

Pillow is the fallback only where libjpeg-turbo cannot parse the header (unusual chroma subsampling), because Pillow
accepts corrupt entropy-coded data.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import simplejpeg
from PIL import JpegImagePlugin

from penstock.codecs._format import CHANNELS, ColorMode, PixelArray, check_out, check_pixels, copy_into
from penstock.codecs._pillow import PillowFormat
from penstock.types import Buffer

_DEFAULT_QUALITY: Final = 90
_SOF_MARKERS: Final = frozenset({0xC0, 0xC1, 0xC2})  # frame types that libjpeg-turbo decodes
_UINT8: Final = np.dtype(np.uint8)
_PILLOW: Final = PillowFormat(
    plugin=JpegImagePlugin.JpegImageFile,
    # An EXIF thumbnail has an end marker too, but before the last scan.
    complete=lambda data, _: data.rfind(b"\xff\xd9") > data.rfind(b"\xff\xda"),
)


@dataclass(frozen=True, slots=True)
class JpegFormat:
    """Encodes color with 4:2:0 chroma subsampling; decodes CMYK as RGB."""

    levels: ClassVar = range(1, 101)
    layouts: ClassVar = (("uint8", 1), ("uint8", 3))

    def encode(self, array: PixelArray, level: int | None) -> bytes:
        gray = array.ndim == 2
        encoded: bytes = simplejpeg.encode_jpeg(
            array[..., None] if gray else array,
            quality=level or _DEFAULT_QUALITY,
            colorspace="GRAY" if gray else "RGB",
            colorsubsampling="Gray" if gray else "420",
        )
        return encoded

    def decode(self, data: Buffer, mode: ColorMode | None, out: PixelArray | None, *, resize: bool) -> PixelArray:
        view = memoryview(data).cast("B")
        if (
            out is not None
            and mode is not None
            and out.shape[:2] == (_parse_sof(view) or ())[:2]
            and decode_exact(view, mode, out)
        ):
            return out
        if (header := _header(view)) is None:
            return _PILLOW.decode(data, mode, out, resize=resize)
        height, width, space = header
        check_pixels(height, width)
        mode = mode or _natural_mode(space)
        colorspace = "GRAY" if mode == "L" else mode
        if out is not None:
            if resize and out.shape[:2] != (height, width):
                return copy_into(_decode_reduced(view, colorspace, out.shape[0], out.shape[1]), out, resize=True)
            check_out(out, height=height, width=width, channels=CHANNELS[mode], dtype=_UINT8)
        pixels: PixelArray = simplejpeg.decode_jpeg(view, colorspace=colorspace, buffer=out)
        return pixels.reshape(height, width) if mode == "L" else pixels

    def size(self, data: Buffer) -> tuple[int, int, int]:
        view = memoryview(data).cast("B")
        if (size := _parse_sof(view)) is not None:
            return size
        if (header := _header(view)) is None:
            return _PILLOW.size(data)
        height, width, space = header
        return height, width, CHANNELS[_natural_mode(space)]


def decode_exact(data: Buffer, mode: ColorMode, out: PixelArray) -> bool:
    """Decode a JPEG whose size is exactly that of `out`; return False for anything else, with `out` undefined.

    The size is checked after decoding: it nearly always matches, and parsing the header costs as much as the call.
    """
    try:
        pixels = simplejpeg.decode_jpeg(data, colorspace="GRAY" if mode == "L" else mode, buffer=out)
    except ValueError:
        return False
    return bool(pixels.shape[:2] == out.shape[:2])


def decode_many_exact(images: Sequence[Buffer | None], mode: ColorMode, out: PixelArray) -> list[int]:
    """`decode_exact` for the rows of a batch; return the indices of images that are missing or did not match.

    A tight loop: everything but the decoding holds the GIL.
    """
    decode, colorspace, size = simplejpeg.decode_jpeg, "GRAY" if mode == "L" else mode, out.shape[1:3]
    rest = []
    for index, data in enumerate(images):
        try:
            if data is not None and decode(data, colorspace, buffer=out[index]).shape[:2] == size:
                continue
        except ValueError:
            pass
        rest.append(index)
    return rest


def _parse_sof(view: memoryview) -> tuple[int, int, int] | None:
    """Height, width and components (1 or 3) from the start-of-frame segment, without a call that releases the GIL."""
    offset, end = 2, len(view) - 9
    while offset < end and view[offset] == 0xFF:
        marker = view[offset + 1]
        if marker in _SOF_MARKERS:
            height = (view[offset + 5] << 8) + view[offset + 6]
            width = (view[offset + 7] << 8) + view[offset + 8]
            return (height, width, view[offset + 9]) if height and width and view[offset + 9] in (1, 3) else None
        offset += 2 + (view[offset + 2] << 8) + view[offset + 3]
    return None


def _header(view: memoryview) -> tuple[int, int, str] | None:
    """Height, width and color space, or None if libjpeg-turbo cannot parse the header."""
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(view)
    except ValueError:
        return None
    return height, width, space


def _decode_reduced(view: memoryview, colorspace: str, min_height: int, min_width: int) -> PixelArray:
    """Decode at the smallest DCT scale that covers the target size, which skips most of the decoding work."""
    # Scales between 1/2 and 1 are slower than full size.
    pixels: PixelArray = simplejpeg.decode_jpeg(
        view, colorspace=colorspace, min_height=min_height, min_width=min_width, min_factor=2
    )
    return pixels


def _natural_mode(space: str) -> ColorMode:
    return "L" if space == "Gray" else "RGB"
