"""Resolve a user's selection of rows: positions, slices, masks, or an expression over the columns."""

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInputError
from penstock.format import Field
from penstock.format.kinds import Tensor
from penstock.table._pages import Int64Array
from penstock.table._read import Reader, as_native_arrow

Where: TypeAlias = int | slice | Sequence[int] | Int64Array | pc.Expression

_SCAN_ROWS = 1 << 16
_NO_COLUMN = re.compile(r"No match for FieldRef\.Name\((.*?)\) in ", re.DOTALL)


def find_positions(reader: Reader, where: Any) -> Int64Array:
    """Positions of the selected rows, in the order given; raises `InvalidInputError` for a filter that does not fit."""
    if isinstance(where, pc.Expression):
        return _filter(reader, where)
    return resolve_positions(where, reader.snapshot.live)


def is_position(where: Any) -> bool:
    """Whether a selection is one row: an integer of Python or numpy, or an array or tensor of integers without axes."""
    if isinstance(where, int | np.integer):
        return not isinstance(where, bool)
    dtype = str(getattr(where, "dtype", ""))
    return getattr(where, "ndim", None) == 0 and "int" in dtype


def resolve_positions(where: Any, count: int) -> Int64Array:
    """Positions in [0, count) from an index, a slice, a list of indices or a mask.

    Raises `IndexError` for an index out of range, `InvalidInputError` for anything else.
    """
    if isinstance(where, slice):
        return np.arange(*where.indices(count), dtype=np.int64)
    rows = np.atleast_1d(np.asarray(where))
    if rows.size == 0:
        return np.zeros(0, np.int64)
    if rows.dtype == bool:
        if rows.shape != (count,):
            raise InvalidInputError(f"a mask needs one entry per row: {count} rows, got shape {rows.shape}")
        return np.flatnonzero(rows)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise InvalidInputError(
            f"rows are selected by integers, a slice or a mask, not by {rows.dtype} of shape {rows.shape}"
        )
    outside = rows[(rows < -count) | (rows >= count)]
    if len(outside):
        raise IndexError(f"row {int(outside[0])} is out of range: there are {count} rows")
    rows = rows.astype(np.int64)
    return np.where(rows < 0, rows + count, rows)


def take_positions(positions: range | Int64Array, indices: Int64Array) -> Int64Array:
    """Positions by index."""
    return positions.start + positions.step * indices if isinstance(positions, range) else positions[indices]


def _filter(reader: Reader, expression: pc.Expression) -> Int64Array:
    fields = _referenced_fields(reader, expression)
    found = []
    for start in range(0, reader.snapshot.live, _SCAN_ROWS):
        rows = np.arange(start, min(start + _SCAN_ROWS, reader.snapshot.live))
        raw = reader.raw_columns(fields, [rows], as_arrow=True)[0]
        table = pa.table({**{field.name: _comparable(field, raw[field.name].array) for field in fields}, "_": rows})
        try:
            found.append(np.asarray(table.filter(expression)["_"]))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise _filter_error(error, reader) from None
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _referenced_fields(reader: Reader, expression: pc.Expression) -> list[Field]:
    """The columns that an expression references: it cannot be bound without them."""
    fields = list(reader.snapshot.schema)
    empty = pa.table({field.name: _comparable(field, pa.nulls(0, field.kind.arrow_type)) for field in fields})
    try:
        empty.filter(expression)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
        raise _filter_error(error, reader) from None
    if "FieldPath(" in str(expression):  # columns by index: to leave one out would shift the others
        return fields
    return [field for field in fields if not _binds(empty.drop_columns([field.name]), expression)]


def _comparable(field: Field, array: pa.Array) -> pa.Array:
    """A column as an expression sees it; small floats as float32, because Arrow would compare their stored bits."""
    kind = field.kind
    if isinstance(kind, Tensor) and kind.shape == () and "float" in kind.dtype and array.type != pa.float64():
        return pa.array(kind.view(array).astype(np.float32), mask=np.asarray(array.is_null()))
    return as_native_arrow(field, array)


def _filter_error(error: Exception, reader: Reader) -> InvalidInputError:
    if (missing := _NO_COLUMN.match(str(error))) is not None:
        known = ", ".join(reader.snapshot.schema.names)
        return InvalidInputError(
            f"the filter does not fit the table: there is no column {missing[1]!r}; the table has {known}"
        )
    return InvalidInputError(f"the filter does not fit the table: {str(error).splitlines()[0]}")


def _binds(table: pa.Table, expression: pc.Expression) -> bool:
    try:
        table.filter(expression)
    except pa.ArrowInvalid:
        return False
    return True
