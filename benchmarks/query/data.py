"""The rows of all figures, the same for us and for Lance, in chunks that do not depend on how many follow."""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

LABELS, TERMS, WORDS = 1000, 30_000, (5, 15)
"""Different labels and words, and the fewest and the most words of a caption."""
CAMERAS = ("left", "right", "wrist", "overhead")
DIMENSIONS, LATENT_DIMENSIONS, CLUSTERS = 128, 32, 4000
WITHIN_CLUSTER, NOISE = 0.5, 0.1
"""Standard deviations: of the 32 dimensions inside a cluster, whose centres have 1, and of all 128 dimensions."""
CHUNK_ROWS = 50_000
START = np.datetime64("2026-01-01T00:00:00", "us")
_FIELDS = {
    "id": pa.int64(),
    "ts": pa.timestamp("us"),
    "label": pa.int32(),
    "camera": pa.string(),
    "reward": pa.float32(),
    "caption": pa.string(),
    "emb": pa.list_(pa.float32(), DIMENSIONS),
}
SCHEMA = pa.schema(list(_FIELDS.items()))

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


class Chunk(NamedTuple):
    """Some rows in a row."""

    start: int
    labels: npt.NDArray[np.int32]
    cameras: IntArray
    rewards: FloatArray
    terms: IntArray
    """The words of all captions, one after the other."""
    word_counts: IntArray
    vectors: FloatArray

    def to_arrow(self) -> pa.RecordBatch:
        count = len(self.labels)
        ids = np.arange(self.start, self.start + count)
        columns = [
            pa.array(ids),
            pa.array(START + ids.astype("timedelta64[s]")),
            pa.array(self.labels),
            pa.array(CAMERAS).take(pa.array(self.cameras)),
            pa.array(self.rewards),
            self._captions(),
            pa.FixedSizeListArray.from_arrays(pa.array(self.vectors.reshape(-1)), DIMENSIONS),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    @property
    def documents(self) -> IntArray:
        """The row of each word, counted from the start of the table."""
        return self.start + np.repeat(np.arange(len(self.word_counts)), self.word_counts)

    def _captions(self) -> pa.Array:
        ends = np.concatenate([[0], np.cumsum(self.word_counts)]).astype(np.int32)
        return pc.binary_join(pa.ListArray.from_arrays(pa.array(ends), _words().take(pa.array(self.terms))), " ")


def chunks(rows: int) -> Iterator[Chunk]:
    """All rows of a table, 50,000 at a time."""
    for start in range(0, rows, CHUNK_ROWS):
        yield _chunk(start, min(CHUNK_ROWS, rows - start))


def batches(rows: int) -> Iterator[pa.RecordBatch]:
    return (chunk.to_arrow() for chunk in chunks(rows))


def queries(count: int) -> FloatArray:
    """Vectors like those of the table, which has none of them."""
    return _vectors(np.random.default_rng([2, 0]), count)


def word(term: int) -> str:
    """A word by its rank: 0 is the most common one."""
    return f"w{term}"


def _chunk(start: int, count: int) -> Chunk:
    rng = np.random.default_rng([1, start])
    word_counts = rng.integers(WORDS[0], WORDS[1] + 1, count)
    return Chunk(
        start,
        rng.integers(0, LABELS, count, np.int32),
        rng.integers(0, len(CAMERAS), count),
        rng.standard_normal(count, np.float32),
        np.searchsorted(_term_bounds(), rng.random(int(word_counts.sum()))),
        word_counts,
        _vectors(rng, count),
    )


def _vectors(rng: np.random.Generator, count: int) -> FloatArray:
    centres, directions = _clusters()
    latent = centres[rng.integers(0, CLUSTERS, count)]
    latent = latent + np.float32(WITHIN_CLUSTER) * rng.standard_normal(latent.shape, np.float32)
    found = latent @ directions + np.float32(NOISE) * rng.standard_normal((count, DIMENSIONS), np.float32)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return found


@cache
def _clusters() -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLUSTERS, LATENT_DIMENSIONS), np.float32)
    directions = rng.standard_normal((LATENT_DIMENSIONS, DIMENSIONS), np.float32) / np.float32(LATENT_DIMENSIONS**0.5)
    return centres, directions


@cache
def _term_bounds() -> npt.NDArray[np.float64]:
    """Cumulative shares of words, by Zipf's law; the last word takes what rounding leaves."""
    shares = 1 / np.arange(1, TERMS + 1)
    return np.cumsum(shares / shares.sum())[:-1]


@cache
def _words() -> pa.Array:
    return pa.array([word(term) for term in range(TERMS)])
