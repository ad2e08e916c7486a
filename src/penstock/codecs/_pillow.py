"""The image formats that Pillow decodes and encodes.

Plugins are called directly, not through `Image.open`, so that the bytes cannot select another format and Pillow issues
no decompression-bomb warning; this module checks limits and truncation.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Final

import numpy as np
from PIL import BmpImagePlugin, GifImagePlugin, Image, ImageFile, PngImagePlugin, TiffImagePlugin, WebPImagePlugin

from penstock.codecs._format import CHANNELS, ColorMode, PixelArray, check_pixels, copy_into
from penstock.errors import SampleError
from penstock.types import Buffer

# Pillow warns about metadata that is never used here. `catch_warnings` is not thread-safe, so this filter is
# process-wide, with the lowest precedence: the user's filters come first.
warnings.filterwarnings("ignore", module=r"PIL\.(Png|Tiff)ImagePlugin", append=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PillowFormat:
    """One Pillow plugin, with a check for truncated files."""

    plugin: type[ImageFile.ImageFile]
    complete: Callable[[bytes, ImageFile.ImageFile], bool] = lambda *_: True
    """Whether the file is untruncated, checked before decoding; for formats whose truncation Pillow ignores."""
    layouts: tuple[tuple[str, int], ...] = ()
    levels: range | None = None
    level_option: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def encode(self, array: PixelArray, level: int | None) -> bytes:
        stream = BytesIO()
        options = dict(self.options) if level is None else {**self.options, self.level_option: level}
        Image.fromarray(array).save(stream, self.plugin.format, **options)
        return stream.getvalue()

    def decode(self, data: Buffer, mode: ColorMode | None, out: PixelArray | None, *, resize: bool) -> PixelArray:
        whole = bytes(data)
        with self.plugin(BytesIO(whole)) as image:
            check_pixels(image.height, image.width)
            if not self.complete(whole, image):
                raise SampleError("the end of the file is missing")
            image.load()
            return copy_into(_pixels(image, mode), out, resize=resize)

    def size(self, data: Buffer) -> tuple[int, int, int]:
        with self.plugin(BytesIO(data)) as image:
            return image.height, image.width, CHANNELS[_natural_mode(image)]


def _natural_mode(image: Image.Image) -> ColorMode:
    if image.mode in ("1", "L") or image.mode.startswith("I;16"):
        return "L"
    if image.mode in ("I", "F"):
        raise SampleError(f"Pillow mode {image.mode} is not supported: only 8 bits, and 16-bit gray")
    has_alpha = image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or (image.mode == "P" and "transparency" in image.info)
    return "RGBA" if has_alpha else "RGB"


def _pixels(image: Image.Image, mode: ColorMode | None) -> PixelArray:
    natural = _natural_mode(image)
    if image.mode.startswith("I;16"):
        wide = np.array(image).astype(np.uint16, copy=False)
        if mode is None:
            return wide
        image = Image.fromarray((wide >> 8).astype(np.uint8))  # Pillow would clip at 255
    # In two steps: Pillow warns when a palette with alpha is converted to a mode without alpha.
    for step in (natural, mode or natural):
        image = image if image.mode == step else image.convert(step)
    return np.array(image)


def _png_complete(data: bytes, _: ImageFile.ImageFile) -> bool:
    return data.rfind(b"IEND\xaeB`\x82") > 0


def _gif_complete(data: bytes, image: ImageFile.ImageFile) -> bool:
    offset = image.tile[0].offset
    while offset < len(data) and data[offset]:
        offset += data[offset] + 1
    return offset + 1 < len(data)  # at least the trailer follows the terminator of the first frame


def _bmp_complete(data: bytes, image: ImageFile.ImageFile) -> bool:
    tile = image.tile[0]
    if tile.codec_name != "raw" or not isinstance(tile.args, tuple):
        return True
    return len(data) >= tile.offset + int(tile.args[1]) * image.height


_GRAY: Final = ("uint8", 1)
_RGB: Final = ("uint8", 3)
_RGBA: Final = ("uint8", 4)
_GRAY16: Final = ("uint16", 1)

PILLOW_FORMATS: Final[dict[str, PillowFormat]] = {
    "png": PillowFormat(
        plugin=PngImagePlugin.PngImageFile,
        complete=_png_complete,
        layouts=(_GRAY, _RGB, _RGBA, _GRAY16),
        levels=range(10),
        level_option="compress_level",
    ),
    "webp": PillowFormat(
        plugin=WebPImagePlugin.WebPImageFile,
        layouts=(_RGB, _RGBA),
        levels=range(101),
        level_option="quality",
        options={"exact": True},  # preserve the color of transparent pixels
    ),
    "tiff": PillowFormat(plugin=TiffImagePlugin.TiffImageFile, layouts=(_GRAY, _RGB, _RGBA, _GRAY16)),
    "bmp": PillowFormat(plugin=BmpImagePlugin.BmpImageFile, complete=_bmp_complete, layouts=(_GRAY, _RGB)),
    "gif": PillowFormat(
        plugin=GifImagePlugin.GifImageFile,
        complete=_gif_complete,
        layouts=(_GRAY,),
        options={"optimize": False},  # an optimised palette would not decode as gray
    ),
}
