"""Scores of vectors: exact from the table's pages, or approximate from a vector index."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from penstock.format import Field
from penstock.query.search._metrics import VectorQuery
from penstock.query.search._scores import Float32Array, Ranked
from penstock.query.search._vector_scan import scan_scores, scan_top
from penstock.table import Int64Array, Reader


class VectorScores:
    """Scores of a column of vectors against a query: cosine similarity, Euclidean distance ("l2") or inner product.

    A row whose vector is null, or has NaN or infinity, or has no direction for "cosine", has the score NaN.
    """

    def __init__(self, reader: Reader, field: Field, query: Sequence[float] | npt.NDArray[Any], metric: str) -> None:
        self._reader, self._field = reader, field
        self._query = VectorQuery.of(field, query, metric)
        self.higher_is_better = self._query.higher_is_better

    def at(self, positions: Int64Array) -> Float32Array:
        """The exact scores of rows at ascending positions."""
        return scan_scores(self._reader, self._field, self._query, positions)

    def top(self, count: int, *, allowed: Int64Array | None, exact: bool) -> Ranked:
        """The best rows among the `allowed` ones, the best first; rows with the score NaN are never among them."""
        return scan_top(self._reader, self._field, self._query, count, allowed)
