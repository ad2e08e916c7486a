"""The answer to a question: rows of a relation, or rows of its own."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from penstock.query.scan import ROW
from penstock.query.sql.rewrite import Rewritten
from penstock.table import Int64Array


@dataclass(frozen=True)
class TableColumn:
    """A column of the relation whose rows the result has."""

    name: str
    column: str
    """Its name in the relation; `_row_id` is one."""


@dataclass(frozen=True, eq=False)
class ComputedColumn:
    """A column with values of its own."""

    name: str
    values: pa.ChunkedArray


@dataclass(frozen=True, eq=False)
class HandleColumn:
    """Values of a relation's column, which are not read yet."""

    name: str
    relation: str
    column: str
    indices: pa.ChunkedArray
    """Indices into the relation's rows; null for no value."""


ResultColumn: TypeAlias = TableColumn | ComputedColumn | HandleColumn


@dataclass(frozen=True, eq=False)
class QueryResult:
    """The rows and columns of an answer, in order."""

    relation: str | None
    """The relation whose rows these are; None if they are of several, or of none."""
    rows: Int64Array | None
    """Indices into that relation's rows."""
    columns: tuple[ResultColumn, ...]
    length: int

    def __len__(self) -> int:
        return self.length


def make_result(rewritten: Rewritten, table: pa.Table, handles: dict[str, tuple[str, str]]) -> QueryResult:
    """The answer from what the engine returned; `handles` maps members of structs to relations and columns."""
    if rewritten.relation is None:
        names = distinct_names(list(table.column_names))
        columns = [_column(name, values, handles) for name, values in zip(names, table.columns, strict=True)]
        return QueryResult(None, None, tuple(columns), table.num_rows)
    names = distinct_names([output.name for output, _ in rewritten.outputs])
    found: list[ResultColumn] = []
    for name, (output, engine_name) in zip(names, rewritten.outputs, strict=True):
        if engine_name is None:
            assert output.origin is not None
            found.append(TableColumn(name, output.origin.column))
        else:
            found.append(_column(name, table[engine_name], handles))
    rows = np.asarray(table[ROW].combine_chunks(), np.int64) if table.num_rows else np.zeros(0, np.int64)
    return QueryResult(rewritten.relation, rows, tuple(found), table.num_rows)


def _column(name: str, values: pa.ChunkedArray, handles: dict[str, tuple[str, str]]) -> ResultColumn:
    kind = values.type
    if pa.types.is_struct(kind) and kind.num_fields == 1 and kind.field(0).name in handles:
        member = kind.field(0).name
        indices = [chunk.flatten()[0] for chunk in values.chunks]
        return HandleColumn(name, *handles[member], pa.chunked_array(indices, pa.int64()))
    return ComputedColumn(name, _as_numbers(values))


def _as_numbers(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decimals, such as the sum of integers, as integers or floats, which a column can store."""
    if not pa.types.is_decimal(values.type):
        return values
    if values.type.scale == 0:
        try:
            return values.cast(pa.int64())
        except pa.ArrowInvalid:  # larger than 64 bits
            return values.cast(pa.float64())
    return values.cast(pa.float64())


def distinct_names(names: list[str]) -> list[str]:
    """Names with a number at the end where one repeats."""
    taken: set[str] = set()
    counts: dict[str, int] = {}
    found = []
    for name in names:
        new = name
        while new.lower() in taken:
            counts[name.lower()] = counts.get(name.lower(), 0) + 1
            new = f"{name}_{counts[name.lower()]}"
        taken.add(new.lower())
        found.append(new)
    return found
