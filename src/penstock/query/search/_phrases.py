"""Rows that have the words and phrases of a query, from the rows that have each word."""

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from penstock.query.indexes.text import NO_POSTINGS, Postings, Query, run_starts
from penstock.table import Int64Array


def query_words(query: Query) -> dict[str, bool]:
    """All words of a query, and whether a phrase needs their positions."""
    found = dict.fromkeys(query.words, False)
    return found | dict.fromkeys((word for phrase in query.phrases for word in phrase), True)


def match_query(query: Query, postings: Mapping[str, Postings]) -> list[Postings]:
    """The rows with each word, then with each phrase, of a query; words of phrases come with positions."""
    words = [postings.get(word, NO_POSTINGS)._replace(positions=None) for word in query.words]
    phrases = [match_phrase([postings.get(word, NO_POSTINGS) for word in phrase]) for phrase in query.phrases]
    return words + phrases


def match_phrase(words: Sequence[Postings]) -> Postings:
    """The rows in which words follow each other, and how often they do."""
    rows = reduce(_in_both, (word.rows for word in words))
    if not len(rows):
        return NO_POSTINGS._replace(positions=None)
    starts = reduce(_in_both, (_phrase_starts(word, rows, offset) for offset, word in enumerate(words)))
    counts = np.bincount(starts >> 32, minlength=len(rows))
    lengths = words[0].lengths[np.searchsorted(words[0].rows, rows)]
    found = counts > 0
    return Postings(rows[found], counts[found], lengths[found])


def _in_both(left: Int64Array, right: Int64Array) -> Int64Array:
    """The numbers that two ascending arrays without repeats have in common."""
    both = np.concatenate([left, right])
    both.sort(kind="stable")  # two ascending runs are merged in one pass
    common: Int64Array = both[:-1][both[1:] == both[:-1]]
    return common


def _phrase_starts(word: Postings, rows: Int64Array, offset: int) -> Int64Array:
    """Where a phrase would begin, by the places of its word number `offset`, as row index << 32 | position."""
    assert word.positions is not None
    indices = np.searchsorted(word.rows, rows)
    counts = word.counts[indices]
    starts = run_starts(word.counts)[indices]
    ends = run_starts(counts)
    places = np.repeat(starts - ends[:-1], counts) + np.arange(ends[-1])
    positions = word.positions[places] - offset
    keys = (np.repeat(np.arange(len(rows)), counts) << 32) | np.maximum(positions, 0)
    found: Int64Array = keys[positions >= 0]
    return found
