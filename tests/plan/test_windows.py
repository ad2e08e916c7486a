"""Windows: no window crosses its group, and each draws the rows at its offsets."""

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plan import GroupedRows, Windows, find_windows, group_rows

steady = settings(deadline=None)
groups = st.lists(st.integers(0, 4), min_size=1, max_size=40)


def model_groups(labels: list[int], order: npt.NDArray[Any] | None) -> list[list[int]]:
    """The rows of each group, groups by their first row."""
    found: dict[int, list[int]] = {}
    for row, label in enumerate(labels):
        found.setdefault(label, []).append(row)
    return [rows if order is None else sorted(rows, key=lambda row: order[row]) for rows in found.values()]


def shuffled_order(rows: int, seed: int | None) -> npt.NDArray[Any] | None:
    return None if seed is None else np.random.default_rng(seed).integers(0, rows, rows)


@given(groups, st.one_of(st.none(), st.integers(0, 9)))
@steady
def test_rows_are_ordered_by_group_and_within_it(labels: list[int], seed: int | None) -> None:
    order = shuffled_order(len(labels), seed)
    grouped = group_rows(len(labels), np.array(labels), order)
    parts = [grouped.sequence[a:b].tolist() for a, b in pairwise(grouped.bounds.tolist())]
    assert parts == model_groups(labels, order)


def test_no_rows_are_no_groups() -> None:
    grouped = group_rows(0, None, None)
    assert not len(grouped.sequence)
    assert grouped.bounds.tolist() == [0]
    assert not len(windows_of(grouped, [0], 1, pad=False))


def windows_of(
    grouped: GroupedRows,
    offsets: list[int],
    stride: int,
    *,
    pad: bool,
    offsets_s: list[float] | None = None,
    times: npt.NDArray[Any] | None = None,
    tolerance_s: float = 0.0,
) -> Windows:
    return find_windows(
        grouped, stride=stride, offsets=np.array(offsets), offsets_s=np.array(offsets_s or [], float),
        times_s=times, tolerance_s=tolerance_s, pad=pad,
    )  # fmt: skip


@given(groups, st.lists(st.integers(-6, 12), min_size=1, max_size=5), st.integers(1, 5), st.booleans())
@steady
def test_windows_draw_the_rows_of_the_model(labels: list[int], offsets: list[int], stride: int, pad: bool) -> None:
    windows = windows_of(group_rows(len(labels), np.array(labels), None), offsets, stride, pad=pad)
    expected: list[tuple[list[int], list[bool]]] = []
    for rows in model_groups(labels, None):
        low = 0 if pad else max(0, -min(offsets))
        high = len(rows) if pad else len(rows) - max(0, max(offsets))
        for anchor in range(low, high, stride):
            wanted = [anchor + offset for offset in offsets]
            drawn = [rows[min(max(at, 0), len(rows) - 1)] for at in wanted]
            expected.append((drawn, [not 0 <= at < len(rows) for at in wanted]))
    rows_drawn, padding = windows.draw(np.arange(len(windows)))
    assert list(zip(rows_drawn.tolist(), padding.tolist(), strict=True)) == expected
    assert pad or not padding.any()
    groups = windows.draw_groups(np.arange(len(windows)))
    by_first = {rows[0]: rows for rows in model_groups(labels, None)}
    in_order = list(by_first.values())
    for number, first, length, steps, drawn in zip(*groups, rows_drawn, strict=True):
        assert in_order[number] == by_first[first]
        assert len(by_first[first]) == length
        assert [by_first[first][step] for step in steps] == drawn.tolist()


@given(groups, st.integers(0, 9), st.lists(st.integers(-30, 30), min_size=1, max_size=3), st.integers(0, 4))
@steady
def test_draws_in_seconds_are_the_nearest_rows(labels: list[int], seed: int, ticks: list[int], tolerance: int) -> None:
    times = np.cumsum(np.random.default_rng(seed).integers(1, 4, len(labels))).astype(float)
    grouped = group_rows(len(labels), np.array(labels), times)
    options: dict[str, Any] = {"offsets_s": ticks, "times": times[grouped.sequence], "tolerance_s": float(tolerance)}
    padded = windows_of(grouped, [0], 1, pad=True, **options)
    drawn, padding = padded.draw(np.arange(len(padded)))
    for window, row in enumerate(grouped.sequence[padded.anchors].tolist()):
        inside = [other for other, label in enumerate(labels) if label == labels[row]]
        for tick, found, missed in zip(ticks, drawn[window, 1:].tolist(), padding[window, 1:].tolist(), strict=True):
            nearest = min(abs(times[other] - times[row] - tick) for other in inside)
            assert found in inside
            assert abs(times[found] - times[row] - tick) == nearest
            assert missed == (nearest > tolerance)
    complete = windows_of(grouped, [0], 1, pad=False, **options)
    assert complete.anchors.tolist() == padded.anchors[~padding.any(axis=1)].tolist()
