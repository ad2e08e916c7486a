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
    one_batch,
    position_steps,
    with_positions,
)
from penstock.query.search._bm25 import Part, Statistics
from penstock.query.search._phrases import match_query, query_words
from penstock.query.search._text_cache import SegmentCache, segment_cache
from penstock.storage import thread_map
from penstock.table import Int64Array


@dataclass(frozen=True)
class SegmentMatches:
    """What a query finds in a segment of an index, by row id."""

    segment: int
    postings: list[Postings]
    """One for each word, then for each phrase."""
    statistics: Statistics
    """Of the rows that the segment answers."""
    words: tuple[str, ...]
    cache: SegmentCache

    def parts(self, weights: Sequence[float], mean_length: float) -> list[Part]:
        """What words and phrases add to scores; that of words is remembered."""
        found = []
        for number, (postings, weight) in enumerate(zip(self.postings, weights, strict=True)):
            word = self.words[number] if number < len(self.words) and len(postings.rows) else None
            part = None if word is None else self.cache.part(word, weight, mean_length)
            if part is None:
                part = Part(postings, weight, mean_length)
                if word is not None:
                    self.cache.add(word, part)
            found.append(part)
        return found


class _Pages(NamedTuple):
    """Pages that were read."""

    read: PageRead
    batches: Sequence[pa.RecordBatch]

    def of(self, word: str) -> list[pa.RecordBatch]:
        """Those that may have entries of a word."""
        wanted = self.read.table.pages_between(word, word)
        return [batch for page, batch in zip(self.read.pages, self.batches, strict=True) if page in wanted]


class _Plan(NamedTuple):
    """What is known of a segment, and what to read of it."""

    cache: SegmentCache
    stale: Int64Array
    """Ascending ids of rows that it does not answer any more."""
    known: dict[str, Postings]
    missing: Mapping[str, bool]
    """Words to read, and whether with positions."""
    reads: tuple[PageRead, PageRead, PageRead]
    """Postings, positions, and the lengths of the stale rows."""


def match_index(index: OpenIndex, query: Query) -> list[SegmentMatches]:
    """The matches of a query in each segment of an index; rows that it does not answer are left out."""
    words, where = query_words(query), f"index {index.name!r}"
    plans = _plans(index, words)
    found = read_pages_of([read for plan in plans for read in plan.reads])
    matches = []
    for number, plan in enumerate(plans):
        postings, positions, lengths = found[3 * number : 3 * number + 3]
        for word, in_phrase in plan.missing.items():
            read = _postings_of(
                word, _Pages(plan.reads[0], postings), _Pages(plan.reads[1], positions) if in_phrase else None, where
            )
            plan.known[word] = _without(read, plan.stale)
            plan.cache.add(word, plan.known[word])
        statistics = plan.cache.statistics
        if statistics is None:
            statistics = _statistics(index.segments[number].totals, plan.stale, lengths, where)
            plan.cache.statistics = statistics
        matched = match_query(query, plan.known)
        matches.append(SegmentMatches(number, matched, statistics, query.words, plan.cache))
    return matches


def pages_of_query(index: OpenIndex, query: Query) -> list[PageRead]:
    """The pages that `match_index` reads."""
    return [read for plan in _plans(index, query_words(query)) for read in plan.reads if read.pages]


def _plans(index: OpenIndex, words: Mapping[str, bool]) -> list[_Plan]:
    if len(index.segments) > 1:
        thread_map(lambda segment: segment.tables["postings"].directory, index.segments, max_workers=8)
    return [_plan(segment, index.stale(number), words) for number, segment in enumerate(index.segments)]


def _plan(segment: Segment, stale: Int64Array, words: Mapping[str, bool]) -> _Plan:
    cache = segment_cache(segment, stale)
    cached = {word: cache.postings(word, with_positions=in_phrase) for word, in_phrase in words.items()}
    known = {word: part for word, part in cached.items() if part is not None}
    missing = {word: in_phrase for word, in_phrase in words.items() if word not in known}
    reads = (
        _pages_of_words(segment.tables["postings"], list(missing)),
        _pages_of_words(segment.tables["positions"], [word for word, in_phrase in missing.items() if in_phrase]),
        _pages_of_rows(segment.tables["lengths"], stale if cache.statistics is None else stale[:0]),
    )
    return _Plan(cache, stale, known, missing, reads)


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


def _postings_of(word: str, postings: "_Pages", positions: "_Pages | None", where: str) -> Postings:
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
    # copies, because views would keep whole pages in memory
    return join_postings([found._replace(counts=found.counts.copy(), lengths=found.lengths.copy())])


def _entries_of(word: str, pages: "_Pages", where: str) -> pa.RecordBatch | None:
    found = []
    for batch in pages.of(word):
        places = np.flatnonzero(pc.equal(batch.column(KEY), word))
        if len(places):
            if places[-1] - places[0] + 1 != len(places):
                raise CorruptError(f"{where}: a page is not sorted; create it again")
            found.append(batch.slice(places[0], len(places)))
    return one_batch(found) if found else None


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
    return join_postings([decode_blocks(one_batch(batches), where)[1]])
