"""Filters as expressions of Arrow: which columns they need, and which rows match."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInputError
from penstock.table import Int64Array
from penstock.table.filters import field_names, parse_expression

_INDEX = "~index"
_MAX_CACHED_ROWS = 1 << 18


def referenced_columns(schema: pa.Schema, expression: pc.Expression) -> list[str]:
    """The columns that an expression needs.

    If its tree cannot be read, those without which it cannot be bound: halves of the columns are left out at a time, so
    a few columns of many are found in a few attempts.
    """
    if (term := parse_expression(expression)) is not None and field_names(term) <= set(schema.names):
        needed = field_names(term)
        return [name for name in schema.names if name in needed]
    empty = schema.empty_table()
    _check_binds(empty, expression)
    if "FieldPath(" in str(expression):  # columns by index: to leave one out would shift the others
        return list(schema.names)
    return _needed(empty, expression, schema.names)


def matching_rows(table: pa.Table, expression: pc.Expression) -> Int64Array:
    """Indices of the rows that match."""
    indexed = table.append_column(_INDEX, _indices(table.num_rows))
    return np.asarray(indexed.filter(expression)[_INDEX])


def _indices(count: int) -> pa.Array:
    return _first_indices().slice(0, count) if count <= _MAX_CACHED_ROWS else pa.array(np.arange(count))


@cache
def _first_indices() -> pa.Array:
    return pa.array(np.arange(_MAX_CACHED_ROWS, dtype=np.int32))


def _needed(empty: pa.Table, expression: pc.Expression, names: Sequence[str]) -> list[str]:
    if not names or _binds(empty.drop_columns(list(names)), expression):
        return []
    if len(names) == 1:
        return list(names)
    middle = len(names) // 2
    return [*_needed(empty, expression, names[:middle]), *_needed(empty, expression, names[middle:])]


def _binds(empty: pa.Table, expression: pc.Expression) -> bool:
    try:
        matching_rows(empty, expression)
    except pa.ArrowInvalid:
        return False
    return True


def _check_binds(empty: pa.Table, expression: pc.Expression) -> None:
    try:
        matching_rows(empty, expression)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
        raise InvalidInputError(f"the filter does not fit the columns: {str(error).splitlines()[0]}") from None
