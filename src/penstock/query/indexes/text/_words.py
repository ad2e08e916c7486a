"""Words of texts: the same for documents and queries, computed for many documents at once.

A word is a run of letters, numbers, marks and underscores after Unicode normalisation (NFKC: full-width and ligature
forms are folded, accents are kept) and lower case. Chinese, Japanese and Korean are written without spaces between
words, or with endings attached: their runs give each pair of adjacent characters, a lone character gives itself.
"""

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInputError
from penstock.table import Int64Array

MAX_WORD = 64
"""Characters of a word that count; the rest is dropped, so that a page of base64 makes no page of index."""

_BREAK, _WORD, _CJK, _MARK = 1, 2, 3, 4
_CJK_RANGES = (
    (0x1100, 0x11FF), (0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3021, 0x3029), (0x3031, 0x303C), (0x3041, 0x30FF),
    (0x3105, 0x31BF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA960, 0xA97F), (0xAC00, 0xD7FF),
    (0xF900, 0xFAFF), (0xFF66, 0xFFDC), (0x1AFF0, 0x1B16F), (0x20000, 0x3FFFF),
)  # fmt: skip
"""Letters in these ranges are Han, kana, bopomofo or hangul."""


class Tokens(NamedTuple):
    """The words of some documents, in order."""

    vocabulary: pa.Array
    """The distinct words, in any order."""
    codes: npt.NDArray[np.int32]
    """The word of each token, as an index into the vocabulary."""
    offsets: Int64Array
    """Document i has the tokens `offsets[i]` to `offsets[i + 1]`; a null has none."""


class Query(NamedTuple):
    """What a text asks for; each word and each phrase once."""

    words: tuple[str, ...]
    phrases: tuple[tuple[str, ...], ...]
    """Words that follow each other; at least two each."""


@dataclass(frozen=True)
class Tokenizer:
    """Splits texts into words."""

    stem: str | None = None
    """The language by whose rules words are reduced to stems, such as "english"; None for words as written."""

    def __post_init__(self) -> None:
        if self.stem is not None:
            _stemmer(self.stem)

    def tokens(self, texts: pa.Array) -> Tokens:
        """The words of each text."""
        lowered = pc.utf8_lower(pc.utf8_normalize(texts.cast(pa.large_string()), form="NFKC"))
        spans, data = _token_spans(lowered)
        encoded = _strings(data, spans).dictionary_encode()
        vocabulary, codes = encoded.dictionary, np.asarray(encoded.indices)
        if self.stem is not None:
            stems = pa.array(_stemmer(self.stem)(vocabulary.to_pylist()), pa.large_string()).dictionary_encode()
            vocabulary, codes = stems.dictionary, np.asarray(stems.indices)[codes]
        return Tokens(vocabulary, codes, spans.offsets)

    @lru_cache(maxsize=64)  # noqa: B019 - a tokenizer is a small value
    def query(self, text: str) -> Query:
        """The words and the phrases, in double quotes, of a query; a quote that is not closed is ignored."""
        parts = text.split('"')
        quoted = [number % 2 == 1 and number < len(parts) - 1 for number in range(len(parts))]
        found = self.tokens(pa.array(parts))
        words = np.asarray(found.vocabulary.to_pylist(), object)[found.codes].tolist() if len(found.codes) else []
        split = [tuple(words[start:end]) for start, end in zip(found.offsets, found.offsets[1:], strict=False)]
        phrases = [part for part, inside in zip(split, quoted, strict=True) if inside and len(part) > 1]
        plain = [
            word for part, inside in zip(split, quoted, strict=True) if not inside or len(part) < 2 for word in part
        ]
        return Query(tuple(dict.fromkeys(plain)), tuple(dict.fromkeys(phrases)))


class _Spans(NamedTuple):
    """Tokens as ranges of bytes."""

    starts: Int64Array
    ends: Int64Array
    offsets: Int64Array
    """As in `Tokens`."""
    mask: npt.NDArray[np.bool_] | None
    """The bytes that are in a token, if each is in one at most."""


def _token_spans(texts: pa.Array) -> tuple[_Spans, npt.NDArray[np.uint8]]:
    """The tokens of a large string array, and its bytes."""
    ends = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    size = int(ends[-1] - ends[0])
    data = np.frombuffer(texts.buffers()[2], np.uint8, size, int(ends[0])) if size else np.zeros(0, np.uint8)
    ends = ends - ends[0]
    if not size:
        return _Spans(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(len(ends), np.int64), None), data
    points, point_bytes = data, None
    if data.max() >= 0x80:
        points = np.frombuffer(data.tobytes().decode().encode("utf-32-le"), np.uint32)
        widths = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000).astype(np.int64)
        point_bytes = np.concatenate([np.zeros(1, np.int64), np.cumsum(widths)])
        ends = np.searchsorted(point_bytes, ends)
    is_first = np.zeros(len(points), bool)
    is_first[ends[:-1][ends[:-1] < len(points)]] = True
    starts, stops, mask = _word_spans(_classes(points), is_first)
    offsets = np.searchsorted(starts, ends)
    if point_bytes is not None:
        starts, stops = point_bytes[starts], point_bytes[stops]
        mask = None if mask is None else np.repeat(mask, np.diff(point_bytes))
    return _Spans(starts, stops, offsets, mask), data


