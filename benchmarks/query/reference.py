"""What every answer should be, computed in numpy from the rows as they are made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.query.data import CAMERAS, FloatArray, IntArray, chunks

_K1, _B = 1.2, 0.75


@dataclass(frozen=True)
class Postings:
    """Where some words are, and what BM25 needs besides."""

    rows: int
    word_counts: IntArray
    counts: Mapping[int, tuple[IntArray, IntArray]]
    """Of each word: the rows that have it, and how often."""

    def scores(self, terms: Sequence[int]) -> npt.NDArray[np.float64]:
        """BM25 of every row."""
        found = np.zeros(self.rows)
        lengths = _K1 * (1 - _B + _B * self.word_counts / self.word_counts.mean())
        for term in dict.fromkeys(terms):
            rows, count = self.counts[term]
            weight = np.log(1 + (self.rows - len(rows) + 0.5) / (len(rows) + 0.5))
            found[rows] += weight * (_K1 + 1) * count / (count + lengths[rows])
        return found


def postings(rows: int, terms: Sequence[int]) -> Postings:
    """The postings of some words, in one pass."""
    wanted = np.unique(terms)
    word_counts, keys = [], []
    for chunk in chunks(rows):
        word_counts.append(chunk.word_counts)
        inside = np.isin(chunk.terms, wanted)
        keys.append(chunk.terms[inside] * rows + chunk.documents[inside])
    found, counts = np.unique(np.concatenate(keys), return_counts=True)
    edges = np.searchsorted(found, np.append(wanted, wanted[-1] + 1) * rows)
    by_term = {
        int(term): (found[a:b] - int(term) * rows, counts[a:b])
        for term, a, b in zip(wanted, edges[:-1], [*edges[1:-1], len(found)], strict=True)
    }
    return Postings(rows, np.concatenate(word_counts), by_term)


def nearest(rows: int, queries: FloatArray, count: int, label_ends: Sequence[int]) -> dict[int, IntArray]:
    """The rows nearest to each query by cosine, among those whose label is less than each of `label_ends`."""
    best = {end: (np.zeros((len(queries), 0), np.int64), np.zeros((len(queries), 0), np.float32)) for end in label_ends}
    for chunk in chunks(rows):
        scores = queries @ chunk.vectors.T
        for end, (ids, known) in best.items():
            inside = np.flatnonzero(chunk.labels < end)
            every = np.concatenate([known, scores[:, inside]], axis=1)
            named = np.concatenate([ids, np.broadcast_to(chunk.start + inside, (len(queries), len(inside)))], axis=1)
            order = np.argsort(-every, axis=1, kind="stable")[:, :count]
            best[end] = np.take_along_axis(named, order, 1), np.take_along_axis(every, order, 1)
    return {end: ids for end, (ids, _) in best.items()}


def recall(found: Sequence[Sequence[int]], wanted: IntArray) -> float:
    """The share of the wanted rows that were found, over all queries."""
    hits = sum(len(set(row) & set(truth.tolist())) for row, truth in zip(found, wanted, strict=True))
    return hits / wanted.size


def camera_rows(rows: int, camera: str) -> IntArray:
    """The rows of one camera."""
    wanted = CAMERAS.index(camera)
    return np.concatenate([chunk.start + np.flatnonzero(chunk.cameras == wanted) for chunk in chunks(rows)])


def cosines(rows: int, queries: FloatArray) -> FloatArray:
    """The similarity of every row to each query; 4 bytes for each."""
    return np.concatenate([queries @ chunk.vectors.T for chunk in chunks(rows)], axis=1)
