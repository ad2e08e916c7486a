"""A loader state is a small JSON value that round trips, and describes how two runs differ."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidInputError
from penstock.plan import LoaderState, OrderSpec, ShuffleLayout

ORDER = OrderSpec(
    table="s3://bucket/table",
    version="main@7",
    snapshot="0" * 32,
    selection="1" * 32,
    rows=10**12,
    seed=2**63,
    shuffled=True,
    shuffle=ShuffleLayout(384, 4 << 20, 1.0),
)
shuffles = st.builds(ShuffleLayout, st.integers(1, 384), st.integers(1, 1 << 30), st.floats(0, 1000))
digests = st.text("0123456789abcdef", min_size=32, max_size=32)
orders = st.builds(
    OrderSpec,
    table=st.text(max_size=40),
    version=st.text(max_size=20),
    snapshot=digests,
    selection=digests,
    rows=st.integers(0, 10**13),
    seed=st.integers(-(2**63), 2**64),
    shuffled=st.booleans(),
    shuffle=shuffles,
)
counts = st.integers(0, 10**9)
states = st.builds(
    lambda order, epoch, steps, epochs: LoaderState(order, epoch, order.rows // 3, steps, epochs),
    orders,
    st.integers(0, 10**6),
    counts,
    counts,
)


@given(states)
@settings(deadline=None)
def test_a_state_round_trips_through_json_and_is_small(state: LoaderState) -> None:
    text = json.dumps(state.to_json(), allow_nan=False, ensure_ascii=False)
    assert len(text.encode()) < 1024
    assert LoaderState.from_json(json.loads(text)) == state


@given(orders, orders)
@settings(deadline=None)
def test_orders_differ_unless_every_determining_value_is_equal(one: OrderSpec, two: OrderSpec) -> None:
    same = replace(one, table=two.table, version=two.version)
    assert one.difference(same) is None
    assert (one.difference(two) is None) == (replace(two, table=one.table, version=one.version) == one)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"snapshot": "2" * 32}, "snapshot"),
        ({"selection": "2" * 32}, "selection of rows and columns"),
        ({"rows": 5}, "number of rows"),
        ({"seed": 5}, "seed: 5 there"),
        ({"shuffled": False}, "whether rows are shuffled"),
        ({"shuffle": ShuffleLayout(96, 4 << 20, 1.0)}, "shuffle options: .*96.* there"),
        ({"shuffle": ShuffleLayout(384, 1 << 20, 1.0)}, "shuffle options"),
        ({"shuffle": ShuffleLayout(384, 4 << 20, 2.0)}, "shuffle options"),
    ],
)
def test_a_difference_is_described(change: dict[str, Any], words: str) -> None:
    difference = ORDER.difference(replace(ORDER, **change))
    assert difference is not None
    assert re.search(words, difference)


GOOD = LoaderState(ORDER, 3, 4).to_json()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, "not the state"),
        ([1], "not the state"),
        ({"model": 1}, "not the state"),
        ({**GOOD, "penstock": 99}, "format 99"),
        ({"penstock": 3}, "damaged"),
        ({**GOOD, "penstock": 2}, "format 2"),
        ({**GOOD, "order": {}}, "damaged"),
        ({**GOOD, "order": {**GOOD["order"], "shuffle": {"lanes": 0, "block_bytes": 1, "spread": 1.0}}}, "damaged"),
        ({**GOOD, "consumed": "many"}, "damaged"),
        ({**GOOD, "epoch": None}, "damaged"),
        ({**GOOD, "consumed": -1}, "damaged.*consumed is -1 and not a whole number"),
        ({**GOOD, "consumed": 1.5}, "damaged.*consumed is 1.5"),
        ({**GOOD, "consumed": True}, "damaged.*consumed is True"),
        ({**GOOD, "epoch": -1}, "damaged.*epoch is -1"),
        ({**GOOD, "epoch": 0.5}, "damaged.*epoch is 0.5"),
        ({**GOOD, "consumed": ORDER.rows + 1}, "damaged"),
        ({**GOOD, "steps": -1}, "damaged.*steps is -1"),
        ({**GOOD, "epochs": "two"}, "damaged.*epochs is 'two'"),
    ],
)
def test_invalid_states_are_rejected(value: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        LoaderState.from_json(value)


def test_states_without_counts_of_steps_load() -> None:
    older = {
        name: value
        for name, value in LoaderState(ORDER, 3, 4, 5, 6).to_json().items()
        if name not in ("steps", "epochs")
    }
    assert LoaderState.from_json(older) == LoaderState(ORDER, 3, 4)
