"""Scores of vectors: exact from the table's pages, or approximate from a vector index."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.format import Field
from penstock.query.indexes import OpenIndex, VectorKind, open_index
from penstock.query.search._metrics import VectorQuery, best
from penstock.query.search._scores import Float32Array, Ranked, SearchPlan, column_bytes
from penstock.query.search._vector_index import VectorSearch
from penstock.query.search._vector_scan import merge_ranked, scan_bytes, scan_scores, scan_top
from penstock.table import Int64Array, Reader

_REQUEST_BYTES = 128 << 10
"""A request to a remote store costs as much as reading so many bytes."""
_LOCAL_WEIGHT = 3
"""To read and score a byte of an index costs as much as so many bytes of the table, if they are local."""
_EXTRA = 10
"""Rows beside those wanted that are scored again, at least."""


class VectorScores:
    """Scores of a column of vectors against a query: cosine similarity, Euclidean distance ("l2") or inner product.

    A row whose vector is null, or has NaN or infinity, or has no direction for "cosine", has the score NaN.

    An index is used if it has the same metric. On a local store its best rows are scored again from the table: scores
    are exact. On a remote one that would cost a request for each row: scores are those of the index, from int8, and
    off by about 1 % of the distance between a vector and its centroid.
    """

    deep_is_cheap = False

    def __init__(self, reader: Reader, field: Field, query: Sequence[float] | npt.NDArray[Any], metric: str) -> None:
        self._reader, self._field = reader, field
        self._query = VectorQuery.of(field, query, metric)
        self.higher_is_better = self._query.higher_is_better

    def at(self, positions: Int64Array) -> Float32Array:
        """The exact scores of rows at ascending positions."""
        return scan_scores(self._reader, self._field, self._query, positions)

    def top(self, count: int, *, allowed: Int64Array | None, exact: bool) -> Ranked:
        """The best rows among the `allowed` ones, the best first; rows with the score NaN are never among them."""
        if self._query.metric == "cosine" and not self._query.vector.any():
            return _NOTHING
        search = None if exact else self.search(allowed)
        if search is None or (allowed is not None and self._scan_is_cheaper(search, count, allowed)):
            return scan_top(self._reader, self._field, self._query, count, allowed)
        return self._search(search, count)

    def plan(self, count: int) -> SearchPlan:
        """What a search reads; the rows that are scored again from the table are not counted."""
        search = self.search(None)
        if search is None:
            rows = np.arange(self._reader.snapshot.live)
            return SearchPlan(None, column_bytes(self._reader, self._field, rows))
        lacking = column_bytes(self._reader, self._field, search.index.uncovered)
        return SearchPlan(search.index.name, search.cost(count) + lacking)

    def search(self, allowed: Int64Array | None) -> VectorSearch | None:
        """The search that an index of this metric can answer; None if there is no such index."""
        index = open_index(self._reader, self._field, VectorKind.name)
        if index is None or not isinstance(index.kind, VectorKind) or index.kind.metric != self._query.metric:
            return None
        return VectorSearch(index, self._query, allowed)

    def _scan_is_cheaper(self, search: VectorSearch, count: int, allowed: Int64Array) -> bool:
        cost = search.cost(count)
        if len(allowed) * (self._field.fixed_row_bytes or 0) > cost:
            return False
        pages, size = scan_bytes(self._reader, self._field, allowed)
        if self._reader.store.is_local:
            return size <= _LOCAL_WEIGHT * cost
        return size + pages * _REQUEST_BYTES <= cost

    def _search(self, search: VectorSearch, count: int) -> Ranked:
        found = search.top(count)
        ranked = Ranked(found.positions[:count], found.scores[:count])
        if self._reader.store.is_local:
            ranked = self._exact(found.positions[: count + max(_EXTRA, count // 2)], count)
        rest = _union(found.far, _uncovered(search.index, search.allowed))
        if not len(rest):
            return ranked
        others = scan_top(self._reader, self._field, self._query, count, rest)
        return merge_ranked([ranked, others], count, higher_is_better=self.higher_is_better)

    def _exact(self, positions: Int64Array, count: int) -> Ranked:
        """Rank some rows by their exact scores."""
        positions = np.sort(positions)
        scores = self.at(positions)
        chosen = best(scores, count, higher_is_better=self.higher_is_better)
        return Ranked(positions[chosen], scores[chosen])


_NOTHING = Ranked(np.zeros(0, np.int64), np.zeros(0, np.float32))


def _uncovered(index: OpenIndex, allowed: Int64Array | None) -> Int64Array:
    return index.uncovered if allowed is None else np.intersect1d(index.uncovered, allowed, assume_unique=True)


def _union(some: Int64Array, others: Int64Array) -> Int64Array:
    return np.union1d(some, others) if len(some) else others
