"""Bounds and null counts of columns, per fragment and per page, that let a search skip them."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.format import Field, Statistics, row_sizes
from penstock.format.kinds import Kind, Label, Tensor, Text, nat_as_null

_MAX_TEXT_LENGTH = 64
_MAX_PAGE_TEXT_LENGTH = 32


def compute_statistics(fields: Sequence[Field], arrays: Mapping[int, pa.Array]) -> dict[int, Statistics]:
    """Statistics of the columns that have an order, by field id."""
    return {
        field.id: _bounds(field, nat_as_null(field.kind, arrays[field.id]))
        for field in fields
        if is_ordered(field.kind)
    }


def merge_statistics(one: Mapping[int, Statistics], other: Mapping[int, Statistics]) -> dict[int, Statistics]:
    """Statistics of both sides' rows; a column that only one side has is taken as it is."""
    return {**one, **{id: bounds.union(one.get(id)) for id, bounds in other.items()}}


def is_ordered(kind: Kind) -> bool:
    """Whether values of a kind have bounds."""
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
        low, high = low[:_MAX_TEXT_LENGTH], _text_at_least(high, _MAX_TEXT_LENGTH)
    if isinstance(low, float) and not (math.isfinite(low) and math.isfinite(high)):
        low = high = None
    return Statistics(field.id, array.null_count, _dump(low), _dump(high))


def page_bounds(
    fields: Sequence[Field], arrays: Mapping[int, pa.Array], page_rows: Sequence[int]
) -> list[dict[str, Any]]:
    """Bounds of the columns that have an order, in each page; long texts have none, because they prune nothing."""
    return [
        {"field": field.id, **_by_page(nat_as_null(field.kind, arrays[field.id]), page_rows)}
        for field in fields
        if is_ordered(field.kind) and field.id in arrays and not _is_long_text(arrays[field.id])
    ]


def _by_page(array: pa.Array, page_rows: Sequence[int]) -> dict[str, Any]:
    if not array.null_count and not pa.types.is_string(array.type):
        values = np.asarray(array)
        starts = np.cumsum([0, *page_rows[:-1]])
        lows, highs = (choose.reduceat(values, starts).tolist() for choose in (np.minimum, np.maximum))
        pairs = [_pair(low, high) for low, high in zip(lows, highs, strict=True)]
        nulls = [0] * len(page_rows)
    else:
        pages, start = [], 0
        for count in page_rows:
            pages.append(array.slice(start, count))
            start += count
        pairs, nulls = [_page_pair(page) for page in pages], [page.null_count for page in pages]
    return {"nulls": nulls, "low": [low for low, _ in pairs], "high": [high for _, high in pairs]}


def _page_pair(page: pa.Array) -> tuple[str | None, str | None]:
    if page.null_count == len(page):
        return None, None
    if pa.types.is_floating(page.type):
        page = page.cast(pa.float64())
        if pc.any(pc.is_nan(page)).as_py():
            return None, None
    found = pc.min_max(page).as_py()
    if isinstance(found["min"], str):
        return _dump(found["min"][:_MAX_PAGE_TEXT_LENGTH]), _dump(_text_at_least(found["max"], _MAX_PAGE_TEXT_LENGTH))
    return _pair(found["min"], found["max"])


def _pair(low: int | float, high: int | float) -> tuple[str | None, str | None]:
    if isinstance(low, float) and not (math.isfinite(low) and math.isfinite(high)):  # NaN propagates
        return None, None
    return _dump(low), _dump(high)


def _is_long_text(array: pa.Array) -> bool:
    return pa.types.is_string(array.type) and bool(row_sizes(array).mean() > _MAX_TEXT_LENGTH)


def _text_at_least(text: str, length: int) -> str | None:
    """A text of limited length that is not below another one; None if there is none."""
    if len(text) <= length:
        return text
    for end in range(length, 0, -1):
        following = ord(text[end - 1]) + 1
        if following <= sys.maxunicode:
            return text[: end - 1] + chr(0xE000 if following == 0xD800 else following)  # surrogates are no characters
    return None


def _dump(value: object) -> str | None:
    return None if value is None else json.dumps(value)
