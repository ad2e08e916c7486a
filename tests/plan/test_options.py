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


@given(sizes, rows)
@settings(deadline=None)
def test_the_defaults_depend_on_the_sizes_alone(table_bytes: int, row_bytes: float) -> None:
    chosen = resolve_shuffle(Shuffle(), table_bytes, row_bytes)
    assert chosen == resolve_shuffle(Shuffle(), table_bytes, row_bytes)
    assert MIB // 4 <= chosen.block_bytes <= 4 * MIB
    assert 384 % chosen.lanes == 0
    window_bytes = chosen.lanes * (1 + chosen.spread) * chosen.block_bytes
    if table_bytes >= 1 << 30:  # what can be shuffled well within an eighth of the table
        assert table_bytes // chosen.block_bytes >= 42 * chosen.lanes
        assert window_bytes <= table_bytes / 8


def test_larger_tables_have_more_lanes_and_larger_blocks() -> None:
    steps = [resolve_shuffle(Shuffle(), 1 << power, 1 << 16) for power in range(10, 55)]
    for small, large in pairwise(steps):
        assert small.lanes <= large.lanes
        assert small.block_bytes <= large.block_bytes
    assert {chosen.lanes for chosen in steps} >= {24, 96, 384}


def test_small_rows_have_smaller_blocks() -> None:
    assert (
        resolve_shuffle(Shuffle(), 4 << 30, 2048).block_bytes < resolve_shuffle(Shuffle(), 4 << 30, 1 << 17).block_bytes
    )


@given(sizes, st.integers(1, 400), st.integers(1, 1 << 30), st.floats(0, 1000))
@settings(deadline=None)
def test_explicit_settings_override_the_defaults(table_bytes: int, lanes: int, block_bytes: int, spread: float) -> None:
    wanted = ShuffleLayout(lanes, block_bytes, spread)
    assert resolve_shuffle(Shuffle(lanes=lanes, block_bytes=block_bytes, spread=spread), table_bytes, 4096) == wanted
    assert resolve_shuffle(Shuffle(lanes=lanes), table_bytes, 4096).lanes == lanes
    assert resolve_shuffle(Shuffle(block_bytes=block_bytes), table_bytes, 4096).block_bytes == block_bytes
    assert resolve_shuffle(Shuffle(spread=spread), table_bytes, 4096).spread == spread


@pytest.mark.parametrize(
    ("option", "named"),
    [
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
