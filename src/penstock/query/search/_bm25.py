"""BM25: the scores of rows by the words they have, and the best rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log

import numpy as np
import numpy.typing as npt

from penstock.errors import CorruptError
from penstock.query.indexes.text import Numbers, Postings
from penstock.query.search._scores import Float32Array
from penstock.table import Int64Array

Float64Array = npt.NDArray[np.float64]

_K1, _B = 1.2, 0.75
_MAX_TABLE = 1 << 16
_BLOCK = 1024
"""Rows of which the best one is found first."""
_MIN_PRUNED = 1 << 14
"""Postings from which scores are first summed as float32, which is faster, to find candidates."""
_MIN_DENSE, _MAX_SPREAD = 1 << 12, 8
"""Rows with a word are stored as a range if they are so many, and at least one in so many of the range."""
_SLACK = 1 - 1e-4
"""Sums in another order differ by less."""


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


@dataclass(frozen=True)
class Part:
    """Rows with a word or a phrase, and what it adds to their scores."""

    postings: Postings
    weight: float
    mean_length: float

    def __len__(self) -> int:
        return len(self.postings.rows)

    @property
    def rows(self) -> Int64Array:
        return self.postings.rows

    @cached_property
    def low(self) -> int:
        return int(self.rows[0])

    @cached_property
    def high(self) -> int:
        return int(self.rows[-1]) + 1

    @property
    def dense_bytes(self) -> int:
        """Bytes of `dense`; 0 for a part of few rows, which has none."""
        is_dense = len(self) >= _MIN_DENSE and self.high - self.low <= _MAX_SPREAD * len(self)
        return 4 * (self.high - self.low) if is_dense else 0

    @cached_property
    def dense(self) -> Float32Array:
        """What each row from `low` to `high` gets."""
        found = np.zeros(self.high - self.low, np.float32)
        found[self.rows - self.low] = self.added()
        return found

    def added(self) -> Float64Array:
        """What each of the rows gets."""
        counts, lengths = self.postings.counts, self.postings.lengths
        longest, most = int(lengths.max(initial=0)) + 1, int(counts.max(initial=0)) + 1
        if longest * most > min(_MAX_TABLE, len(self) // 8):
            return self._saturated(counts, lengths)
        table = self._saturated(*np.divmod(np.arange(longest * most), longest))
        if most == 2:
            return np.take(table[longest:], lengths)
        return np.take(table, counts.astype(np.uint16) * np.uint16(longest) + lengths.astype(np.uint16))

    def added_to(self, rows: Int64Array) -> Float64Array:
        """What each of some rows gets; 0 for one that is not among the postings."""
        found = np.zeros(len(rows), np.float64)
        if len(self):
            indices = np.minimum(np.searchsorted(self.rows, rows), len(self) - 1)
            known = self.rows[indices] == rows
            chosen = indices[known]
            found[known] = self._saturated(self.postings.counts[chosen], self.postings.lengths[chosen])
        return found

    def _saturated(self, counts: Numbers, lengths: Numbers) -> Float64Array:
        norm = _K1 * (1 - _B + _B / self.mean_length * lengths)
        found: Float64Array = self.weight * (_K1 + 1) * counts / (counts + norm)
        return found


class RowScores:
    """The scores of rows that have one of several words, in row ids or positions."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = [part for part in parts if len(part)]
        self._count = sum(map(len, self._parts))
        self._low = min((part.low for part in self._parts), default=0)
        self._high = max((part.high for part in self._parts), default=0)

    def at(self, rows: Int64Array) -> Float32Array:
        """The scores of some rows; 0 for those without any of the words."""
        if 8 * len(rows) < self._count:
            return self._of_few(rows)
        return self._all.at(rows)

    def best(self, count: int, allowed: Int64Array | None) -> tuple[Int64Array, Float32Array]:
        """The best `count` rows in any order, and all that have the same score as the last of them.

        `allowed` has the rows to choose from, ascending; None for all.
        """
        if not self._parts or count < 1:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        if allowed is not None:
            rows, scores = allowed, self.at(allowed)
        elif self._count < _MIN_PRUNED or self._high - self._low > _MAX_SPREAD * self._count:
            rows, scores = self._all.rows, self._all.scores
        else:
            rows = self._candidates(count)
            scores = self._of_few(rows)
        chosen = _best(scores, count)
        return rows[chosen], scores[chosen]

    def _of_few(self, rows: Int64Array) -> Float32Array:
        total = np.zeros(len(rows), np.float64)
        for part in self._parts:
            total += part.added_to(rows)
        return total.astype(np.float32)

    @cached_property
    def _all(self) -> "_RangeScores":
        """The scores of all rows that have one of the words."""
        return _sum_parts(self._parts)

    def _candidates(self, count: int) -> Int64Array:
        """Rows that include the best ones."""
        low = self._low
        total = np.zeros(self._high - low, np.float32)
        for part in self._parts:
            if part.dense_bytes:
                total[part.low - low : part.high - low] += part.dense
            else:
                total[part.rows - low] += part.added().astype(np.float32)
        least = max(_least_of_best(total, count) * _SLACK, _TINY)
        return np.flatnonzero(total >= least) + low


