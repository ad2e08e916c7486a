"""What every image format offers, and the checks they share."""

from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.codecs._resize import scaled
from penstock.errors import SampleError
from penstock.types import Buffer

MAX_PIXELS: Final = 89_478_485
"""Images with more pixels are refused as decompression bombs; Pillow warns from here on, so it never gets to."""

Mode: TypeAlias = Literal["L", "RGB", "RGBA"]
Pixels: TypeAlias = NDArray[Any]
CHANNELS: Final[dict[Mode, int]] = {"L": 1, "RGB": 3, "RGBA": 4}


class ImageFormat(Protocol):
    """One file format; anything it raises is translated by `ImageCodec`."""

    @property
    def levels(self) -> range | None:
        """The levels it can be written with."""
        ...

    @property
    def layouts(self) -> tuple[tuple[str, int], ...]:
        """The dtypes and channel counts it can write and read back unchanged."""
        ...

    def encode(self, array: Pixels, level: int | None) -> bytes:
        """Write a contiguous array of one of the layouts, HxW when it has one channel."""
        ...

    def decode(self, data: Buffer, mode: Mode | None, out: Pixels | None, *, resize: bool) -> Pixels:
        """Read the (first) image, into `out` where given, which it must fit unless it may be resized."""
        ...

    def size(self, data: Buffer) -> tuple[int, int, int]:
        """Read height, width and channels from the header."""
        ...


def check_pixels(height: int, width: int) -> None:
    """Refuse an image too large to be honest, before memory is taken for it."""
    if height * width > MAX_PIXELS:
        raise SampleError(f"the image claims {height} x {width} pixels; the limit is {MAX_PIXELS}")


def check_out(out: Pixels, *, height: int, width: int, channels: int, dtype: np.dtype[Any]) -> None:
    """Refuse a buffer that does not fit the image exactly."""
    shapes = [(height, width, channels)] + [(height, width)] * (channels == 1)
    if out.shape not in shapes or out.dtype != dtype:
        raise SampleError(f"the image is {dtype} of shape {shapes[-1]}, the buffer is {out.dtype} of shape {out.shape}")


def deliver(pixels: Pixels, out: Pixels | None, *, resize: bool) -> Pixels:
    """Copy decoded pixels into `out` where given."""
    if out is None:
        return pixels
    if resize:
        pixels = scaled(pixels, height=out.shape[0], width=out.shape[1])
    height, width, *channels = pixels.shape
    check_out(out, height=height, width=width, channels=channels[0] if channels else 1, dtype=pixels.dtype)
    out[...] = pixels.reshape(out.shape)
    return out
