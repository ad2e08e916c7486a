"""What was read of a text index, for the next queries: the postings of words and what they add to scores."""

import hashlib
from collections import OrderedDict
from threading import Lock
from weakref import WeakKeyDictionary

from penstock.query.indexes import Segment
from penstock.query.indexes.text import Postings
from penstock.query.search._bm25 import Part, Statistics
from penstock.table import Int64Array

_MAX_BYTES = 128 << 20
_MAX_STATES = 2
"""Caches of a segment: one for each set of rows that versions do not have any more."""


class SegmentCache:
    """The last used words of a segment, up to a number of bytes."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self.statistics: Statistics | None = None
        """Of the rows that the segment answers; None if not known."""
        self._max_bytes, self._bytes = max_bytes, 0
        self._sizes: dict[str, int] = {}
        self._words: OrderedDict[str, Postings | Part] = OrderedDict()
        self._lock = Lock()

    def postings(self, word: str, *, with_positions: bool) -> Postings | None:
        """The postings of a word; None if they are not known."""
        with self._lock:
            found = self._words.get(word)
            postings = found.postings if isinstance(found, Part) else found
            if postings is None or (with_positions and postings.positions is None):
                return None
            self._words.move_to_end(word)
            return postings

    def add(self, word: str, found: Postings | Part) -> None:
        """Remember a word, and forget those that were not used for longest."""
        size = _size(found)
        with self._lock:
            self._forget(word)
            self._words[word], self._sizes[word] = found, size
            self._bytes += size
            while self._bytes > self._max_bytes:
                self._forget(next(iter(self._words)))

    def part(self, word: str, weight: float, mean_length: float) -> Part | None:
        """What a word adds to scores with these weights; None if it is not known."""
        with self._lock:
            found = self._words.get(word)
        is_same = isinstance(found, Part) and (found.weight, found.mean_length) == (weight, mean_length)
        return found if is_same else None  # type: ignore[return-value]

    def _forget(self, word: str) -> None:
        if self._words.pop(word, None) is not None:
            self._bytes -= self._sizes.pop(word)


_caches: "WeakKeyDictionary[Segment, OrderedDict[bytes, SegmentCache]]" = WeakKeyDictionary()
_lock = Lock()


def segment_cache(segment: Segment, stale: Int64Array) -> SegmentCache:
    """The cache of a segment without some rows."""
    key = hashlib.blake2b(stale.tobytes(), digest_size=16).digest()
    with _lock:
        known = _caches.setdefault(segment, OrderedDict())
        found = known.setdefault(key, SegmentCache())
        known.move_to_end(key)
        if len(known) > _MAX_STATES:
            known.popitem(last=False)
        return found


def _size(found: Postings | Part) -> int:
    postings = found.postings if isinstance(found, Part) else found
    size = sum(array.nbytes for array in postings if array is not None) + 512
    return size + found.dense_bytes if isinstance(found, Part) else size
