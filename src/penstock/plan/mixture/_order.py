"""Mixtures: from which source each row comes, so that every prefix has each source in proportion to its weight.

Row n goes to the source with the earliest deadline among those whose turn has begun. With weight w, turn c of a source
begins at c / w and its deadline is (c + 1) / w, so in every prefix of n rows its count is within 1 of n x w. Weights
are whole numbers, so the arithmetic is exact. Row k taken from a source is position k % rows of its epoch k // rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from heapq import heappop, heappush
from math import gcd, lcm

import numpy as np
import numpy.typing as npt

from penstock.types import cached_property

Int64Array = npt.NDArray[np.int64]

_CHUNK_ROWS = 1 << 14
_MAX_PERIOD = 1 << 24
"""A pattern repeats after the sum of its weights; one with a longer period is computed from where a run starts."""
_CHUNKS_CACHED = 256


def whole_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """The smallest whole numbers in proportion to some weights; a float counts as the decimal that it prints as."""
    exact = [Fraction(repr(weight)) for weight in weights]
    scale = lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * scale) for weight in exact]
    common = gcd(*whole) or 1
    return tuple(weight // common for weight in whole)


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows of a mixture from `start` on, up to the next segment; weights are constant."""

    start: int
    weights: tuple[int, ...]
    taken: tuple[int, ...]
    """Rows taken of each source before it."""


def segments_of(
    schedule: Sequence[tuple[int, tuple[int, ...]]], *, start: int, taken: tuple[int, ...]
) -> tuple[Segment, ...]:
    """The segments of a schedule of weights by row, from row `start` on; `taken` rows of each source come before."""
    segments: list[Segment] = []
    for number, (first, weights) in enumerate(schedule):
        end = schedule[number + 1][0] if number + 1 < len(schedule) else None
        if end is None or end > start:
            first = max(first, start)
            segments.append(Segment(first, weights, taken))
            taken = () if end is None else tuple(MixtureOrder(tuple(segments)).counts(end).tolist())
    return tuple(segments)


