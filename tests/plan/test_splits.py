"""Splits: pure functions of the key, so that a row stays where it is."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidInputError
from penstock.plan import Splits

SHARES = {"train": 0.8, "val": 0.15, "test": 0.05}
seeds = st.integers(-(2**70), 2**70)
int64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.lists(st.text(max_size=5), min_size=1, max_size=5, unique=True)


@st.composite
def shares(draw: st.DrawFn, total: float = 1.0) -> dict[str, float]:
    names = draw(NAMES)
    parts = draw(st.lists(st.integers(1, 100), min_size=len(names), max_size=len(names)))
    return {name: total * part / sum(parts) for name, part in zip(names, parts, strict=True)}


def array(values: list[int]) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


@given(shares(), seeds, st.lists(st.tuples(int64, int64), max_size=40), st.booleans(), st.data())
def test_a_key_is_decided_alone(
    given_shares: dict[str, float], seed: int, rows: list[tuple[int, int]], stratified: bool, data: st.DataObject
) -> None:
    splits = Splits(given_shares, seed)
    keys, strata = array([key for key, _ in rows]), array([stratum for _, stratum in rows])
    assigned = splits.assign(keys, strata if stratified else None)
    assert set(assigned.tolist()) <= set(range(len(given_shares)))
    order = np.array(data.draw(st.permutations(range(len(rows))), "order"), np.int64)[: len(rows) // 2]
    again = splits.assign(keys[order], strata[order] if stratified else None)
    assert again.tolist() == assigned[order].tolist()


@given(shares(), seeds, st.randoms(use_true_random=False))
def test_the_order_of_the_names_changes_nothing(given_shares: dict[str, float], seed: int, random: Any) -> None:
    names = list(given_shares)
    shuffled = random.sample(names, len(names))
    keys = np.arange(200)
    one, other = (
        Splits(given_shares, seed).assign(keys),
        Splits({n: given_shares[n] for n in shuffled}, seed).assign(keys),
    )
    assert [names[index] for index in one] == [shuffled[index] for index in other]


@given(shares(total=0.9), seeds, st.booleans())
def test_shares_hold_and_leave_the_rest_out(given_shares: dict[str, float], seed: int, stratified: bool) -> None:
    keys = np.arange(-10_000, 10_000)
    assigned = Splits(given_shares, seed).assign(keys, keys % 7 if stratified else None)
    for index, share in enumerate([*given_shares.values()]):
        deviation = math.sqrt(len(keys) * share * (1 - share))
        assert abs((assigned == index).sum() - len(keys) * share) < 7 * deviation + 1
    assert abs((assigned == -1).sum() - 0.1 * len(keys)) < 7 * math.sqrt(len(keys) * 0.09)


@given(seeds, st.booleans())
def test_dividing_a_small_split_moves_no_row_of_a_larger_one(seed: int, stratified: bool) -> None:
    keys = np.arange(2_000)
    strata = keys % 3 if stratified else None
    before = Splits({"train": 0.9, "val": 0.1}, seed).assign(keys, strata)
    after = Splits({"train": 0.9, "val": 0.06, "test": 0.04}, seed).assign(keys, strata)
    assert ((before == 0) == (after == 0)).all()


@given(seeds, int64, st.integers(0, 2**62), st.integers(1, 20_000), st.sampled_from([0.05, 0.1, 0.25, 0.5, 0.9]))
def test_consecutive_keys_of_a_stratum_are_balanced(
    seed: int, stratum: int, first: int, count: int, share: float
) -> None:
    keys = np.arange(first, first + count)
    other = 1 - share
    assigned = Splits({"a": share, "b": other}, seed).assign(keys, np.full(count, stratum))
    assert abs(int((assigned == 0).sum()) - count * share) <= 32 * share * other + 4


@given(seeds, st.integers(2, 300))
def test_interleaved_strata_follow_the_shares(seed: int, num_strata: int) -> None:
    keys = np.arange(num_strata * 200)
    assigned = Splits({"train": 0.8, "val": 0.2}, seed).assign(keys, keys % num_strata)
    counts = np.bincount(keys % num_strata, assigned)
    assert np.abs(counts - 40).max() < 7 * math.sqrt(200 * 0.16)


def test_other_seeds_give_other_splits() -> None:
    keys = np.arange(10_000)
    one, other = (Splits({"a": 0.5, "b": 0.5}, seed).assign(keys) for seed in (0, 1))
    assert abs((one == other).mean() - 0.5) < 0.05


def test_the_assignment_is_a_contract() -> None:
    """These values must never change: they would move rows of every table between its splits."""
    splits = Splits(SHARES, seed=7)
    keys = np.arange(24)
    assert "".join(map(str, splits.assign(keys))) == "000100100001002002001101"
    assert "".join(map(str, splits.assign(keys, keys // 12))) == "010000010000000000100002"


@pytest.mark.parametrize(
    ("given_shares", "sentence"),
    [
        ({}, "names with shares"),
        (["train"], "names with shares"),
        ({1: 0.5}, "name of a split is text, not 1"),
        ({"train": 0.9, "val": 0}, "'val' must be above 0 and at most 1, not 0"),
        ({"train": -0.1}, "'train' must be above 0"),
        ({"train": 1.5}, "'train' must be above 0 and at most 1, not 1.5"),
        ({"train": float("nan")}, "'train' must be above 0"),
        ({"train": True}, "'train' must be above 0"),
        ({"train": "0.9"}, "'train' must be above 0"),
        ({"train": 0.9, "val": 0.2}, "train, val sum to 1.1; at most 1"),
    ],
)
def test_shares_out_of_range_are_named(given_shares: Any, sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence):
        Splits(given_shares)


@pytest.mark.parametrize("seed", [0.5, "0", None, True])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(InvalidInputError, match="seed of a split must be a whole number"):
        Splits(SHARES, seed)


def test_shares_that_sum_to_one_but_for_rounding_cover_every_key() -> None:
    tenths = {str(index): 0.1 for index in range(10)}
    assert (Splits(tenths).assign(np.arange(100_000)) >= 0).all()
    assert (Splits({"all": 1.0, "none": 1e-12}).assign(np.arange(100_000)) == 0).all()
