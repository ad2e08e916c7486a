"""Shuffle settings: defaults depend on the table alone."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidInputError
from penstock.plan import SEQUENTIAL, Shuffle, ShuffleLayout, resolve_shuffle

MIB = 1 << 20
sizes = st.one_of(st.integers(0, 1 << 30), st.integers(0, 1 << 54))
rows = st.floats(1, 1 << 30)
widths = st.one_of(st.just(1.0), st.floats(1, 100))


@given(sizes, rows, widths)
@settings(deadline=None)
def test_the_defaults_depend_on_the_sizes_alone(table_bytes: int, row_bytes: float, width: float) -> None:
    chosen = resolve_shuffle(Shuffle(), table_bytes, row_bytes, width=width)
    assert chosen == resolve_shuffle(Shuffle(), table_bytes, row_bytes, width=width)
    assert MIB // 4 <= chosen.block_bytes <= 4 * MIB
    assert 384 % chosen.lanes == 0
    if table_bytes >= 1 << 30 and width == 1:
        assert table_bytes // chosen.block_bytes >= 42 * chosen.lanes


def window_bytes(table_bytes: int, row_bytes: float, width: float) -> float:
    """The bytes that rows are drawn from at a time, over all columns."""
    chosen = resolve_shuffle(Shuffle(), table_bytes, row_bytes, width=width)
    return min(table_bytes, chosen.lanes * (1 + chosen.spread) * chosen.block_bytes) * width


@given(st.integers(0, 38 << 30), rows, widths)
@settings(deadline=None)
def test_the_default_window_is_bounded_over_all_columns(table_bytes: int, row_bytes: float, width: float) -> None:
    """By a gigabyte, or two blocks of each lane."""
    found = window_bytes(table_bytes, row_bytes, width)
    assert found <= 1.01 * max(1 << 30, 2 * 96 * 8 * MIB)
    if table_bytes * width < 8 << 30:
        assert found <= 1.01 * (1 << 30)


@given(st.integers(MIB, 1 << 42), st.floats(1, 1.5), rows, widths)
@settings(deadline=None)
def test_a_larger_table_never_has_a_smaller_window(
    table_bytes: int, growth: float, row_bytes: float, width: float
) -> None:
    smaller, larger = (window_bytes(round(size), row_bytes, width) for size in (table_bytes, growth * table_bytes))
    assert larger >= 0.97 * smaller
    if table_bytes * width <= 384 * MIB and row_bytes * width >= 32:
        assert smaller >= 0.99 * table_bytes * width, "a small table is shuffled as a whole"


def test_larger_tables_have_more_lanes_and_larger_blocks() -> None:
    steps = [resolve_shuffle(Shuffle(), 1 << power, 1 << 16, width=1.0) for power in range(10, 55)]
    for small, large in pairwise(steps):
        assert small.lanes <= large.lanes
        assert small.block_bytes <= large.block_bytes
    assert {chosen.lanes for chosen in steps} >= {24, 96, 384}


def test_small_rows_have_smaller_blocks() -> None:
    small, large = (resolve_shuffle(Shuffle(), 4 << 30, size, width=1.0) for size in (2048, 1 << 17))
    assert small.block_bytes < large.block_bytes


def test_wide_rows_have_smaller_blocks() -> None:
    narrow, wide = (resolve_shuffle(Shuffle(), 64 << 30, 1 << 17, width=width) for width in (1.0, 8.0))
    assert wide.block_bytes <= narrow.block_bytes / 4


@given(sizes, st.integers(1, 400), st.integers(1, 1 << 30), st.floats(0, 1000))
@settings(deadline=None)
def test_explicit_settings_override_the_defaults(table_bytes: int, lanes: int, block_bytes: int, spread: float) -> None:
    wanted = ShuffleLayout(lanes, block_bytes, spread)
    assert (
        resolve_shuffle(Shuffle(lanes=lanes, block_bytes=block_bytes, spread=spread), table_bytes, 4096, width=1.0)
        == wanted
    )
    assert resolve_shuffle(Shuffle(lanes=lanes), table_bytes, 4096, width=1.0).lanes == lanes
    assert resolve_shuffle(Shuffle(block_bytes=block_bytes), table_bytes, 4096, width=1.0).block_bytes == block_bytes
    assert resolve_shuffle(Shuffle(spread=spread), table_bytes, 4096, width=1.0).spread == spread


@given(sizes, rows, widths, st.integers(MIB, 1 << 42), st.sampled_from((None, 1, 6, 24)))
@settings(deadline=None)
def test_a_chosen_window_is_filled_as_far_as_the_table_goes(
    table_bytes: int, row_bytes: float, width: float, window: int, lanes: int | None
) -> None:
    shuffle = Shuffle(window=window, lanes=lanes)
    chosen = resolve_shuffle(shuffle, table_bytes, row_bytes, width=width)
    assert chosen == resolve_shuffle(shuffle, table_bytes, row_bytes, width=width)
    assert MIB // 4 <= chosen.block_bytes <= 4 * MIB
    assert lanes in (None, chosen.lanes)
    one = chosen.lanes * chosen.block_bytes * width
    wanted = min(window, table_bytes * width)
    held = min(table_bytes * width, (1 + chosen.spread) * one)
    if chosen.spread < 1000:
        assert held >= 0.99 * wanted
    assert held <= 1.01 * max(wanted, one)
    if lanes is None:
        assert 2 * one <= window or chosen.lanes == 1


def test_a_window_is_text_or_a_number() -> None:
    for window in ("256MB", "256 mb", 256_000_000):
        assert Shuffle(window=window) == Shuffle(window=256_000_000)
    layout = resolve_shuffle(Shuffle(window="256MB"), 10 << 30, 150_000, width=1.0)
    assert (1 + layout.spread) * layout.lanes * layout.block_bytes == pytest.approx(256e6, rel=0.01)


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ({"window": "much"}, "window"),
        ({"window": 1.5}, "window"),
        ({"window": True}, "window"),
        ({"window": 0}, "window"),
        ({"window": -1}, "window"),
        ({"window": "4kB"}, "mebibyte"),
        ({"window": "1GB", "spread": 2.0}, "either"),
        ({"window": "1GB", "block_bytes": 1 << 20}, "either"),
        ({"lanes": 0}, "lanes"),
        ({"lanes": -1}, "lanes"),
        ({"block_bytes": 0}, "block_bytes"),
        ({"block_bytes": -1}, "block_bytes"),
        ({"spread": -0.5}, "spread"),
        ({"spread": 1001.0}, "spread"),
        ({"spread": float("nan")}, "spread"),
        ({"spread": "wide"}, "spread"),
        ({"lanes": 1.5}, "lanes"),
        ({"seed": None}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"seed": True}, "seed"),
    ],
)
def test_out_of_range_settings_are_rejected(option: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        Shuffle(**option)


def test_no_shuffle_has_one_lane_and_no_spread() -> None:
    assert (SEQUENTIAL.lanes, SEQUENTIAL.spread) == (1, 0.0)