def mixture_rows(segments: Sequence[Segment], rows: Sequence[int], *, all_sources: bool) -> int | None:
    """The rows of an epoch that starts at row 0, given those of each source.

    That is where the first source ends, so that none begins its second epoch; or, with `all_sources`, where the last
    one does, so that each is read at least once. None if it never ends.
    """
    for number, segment in enumerate(segments):
        total = sum(segment.weights)
        left = [count - taken for count, taken in zip(rows, segment.taken, strict=True)]
        ends: list[int | None]
        if all_sources:
            ends = [
                0 if count <= 0 else None if not weight else -(-count * total // weight)
                for count, weight in zip(left, segment.weights, strict=True)
            ]
            row = None if None in ends else max(end for end in ends if end is not None)
        else:
            ends = [
                max(count, 0) * total // weight for count, weight in zip(left, segment.weights, strict=True) if weight
            ]
            row = min(end for end in ends if end is not None)
        is_last = number + 1 == len(segments)
        if row is not None and (is_last or segment.start + row <= segments[number + 1].start):
            return segment.start + row
    return None


@dataclass(frozen=True)
class MixtureOrder:
    """From which source each row of a mixture comes, counted over all its epochs."""

    segments: tuple[Segment, ...]
    known: tuple[int, tuple[int, ...]] | None = None
    """A row, and how many rows of each source come before it: where a run starts, so that it computes none before."""

    @cached_property
    def _starts(self) -> list[int]:
        return [segment.start for segment in self.segments]

    def counts(self, row: int) -> Int64Array:
        """How many rows before a row come from each source."""
        segment, pattern = self._at(row)
        return np.array(segment.taken, np.int64) + pattern.counts(row - segment.start)

    def rows(self, first: int, end: int) -> tuple[Int64Array, Int64Array]:
        """For each row of a range its source, and its number among the rows of that source."""
        chunks: list[npt.NDArray[np.int16]] = []
        start = first
        while start < end:
            segment, pattern = self._at(start)
            later = [other for other in self._starts if other > start]
            stop = min([end, *later[:1]])
            chunks.append(pattern.sources(start - segment.start, stop - segment.start))
            start = stop
        sources = np.concatenate([np.zeros(0, np.int64), *chunks])
        numbers = np.empty(len(sources), np.int64)
        for source, count in enumerate(self.counts(first).tolist()):
            here = np.flatnonzero(sources == source)
            numbers[here] = np.arange(count, count + len(here))
        return sources, numbers

    def _at(self, row: int) -> "tuple[Segment, _Pattern]":
        segment = self.segments[int(np.searchsorted(self._starts, row, side="right")) - 1]
        if self.known is not None and segment.start <= self.known[0] <= row:
            counts = tuple(c - t for c, t in zip(self.known[1], segment.taken, strict=True))
            return segment, _pattern(segment.weights, self.known[0] - segment.start, counts)
        return segment, _pattern(segment.weights, 0, (0,) * len(segment.weights))


class _Pattern:
    """The sources of rows with constant weights, computed in chunks from a row with known counts on."""

    def __init__(self, weights: tuple[int, ...], origin: int, counts: tuple[int, ...]) -> None:
        self._weights, self._period = weights, sum(weights)
        self._repeats = self._period <= _MAX_PERIOD
        if self._repeats:
            origin, counts = 0, (0,) * len(weights)
        self._origin, self._counts = origin, [counts]
        self._chunk = lru_cache(_CHUNKS_CACHED)(self._compute)

    def sources(self, first: int, end: int) -> npt.NDArray[np.int16]:
        """The sources of a range of rows."""
        parts: list[npt.NDArray[np.int16]] = []
        while first < end:
            _, chunk, inside = self._locate(first)
            parts.append(chunk[inside : inside + end - first])
            first += len(parts[-1])
        return np.concatenate([np.zeros(0, np.int16), *parts])

    def counts(self, row: int) -> Int64Array:
        """How many rows before a row come from each source."""
        counts, chunk, inside = self._locate(row)
        before = np.bincount(chunk[:inside], minlength=len(counts))
        total = np.array(counts, np.int64) + before
        return total + row // self._period * np.array(self._weights, np.int64) if self._repeats else total

    def _locate(self, row: int) -> tuple[tuple[int, ...], npt.NDArray[np.int16], int]:
        """The chunk of a row, the counts before that chunk, and the index of the row in it."""
        row = row % self._period if self._repeats else row - self._origin
        index, inside = divmod(row, _CHUNK_ROWS)
        while index >= len(self._counts):
            self._chunk(len(self._counts) - 1)
        chunk = self._chunk(index)
        return self._counts[index], chunk, inside

    def _compute(self, index: int) -> npt.NDArray[np.int16]:
        start = index * _CHUNK_ROWS
        length = min(_CHUNK_ROWS, self._period - start) if self._repeats else _CHUNK_ROWS
        sources, counts = _apportion(self._weights, self._origin + start, self._counts[index], length)
        if index + 1 == len(self._counts):
            self._counts.append(counts)
        return sources


@lru_cache(64)
def _pattern(weights: tuple[int, ...], origin: int, counts: tuple[int, ...]) -> _Pattern:
    return _Pattern(weights, origin, counts)


def _apportion(
    weights: tuple[int, ...], row: int, before: tuple[int, ...], length: int
) -> tuple[npt.NDArray[np.int16], tuple[int, ...]]:
    """The sources of the next rows, given the counts before them; and the counts after them."""
    total, counts = sum(weights), list(before)
    ready: list[tuple[int, int]] = []
    later = [(counts[source] * total // weight, source) for source, weight in enumerate(weights) if weight]
    later.sort()
    sources = np.empty(length, np.int16)
    for index in range(length):
        while later and later[0][0] <= row + index:
            _, source = heappop(later)
            heappush(ready, (-(-(counts[source] + 1) * total // weights[source]), source))
        source = heappop(ready)[1]
        sources[index] = source
        counts[source] += 1
        heappush(later, (counts[source] * total // weights[source], source))
    return sources, tuple(counts)
