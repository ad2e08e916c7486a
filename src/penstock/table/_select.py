"""Which rows a user means: positions, slices, masks, or an expression over the columns."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInputError
from penstock.format import Field
from penstock.format.kinds import Tensor
from penstock.table._pages import Rows
from penstock.table._read import Reader, plain

Where: TypeAlias = int | slice | Sequence[int] | Rows | pc.Expression

_SCAN_ROWS = 1 << 16


def positions(reader: Reader, where: Any) -> Rows:
    """The rows meant, as positions among the live rows, in the order given."""
    if isinstance(where, pc.Expression):
        return _matching(reader, where)
    return resolve(where, reader.snapshot.live)


def resolve(where: Any, count: int) -> Rows:
    """Positions in 0 … count from an index, a slice, a list of indexes or a mask."""
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
        raise InvalidInputError(f"rows are whole numbers, a slice or a mask, not {rows.dtype} of shape {rows.shape}")
    outside = rows[(rows < -count) | (rows >= count)]
    if len(outside):
        raise IndexError(f"row {int(outside[0])} is out of range: there are {count} rows")
    rows = rows.astype(np.int64)
    return np.where(rows < 0, rows + count, rows)


def _matching(reader: Reader, expression: pc.Expression) -> Rows:
    fields = _fields_of(reader, expression)
    found = []
    for start in range(0, reader.snapshot.live, _SCAN_ROWS):
        rows = np.arange(start, min(start + _SCAN_ROWS, reader.snapshot.live))
        cells = reader.cells(fields, [rows], parse=True)[0]
        table = pa.table({**{field.name: _comparable(field, cells[field.name].array) for field in fields}, "_": rows})
        try:
            found.append(np.asarray(table.filter(expression)["_"]))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise _misfit(error) from None
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _fields_of(reader: Reader, expression: pc.Expression) -> list[Field]:
    """The columns an expression needs: those without which it cannot be bound."""
    fields = list(reader.snapshot.schema)
    empty = pa.table({field.name: _comparable(field, pa.nulls(0, field.kind.arrow_type)) for field in fields})
    try:
        empty.filter(expression)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
        raise _misfit(error) from None
    if "FieldPath(" in str(expression):  # columns by their number: leaving one out would change what others are
        return fields
    return [field for field in fields if _fails(empty.drop_columns([field.name]), expression)]


def _comparable(field: Field, array: pa.Array) -> pa.Array:
    """A column as an expression sees it: small floats, whose stored bits Arrow would compare, as float32."""
    kind = field.kind
    if isinstance(kind, Tensor) and kind.shape == () and "float" in kind.dtype and array.type != pa.float64():
        return pa.array(kind.view(array).astype(np.float32), mask=np.asarray(array.is_null()))
    return plain(field, array)


def _misfit(error: Exception) -> InvalidInputError:
    return InvalidInputError(f"the filter does not fit the table: {str(error).splitlines()[0]}")


def _fails(table: pa.Table, expression: pc.Expression) -> bool:
    try:
        table.filter(expression)
    except pa.ArrowInvalid:
        return True
    return False


def rows_at(rows: range | Rows, places: Rows) -> Rows:
    """Of rows that were chosen, those at some places."""
    return rows.start + rows.step * places if isinstance(rows, range) else rows[places]
