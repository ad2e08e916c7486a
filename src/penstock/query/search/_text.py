"""Text relevance of rows: BM25 over the words and phrases of a query, exact with and without an index."""

from functools import cached_property
from typing import NamedTuple

import numpy as np

from penstock.errors import InvalidInputError
from penstock.format import Field
from penstock.query.indexes import OpenIndex, open_index
from penstock.query.indexes.text import TextKind, Tokenizer, check_text
from penstock.query.search._bm25 import RowScores, Statistics, idf
from penstock.query.search._scores import Float32Array, Ranked, SearchPlan, column_bytes
from penstock.query.search._text_index import SegmentMatches, has_value, match_index, pages_of_query
from penstock.query.search._text_scan import Matches, scan_text
from penstock.table import Int64Array, Reader

_NONE = np.zeros(0, np.int64)
_MAX_PARTS = 1024


class _Source(NamedTuple):
    """The scores of rows that are searched in one way."""

    scores: RowScores
    segment: int | None
    """Of the index, whose scores are by row id; None for rows that were read, by position."""


class TextScores:
    """How well the texts of a column match a query, by BM25 with k1 = 1.2 and b = 0.75.

    Words of the query count once each, however often they are repeated. Words in double quotes are a phrase, which
    counts as one word of its own: only rows that have the words one after the other have it. A row with none of the
    words and phrases has the score 0 and is not among the best.

    The number of rows, the rows with a word and the mean length are those of all rows of the version with a value, so
    an index changes no score. Without one, the column is read; rows that an index lacks are read as well. Words are
    split as the index splits them; `tokenizer` searches without the index, by its words.

    Raises `InvalidInputError` if the column holds no text, or for a query of very many words.
    """

    higher_is_better = True
    deep_is_cheap = True

    def __init__(self, reader: Reader, field: Field, text: str, *, tokenizer: Tokenizer | None = None) -> None:
        check_text(field)
        self._reader, self._field = reader, field
        self._index: OpenIndex | None = open_index(reader, field, "text") if tokenizer is None else None
        if self._index is not None:
            assert isinstance(self._index.kind, TextKind)
            tokenizer = self._index.kind.tokenizer
        self._tokenizer = tokenizer or Tokenizer()
        self._query = self._tokenizer.query(text)
        parts = len(self._query.words) + len(self._query.phrases)
        if parts > _MAX_PARTS:
            raise InvalidInputError(f"a text query has {parts:,} words and phrases; {_MAX_PARTS:,} are the most")

    def plan(self, count: int) -> SearchPlan:  # noqa: ARG002
        """What a search reads; pages of words that were searched before are remembered."""
        rows = column_bytes(self._reader, self._field, self._unindexed)
        if self._index is None:
            return SearchPlan(None, rows)
        pages = sum(read.table.bytes_of(read.pages) for read in pages_of_query(self._index, self._query))
        return SearchPlan(self._index.name, pages + rows)

    @property
    def _unindexed(self) -> Int64Array:
        """Ascending positions of rows whose text is read, because no index answers them."""
        return np.arange(self._reader.snapshot.live) if self._index is None else self._index.uncovered

    def at(self, positions: Int64Array) -> Float32Array:
        """The scores of rows at ascending positions; NaN for a row without a value."""
        found = np.zeros(len(positions), np.float32)
        row_ids = _NONE if self._index is None else self._reader.row_ids(positions)
        for source in self._sources:
            found += source.scores.at(positions if source.segment is None else row_ids)
        found[np.isin(positions, self._scanned.nulls)] = np.nan
        if self._index is not None and any(segment.totals.get("nulls") for segment in self._index.segments):
            unknown = np.flatnonzero((found == 0) & ~np.isin(positions, self._index.uncovered))
            found[unknown[~has_value(self._index, row_ids[unknown])]] = np.nan
        return found

    def top(self, count: int, *, allowed: Int64Array | None, exact: bool) -> Ranked:  # noqa: ARG002
        """The best rows that match, among the `allowed` ones; always with exact scores."""
        positions, scores = [_NONE], [np.zeros(0, np.float32)]
        allowed_ids = None
        if allowed is not None and self._index is not None:
            allowed_ids = np.sort(self._reader.row_ids(allowed))
        for source in self._sources:
            if source.segment is None:
                rows, found = source.scores.best(count, allowed)
            else:
                assert self._index is not None
                row_ids, found = source.scores.best(count, allowed_ids)
                rows = self._index.positions(source.segment, row_ids)
                rows, found = rows[rows >= 0], found[rows >= 0]
            positions.append(rows)
            scores.append(found)
        every, all_scores = np.concatenate(positions), np.concatenate(scores)
        order = np.lexsort((every, -all_scores))[: max(0, count)]
        return Ranked(every[order], all_scores[order])

    @cached_property
    def _scanned(self) -> Matches:
        """What is found by reading the rows that no index answers."""
        return scan_text(self._reader, self._field, self._unindexed, self._tokenizer, self._query)

    @cached_property
    def _sources(self) -> list[_Source]:
        """The scores of all matching rows; weights of words are known when all sources have been searched."""
        indexed = [] if self._index is None else match_index(self._index, self._query)
        matches: list[Matches | SegmentMatches] = [self._scanned, *indexed]
        statistics = sum((found.statistics for found in matches), Statistics(0, 0))
        by_part = zip(*(found.postings for found in matches), strict=True)
        counts = [sum(len(found.rows) for found in part) for part in by_part]
        if not any(counts):
            return []
        weights = [idf(count, statistics.rows) for count in counts]
        mean = statistics.mean_length
        return [_Source(RowScores(found.parts(weights, mean)), found.segment) for found in matches]
