"""The best rows by BM25: three rare words, and the three most common ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.query import ours
from benchmarks.query.bench import LANCE, OURS, Bench, Line, Part, compared, counted, mean
from benchmarks.query.data import TERMS, word
from benchmarks.query.reference import Postings, postings

K = 10
COMMON = (0, 1, 2)
_RARE = (1_000, TERMS)
"""Ranks of rare words: of a million captions, 900 to 30 have them."""
_AT_MOST, _WITHIN, _EQUAL = 0.5, 1e-3, 0.99
Terms = Sequence[int]


def text(bench: Bench) -> Part:
    """The index: build, time and scores."""
    bench.tables.build("text")
    bench.warm()
    built = bench.tables.built("text")
    asked: dict[str, list[Terms]] = {"3 rare words": rare_words(bench.queries), "3 common words": [COMMON]}
    known = postings(bench.rows, [term for texts in asked.values() for terms in texts for term in terms])
    lines = [
        counted(
            f"text index: build, {shown}", built["ours"][key], "s", against=f"{LANCE} INVERTED",
            other=built["lance"][key],
        )
        for key, shown in (("cpu_s", "processor time"), ("wall_s", "wall time"))
    ]  # fmt: skip
    found: dict[str, Any] = {"built": built}
    for name, texts in asked.items():
        times, scores = _in_turns(bench, texts)
        equal = {key: _equal(known, texts, scores[key]) for key in (OURS, LANCE)}
        found[name] = {"times": times, "equal": equal}
        lines.append(compared(f"text index, {name}: a query", times[OURS], LANCE, times[LANCE], at_most=_AT_MOST))
        lines.append(_scores(name, equal))
    return Part(lines, found)


def rare_words(count: int, seed: int = 3) -> list[Terms]:
    """So many times three rare words, each less rare the more often it occurs."""
    rng = np.random.default_rng(seed)
    low, high = np.log(_RARE)
    return [np.exp(rng.uniform(low, high, 3)).astype(int).tolist() for _ in range(count)]


def sentence(terms: Terms) -> str:
    return " ".join(map(word, terms))


def _scores(name: str, equal: dict[str, float]) -> Line:
    figure = f"text index, {name}: scores equal to a reference within {_WITHIN:g}"
    return Line(figure, equal[OURS], LANCE, equal[LANCE], "share", equal[OURS], at_least=_EQUAL)


def _in_turns(bench: Bench, texts: Sequence[Terms]) -> tuple[dict[str, list[float]], dict[str, list[list[float]]]]:
    ds, at = bench.tables.open("text"), bench.tables.lance_version("text")
    sentences = [sentence(terms) for terms in texts]
    scores: dict[str, list[list[float]]] = {}

    def mine() -> float:
        found, taken = zip(*(ours.search(ds, K, text=words) for words in sentences), strict=True)
        scores[OURS] = [each.scores for each in found]
        return mean(taken)

    def theirs() -> float:
        found = bench.peer.ask("text", folder=bench.tables.lance, at=at, asked=sentences, k=K)
        scores[LANCE] = found["scores"]
        return mean(found["seconds"])

    return bench.in_turns({OURS: mine, LANCE: theirs}), scores


def _equal(known: Postings, texts: Sequence[Terms], scores: Sequence[Sequence[float]]) -> float:
    """The share of the positions of all rankings whose score is that of the reference; ties are ties."""
    equal = total = 0
    for terms, found in zip(texts, scores, strict=True):
        every = known.scores(terms)
        best = -np.sort(-every)[:K]
        best = best[best > 0]
        padded = np.pad(np.asarray(found, float), (0, max(0, len(best) - len(found))), constant_values=np.nan)
        equal += int((np.abs(padded[: len(best)] - best) <= _WITHIN).sum())
        total += max(len(best), len(found))
    return equal / total
