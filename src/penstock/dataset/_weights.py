"""Weights of rows, from a column, an array, or the sizes of classes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidInputError
from penstock.plan import ComposedRows, Rows, WeightedDraw
from penstock.table import ColumnValues, Int64Array, Reader

_READ_ROWS = 1 << 16


@dataclass(frozen=True, eq=False)
class Weights:
    """How a user weights rows."""

    given: Any
    """The name of a column, or an array with one number per row."""
    draws: int | None
    """Rows that an epoch draws; None draws as many as there are."""
    classes: bool = False
    """Whether the column has classes that are drawn equally often; else it has the weights."""

    @property
    def is_array(self) -> bool:
        return not self.classes and not isinstance(self.given, str)

    def only(self, kept: npt.NDArray[np.bool_]) -> "Weights":
        """The weights of some of the rows; an array has those of all."""
        return replace(self, given=_array(self.given, len(kept))[kept]) if self.is_array else self

    def draw(self, reader: Reader, chosen: Rows) -> WeightedDraw:
        """The draw of each epoch. A window is weighted by the row at its anchor.

        Raises `InvalidInputError` for weights that cannot be drawn by, and `NotFoundError` for an unknown column.
        """
        if self.draws is not None and (not isinstance(self.draws, Integral) or self.draws < 1):
            raise InvalidInputError(f"rows must be a whole number of at least 1, not {self.draws!r}")
        rows = _anchors(chosen, by_column=not self.is_array)
        if self.classes:
            source, found = f"balanced({self.given!r})", _inverse_class_sizes(reader, rows, self.given)
        elif isinstance(self.given, str):
            source, found = f"column {self.given!r}", _column(reader, rows, self.given)
        else:
            source, found = "weighted(…)", _array(self.given, len(rows))
        if not len(rows):
            raise InvalidInputError("there are no rows to draw from")
        return WeightedDraw.of(found, len(rows) if self.draws is None else int(self.draws), source=source)


def _anchors(chosen: Rows, *, by_column: bool) -> range | Int64Array:
    """The positions of rows, or of the rows that stand for samples."""
    if not isinstance(chosen, ComposedRows):
        return chosen
    anchor, samples = chosen.composition.anchor, chosen.samples
    if anchor is not None:
        drawn = chosen.composition.draw(np.asarray(samples, np.int64))
        return drawn.positions[drawn.offsets[:-1] + anchor]
    if by_column:
        raise InvalidInputError(
            "a packed sequence holds several rows, so no column weights it: pass an array with one weight per "
            "sequence, or mix packed views with penstock.mix(…, weights=…)"
        )
    return range(len(samples))


def _array(weights: Any, count: int) -> npt.NDArray[np.float64]:
    array = np.asarray(weights)
    if array.dtype.kind not in "iufb":
        raise InvalidInputError(f"weighted(…) takes a column, or an array of numbers, not one of {array.dtype}")
    if array.shape != (count,):
        raise InvalidInputError(f"weighted(…) needs one number per row: there are {count}, got shape {array.shape}")
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
                f"column {name!r} holds {reader.snapshot.schema[name].kind}; balanced(…) takes labels, integers, "
                "booleans or text"
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
