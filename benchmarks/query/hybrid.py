"""Vector and text in one ranking, with a filter: a weighted sum in SQL, and ranks fused as LanceDB does."""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.query import ours
from benchmarks.query.bench import OURS, Bench, Part, compared, counted, mean
from benchmarks.query.data import queries
from benchmarks.query.ours import Found
from benchmarks.query.reference import camera_rows, cosines, postings, recall
from benchmarks.query.texts import sentence
from benchmarks.query.vectors import LANCE_SEARCH

K = 100
CAMERA = "left"
_TERMS = (30, 1000)
"""Ranks of the words of a text, neither common nor rare."""
_QUERIES = 10
_LANCEDB = "LanceDB, RRF"


def hybrid(bench: Bench) -> Part:
    """The best 100 rows of one camera, in turns with LanceDB; and how many of the sum's are right."""
    bench.tables.build("scalar", "vector", "text")
    bench.warm()
    count = min(_QUERIES, bench.queries)
    vectors, rng = queries(count), np.random.default_rng(4)
    terms = [rng.integers(*_TERMS, 3).tolist() for _ in range(count)]
    texts = [sentence(each) for each in terms]
    ds, where = bench.tables.open(bench.tables.newest()), f"camera = '{CAMERA}'"
    answers: dict[str, Any] = {}

    def mine(name: str, ask: Callable[[Any, str], tuple[Found, float]]) -> Callable[[], float]:
        def job() -> float:
            found, taken = zip(*map(ask, vectors, texts), strict=True)
            answers[name] = [each.ids for each in found]
            return mean(taken)

        return job

    def theirs() -> float:
        found = bench.peer.ask(
            "hybrid", folder=bench.tables.lance, vectors=[0, count], asked=texts, k=K, search=LANCE_SEARCH, where=where
        )
        answers[_LANCEDB] = found["ids"]
        return mean(found["seconds"])

    rrf = f"{OURS}, RRF"
    times = bench.in_turns({
        OURS: mine(OURS, lambda vector, words: ours.hybrid(ds, vector, words, where, K)),
        rrf: mine(rrf, lambda vector, words: ours.search(ds, K, vector=vector, text=words, where=where, fuse="rrf")),
        _LANCEDB: theirs,
    })  # fmt: skip
    right = recall(answers[OURS], _best(bench.rows, vectors, terms))
    return Part(
        [
            compared("hybrid top 100, weighted sum in SQL", times[OURS], _LANCEDB, times[_LANCEDB], at_most=1.0),
            compared("hybrid top 100, RRF", times[rrf], _LANCEDB, times[_LANCEDB], at_most=1.0),
            counted("hybrid top 100, weighted sum: recall", right, "share"),
        ],
        {"times": times, "recall": right},
    )


def _best(rows: int, vectors: Any, terms: list[list[int]]) -> Any:
    """The rows with the highest sums."""
    allowed = camera_rows(rows, CAMERA)
    known = postings(rows, [term for each in terms for term in each])
    found = []
    for similar, wanted in zip(cosines(rows, vectors), terms, strict=True):
        scores = 0.7 * similar[allowed] + 0.3 * known.scores(wanted)[allowed]
        found.append(allowed[np.argsort(-scores, kind="stable")[:K]])
    return np.stack(found)
