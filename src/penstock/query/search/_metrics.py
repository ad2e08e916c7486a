"""Similarity of vectors: cosine, Euclidean distance and inner product, computed in blocks with BLAS."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidInputError
from penstock.format import Field
from penstock.query.indexes import FLOAT32_DTYPES, MAX_SQUARE, MIN_SQUARE, Metric, check_metric, vector_kind
from penstock.query.search._scores import Float32Array
from penstock.table import Int64Array
from penstock.types import cached_property

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]

_CANCELLED = 0.02
"""A squared distance below this part of the squared norms has lost digits: it is computed again from differences."""
_WIDE_ROWS = 4096
_SINGLE_THREADED = 8192
"""Elements of a matrix that OpenBLAS multiplies with a vector in the calling thread."""


@dataclass(frozen=True, eq=False)
class VectorQuery:
    """A query vector and its metric; scores rows as float32, NaN for a vector without a score."""

    vector: FloatArray
    """Finite; float64 if the column needs it, else float32."""
    metric: Metric

    @classmethod
    def of(cls, field: Field, vector: Sequence[float] | npt.NDArray[Any], metric: str) -> "VectorQuery":
        """Check a query against a column; raises `InvalidInputError` that says what does not fit."""
        kind = vector_kind(field)
        try:
            values = np.asarray(vector, np.float64)
        except (TypeError, ValueError):
            raise InvalidInputError(
                f"the query of column {field.name!r} is not a list of numbers: give {kind.shape[0]} of them"
            ) from None
        if values.shape != kind.shape:
            raise InvalidInputError(
                f"the query has shape {values.shape}, but column {field.name!r} holds vectors of length {kind.shape[0]}"
            )
        dtype = np.float32 if kind.dtype in FLOAT32_DTYPES else np.float64
        with np.errstate(over="ignore"):
            cast: FloatArray = values.astype(dtype)
        if not np.isfinite(cast).all():
            raise InvalidInputError(
                f"the query of column {field.name!r} contains NaN, infinity or a number beyond {np.dtype(dtype).name}"
            )
        return cls(cast, check_metric(metric))

    @property
    def higher_is_better(self) -> bool:
        return self.metric != "l2"

    @property
    def needs_norms(self) -> bool:
        """Whether scores depend on the norms of the rows."""
        return self.metric != "dot"

    @cached_property
    def square(self) -> float:
        """The squared norm, in float64."""
        wide = self.vector.astype(np.float64)
        return float(wide @ wide)

    def as_floats(self, values: npt.NDArray[Any]) -> FloatArray:
        """Rows in the dtype of the query; a view if they have it."""
        return values.astype(self.vector.dtype, copy=False)

    def scores(self, values: FloatArray, squares: npt.NDArray[np.float32] | None) -> Float32Array:
        """Scores of rows: an array of shape [..., length], and their `squared_norms` if the metric needs them."""
        with np.errstate(all="ignore"):
            products = inner_products(values, self.vector)
            if squares is None:
                found, doubtful = products, ~np.isfinite(products)
            elif self.metric == "cosine":
                found = products / (np.sqrt(squares) * np.float32(self.square**0.5))
                np.clip(found, -1, 1, out=found)
                doubtful = ~((squares >= MIN_SQUARE) & (squares <= MAX_SQUARE))
                if not MIN_SQUARE <= self.square <= MAX_SQUARE:
                    doubtful[:] = True
            else:
                total = squares + np.float32(self.square)
                found = total - 2 * products
                doubtful = ~((found >= _CANCELLED * total) & (total >= MIN_SQUARE) & (total <= MAX_SQUARE))
                np.sqrt(found, out=found)
            scores: Float32Array = found.astype(np.float32, copy=False)
            rows = np.flatnonzero(doubtful)
            if len(rows):
                flat = values.reshape(-1, values.shape[-1])
                for start in range(0, len(rows), _WIDE_ROWS):
                    some = rows[start : start + _WIDE_ROWS]
                    scores[some] = self._scores_in_float64(flat[some].astype(np.float64))
        return scores

    def _scores_in_float64(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Scores without overflow, underflow or cancellation; NaN for rows with NaN or infinity."""
        query = self.vector.astype(np.float64)
        if self.metric == "dot":
            found = values @ query
        elif self.metric == "l2":
            found = _norms(values - query)
        else:
            scaled = values / np.abs(values).max(axis=1, keepdims=True)
            unit = query / np.abs(query).max()
            found = np.clip(scaled @ unit / (_norms(scaled) * _norms(unit[None])), -1, 1)
        found[~np.isfinite(values).all(axis=1)] = np.nan
        return found


def inner_products(values: FloatArray, vector: FloatArray) -> FloatArray:
    """The inner product of each row of an array of shape [..., rows, length] with a vector.

    In products too small for BLAS to start threads: the callers are threads themselves, and waiting for others that
    are not scheduled costs more than the product. All of one shape, so that equal rows have equal products.
    """
    *outer, rows, length = values.shape
    step = max(1, _SINGLE_THREADED // length)
    whole = rows - rows % step
    found = np.empty((*outer, rows), values.dtype)
    blocks = values[..., :whole, :].reshape(*outer, whole // step, step, length)
    found[..., :whole] = (blocks @ vector).reshape(*outer, whole)
    if whole < rows:
        padded = np.zeros((*outer, step, length), values.dtype)
        padded[..., : rows - whole, :] = values[..., whole:, :]
        found[..., whole:] = (padded @ vector)[..., : rows - whole]
    return found.reshape(-1)


def squared_norms(values: FloatArray) -> npt.NDArray[np.float32]:
    """The squared norm of each row of an array of shape [..., length]."""
    with np.errstate(all="ignore"):
        found: FloatArray = np.einsum("...i,...i->...", values, values)
    return found.reshape(-1).astype(np.float32, copy=False)


def _norms(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    largest = np.abs(values).max(axis=1)
    largest[largest == 0] = 1
    scaled = values / largest[:, None]
    found: npt.NDArray[np.float64] = largest * np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
    return found


def best(scores: npt.NDArray[Any], count: int, *, higher_is_better: bool) -> Int64Array:
    """Indices of the best scores, the best first; equal scores in the order of their indices, NaN never."""
    keys = -scores if higher_is_better else scores
    chosen = np.flatnonzero(keys == keys)
    if not count or not len(chosen):
        return chosen[:0]
    if len(chosen) > count:
        limit = np.partition(keys, count - 1)[count - 1]  # NaN sorts last
        chosen = np.flatnonzero(keys <= limit)
    return chosen[np.argsort(keys[chosen], kind="stable")[:count]]
