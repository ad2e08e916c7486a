"""BM25 and the words of texts, written plainly, one row at a time."""

import unicodedata
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import log, nan

import snowballstemmer  # type: ignore[import-untyped]


def is_cjk(char: str) -> bool:
    scripts = ("CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "BOPOMOFO", "HANGUL")
    return any(name in unicodedata.name(char, "") for name in scripts)


def words_of(text: str, stem: Callable[[str], str] = str) -> list[str]:
    """The words of a text, by the rules in the documentation."""
    runs: list[list[str]] = [[]]  # of characters, each with its marks
    kinds: list[str] = [""]
    for char in unicodedata.normalize("NFKC", text).lower():
        category = unicodedata.category(char)[0]
        if category == "M" and kinds[-1] == "cjk":
            runs[-1][-1] += char
            continue
        kind = "word" if category in "LNM" or char == "_" else ""
        if kind and category != "M" and is_cjk(char):
            kind = "cjk"
        if kind != kinds[-1]:
            runs.append([])
            kinds.append(kind)
        runs[-1].append(char)
    found = []
    for run, kind in zip(runs, kinds, strict=True):
        if kind == "word":
            found.append(stem("".join(run)[:64]))
        elif kind == "cjk":
            found += [stem(a + b) for a, b in pairwise(run)] or [stem(run[0])]
    return found


def occurrences(part: tuple[str, ...], words: list[str]) -> int:
    return sum(tuple(words[start : start + len(part)]) == part for start in range(len(words)))


def bm25(texts: Sequence[str | None], query: str, language: str | None = None) -> list[float]:
    """The score of each text; NaN for None."""
    stem = snowballstemmer.stemmer(language).stemWord if language else str
    documents = [None if text is None else words_of(text, stem) for text in texts]
    lengths = [len(words) for words in documents if words is not None]
    pieces = query.split('"')
    parts: list[tuple[str, ...]] = []
    for number, piece in enumerate(pieces):
        words = words_of(piece, stem)
        quoted = number % 2 == 1 and number < len(pieces) - 1
        parts += [tuple(words)] if quoted and words else [(word,) for word in words]
    counts = [[occurrences(part, words or []) for words in documents] for part in dict.fromkeys(parts)]
    scores = []
    for row, document in enumerate(documents):
        score = nan if document is None else 0.0
        for count in counts:
            frequency = sum(each > 0 for each in count)
            idf = log(1 + (len(lengths) - frequency + 0.5) / (frequency + 0.5))
            if document:
                ratio = len(document) * len(lengths) / sum(lengths)
                score += idf * count[row] * 2.2 / (count[row] + 1.2 * (0.25 + 0.75 * ratio))
        scores.append(score)
    return scores
