"""Scale pixels to a given size."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# Pillow first takes means of whole blocks while at least this factor is left for the filter; its documentation calls
# the result of 3 indistinguishable from filtering every pixel.
_REDUCING_GAP: Final = 3.0


def scaled(pixels: NDArray[Any], *, height: int, width: int) -> NDArray[Any]:
    """Scale uint8 pixels or uint16 gray by a bilinear filter that is as wide as the reduction, so nothing aliases."""
    if pixels.shape[:2] == (height, width):
        return pixels
    plain = pixels[..., 0] if pixels.shape[2:] == (1,) else pixels
    # Not every Pillow filters 16 bits as they are.
    image = Image.fromarray(plain.astype(np.int32) if plain.dtype == np.uint16 else plain)
    resized = image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=_REDUCING_GAP)
    return np.asarray(resized).astype(pixels.dtype, copy=False)
