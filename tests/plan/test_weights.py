"""Draws with replacement: expected counts, and a function of the seed and the epoch alone."""

from math import sqrt

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidInputError
from penstock.plan import WeightedDraw

weights = st.lists(
    st.one_of(st.just(0.0), st.floats(0.0, 1e308), st.floats(0.01, 10.0)), min_size=1, max_size=50
).filter(any)


def draw(weights: npt.ArrayLike, draws: int) -> WeightedDraw:
    return WeightedDraw.of(np.asarray(weights, np.float64), draws, source="weights=…")


def chi_square_bound(freedom: int) -> float:
    """The quantile that one in ten thousand samples exceeds, by the approximation of Wilson and Hilferty."""
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + 3.72 * sqrt(part)) ** 3)


@pytest.mark.parametrize("epoch", range(3))
@pytest.mark.parametrize("kind", ["uniform", "geometric", "one in ten"])
def test_counts_are_as_expected(kind: str, epoch: int) -> None:
    rows, draws = 40, 100_000
    made = {
        "uniform": np.full(rows, 7.0),
        "geometric": 0.9 ** np.arange(rows),
        "one in ten": np.where(np.arange(rows) % 10 == 3, 1.0, 0.0),
    }[kind]
    counts = np.bincount(draw(made, draws).rows(5, epoch), minlength=rows)
    expected = draws * made / made.sum()
    assert not counts[expected == 0].any()
    used = expected > 0
    statistic = float(((counts - expected)[used] ** 2 / expected[used]).sum())
    freedom = int(used.sum()) - 1
    assert statistic < chi_square_bound(freedom)
    assert statistic > freedom - 5 * sqrt(2 * freedom), "independent draws vary"


@given(weights=weights, draws=st.integers(1, 200), seed=st.integers(0, 2**63), epoch=st.integers(0, 1000))
@settings(deadline=None)
def test_rows_are_in_order_and_have_a_weight(weights: list[float], draws: int, seed: int, epoch: int) -> None:
    rows = draw(weights, draws).rows(seed, epoch)
    assert len(rows) == draws
    assert (np.diff(rows) >= 0).all()
    assert all(weights[row] > 0 for row in rows.tolist())


@given(weights=weights, draws=st.integers(1, 200), scale=st.sampled_from([2.0**-20, 0.5, 2.0**10]))
@settings(deadline=None)
def test_the_scale_of_weights_is_irrelevant(weights: list[float], draws: int, scale: float) -> None:
    small = np.minimum(np.asarray(weights), 1e200)
    small[small < 1e-200] = 0.0  # where a product would lose digits
    if small.any():
        assert np.array_equal(draw(small, draws).rows(0, 0), draw(small * scale, draws).rows(0, 0))


def test_each_epoch_and_seed_draws_other_rows() -> None:
    made = draw(np.ones(1000), 1000)
    seen = {made.rows(seed, epoch).tobytes() for seed in range(3) for epoch in range(3)}
    assert len(seen) == 9
    assert np.array_equal(made.rows(1, 2), draw(np.ones(1000), 1000).rows(1, 2))


def test_golden_values() -> None:
    """A change here changes every user's draws and resumes old checkpoints at other rows."""
    assert draw([1, 2, 3, 0, 4], 8).rows(1, 2).tolist() == [0, 0, 2, 4, 4, 4, 4, 4]
    assert np.bincount(draw(np.arange(100), 10_000).rows(0, 0), minlength=100)[::20].tolist() == [0, 31, 81, 125, 163]


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1, 2, -1.5], r"weights=… has the weight -1.5 in row 2; weights are finite"),
        ([1, float("nan")], "weight nan in row 1"),
        ([float("inf"), 1], "weight inf in row 0"),
        ([0, 0], "sums to 0, so no row can be drawn"),
        ([], "sums to 0"),
    ],
)
def test_weights_that_cannot_be_drawn_by(weights: list[float], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        draw(weights, 3)
