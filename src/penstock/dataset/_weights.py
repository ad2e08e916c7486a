"""Weights of rows, from a column, an array, or the sizes of classes."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidInputError
from penstock.plan import WeightedDraw
from penstock.table import ColumnValues, Int64Array, Reader

_READ_ROWS = 1 << 16


def weighted_draw(
    reader: Reader, rows: range | Int64Array, *, weights: Any, balance: str | None, draws: int | None
) -> WeightedDraw | None:
    """The draw of each epoch; None if each row is read once.

    Raises `InvalidInputError` for weights that cannot be drawn by, and `NotFoundError` for an unknown column.
    """
    if weights is None and balance is None:
        if draws is not None:
            raise InvalidInputError(
                f"rows={draws!r} is the number of rows that weights=… or balance=… draw in an epoch; pass one of them, "
                "or choose rows with ds[…]"
            )
        return None
    if weights is not None and balance is not None:
        raise InvalidInputError("weights and balance exclude each other: pass one of them")
    if balance is not None:
        source, found = f"balance={balance!r}", _inverse_class_sizes(reader, rows, balance)
    elif isinstance(weights, str):
        source, found = f"column {weights!r}", _column(reader, rows, weights)
    else:
        source, found = "weights=…", _array(weights, len(rows))
    if not len(rows):
        raise InvalidInputError("there are no rows to draw from")
    return WeightedDraw.of(found, len(rows) if draws is None else draws, source=source)


def _array(weights: Any, count: int) -> npt.NDArray[np.float64]:
    array = np.asarray(weights)
    if array.dtype.kind not in "iufb":
        raise InvalidInputError(f"weights is a column, or an array of numbers, not one of {array.dtype}")
    if array.shape != (count,):
        raise InvalidInputError(f"weights needs one number per row: there are {count} rows, got shape {array.shape}")
    return array.astype(np.float64)


def _column(reader: Reader, rows: range | Int64Array, name: str) -> npt.NDArray[np.float64]:
    found = np.zeros(len(rows))
    for start, column in _read(reader, rows, name):
        if not isinstance(column.values, np.ndarray) or column.values.ndim != 1 or column.values.dtype.kind in "OSUMm":
            raise InvalidInputError(
                f"column {name!r} holds {reader.snapshot.schema[name].kind}; weights are single numbers"
            )
        found[start : start + len(column.values)] = column.values.astype(np.float64)
    return found


def _inverse_class_sizes(reader: Reader, rows: range | Int64Array, name: str) -> npt.NDArray[np.float64]:
    """One over the number of rows that have the same value."""
    parts = []
    for _, column in _read(reader, rows, name):
        values = pa.array(column.values) if np.ndim(column.values) <= 1 else pa.nulls(0)
        is_class = pa.types.is_integer(values.type) or pa.types.is_boolean(values.type) or _is_text(values.type)
        if not is_class:
            raise InvalidInputError(
                f"column {name!r} holds {reader.snapshot.schema[name].kind}; balance takes labels, integers, booleans "
                "or text"
            )
        parts.append(values)
    if not parts:
        return np.zeros(0)
    codes = pa.chunked_array(parts).combine_chunks().dictionary_encode().indices.to_numpy()
    return np.asarray(1.0 / np.bincount(codes)[codes])


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _read(reader: Reader, rows: range | Int64Array, name: str) -> Iterator[tuple[int, ColumnValues]]:
    """The values of a column in parts, each with the index of its first row; raises `InvalidInputError` for a null."""
    reader.snapshot.schema[name]
    starts = range(0, len(rows), _READ_ROWS)
    groups = (np.asarray(rows[start : start + _READ_ROWS], np.int64) for start in starts)
    for start, columns in zip(starts, reader.batches([name], groups), strict=True):
        column = columns[name]
        missing = (
            ~column.mask
            if column.mask is not None
            else np.array([value is None for value in column.values] if isinstance(column.values, list) else [], bool)
        )
        if missing.any():
            raise InvalidInputError(
                f"column {name!r} has no value in row {start + int(np.argmax(missing))}; leave such rows out with a "
                f'filter: ds[~pc.field("{name}").is_null()]'
            )
        yield start, column
