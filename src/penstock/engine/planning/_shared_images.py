"""Images that several windows need: they are decoded once, if their windows are built soon one after the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.format import Field, value_kind
from penstock.format.kinds import Image
from penstock.plan import WindowSamples

_MIN_RUN, _RUN_REACHES = 16, 4
"""Least windows of a run, and its length relative to the rows of a window: few images are in two runs."""
_MAX_JITTER = 4096
_CACHE_BYTES, _CACHE_SLACK = 192 << 20, 1.25
_DECODED_RATIO = 12.0
"""Bytes of a decoded image relative to its file, if its shape is unknown."""


@dataclass(frozen=True, slots=True)
class SharedImages:
    """Images that several windows need; their order depends on the table alone."""

    run: int
    """Consecutive windows that stay near each other."""
    image_bytes: float
    """Approximate bytes of the decoded images that a window adds to those before it."""

    def jitter(self, lanes: int) -> int:
        """How far from each other the windows of a run are read, in windows of a lane."""
        return min(max(round(_CACHE_BYTES / (lanes * self.image_bytes)), 2 * self.run), _MAX_JITTER)

    def cache_bytes(self, lanes: int) -> int:
        """Bytes of a cache that holds images until the windows of their run have been built."""
        return round(_CACHE_SLACK * lanes * (self.run + self.jitter(lanes)) * self.image_bytes)


def shared_images(
    windows: WindowSamples, fields: Sequence[Field], average_bytes: Callable[[Field], float]
) -> SharedImages | None:
    """The images that several windows need; None if there are none."""
    step = windows.rows_per_sample
    run, size = 0, 0.0
    for field in fields:
        times = windows.values_per_sample(field.name)
        kind = value_kind(field.kind)
        if isinstance(kind, Image) and times > step:
            run = max(run, _MIN_RUN, round(_RUN_REACHES * windows.reach(field.name) / step))
            size += step * (float(np.prod(kind.shape)) if kind.shape else _DECODED_RATIO * average_bytes(field))
    return SharedImages(run, max(1.0, size)) if run else None
