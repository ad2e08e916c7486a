"""Bounds of columns in several parts of a table, as Arrow arrays of the columns' own types."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.format import load_bound

Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ColumnBounds:
    """What is known of one column in each part: one item per part."""

    low: pa.Array | pa.Scalar
    """No value is below; null if unknown."""
    high: pa.Array | pa.Scalar
    """No value is above; null if unknown."""
    nulls: Mask
    """Whether a value may be null."""
    values: Mask
    """Whether a value may not be null."""

    def take(self, parts: npt.NDArray[np.int64]) -> "ColumnBounds":
        """Parts by index."""
        at = pa.array(parts)
        return ColumnBounds(self.low.take(at), self.high.take(at), self.nulls[parts], self.values[parts])


Bounds: TypeAlias = Mapping[str, ColumnBounds]
"""By column name; a column without an entry is unknown."""


def typed_bounds(kind: pa.DataType, texts: Sequence[str | None], *, low: bool) -> pa.Array:
    """Bounds from their JSON; null for one that is not of the type.

    Arrow may round a literal to the type of a float column before it compares, so bounds of floats are one step wider.
    """
    values = [None if text is None else _load(kind, text) for text in texts]
    if pa.types.is_floating(kind):
        with np.errstate(over="ignore"):
            array = np.array([np.nan if value is None else value for value in values], kind.to_pandas_dtype())
        return widened(array, low=low)
    stored = pa.int64() if pa.types.is_temporal(kind) else kind
    try:
        found = pa.array(values, stored)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        found = pa.array([value if _fits(value, stored) else None for value in values], stored)
    return found if stored == kind else found.view(kind)


def nulls_or_nat(low: pa.Array, nulls: Mask) -> Mask:
    """Whether parts may hold a null, which "not a time" is; an earlier writer counted it as the least time."""
    if not pa.types.is_temporal(low.type):
        return nulls
    nat: Mask = np.asarray(pc.fill_null(pc.equal(low.view(pa.int64()), np.iinfo(np.int64).min), False))
    return nulls | nat


def widened(bounds: npt.NDArray[Any], *, low: bool) -> pa.Array:
    """Bounds of floats, one step wider; NaN is unknown."""
    with np.errstate(over="ignore"):
        wider = np.nextafter(bounds, bounds.dtype.type(-np.inf if low else np.inf), dtype=bounds.dtype)
    return pa.array(wider.astype(np.float32) if wider.dtype == np.float16 else wider, from_pandas=True)


def _load(kind: pa.DataType, text: str) -> Any:
    """The value of one bound; None if it is not of the type."""
    try:
        value = load_bound(text)
    except (ValueError, RecursionError):
        return None
    if pa.types.is_boolean(kind):
        return bool(value) if value in (0, 1) else None
    if pa.types.is_floating(kind):
        exact = (type(value) is float and math.isfinite(value)) or (type(value) is int and abs(value) < 1 << 53)
        return float(value) if exact else None
    expected = str if pa.types.is_string(kind) or pa.types.is_large_string(kind) else int
    return value if type(value) is expected else None


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.scalar(value, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return False
    return True
