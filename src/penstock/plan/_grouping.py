"""Take, group and renumber integers."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


def take_positions(positions: range | Int64Array, indices: Int64Array) -> Int64Array:
    """Positions by index."""
    return positions.start + positions.step * indices if isinstance(positions, range) else positions[indices]


def flat_ranges(starts: Int64Array, lengths: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The numbers of some ranges, one range after the other, and where each range starts, with the end."""
    ends = np.cumsum(lengths)
    flat = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)
    return flat, np.append(0, ends)


def groups(numbers: Int64Array) -> Iterator[tuple[int, Int64Array]]:
    """The distinct ones of some numbers that are not negative, in increasing order, each with the indices of it."""
    if len(numbers) and (numbers == numbers[0]).all():
        yield int(numbers[0]), np.arange(len(numbers))
        return
    order = np.argsort(numbers, kind="stable")
    bounds = np.flatnonzero(np.diff(numbers[order], prepend=-1, append=-1)).tolist()
    for first, end in pairwise(bounds):
        yield int(numbers[order[first]]), order[first:end]


def distinct(numbers: Int64Array) -> tuple[Int64Array, Int64Array]:
    """As `np.unique` with its inverse, but linear: the distinct ones of some small numbers, and the index of each."""
    used = np.flatnonzero(np.bincount(numbers))
    index = np.empty(int(used[-1]) + 1 if len(used) else 0, np.int64)
    index[used] = np.arange(len(used))
    return used, index[numbers]
