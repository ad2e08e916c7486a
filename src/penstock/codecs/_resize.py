"""Resize decoded images."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# Pillow first averages whole blocks as long as this factor remains for the filter; its documentation describes the
# result of 3 as indistinguishable from filtering every pixel.
_REDUCING_GAP: Final = 3.0


def resize_pixels(pixels: NDArray[Any], *, height: int, width: int) -> NDArray[Any]:
    """Resize uint8 pixels or uint16 gray with an antialiasing bilinear filter."""
    if pixels.shape[:2] == (height, width):
        return pixels
    planar = pixels[..., 0] if pixels.shape[2:] == (1,) else pixels
    # Not every Pillow version can filter 16-bit images.
    image = Image.fromarray(planar.astype(np.int32) if planar.dtype == np.uint16 else planar)
    resized = image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=_REDUCING_GAP)
    return np.asarray(resized).astype(pixels.dtype, copy=False)
