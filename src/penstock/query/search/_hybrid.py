"""The best rows by a vector, a text or both."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from penstock.errors import InvalidInputError
from penstock.query.search._fuse import depth_of, top_combined, top_ranks
from penstock.query.search._scores import Float32Array, Ranked, Scores
from penstock.table import Int64Array

Fuse: TypeAlias = Literal["rrf"] | Mapping[str, float]
"""How rankings become one: by their ranks, or by the weights of their scores."""


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
    return top_ranks([each.top(depth_of(count), allowed=allowed, exact=exact) for each in kept], count)


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


@dataclass(frozen=True)
class _Without:
    """Scores whose rankings lack some rows."""

    scores: Scores
    positions: tuple[int, ...]

    @property
    def higher_is_better(self) -> bool:
        return self.scores.higher_is_better

    def at(self, positions: Int64Array) -> Float32Array:
        found = self.scores.at(positions)
        return np.where(np.isin(positions, self.positions), np.float32(np.nan), found)

    def top(self, count: int, *, allowed: Int64Array | None, exact: bool) -> Ranked:
        found = self.scores.top(count + len(self.positions), allowed=allowed, exact=exact)
        keep = np.flatnonzero(~np.isin(found.positions, self.positions))[:count]
        return Ranked(found.positions[keep], found.scores[keep])
