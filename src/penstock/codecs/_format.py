"""The interface of an image format, and checks shared by all formats."""

from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.codecs._resize import resize_pixels
from penstock.errors import SampleError
from penstock.types import Buffer

MAX_PIXELS: Final = 89_478_485
"""Larger images are rejected as decompression bombs; Pillow's own limit, so its warning never fires."""

ColorMode: TypeAlias = Literal["L", "RGB", "RGBA"]
PixelArray: TypeAlias = NDArray[Any]
CHANNELS: Final[dict[ColorMode, int]] = {"L": 1, "RGB": 3, "RGBA": 4}


class ImageFormat(Protocol):
    """One image file format; `ImageCodec` translates all exceptions."""

    @property
    def levels(self) -> range | None:
        """Valid compression or quality levels; None if the format has none."""
        ...

    @property
    def layouts(self) -> tuple[tuple[str, int], ...]:
        """The dtypes and channel counts that survive a round trip."""
        ...

    def encode(self, array: PixelArray, level: int | None) -> bytes:
        """Encode a contiguous array of one of the layouts; HxW for one channel."""
        ...

    def decode(self, data: Buffer, mode: ColorMode | None, out: PixelArray | None, *, resize: bool) -> PixelArray:
        """Decode the first image, into `out` if given; its shape must match unless `resize` is set."""
        ...

    def size(self, data: Buffer) -> tuple[int, int, int]:
        """Height, width and channels from the header."""
        ...


def check_pixels(height: int, width: int) -> None:
    """Raise `SampleError` for an image above `MAX_PIXELS`, before memory is allocated."""
    if height * width > MAX_PIXELS:
        raise SampleError(f"the image header declares {height} x {width} pixels; the limit is {MAX_PIXELS}")


def check_out(out: PixelArray, *, height: int, width: int, channels: int, dtype: np.dtype[Any]) -> None:
    """Raise `SampleError` unless shape and dtype of `out` match the image."""
    shapes = [(height, width, channels)] + [(height, width)] * (channels == 1)
    if out.shape not in shapes or out.dtype != dtype:
        raise SampleError(f"the image is {dtype} of shape {shapes[-1]}, the buffer is {out.dtype} of shape {out.shape}")


def copy_into(pixels: PixelArray, out: PixelArray | None, *, resize: bool) -> PixelArray:
    """Copy decoded pixels into `out` if given, resized to it if `resize` is set."""
    if out is None:
        return pixels
    if resize:
        pixels = resize_pixels(pixels, height=out.shape[0], width=out.shape[1])
    height, width, *channels = pixels.shape
    check_out(out, height=height, width=width, channels=channels[0] if channels else 1, dtype=pixels.dtype)
    out[...] = pixels.reshape(out.shape)
    return out
