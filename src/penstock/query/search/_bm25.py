"""BM25: the scores of rows by the words they have, and the best rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
import numpy.typing as npt

from penstock.errors import CorruptError
from penstock.query.indexes.text import Numbers, Postings
from penstock.query.search._scores import Float32Array
from penstock.table import Int64Array

_K1, _B = 1.2, 0.75
_MAX_TABLE = 1 << 16
_BLOCK = 1024
"""Rows of which the best one is found first."""


@dataclass(frozen=True)
class Statistics:
    """Of all rows with a value."""

    rows: int
    length: int
    """Words of all rows together."""

    @property
    def mean_length(self) -> float:
        """Words of a row; raises `CorruptError` if rows with words are said to have none."""
        if self.rows < 1 or self.length < 1:
            raise CorruptError("a text index says that its rows have no words; create it again")
        return self.length / self.rows

    def __add__(self, other: "Statistics") -> "Statistics":
        return Statistics(self.rows + other.rows, self.length + other.length)


def idf(rows_with: int, rows: int) -> float:
    """The weight of a word that some of all rows have; raises `CorruptError` if they are more than all."""
    if rows_with > rows:
        raise CorruptError("a text index has more rows with a word than rows; create it again")
    return log(1 + (rows - rows_with + 0.5) / (rows_with + 0.5))


def score_rows(parts: Sequence[Postings], weights: Sequence[float], statistics: Statistics) -> "RowScores":
    """The scores of all rows that have one of several words, with the weight of each word."""
    parts_found = [(part, weight) for part, weight in zip(parts, weights, strict=True) if len(part.rows)]
    if not parts_found:
        return RowScores(0, np.zeros(0, np.float32), None)
    mean = statistics.mean_length
    low = min(int(part.rows[0]) for part, _ in parts_found)
    span = max(int(part.rows[-1]) for part, _ in parts_found) + 1 - low
    count = sum(len(part.rows) for part, _ in parts_found)
    ids = None
    if span > 8 * count + _BLOCK:
        ids = np.unique(np.concatenate([part.rows for part, _ in parts_found]))
        span = len(ids)
    rows = np.concatenate([part.rows for part, _ in parts_found])
    indices = rows - low if ids is None else np.searchsorted(ids, rows)
    added = np.empty(count, np.float64)
    end = 0
    for part, weight in parts_found:
        start, end = end, end + len(part.rows)
        _contributions(part, weight, mean, added[start:end])
    return RowScores(low, np.bincount(indices, added, span).astype(np.float32), ids)


def _contributions(part: Postings, weight: float, mean: float, out: npt.NDArray[np.float64]) -> None:
    """Write what a word adds to the score of each row that has it."""
    longest, most = int(part.lengths.max()) + 1, int(part.counts.max()) + 1
    if longest * most > min(_MAX_TABLE, 2 * len(part.rows) + 256):
        out[:] = _saturated(part.counts, part.lengths, weight, mean)
        return
    counts, lengths = np.divmod(np.arange(longest * most), longest)
    table = _saturated(counts, lengths, weight, mean)
    if most == 2:
        table, cells = table[longest:], part.lengths
    else:
        cells = part.counts.astype(np.uint16) * np.uint16(longest) + part.lengths.astype(np.uint16)
    np.take(table, cells, out=out, mode="clip")  # "raise" would copy


def _saturated(counts: Numbers, lengths: Numbers, weight: float, mean: float) -> npt.NDArray[np.float64]:
    return weight * (_K1 + 1) * counts / (counts + _K1 * (1 - _B + _B / mean * lengths))


@dataclass(frozen=True)
class RowScores:
    """Scores by row; of all rows of a range, or of some rows."""

    _low: int
    """The first row of the range."""
    _scores: Float32Array
    """0 for a row without any of the words."""
    _ids: Int64Array | None
    """Ascending rows; None for all of the range."""

    def at(self, rows: Int64Array) -> Float32Array:
        """The scores of some rows; 0 for those without any of the words."""
        found = np.zeros(len(rows), np.float32)
        if len(self._scores):
            indices, known = self._indices(rows)
            found[known] = self._scores[indices]
        return found

    def best(self, count: int, allowed: Int64Array | None) -> tuple[Int64Array, Float32Array]:
        """The best `count` rows in any order, and all that have the same score as the last of them."""
        scores = self._scores
        if not len(scores) or count < 1:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        if allowed is not None:
            indices, _ = self._indices(allowed)
            scores = np.zeros_like(scores)
            scores[indices] = self._scores[indices]
        chosen = _best(scores, count)
        return chosen + self._low if self._ids is None else self._ids[chosen], scores[chosen]

    def _indices(self, rows: Int64Array) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
        """Where the scores of the known ones of some rows are, and which are known."""
        if self._ids is None:
            indices = rows - self._low
            known = (indices >= 0) & (indices < len(self._scores))
        else:
            indices = np.minimum(np.searchsorted(self._ids, rows), len(self._ids) - 1)
            known = self._ids[indices] == rows
        return indices[known], known


def _best(scores: Float32Array, count: int) -> Int64Array:
    """The indices of the best positive scores, with all ties of the last one."""
    least: float = np.nextafter(np.float32(0), np.float32(1))
    whole = len(scores) // _BLOCK
    if whole >= count:
        # `count` blocks have a score of at least this
        maxima = scores[: whole * _BLOCK].reshape(whole, _BLOCK).max(axis=1)
        least = max(least, np.partition(maxima, whole - count)[whole - count])
    chosen = np.flatnonzero(scores >= least)
    if len(chosen) > count:
        found = scores[chosen]
        chosen = chosen[found >= np.partition(found, len(found) - count)[len(found) - count]]
    return chosen
