"""Filters as expressions of Arrow: which columns they need, and which rows match."""

from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInputError
from penstock.table import Int64Array
from penstock.table.filters import field_names, parse_expression, referenced_columns

_INDEX = "~index"
_MAX_CACHED_ROWS = 1 << 18


def filter_columns(schema: pa.Schema, expression: pc.Expression) -> list[str]:
    """The columns that a filter compares; raises `InvalidInputError` if it does not fit them."""
    term = parse_expression(expression)
    empty = schema.empty_table()
    if term is None or not field_names(term) <= set(schema.names):
        _check_fits(empty, expression)
    return referenced_columns(empty, expression)


def matching_rows(table: pa.Table, expression: pc.Expression) -> Int64Array:
    """Indices of the rows that match."""
    indexed = table.append_column(_INDEX, _indices(table.num_rows))
    return np.asarray(indexed.filter(expression)[_INDEX])


def _indices(count: int) -> pa.Array:
    return _first_indices().slice(0, count) if count <= _MAX_CACHED_ROWS else pa.array(np.arange(count))


@cache
def _first_indices() -> pa.Array:
    return pa.array(np.arange(_MAX_CACHED_ROWS, dtype=np.int32))


def _check_fits(empty: pa.Table, expression: pc.Expression) -> None:
    try:
        matching_rows(empty, expression)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
        raise InvalidInputError(f"the filter does not fit the columns: {str(error).splitlines()[0]}") from None
