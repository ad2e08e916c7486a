"""The words of a query in a text index: one round trip after its directories."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import CorruptError
from penstock.query.indexes import KEY, OpenIndex, PagedTable, PageRead, Segment, read_pages_of
from penstock.query.indexes.text import (
    MAX_BLOCK,
    Postings,
    Query,
    decode_blocks,
    join_postings,
    position_steps,
    with_positions,
)
from penstock.query.search._bm25 import Statistics
from penstock.query.search._phrases import match_query, query_words
from penstock.storage import thread_map
from penstock.table import Int64Array


@dataclass(frozen=True)
class SegmentMatches:
    """What a query finds in a segment of an index, by row id."""

    segment: int
    parts: list[Postings]
    """One for each word, then for each phrase."""
    statistics: Statistics
    """Of the rows that the segment answers."""


class _Plan(NamedTuple):
    """The pages of a segment to read."""

    postings: PageRead
    positions: PageRead
    """Of the words of phrases."""
    lengths: PageRead
    """Of rows that the segment does not answer any more."""

    @classmethod
    def of_segment(cls, segment: Segment, stale: Int64Array, words: Mapping[str, bool]) -> "_Plan":
        return cls(
            _pages_of_words(segment.tables["postings"], list(words)),
            _pages_of_words(segment.tables["positions"], [word for word, in_phrase in words.items() if in_phrase]),
            _pages_of_rows(segment.tables["lengths"], stale),
        )


def match_index(index: OpenIndex, query: Query) -> list[SegmentMatches]:
    """The matches of a query in each segment of an index; rows that it does not answer are left out."""
    words = query_words(query)
    thread_map(lambda segment: segment.tables["postings"].directory, index.segments, max_workers=8)
    stale = [index.stale(number) for number in range(len(index.segments))]
    plans = [_Plan.of_segment(*each, words) for each in zip(index.segments, stale, strict=True)]
    found = read_pages_of([read for plan in plans for read in plan])
    where = f"index {index.name!r}"
    matches = []
    for number, segment in enumerate(index.segments):
        postings, positions, lengths = found[3 * number : 3 * number + 3]
        by_word = {
            word: _without(_postings_of(word, postings, positions if in_phrase else None, where), stale[number])
            for word, in_phrase in words.items()
        }
        statistics = _statistics(segment.totals, stale[number], lengths, where)
        matches.append(SegmentMatches(number, match_query(query, by_word), statistics))
    return matches


def has_value(index: OpenIndex, row_ids: Int64Array) -> npt.NDArray[np.bool_]:
    """Which of some rows have a text, of those that the index answers."""
    found = np.zeros(len(row_ids), bool)
    reads = [_pages_of_rows(segment.tables["lengths"], np.sort(row_ids)) for segment in index.segments]
    for number, batches in enumerate(read_pages_of(reads)):
        known = _row_lengths(batches, f"index {index.name!r}")
        found |= np.isin(row_ids, _without(known, index.stale(number)).rows)
    return found


def _pages_of_words(table: PagedTable, words: Sequence[str]) -> PageRead:
    return PageRead(table, sorted({page for word in words for page in table.pages_between(word, word)}))


def _pages_of_rows(table: PagedTable, row_ids: Int64Array) -> PageRead:
    """The pages with the lengths of rows with ascending ids."""
    if not len(row_ids):
        return PageRead(table, [])
    blocks = row_ids // MAX_BLOCK
    first, last = (np.asarray(table.directory[name]) for name in (KEY, "last"))
    kept = np.searchsorted(blocks, first) < np.searchsorted(blocks, last, side="right")
    return PageRead(table, np.flatnonzero(kept).tolist())


def _postings_of(
    word: str, postings: Sequence[pa.RecordBatch], positions: Sequence[pa.RecordBatch] | None, where: str
) -> Postings:
    """The postings of a word; with positions if their pages are given."""
    entries = _entries_of(word, postings, where)
    if entries is None:
        return join_postings([])
    found = decode_blocks(entries, where)[1]
    if positions is not None:
        steps = _entries_of(word, positions, where)
        found = with_positions(
            found, np.zeros(0, np.uint8) if steps is None else position_steps(steps, where)[1], where
        )
    return join_postings([found])


def _entries_of(word: str, batches: Sequence[pa.RecordBatch], where: str) -> pa.Table | None:
    found = []
    for batch in batches:
        places = np.flatnonzero(pc.equal(batch.column(KEY), word))
        if len(places):
            if places[-1] - places[0] + 1 != len(places):
                raise CorruptError(f"{where}: a page is not sorted; create it again")
            found.append(batch.slice(places[0], len(places)))
    return pa.Table.from_batches(found) if found else None


def _without(postings: Postings, row_ids: Int64Array) -> Postings:
    """Postings without those of some rows, given in ascending order."""
    if not len(row_ids) or not len(postings.rows):
        return postings
    indices = np.searchsorted(postings.rows, row_ids)
    hits = indices[postings.rows[np.minimum(indices, len(postings.rows) - 1)] == row_ids]
    if not len(hits):
        return postings
    keep = np.ones(len(postings.rows), bool)
    keep[hits] = False
    return postings.kept(keep)


def _statistics(
    totals: Mapping[str, int], stale: Int64Array, lengths: Sequence[pa.RecordBatch], where: str
) -> Statistics:
    """Those of the rows that a segment answers."""
    known = _row_lengths(lengths, where)
    gone = known.kept(np.isin(known.rows, stale))
    length = int(gone.lengths.sum()) - len(gone.rows)
    return Statistics(totals.get("rows", 0) - len(gone.rows), totals.get("length", 0) - length)


def _row_lengths(batches: Sequence[pa.RecordBatch], where: str) -> Postings:
    """Rows with a value; lengths are one more than they are."""
    if not batches:
        return join_postings([])
    return join_postings([decode_blocks(pa.Table.from_batches(batches), where)[1]])
