"""The best rows by one score or several: weighted sums by a threshold algorithm, and reciprocal rank fusion.

The threshold algorithm reads each ranking from its best row down, and stops when no row that it has not met can be
among the best: a row that a ranking has not named scores there at most as much as the last one it named.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count as count_from
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidInputError
from penstock.query.search._scores import Float32Array, Ranked, Scores, SearchPlan
from penstock.table import Int64Array

Fuse: TypeAlias = Literal["rrf"] | Mapping[str, float]
"""How rankings become one: by their ranks, or by the weights of their scores."""

_RANK_CONSTANT = 60
"""Added to ranks in reciprocal rank fusion, as in the paper that introduced it (Cormack and others, 2009)."""

_MIN_DEPTH = 100
_CHEAP_DEPTH = 10_000
_GROWTH = 4
_CHEAP_GROWTH = 16

Float64Array = npt.NDArray[np.float64]


def search_top(
    scores: Mapping[str, Scores],
    count: int,
    *,
    allowed: Int64Array | None,
    exact: bool,
    fuse: Fuse,
    without: Sequence[int] = (),
) -> Ranked:
    """The best rows by named scores, among the `allowed` ones (ascending positions; None for all).

    One score ranks alone. Several are fused by reciprocal rank over the first rows of each ranking, or by the sum of
    their scores with weights, where distances count negatively. Positions in `without` are left out.

    Raises `InvalidInputError` for weights that do not fit the scores.
    """
    weights = _weights(fuse, list(scores))
    kept = [_Without(each, tuple(without)) if without else each for each in scores.values()]
    if weights is not None:
        terms = [
            (weights[name] if each.higher_is_better else -weights[name], each)
            for name, each in zip(scores, kept, strict=True)
        ]
        return top_combined(terms, count, allowed, exact)
    if len(kept) == 1:
        return kept[0].top(count, allowed=allowed, exact=exact)
    return top_ranks([each.top(_depth(count), allowed=allowed, exact=exact) for each in kept], count)


def _weights(fuse: Fuse, names: Sequence[str]) -> Mapping[str, float] | None:
    """The weight of each score; None to fuse by rank."""
    if isinstance(fuse, str):
        if fuse != "rrf":
            raise InvalidInputError(f"{fuse!r} does not fuse rankings; choose 'rrf' or weights by name")
        return None
    if set(fuse) != set(names) or len(names) < 2:
        example = dict.fromkeys(sorted({*names, "vector", "text"}), 0.5)
        raise InvalidInputError(
            f"weights are for a search by a vector and a text, one for each, such as {example}; this one has weights"
            f" for {', '.join(sorted(fuse)) or 'nothing'}, and searches by {', '.join(names)}"
        )
    for name, weight in fuse.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise InvalidInputError(f"the weight of {name} is {weight!r}; weights are numbers above 0")
    return fuse


def _depth(count: int) -> int:
    """Rows to take of each ranking at first, to find the best `count` of their fusion."""
    return max(_MIN_DEPTH, count)


def top_ranks(rankings: Sequence[Ranked], count: int) -> Ranked:
    """The best rows by the sum of `1 / (60 + rank)` over the rankings that name them; ranks start at 1."""
    positions = np.concatenate([_NO_ROWS, *(ranking.positions for ranking in rankings)])
    shares = [1 / (_RANK_CONSTANT + np.arange(1, len(ranking.positions) + 1)) for ranking in rankings]
    found, inverse = np.unique(positions, return_inverse=True)
    sums = np.zeros(len(found))
    np.add.at(sums, inverse, np.concatenate([np.zeros(0), *shares]))
    return _best(found, sums, count)


def top_combined(scores: Sequence[tuple[float, Scores]], count: int, allowed: Int64Array | None, exact: bool) -> Ranked:
    """The rows with the highest weighted sum of scores, among the `allowed` ones (ascending; None for all).

    Weights of distances are negative. Rows without one of the scores are never among them. Like `Scores.top`, it leaves
    out rows that no ranking names, because all their scores are 0; with `exact`, no approximate index is used.

    Raises `InvalidInputError` if a weight prefers the rows that its score ranks last.
    """
    for weight, term in scores:
        if weight and (weight > 0) != term.higher_is_better:
            raise InvalidInputError(
                f"the weight {weight} prefers the worst rows: similarities have weights above 0, distances below 0"
            )
    if count < 1 or not scores:
        return Ranked(_NO_ROWS, np.zeros(0, np.float32))
    depth = _depth(count)
    if allowed is not None and len(allowed) <= depth:
        parts = [weight * term.at(allowed).astype(np.float64) for weight, term in scores]
        return _best(allowed, np.sum(parts, axis=0), count)
    found = _search([_Ranking(weight, term, allowed, exact, depth) for weight, term in scores], count)
    if len(found.positions) < count and not exact:  # an approximate index may name fewer rows than there are
        return top_combined(scores, count, allowed, exact=True)
    return found


class _Ranking:
    """The best rows of one score so far, and what it adds to a sum."""

    def __init__(self, weight: float, scores: Scores, allowed: Int64Array | None, exact: bool, depth: int) -> None:
        self._weight, self._scores, self._allowed, self._exact = weight, scores, allowed, exact
        self._depth = max(depth, _CHEAP_DEPTH) if scores.deep_is_cheap else depth
        self._take()

    def _take(self) -> None:
        found = self._scores.top(self._depth, allowed=self._allowed, exact=self._exact)
        self.complete = len(found.positions) < self._depth
        added = self._weight * found.scores.astype(np.float64)
        self.bound = float(added[-1]) if len(added) else 0.0
        self.fall = float(added[len(added) // 2] - added[-1]) if len(added) else 0.0
        """How much the bound fell over the second half: what to expect of more rows."""
        if self.complete:  # all other rows score 0 or nothing
            self.bound = min(self.bound, 0.0)
        order = np.argsort(found.positions)
        self.positions, self._added = found.positions[order], added[order]

    def deepen(self) -> None:
        """Take more rows."""
        self._depth *= _CHEAP_GROWTH if self.is_cheap else _GROWTH
        self._take()

    @property
    def is_cheap(self) -> bool:
        """Whether more rows cost little."""
        return self._scores.deep_is_cheap

    def known(self, positions: Int64Array) -> Float64Array:
        """What it adds to the sums of rows; NaN for rows that it has not named."""
        if not len(self.positions):
            return np.full(len(positions), np.nan)
        places = np.minimum(np.searchsorted(self.positions, positions), len(self.positions) - 1)
        return np.where(self.positions[places] == positions, self._added[places], np.nan)

    def at(self, positions: Int64Array) -> Float64Array:
        """What it adds to the sums of rows at ascending positions."""
        added = self.known(positions)
        missing = np.isnan(added)
        if missing.any():
            added[missing] = self._weight * self._scores.at(positions[missing]).astype(np.float64)
        return added


def _search(rankings: Sequence[_Ranking], count: int) -> Ranked:
    done, sums = _NO_ROWS, np.zeros(0)
    while True:
        named = np.unique(np.concatenate([ranking.positions for ranking in rankings]))
        named = named[~np.isin(named, done, assume_unique=True)]
        known = [ranking.known(named) for ranking in rankings]
        limits = np.sum(
            [np.where(np.isnan(some), ranking.bound, some) for some, ranking in zip(known, rankings, strict=True)],
            axis=0,
        ).astype(np.float32)
        order = np.argsort(-limits, kind="stable")
        start = 0
        for size in (max(count, _MIN_DEPTH) << turn for turn in count_from()):
            batch = order[start : start + size]
            batch = batch[limits[batch] >= _worst_of_best(sums, count)]
            if not len(batch):
                break
            rows = np.sort(named[batch])
            done = np.concatenate([done, rows])
            sums = np.concatenate([sums, np.sum([ranking.at(rows) for ranking in rankings], axis=0)])
            start += size
        open_ended = [ranking for ranking in rankings if not ranking.complete]
        threshold = np.float32(sum(ranking.bound for ranking in rankings))
        if not open_ended or _worst_of_best(sums, count) > threshold:
            return _best(done, sums, count)
        max(open_ended, key=lambda ranking: (ranking.is_cheap, ranking.fall)).deepen()


def _worst_of_best(sums: Float64Array, count: int) -> np.float32:
    """The lowest of the `count` highest sums; below all numbers if there are fewer."""
    valid = sums[~np.isnan(sums)]
    if len(valid) < count:
        return np.float32(-np.inf)
    return np.float32(np.partition(valid, len(valid) - count)[len(valid) - count])


def _best(positions: Int64Array, sums: Float64Array, count: int) -> Ranked:
    scores: Float32Array = sums.astype(np.float32)
    valid = np.flatnonzero(~np.isnan(scores))
    order = valid[np.lexsort((positions[valid], -scores[valid]))[:count]]
    return Ranked(positions[order], scores[order])


@dataclass(frozen=True)
class _Without:
    """Scores whose rankings lack some rows."""

    scores: Scores
    positions: tuple[int, ...]

    @property
    def higher_is_better(self) -> bool:
        return self.scores.higher_is_better

    @property
    def deep_is_cheap(self) -> bool:
        return self.scores.deep_is_cheap

    def at(self, positions: Int64Array) -> Float32Array:
        found = self.scores.at(positions)
        return np.where(np.isin(positions, self.positions), np.float32(np.nan), found)

    def top(self, count: int, *, allowed: Int64Array | None, exact: bool) -> Ranked:
        found = self.scores.top(count + len(self.positions), allowed=allowed, exact=exact)
        keep = np.flatnonzero(~np.isin(found.positions, self.positions))[:count]
        return Ranked(found.positions[keep], found.scores[keep])

    def plan(self, count: int) -> SearchPlan:
        return self.scores.plan(count + len(self.positions))


_NO_ROWS = np.zeros(0, np.int64)