def _word_spans(
    classes: npt.NDArray[np.uint8], is_first: npt.NDArray[np.bool_]
) -> tuple[Int64Array, Int64Array, npt.NDArray[np.bool_] | None]:
    """First and end point of each token, and the points in tokens unless some are in two or in none by length."""
    has_cjk = bool((classes == _CJK).any())
    if has_cjk:
        # a mark belongs to the character before it
        is_base = (classes != _MARK) | is_first
        base = np.maximum.accumulate(np.where(is_base, np.arange(len(classes)), 0))
        kinds = classes[base]
        kinds[(kinds == _MARK) | ((classes == _MARK) & (kinds == _BREAK))] = _WORD
    else:
        kinds = classes
    in_word = kinds == _WORD if has_cjk else kinds != _BREAK
    changes = np.empty(len(kinds), bool)
    changes[0] = True
    np.not_equal(in_word[1:], in_word[:-1], out=changes[1:])
    changes |= is_first
    bounds = np.append(np.flatnonzero(changes), len(kinds))
    keep = in_word[bounds[:-1]]
    starts, ends = bounds[:-1][keep], bounds[1:][keep]
    is_long = bool((ends - starts > MAX_WORD).any())
    ends = np.minimum(ends, starts + MAX_WORD)
    if has_cjk:
        pair_starts, pair_ends = _pair_spans(classes, kinds, is_first)
        order = np.argsort(np.concatenate([starts, pair_starts]), kind="stable")
        starts = np.concatenate([starts, pair_starts])[order]
        ends = np.concatenate([ends, pair_ends])[order]
    return starts, ends, None if has_cjk or is_long else in_word


def _pair_spans(
    classes: npt.NDArray[np.uint8], kinds: npt.NDArray[np.uint8], is_first: npt.NDArray[np.bool_]
) -> tuple[Int64Array, Int64Array]:
    """Spans of adjacent pairs of CJK characters, each with its marks, and of characters without a neighbour."""
    is_unit = classes == _CJK
    units = np.flatnonzero(is_unit)
    bounds = np.append(np.flatnonzero(is_unit | (kinds != _CJK) | is_first), len(kinds))
    ends = bounds[np.searchsorted(bounds, units, side="right")]
    has_next = np.zeros(len(units), bool)
    has_next[:-1] = (ends[:-1] == units[1:]) & ~is_first[units[1:]]
    has_previous = np.zeros(len(units), bool)
    has_previous[1:] = has_next[:-1]
    last = np.where(has_next, np.append(ends[1:], 0), ends)
    keep = has_next | ~has_previous
    return units[keep], np.minimum(last, units + MAX_WORD)[keep]


_class_table = np.zeros(0x110000, np.uint8)
"""The class of each code point; 0 while it is not known."""


def _classes(points: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    found: npt.NDArray[np.uint8] = _class_table[points]
    if not found.all():
        for point in np.unique(points[found == 0]).tolist():
            _class_table[point] = _class_of(point)
        found = _class_table[points]
    return found


def _class_of(point: int) -> int:
    category = unicodedata.category(chr(point))
    if category[0] == "M":
        return _MARK
    if category[0] == "L" or category == "Nl":
        return _CJK if any(low <= point <= high for low, high in _CJK_RANGES) else _WORD
    return _WORD if category[0] == "N" or point == ord("_") else _BREAK


def _strings(data: npt.NDArray[np.uint8], spans: _Spans) -> pa.Array:
    lengths = spans.ends - spans.starts
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    if spans.mask is not None:
        chosen = data[spans.mask]
    else:
        chosen = data[np.repeat(spans.starts - offsets[:-1], lengths) + np.arange(offsets[-1])]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(chosen)]
    return pa.LargeStringArray.from_buffers(len(lengths), *buffers[1:])


_MAX_STEMS = 1 << 20


@lru_cache(maxsize=8)
def _stemmer(language: str) -> Callable[[list[str]], list[str]]:
    """Gives the stems of words; stems that were computed before are remembered."""
    try:
        import snowballstemmer  # type: ignore[import-untyped]
    except ImportError as error:
        raise InvalidInputError(
            f"stem={language!r} needs the package snowballstemmer: pip install 'penstock[query]'"
        ) from error
    known = snowballstemmer.algorithms()
    if language not in known:
        raise InvalidInputError(f"there is no stemmer for {language!r}; choose one of {', '.join(sorted(known))}")
    stemmer, stems, lock = snowballstemmer.stemmer(language), dict[str, str](), Lock()

    def stem(words: list[str]) -> list[str]:
        with lock:  # the stemmer has state, and is slow: each word once
            if len(stems) > _MAX_STEMS:
                stems.clear()
            for word in words:
                if word not in stems:
                    stems[word] = stemmer.stemWord(word)
            return [stems[word] for word in words]

    return stem
