"""Windows over the rows of groups, such as the steps of an episode: which rows each window draws."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

_CHUNK = 1 << 18


class GroupedRows(NamedTuple):
    """Rows ordered by group, groups by their first row, and the rows of a group by time or step."""

    sequence: Int64Array
    """The rows in that order."""
    bounds: Int64Array
    """Where each group starts in the sequence, and where the last one ends."""


def group_rows(rows: int, groups: npt.NDArray[Any] | None, order: npt.NDArray[Any] | None) -> GroupedRows:
    """Order rows; without `groups` all are one group, and without `order` a group keeps the order of its rows."""
    ranks = np.zeros(rows, np.int64)
    if groups is not None and rows:
        _, firsts, ranks = np.unique(groups, return_index=True, return_inverse=True)
        ranks = np.argsort(np.argsort(firsts))[ranks.reshape(-1)]
    in_order = np.diff(ranks) >= 0
    if order is not None:
        in_order &= (np.diff(ranks) > 0) | (order[1:] >= order[:-1])
    sequence = np.arange(rows)
    if not in_order.all():
        sequence = np.argsort(ranks, kind="stable") if order is None else np.lexsort((order, ranks))
    return GroupedRows(sequence, np.append(0, np.cumsum(np.bincount(ranks))) if rows else np.zeros(1, np.int64))


class DrawnGroups(NamedTuple):
    """The group of each of some windows."""

    numbers: Int64Array
    first_rows: Int64Array
    lengths: Int64Array
    """Rows of each group."""
    steps: Int64Array
    """The index of each draw in its group, of shape (windows, draws)."""


@dataclass(frozen=True, eq=False)
class Windows:
    """Which rows each window draws: some at row offsets from its anchor, and some at time offsets."""

    grouped: GroupedRows
    anchors: Int64Array
    """For each window an index of the sequence."""
    offsets: Int64Array
    offsets_s: Floats
    times_s: Floats | None
    """The time of each row of the sequence; needed for offsets in seconds."""
    tolerance_s: float

    def __len__(self) -> int:
        return len(self.anchors)

    @property
    def draws(self) -> int:
        """Rows that a window draws."""
        return len(self.offsets) + len(self.offsets_s)

    def draw(self, windows: Int64Array) -> tuple[Int64Array, BoolArray]:
        """The rows of some windows, of shape (windows, draws), and which of them are padding.

        A draw beyond its group is its first or last row. A draw without a row within the tolerance of its time is the
        nearest one.
        """
        anchors = self.anchors[windows][:, None]
        drawn, padding = _draw(self, anchors)
        return self.grouped.sequence[drawn], padding

    def draw_groups(self, windows: Int64Array) -> DrawnGroups:
        """The groups that some windows draw from."""
        anchors, bounds = self.anchors[windows], self.grouped.bounds
        group = np.searchsorted(bounds, anchors, side="right") - 1
        first = bounds[group]
        steps = _draw(self, anchors[:, None])[0] - first[:, None]
        return DrawnGroups(group, self.grouped.sequence[first], bounds[group + 1] - first, steps)


def find_windows(
    grouped: GroupedRows,
    *,
    stride: int,
    offsets: Int64Array,
    offsets_s: Floats,
    times_s: Floats | None,
    tolerance_s: float,
    pad: bool,
) -> Windows:
    """All windows, `stride` rows apart in each group; without `pad` only those whose draws all exist."""
    lows, highs = grouped.bounds[:-1], grouped.bounds[1:]
    if not pad and len(offsets):
        lows, highs = lows + max(0, -int(offsets.min())), highs - max(0, int(offsets.max()))
    counts = np.maximum(0, -(-(highs - lows) // stride))
    before = np.repeat(np.cumsum(counts) - counts, counts)
    anchors = np.repeat(lows, counts) + stride * (np.arange(len(before)) - before)
    windows = Windows(grouped, anchors, offsets, offsets_s, times_s, tolerance_s)
    if pad or not len(offsets_s):
        return windows
    chunks = [anchors[first : first + _CHUNK] for first in range(0, len(anchors), _CHUNK)]
    complete = [chunk[~_draw(windows, chunk[:, None])[1].any(axis=1)] for chunk in chunks]
    return Windows(grouped, np.concatenate([anchors[:0], *complete]), offsets, offsets_s, times_s, tolerance_s)


def _draw(windows: Windows, anchors: Int64Array) -> tuple[Int64Array, BoolArray]:
    """Indices of the sequence that some anchors, of shape (windows, 1), draw, and which are padding."""
    bounds = windows.grouped.bounds
    group = np.searchsorted(bounds, anchors, side="right") - 1
    low, high = bounds[group], bounds[group + 1]
    drawn = anchors + windows.offsets
    padding = (drawn < low) | (drawn >= high)
    drawn = np.clip(drawn, low, high - 1)
    if not len(windows.offsets_s):
        return drawn, padding
    times = windows.times_s
    assert times is not None
    wanted = times[anchors] + windows.offsets_s
    nearest = _nearest(times, np.broadcast_to(low, wanted.shape), np.broadcast_to(high, wanted.shape), wanted)
    missed = np.abs(times[nearest] - wanted) > windows.tolerance_s
    return np.hstack([drawn, nearest]), np.hstack([padding, missed])


def _nearest(times: Floats, low: Int64Array, high: Int64Array, wanted: Floats) -> Int64Array:
    """The index in [low, high) of the time nearest to the wanted one, by a binary search of all at once."""
    first, end = low.copy(), high.copy()
    for _ in range(int((high - low).max(initial=0)).bit_length()):
        middle = (first + end) // 2
        below = (first < end) & (times[np.minimum(middle, len(times) - 1)] < wanted)
        first, end = np.where(below, middle + 1, first), np.where(below | (first >= end), end, middle)
    after, before = np.minimum(first, high - 1), np.maximum(first - 1, low)
    return np.where(wanted - times[before] <= times[after] - wanted, before, after)
