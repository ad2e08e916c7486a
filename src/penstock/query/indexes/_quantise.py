"""Vectors as int8: the difference to a centroid, with one scale for each vector."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.query.indexes._kmeans import Float32Array, Int32Array, squares

_LEVELS = 127
_CHUNK_ROWS = 8192


class Codes(NamedTuple):
    """Quantised vectors: about `centroid + scale * code`."""

    codes: npt.NDArray[np.int8]
    scales: Float32Array
    squares: Float32Array
    """Squared norms of the differences, before they were rounded."""


def quantise(vectors: Float32Array, lists: Int32Array, centroids: Float32Array) -> Codes:
    """Quantise vectors against the centroids of their lists; an element is off by at most half its vector's scale."""
    codes = np.empty(vectors.shape, np.int8)
    scales, norms = np.empty(len(vectors), np.float32), np.empty(len(vectors), np.float32)
    for first in range(0, len(vectors), _CHUNK_ROWS):
        part = slice(first, first + _CHUNK_ROWS)
        difference = vectors[part] - centroids[lists[part]]
        norms[part] = squares(difference)
        scale = np.maximum(difference.max(axis=1), -difference.min(axis=1)) / np.float32(_LEVELS)
        scales[part] = scale
        difference *= (1 / np.where(scale > 0, scale, 1))[:, None]
        codes[part] = np.rint(difference, out=difference)
    return Codes(codes, scales, norms)


def products(codes: npt.NDArray[np.int8], scales: Float32Array, query: Float32Array) -> Float32Array:
    """The inner products of quantised differences with a query."""
    found: Float32Array = codes.astype(np.float32) @ query
    found *= scales
    return found
