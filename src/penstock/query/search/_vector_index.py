"""Approximate ranking by a vector index: the lists nearest to the query, read in one round trip.

How many lists are read depends on how deep a ranking goes: the last row wanted should be among the first
1/`_MIN_RATIO` of all rows seen. A filter makes it go deeper, and is known before; if rows that pass it are rarer near
the query than elsewhere, more lists are read in further round trips, all of them in the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import CorruptError
from penstock.query.indexes import FAR_LIST, OpenIndex, PagedTable, PageRead, VectorKind, read_pages_of
from penstock.query.search._metrics import VectorQuery, best, inner_products
from penstock.query.search._scores import Float32Array
from penstock.table import Int64Array
from penstock.types import cached_property

_MIN_LISTS = 32
_LISTS_OF_1000 = 32
_MIN_RATIO = 128
_MAX_REQUESTS = 40
_GROWTH = 2
_MARGIN = 16


class Candidates(NamedTuple):
    """Rows that an index found, the best first, with approximate scores."""

    positions: Int64Array
    scores: Float32Array
    far: Int64Array
    """Ascending positions of rows that the index cannot score."""


class _Entries(NamedTuple):
    """Entries of lists: rows of a segment and their approximate scores."""

    segments: Int64Array
    row_ids: Int64Array
    scores: Float32Array

    @classmethod
    def join(cls, parts: "Sequence[_Entries]") -> "_Entries":
        """The entries of all parts."""
        parts = [_NO_ENTRIES, *parts]
        return cls(
            np.concatenate([part.segments for part in parts]),
            np.concatenate([part.row_ids for part in parts]),
            np.concatenate([part.scores for part in parts]),
        )


_NO_ENTRIES = _Entries(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))


@dataclass(frozen=True, eq=False)
class VectorSearch:
    """A search of one query in an index."""

    index: OpenIndex
    query: VectorQuery
    allowed: Int64Array | None
    """Ascending positions of the rows to find; None for all."""

    @property
    def kind(self) -> VectorKind:
        assert isinstance(self.index.kind, VectorKind)
        return self.index.kind

    @property
    def _tables(self) -> list[PagedTable]:
        return [segment.tables["lists"] for segment in self.index.segments]

    @cached_property
    def _centroids(self) -> Float32Array:
        return self.kind.centroids(self.index.object("centroids"))

    @cached_property
    def _vector(self) -> Float32Array:
        """The query as lists are scored with it."""
        wide = self.query.vector.astype(np.float64)
        if self.query.metric == "cosine":
            wide = wide / np.linalg.norm(wide / np.abs(wide).max()) / np.abs(wide).max()
        return wide.astype(np.float32)

    @cached_property
    def _products(self) -> Float32Array:
        """The inner product of each centroid with the query."""
        found: Float32Array = self._centroids @ self._vector
        return found

    @cached_property
    def _nearest(self) -> Int64Array:
        """The lists, the nearest to the query first."""
        nearness = self._products
        if self.query.metric == "l2":
            nearness = nearness - np.einsum("ij,ij->i", self._centroids, self._centroids) / 2
        return np.argsort(-nearness, kind="stable")

    @cached_property
    def _sizes(self) -> Int64Array:
        """Entries up to and including each of the nearest lists."""
        sizes = np.zeros(len(self._centroids), np.int64)
        for table in self._tables:
            keys, rows = page_keys(table), np.asarray(table.directory["rows"], np.int64)
            inside = (keys >= 0) & (keys < len(sizes))
            sizes += np.bincount(keys[inside], rows[inside], len(sizes)).astype(np.int64)
        return np.cumsum(sizes[self._nearest])

    def first_lists(self, count: int) -> int:
        """The number of lists to read at first."""
        live = self.index.reader.snapshot.live
        share = 1.0 if self.allowed is None else len(self.allowed) / max(1, live)
        deep = int(np.searchsorted(self._sizes, _MIN_RATIO * count / max(share, 1e-9)) + 1)
        usual = max(_MIN_LISTS, round(_LISTS_OF_1000 * (len(self._centroids) / 1000) ** 0.5))
        return int(min(len(self._centroids), max(usual, deep)))

    def cost(self, count: int) -> int:
        """Bytes that the first round trip reads."""
        return sum(read.table.bytes_of(read.pages) for read in self._reads(0, self.first_lists(count)))

    def top(self, count: int) -> Candidates:
        """At least `count` candidates, if there are as many; deleted and changed rows are not among them."""
        done, lists = 0, self.first_lists(count)
        seen: list[set[int]] = [set() for _ in self._tables]
        found, far = _NO_ENTRIES, np.zeros(0, np.int64)
        while True:
            entries, new_far = self._read(self._reads(done, lists), seen)
            found = _Entries.join([found, entries])
            far, done = np.union1d(far, new_far), lists
            positions, scores, depth = self._rank(found, count)
            if done == len(self._centroids) or (len(positions) >= count and depth * _MIN_RATIO <= len(found.row_ids)):
                return Candidates(positions, scores, far)
            deep = int(np.searchsorted(self._sizes, _MIN_RATIO * depth) + 1)
            lists = min(len(self._centroids), max(_GROWTH * lists, deep))

    def _reads(self, done: int, lists: int) -> list[PageRead]:
        """The pages of the lists nearest to the query from number `done` on; with the first also the far list."""
        chosen = self._nearest[done:lists]
        if not done:
            chosen = np.append(chosen, FAR_LIST)
        reads = [PageRead(table, np.flatnonzero(np.isin(page_keys(table), chosen)).tolist()) for table in self._tables]
        return reads if self.index.reader.store.is_local else fill_gaps(reads, _MAX_REQUESTS)

    def _read(self, reads: Sequence[PageRead], seen: Sequence[set[int]]) -> tuple[_Entries, Int64Array]:
        """Read and score pages that are not among the `seen` ones; also the positions of rows of the far list."""
        with self.index.reader.missing_as_corrupt():
            found = read_pages_of(reads)
        scored: list[_Entries] = []
        far = [np.zeros(0, np.int64)]
        for segment, pages in enumerate(found):
            lists = page_keys(reads[segment].table)[np.array(reads[segment].pages, np.int64)].tolist()
            for at, number, page in zip(reads[segment].pages, lists, pages, strict=True):
                if at in seen[segment]:
                    continue
                self._check_page(number, page)
                row_ids = np.asarray(page.column("row_id"), np.int64)
                if number == FAR_LIST:
                    far.append(self.index.positions(segment, row_ids))
                else:
                    scored.append(_Entries(np.full(len(page), segment), row_ids, self._score(number, page)))
            seen[segment].update(reads[segment].pages)
        positions = self._is_allowed(np.concatenate(far))
        entries = _Entries.join(scored)
        if not np.isfinite(entries.scores).all():
            raise self._corrupt("a scale or norm that is no number")
        return entries, positions[positions >= 0]

    def _check_page(self, number: int, page: pa.RecordBatch) -> None:
        """Raise `CorruptError` for a page that cannot be scored."""
        nulls = any(column.null_count for column in page.columns) or page.column("code").values.null_count
        keys = page.column("key")
        if nulls or {keys[0].as_py(), keys[-1].as_py()} != {number} or not FAR_LIST <= number < len(self._centroids):
            raise self._corrupt("no list, or nulls")

    def _corrupt(self, what: str) -> CorruptError:
        return CorruptError(f"a page of index {self.index.name!r} has {what}; drop the index and create it again")

    def _score(self, number: int, page: pa.RecordBatch) -> Float32Array:
        codes = np.asarray(page.column("code").flatten()).reshape(len(page), -1).astype(np.float32)
        scales = np.asarray(page.column("scale"))
        if self.query.metric != "l2":
            found: Float32Array = inner_products(codes, self._vector) * scales + self._products[number]
            return found
        away = self._vector - self._centroids[number]
        squares = away @ away - 2 * scales * inner_products(codes, away) + np.asarray(page.column("norm"))
        distances: Float32Array = np.sqrt(np.maximum(squares, 0))
        return distances.astype(np.float32, copy=False)

    def _rank(self, entries: _Entries, count: int) -> tuple[Int64Array, Float32Array, int]:
        """The best allowed rows, their scores, and how many entries are as good or better than the last one wanted."""
        total, take = len(entries.row_ids), 4 * count + 2 * _MARGIN
        if self.allowed is not None:
            take = int(take * self.index.reader.snapshot.live / max(1, len(self.allowed)))
        positions = np.zeros(0, np.int64)
        while True:
            order = best(entries.scores, take, higher_is_better=self.query.higher_is_better)
            positions = self._positions(entries, order)
            good = np.flatnonzero(positions >= 0)
            good = good[np.sort(np.unique(positions[good], return_index=True)[1])]
            if len(good) >= 2 * count + _MARGIN or take >= total:
                break
            take *= 4
        depth = int(good[count - 1]) + 1 if count and len(good) >= count else total
        return positions[good], entries.scores[order[good]], depth

    def _positions(self, entries: _Entries, chosen: Int64Array) -> Int64Array:
        """Positions of entries; -1 for those that are not valid or not allowed."""
        positions = np.full(len(chosen), -1, np.int64)
        for segment in range(len(self.index.segments)):
            mine = np.flatnonzero(entries.segments[chosen] == segment)
            if len(mine):
                positions[mine] = self.index.positions(segment, entries.row_ids[chosen[mine]])
        return self._is_allowed(positions)

    def _is_allowed(self, positions: Int64Array) -> Int64Array:
        """Positions, with -1 for those that are not allowed."""
        if self.allowed is None or not len(positions):
            return positions
        at = np.searchsorted(self.allowed, positions)
        at[at == len(self.allowed)] = 0
        found = self.allowed[at] == positions if len(self.allowed) else np.zeros(len(positions), bool)
        return np.where(found, positions, -1)


def page_keys(table: PagedTable) -> Int64Array:
    """The list of each page."""
    return np.asarray(table.keys.combine_chunks(), np.int64)


def fill_gaps(reads: Sequence[PageRead], max_runs: int) -> list[PageRead]:
    """Add the pages in the smallest gaps, so that all are in at most `max_runs` runs if that is possible."""
    gaps = []
    for read in reads:
        for before, after in zip(read.pages, read.pages[1:], strict=False):
            if after > before + 1:
                gaps.append((read.table.bytes_of(range(before + 1, after)), id(read.table), before, after))
    runs = len(gaps) + sum(bool(read.pages) for read in reads)
    filled = sorted(gaps)[: max(0, runs - max_runs)]
    found = []
    for read in reads:
        extra = chain.from_iterable(range(b + 1, a) for _, table, b, a in filled if table == id(read.table))
        found.append(PageRead(read.table, sorted({*read.pages, *extra})))
    return found
