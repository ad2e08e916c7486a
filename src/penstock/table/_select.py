"""Which rows a user means: positions, slices, masks, or an expression over the columns."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInputError
from penstock.format import Field
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
    rows = rows.astype(np.int64)
    outside = rows[(rows < -count) | (rows >= count)]
    if len(outside):
        raise IndexError(f"row {int(outside[0])} is out of range: there are {count} rows")
    return np.where(rows < 0, rows + count, rows)


def _matching(reader: Reader, expression: pc.Expression) -> Rows:
    fields = _fields_of(reader, expression)
    found = []
    for start in range(0, reader.snapshot.live, _SCAN_ROWS):
        rows = np.arange(start, min(start + _SCAN_ROWS, reader.snapshot.live))
        cells = reader.cells(fields, [rows], parse=True)[0]
        table = pa.table({field.name: plain(field, cells[field.name].array) for field in fields} or {"": rows})
        numbered = table.append_column(" position", pa.array(rows))
        found.append(np.asarray(numbered.filter(expression)[" position"]))
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _fields_of(reader: Reader, expression: pc.Expression) -> list[Field]:
    """The columns an expression needs: those without which it cannot be bound."""
    fields = list(reader.snapshot.schema)
    empty = pa.table({field.name: plain(field, pa.nulls(0, field.kind.arrow_type)) for field in fields})
    try:
        empty.filter(expression)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(f"the filter does not fit the table: {reason}") from None
    return [field for field in fields if _fails(empty.drop_columns([field.name]), expression)]


def _fails(table: pa.Table, expression: pc.Expression) -> bool:
    try:
        table.filter(expression)
    except pa.ArrowInvalid:
        return True
    return False