_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class _RangeScores:
    """Scores by row; of all rows of a range, or of some rows."""

    low: int
    """The first row of the range."""
    scores: Float32Array
    """0 for a row without any of the words."""
    ids: Int64Array | None
    """Ascending rows; None for all of the range."""

    @property
    def rows(self) -> Int64Array:
        return np.arange(self.low, self.low + len(self.scores)) if self.ids is None else self.ids

    def rows_from(self, indices: Int64Array) -> Int64Array:
        """Rows by the index of their score."""
        return indices + self.low if self.ids is None else self.ids[indices]

    def at(self, rows: Int64Array) -> Float32Array:
        """The scores of some rows."""
        if not len(self.scores):
            return np.zeros(len(rows), np.float32)
        if self.ids is None:
            indices = rows - self.low
            known = (indices >= 0) & (indices < len(self.scores))
        else:
            indices = np.minimum(np.searchsorted(self.ids, rows), len(self.ids) - 1)
            known = self.ids[indices] == rows
        found = np.zeros(len(rows), np.float32)
        found[known] = self.scores[indices[known]]
        return found


def _sum_parts(parts: Sequence[Part]) -> _RangeScores:
    if not parts:
        return _RangeScores(0, np.zeros(0, np.float32), None)
    low, high = min(part.low for part in parts), max(part.high for part in parts)
    rows = np.concatenate([part.rows for part in parts])
    added = np.concatenate([part.added() for part in parts])
    if high - low <= _MAX_SPREAD * len(rows):
        return _RangeScores(low, np.bincount(rows - low, added, high - low).astype(np.float32), None)
    ids, indices = np.unique(rows, return_inverse=True)
    return _RangeScores(0, np.bincount(indices, added, len(ids)).astype(np.float32), ids)


def _least_of_best(scores: Float32Array, count: int) -> float:
    """A score that `count` rows have at least, at best the lowest of the best ones; 0 if too few have a score."""
    whole = len(scores) // _BLOCK
    if whole >= count:
        maxima = scores[: whole * _BLOCK].reshape(whole, _BLOCK).max(axis=1)
        return float(np.partition(maxima, whole - count)[whole - count])
    if len(scores) <= count:
        return 0.0
    return float(np.partition(scores, len(scores) - count)[len(scores) - count])


def _best(scores: Float32Array, count: int) -> Int64Array:
    """The indices of the best positive scores, with all ties of the last one."""
    chosen = np.flatnonzero(scores >= max(_least_of_best(scores, count), _TINY))
    if len(chosen) > count:
        found = scores[chosen]
        chosen = chosen[found >= np.partition(found, len(found) - count)[len(found) - count]]
    return chosen
