"""k-means by Lloyd's algorithm in float32, with bounded memory; the same input and seed give the same centroids."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]

_ITERATIONS = 8
_SETTLED = 0.005
"""Part of the points that may still change their cluster at the end."""
_CHUNK_BYTES = 16 << 20


def kmeans(points: Float32Array, count: int, *, seed: int, spherical: bool) -> Float32Array:
    """At most `count` centroids of points, none of them without a point; `spherical` ones have unit length.

    Centroids that are near each other have near indices.
    """
    random = np.random.default_rng(seed)
    start = np.sort(random.choice(len(points), min(count, len(points)), replace=False))
    centroids = _lloyd(points, points[start], spherical=spherical)
    groups = round(len(centroids) ** 0.5)
    if groups < 2:
        return centroids
    chosen = np.sort(random.choice(len(centroids), groups, replace=False))
    coarse = _lloyd(centroids, centroids[chosen], spherical=False)
    return centroids[np.argsort(assign(centroids, coarse), kind="stable")]


def assign(points: Float32Array, centroids: Float32Array) -> Int32Array:
    """The index of the nearest centroid of each point."""
    found = np.empty(len(points), np.int32)
    half = squares(centroids) / np.float32(2)
    chunk = max(1, _CHUNK_BYTES // (4 * len(centroids)))
    products = np.empty((min(chunk, len(points)), len(centroids)), np.float32)
    transposed = centroids.T
    for first in range(0, len(points), chunk):
        part = points[first : first + chunk]
        near = np.matmul(part, transposed, out=products[: len(part)])
        near -= half
        found[first : first + len(part)] = near.argmax(axis=1)
    return found


def squares(points: Float32Array) -> Float32Array:
    """The squared norms of points."""
    found: Float32Array = np.einsum("ij,ij->i", points, points)
    return found


def _lloyd(points: Float32Array, centroids: Float32Array, *, spherical: bool) -> Float32Array:
    centroids = _unit(centroids) if spherical else centroids.copy()
    before = np.full(len(points), -1, np.int32)
    for _ in range(_ITERATIONS):
        clusters = assign(points, centroids)
        moved = np.count_nonzero(clusters != before)
        if moved <= _SETTLED * len(points):
            break
        before = clusters
        sums, counts = _sums(points, clusters, len(centroids))
        filled = counts > 0
        centroids[filled] = sums[filled] / counts[filled, None].astype(np.float32)
        _refill(points, clusters, centroids, np.flatnonzero(~filled))
        if spherical:
            centroids = _unit(centroids)
    used = np.unique(assign(points, centroids))
    return centroids[used]


def _sums(points: Float32Array, clusters: Int32Array, count: int) -> tuple[Float32Array, npt.NDArray[np.int64]]:
    """The sum and the number of the points of each cluster."""
    grouped = points[np.argsort(clusters, kind="stable")]
    counts = np.bincount(clusters, minlength=count)
    sums = np.zeros((count, points.shape[1]), np.float32)
    ones = np.ones(counts.max(), np.float32)
    for cluster, (start, end) in enumerate(pairwise([0, *np.cumsum(counts).tolist()])):
        np.matmul(ones[: end - start], grouped[start:end], out=sums[cluster])  # many times faster than `reduceat`
    return sums, counts


def _refill(points: Float32Array, clusters: Int32Array, centroids: Float32Array, empty: npt.NDArray[np.int64]) -> None:
    """Move empty clusters to the points that are farthest from their centroids."""
    if not len(empty):
        return
    distances = squares(points - centroids[clusters])
    centroids[empty] = points[np.argsort(-distances, kind="stable")[: len(empty)]]


def _unit(points: Float32Array) -> Float32Array:
    norms: Float32Array = np.sqrt(squares(points))
    norms[norms == 0] = 1
    unit: Float32Array = points / norms[:, None]
    return unit
