"""Divide the rows of a block by when they are read, for windows larger than the memory.

The pages of a stretch are read when its first row is needed, and each of its parts leaves the window by itself.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

STRETCH_PARTS = 3
"""Parts of a stretch."""
_SHIFT = 0.5
"""How far the edges between stretches are moved at most, relative to a stretch."""
_GOLDEN, _SILVER = (5**0.5 - 1) / 2, 2**0.5 - 1
"""Multiples of these are spread evenly modulo one."""


def page_reads(share: float, *, whole_lanes: bool) -> float:
    """How often pages are to be read on average, so that at most a share of the window's rows is held.

    With `whole_lanes`, rows are spread over their whole lane, so that all blocks are first read at the same time.
    """
    held_of_stretch = 1.0 if whole_lanes else (1 + 1 / STRETCH_PARTS) / 2
    if share <= 0:
        return np.inf
    stretches = max(1, int(held_of_stretch / share))
    return stretches + max(0.0, (stretches + 1) * (1 - stretches * share / held_of_stretch))


def stretch_parts(times: Floats, number: int, *, page_reads: float, whole_lanes: bool) -> Int64Array:
    """For each row of a block the number of its part, given when it is read; `STRETCH_PARTS` are a stretch.

    The `number` of a block counts those that are divided: blocks have as many stretches as pages are to be read on
    average. With `whole_lanes`, the edges between them differ too, because all blocks are read at the same time.
    """
    stretches = int(page_reads + number * _GOLDEN % 1)
    shift = _SHIFT * (number * _SILVER % 1 - 0.5) if whole_lanes else 0.0
    edges = (np.arange(1, stretches) + shift) / stretches
    parts = [np.linspace(*each, STRETCH_PARTS, endpoint=False) for each in pairwise([0, *edges, 1])]
    start, end = times.min(), times.max()
    return np.searchsorted(start + (end - start) * np.concatenate(parts)[1:], times)
