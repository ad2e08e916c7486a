"""The words of a query in the texts of some rows, found by reading them."""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.format import Field
from penstock.history import Tree
from penstock.query.indexes.text import Postings, Query, Tokenizer, Tokens, join_postings
from penstock.query.search._bm25 import Part, Statistics
from penstock.query.search._phrases import match_query, query_words
from penstock.storage import Prefetch, read_ahead
from penstock.table import Int64Array, Reader

_READ_BYTES = 8 << 20
_MAX_READ_ROWS = 1 << 16
_PREFETCH = Prefetch(2, max_bytes=4 * _READ_BYTES)
_MAX_CACHED = 4


class Matches(NamedTuple):
    """Rows that have the words and phrases of a query, and statistics of all rows."""

    postings: list[Postings]
    """One for each word, then for each phrase."""
    statistics: Statistics
    nulls: Int64Array
    """Ascending positions of rows without a value."""
    segment: None = None

    def parts(self, weights: Sequence[float], mean_length: float) -> list[Part]:
        """What words and phrases add to scores."""
        return [Part(found, weight, mean_length) for found, weight in zip(self.postings, weights, strict=True)]


_caches: "WeakKeyDictionary[Tree, OrderedDict[bytes, Matches]]" = WeakKeyDictionary()
_lock = Lock()


def scan_text(reader: Reader, field: Field, positions: Int64Array, tokenizer: Tokenizer, query: Query) -> Matches:
    """The matches among the rows at ascending positions; those of the last few queries are remembered."""
    if not len(positions):
        return _scan(reader, field, positions, tokenizer, query)
    digest = hashlib.blake2b(repr((reader.snapshot.nodes, field.id, tokenizer, query)).encode())
    digest.update(np.ascontiguousarray(positions).data)
    key = digest.digest()
    with _lock:
        cache = _caches.setdefault(reader.tree, OrderedDict())
        if key in cache:
            cache.move_to_end(key)
            return cache[key]
    found = _scan(reader, field, positions, tokenizer, query)
    with _lock:
        cache[key] = found
        if len(cache) > _MAX_CACHED:
            cache.popitem(last=False)
    return found


def _scan(reader: Reader, field: Field, positions: Int64Array, tokenizer: Tokenizer, query: Query) -> Matches:
    words = query_words(query)
    parts: list[list[Postings]] = [[] for _ in range(len(query.words) + len(query.phrases))]
    statistics, nulls = Statistics(0, 0), [np.zeros(0, np.int64)]
    for rows, texts in _text_chunks(reader, field, positions):
        valid = np.asarray(texts.is_valid())
        tokens = tokenizer.tokens(texts)
        statistics += Statistics(int(valid.sum()), len(tokens.codes))
        nulls.append(rows[~valid])
        for part, found in zip(parts, match_query(query, _postings_of(tokens, rows, tuple(words))), strict=True):
            part.append(found)
    return Matches([join_postings(part) for part in parts], statistics, np.concatenate(nulls))


def _text_chunks(reader: Reader, field: Field, positions: Int64Array) -> Iterator[tuple[Int64Array, pa.Array]]:
    """Positions and texts of some rows, in order, with bounded read-ahead."""
    count = min(_MAX_READ_ROWS, max(1, _READ_BYTES // _row_bytes(reader, field)))
    groups = [positions[start : start + count] for start in range(0, len(positions), count)]

    def read(group: Int64Array) -> tuple[Int64Array, pa.Array]:
        return group, reader.arrow([field.name], group)[field.name].combine_chunks()

    return read_ahead(read, groups, prefetch=_PREFETCH, size=lambda _: _READ_BYTES)


def _row_bytes(reader: Reader, field: Field) -> int:
    """Approximate bytes of a text, by the first fragment that has some."""
    for fragment in reader.tree.fragments(reader.snapshot.nodes):
        if files := fragment.files_of(field.id):
            return max(1, sum(file.length for file in files) // max(1, fragment.rows))
    return 1


def _postings_of(tokens: Tokens, rows: Int64Array, words: Sequence[str]) -> dict[str, Postings]:
    """The postings of some words, with positions."""
    slots = pc.fill_null(pc.index_in(tokens.vocabulary, value_set=pa.array(words, pa.large_string())), -1)
    token_slots = np.asarray(slots)[tokens.codes]
    lengths = np.diff(tokens.offsets)
    found = {}
    for slot, word in enumerate(words):
        places = np.flatnonzero(token_slots == slot)
        documents = np.searchsorted(tokens.offsets, places, side="right") - 1
        starts = np.flatnonzero(np.diff(documents, prepend=-1))
        chosen = documents[starts]
        counts = np.diff(np.append(starts, len(places)))
        found[word] = Postings(rows[chosen], counts, lengths[chosen], places - tokens.offsets[documents])
    return found
