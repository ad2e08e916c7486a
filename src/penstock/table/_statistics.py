"""Column statistics per fragment: bounds and null counts that let a search skip fragments."""

import json
import math
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.format import Field, Statistics
from penstock.format.kinds import Kind, Label, Tensor, Text

_MAX_TEXT_LENGTH = 64


def compute_statistics(fields: Sequence[Field], arrays: Mapping[int, pa.Array]) -> dict[int, Statistics]:
    """Statistics of the columns that have an order, by field id."""
    return {field.id: _bounds(field, arrays[field.id]) for field in fields if _is_ordered(field.kind)}


def merge_statistics(one: Mapping[int, Statistics], other: Mapping[int, Statistics]) -> dict[int, Statistics]:
    """Statistics of both sides' rows; a column that only one side has is taken as it is."""
    return {**one, **{id: bounds.union(one.get(id)) for id, bounds in other.items()}}


def _is_ordered(kind: Kind) -> bool:
    if isinstance(kind, Tensor):
        return (
            kind.shape == () and kind.dtype[:3] in ("int", "uin", "flo", "boo", "dat", "tim") and "8_" not in kind.dtype
        )
    return isinstance(kind, Text | Label)


def _bounds(field: Field, array: pa.Array) -> Statistics:
    if array.null_count == len(array):
        return Statistics(field.id, array.null_count, None, None)
    if pa.types.is_floating(array.type):
        array = array.cast(pa.float64())
        if pc.any(pc.is_nan(array)).as_py():  # NaN compares with nothing: no bounds hold
            return Statistics(field.id, array.null_count, None, None)
    found = pc.min_max(array).as_py()
    low, high = found["min"], found["max"]
    if isinstance(low, str):
        low, high = low[:_MAX_TEXT_LENGTH], high if len(high) <= _MAX_TEXT_LENGTH else None
    if isinstance(low, float) and not (math.isfinite(low) and math.isfinite(high)):
        low = high = None
    return Statistics(field.id, array.null_count, _dump(low), _dump(high))


def _dump(value: object) -> str | None:
    return None if value is None else json.dumps(value)
