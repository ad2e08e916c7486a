"""Fused rankings equal those computed from all scores, and read little of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidInputError
from penstock.query.search import Ranked, SearchPlan, top_combined, top_ranks

ROWS = 1500


class FakeScores:
    """Scores from an array; counts the rows whose scores were asked for one by one."""

    deep_is_cheap = False

    def __init__(
        self, values: npt.NDArray[Any], *, higher_is_better: bool = True, matches: bool = False, recall: float = 1
    ) -> None:
        self.values, self.higher_is_better = values.astype(np.float32), higher_is_better
        self._matches, self._recall = matches, recall
        self.depth = self.read = 0

    def at(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        assert (np.diff(positions) > 0).all()
        self.read += len(positions)
        return self.values[positions]

    def top(self, count: int, *, allowed: npt.NDArray[np.int64] | None, exact: bool) -> Ranked:
        self.depth = max(self.depth, count)
        rows = np.arange(len(self.values)) if allowed is None else allowed
        keep = ~np.isnan(self.values[rows])
        if self._matches:  # like a text: rows that score 0 are not named
            keep &= self.values[rows] != 0
        rows = rows[keep]
        order = np.lexsort((rows, -self.values[rows] if self.higher_is_better else self.values[rows]))
        if not exact:
            count = int(count * self._recall)
        return Ranked(rows[order[:count]], self.values[rows[order[:count]]])

    def plan(self, count: int) -> SearchPlan:
        return SearchPlan(None, count)


def brute_force(
    terms: Sequence[tuple[float, FakeScores]], count: int, allowed: npt.NDArray[np.int64]
) -> tuple[list[int], list[float]]:
    sums = np.sum([weight * term.values[allowed].astype(np.float64) for weight, term in terms], axis=0)
    scores = sums.astype(np.float32)
    valid = ~np.isnan(scores)
    order = np.lexsort((allowed[valid], -scores[valid]))[:count]
    return allowed[valid][order].tolist(), scores[valid][order].tolist()


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[tuple[float, FakeScores]], int, npt.NDArray[np.int64] | None]:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    terms: list[tuple[float, FakeScores]] = []
    for kind in [*draw(st.lists(st.sampled_from(["cosine", "l2", "text"]), max_size=2)), "cosine"]:
        values = rng.normal(size=ROWS) if draw(st.booleans()) else rng.integers(-3, 4, ROWS) / 4
        weight = draw(st.sampled_from([0.1, 0.3, 1, 7]))
        if kind == "text":
            values = np.where(rng.random(ROWS) < draw(st.sampled_from([0.01, 0.2, 1])), np.abs(values) * 9, 0)
        if draw(st.booleans()):
            values[rng.random(ROWS) < 0.1] = np.nan
        if kind == "l2":
            terms.append((-weight, FakeScores(np.abs(values), higher_is_better=False)))
        else:
            terms.append((weight, FakeScores(values, matches=kind == "text")))
    share = draw(st.sampled_from([None, 0.02, 0.5]))
    allowed = None if share is None else np.flatnonzero(rng.random(ROWS) < share)
    return terms, draw(st.sampled_from([1, 10, 90, ROWS + 5])), allowed


@given(questions())
@settings(max_examples=60, deadline=None)
def test_the_best_sums_are_found(
    question: tuple[list[tuple[float, FakeScores]], int, npt.NDArray[np.int64] | None],
) -> None:
    terms, count, allowed = question
    found = top_combined(terms, count, allowed, exact=True)
    rows = np.arange(ROWS) if allowed is None else allowed
    assert (found.positions.tolist(), found.scores.tolist()) == brute_force(terms, count, rows)


def test_few_scores_are_read_when_the_rankings_agree() -> None:
    rng = np.random.default_rng(7)
    base = rng.normal(size=100_000)
    terms = [(0.7, FakeScores(base + rng.normal(size=len(base)) / 50)), (0.3, FakeScores(base))]
    found = top_combined(terms, 10, None, exact=True)
    assert found.positions.tolist() == brute_force(terms, 10, np.arange(len(base)))[0]
    for _, term in terms:
        assert term.depth <= 100
        assert term.read <= 100


def test_an_index_that_names_too_few_rows_does_not_shorten_the_result() -> None:
    terms = [(1.0, FakeScores(np.arange(500.0), recall=0.1))]
    found = top_combined(terms, 50, None, exact=False)
    assert found.positions.tolist() == list(range(499, 449, -1))


def test_rows_that_match_no_word_are_left_out() -> None:
    values = np.zeros(1000)
    values[[7, 3]] = 2
    found = top_combined([(0.5, FakeScores(values, matches=True))], 10, None, exact=False)
    assert found.positions.tolist() == [3, 7]
    assert found.scores.tolist() == [1, 1]


@pytest.mark.parametrize(("weight", "higher_is_better"), [(-1, True), (1, False)])
def test_a_weight_that_prefers_the_worst_rows_is_refused(weight: float, higher_is_better: bool) -> None:
    scores = FakeScores(np.arange(4.0), higher_is_better=higher_is_better)
    with pytest.raises(InvalidInputError, match="prefers the worst rows"):
        top_combined([(weight, scores)], 1, None, exact=False)


def test_no_rows_and_no_terms_give_nothing() -> None:
    assert len(top_combined([], 10, None, exact=False).positions) == 0
    assert len(top_combined([(1, FakeScores(np.zeros(0)))], 10, None, exact=False).positions) == 0
    assert len(top_combined([(1, FakeScores(np.ones(3)))], 0, None, exact=False).positions) == 0
    assert len(top_ranks([], 10).positions) == 0


@given(st.lists(st.lists(st.integers(0, 30), unique=True, max_size=20), max_size=3), st.integers(0, 25))
@settings(max_examples=40, deadline=None)
def test_ranks_are_fused_by_their_reciprocals(rankings: list[list[int]], count: int) -> None:
    sums: dict[int, float] = {}
    for ranking in rankings:
        for rank, row in enumerate(ranking, 1):
            sums[row] = sums.get(row, 0) + 1 / (60 + rank)
    expected = sorted(sums, key=lambda row: (-np.float32(sums[row]), row))[:count]
    lists = [Ranked(np.array(ranking, np.int64), np.zeros(len(ranking), np.float32)) for ranking in rankings]
    found = top_ranks(lists, count)
    assert found.positions.tolist() == expected
    assert found.scores.tolist() == pytest.approx([sums[row] for row in expected])
