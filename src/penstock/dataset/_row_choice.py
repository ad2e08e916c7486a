"""Choose the rows that an edit is about, and compute their new values in SQL."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.dataset._questions import filter_rows
from penstock.dataset._view import View
from penstock.errors import InvalidInputError, NotFoundError
from penstock.format.kinds import Linked
from penstock.history import open_table
from penstock.query import ComputedColumn, Relation, TableColumn, is_heavy, run_sql, table_names
from penstock.table import Int64Array, Reader, Session, find_positions, find_row_ids, resolve_positions

RowChoice: TypeAlias = View | str | pc.Expression | npt.NDArray[np.bool_] | Sequence[bool]
"""A view of the table, a condition in SQL, an expression of `pyarrow.compute`, or a mask with an entry for each row."""
Positions: TypeAlias = int | slice | Sequence[int] | Int64Array
RowIds: TypeAlias = int | Iterable[int]

_AMBIGUOUS = (
    "integers can be row ids or positions, so say which: row_ids=… for row ids, as in the column _row_id, in"
    " bad_samples and in quarantined(); positions=… for places in the table, as in ds[i]"
)


def choose_rows(
    session: Session, where: Any, *, positions: Positions | None = None, row_ids: RowIds | None = None
) -> Int64Array:
    """Positions of the chosen rows in the session's table with its staged changes, in the order given.

    Raises `NotFoundError` for a row that this version does not have, and `InvalidInputError` for a choice that is none.
    """
    if sum(given is not None for given in (where, positions, row_ids)) != 1:
        raise InvalidInputError(
            "choose the rows in one way: a view, a condition in SQL, a mask, an expression, positions=… or row_ids=…"
        )
    reader = session.reader
    if row_ids is not None:
        return find_row_ids(reader, as_row_ids(row_ids))
    if positions is not None:
        return resolve_positions(positions, reader.snapshot.live)
    if isinstance(where, View):
        return _find_view(session, reader, where._relation())
    if isinstance(where, str):
        everything = Relation(reader, tuple(reader.snapshot.schema.names), range(reader.snapshot.live))
        return filter_rows(everything, where).positions
    if isinstance(where, pc.Expression):
        return find_positions(reader, where)
    return _find_mask(reader, where)


def _find_mask(reader: Reader, where: Any) -> Int64Array:
    try:
        given = np.asarray(where)
    except ValueError:  # lists of different lengths
        given = np.array(None)
    empty = given.ndim == 1 and not given.size and given.dtype != bool  # a list that was to be filled with integers
    if isinstance(where, slice) or given.dtype.kind in "iu" or empty:
        raise InvalidInputError(_AMBIGUOUS)
    if given.dtype != bool or given.ndim != 1:
        raise InvalidInputError(
            "rows are chosen by a view, a condition in SQL, a mask of bools or an expression, not by a"
            f" {type(where).__name__}"
        )
    return resolve_positions(given, reader.snapshot.live)


def as_row_ids(given: Any) -> Int64Array:
    """Row ids as an array; raises `InvalidInputError`."""
    ids = np.atleast_1d(np.asarray(given if isinstance(given, np.ndarray) else _listed(given)))
    if not ids.size:
        return np.zeros(0, np.int64)
    if ids.dtype.kind not in "iu" or ids.ndim != 1 or int(ids.min()) < 0 or int(ids.max()) >= 1 << 63:
        raise InvalidInputError(f"row ids are whole numbers from 0 to 2^63, not {given!r}")
    return ids.astype(np.int64)


def _listed(given: Any) -> Any:
    return list(given) if hasattr(given, "__iter__") and not hasattr(given, "__array__") else given


def _find_view(session: Session, reader: Reader, relation: Relation) -> Int64Array:
    """Positions of a view's rows: by row id, unless it is a view of the very rows of the session."""
    theirs = relation.reader
    if theirs.store is not session.store and open_table(theirs.store).id != session.info.id:
        raise InvalidInputError(f"the view is of {theirs.store.uri}, another table than {session.store.uri}")
    if theirs.snapshot.nodes == reader.snapshot.nodes:
        return relation.positions
    seen = relation.distinct
    ids = theirs.row_ids(seen)[np.searchsorted(seen, relation.positions)]
    return find_row_ids(reader, ids, ", where the view has it: it was deleted since, or is of another version")


def computed_values(session: Session, positions: Int64Array, values: Mapping[str, str]) -> dict[str, pa.ChunkedArray]:
    """Columns of some rows by SQL expressions, which see those rows and no other.

    Raises `InvalidInputError` for an expression that is none, that is not one value for each row, or that is for a
    column of media or large tensors; `NotFoundError` for an unknown column.
    """
    reader = session.reader
    schema = reader.snapshot.schema
    for name, expression in values.items():
        _check_expression(name, expression)
        kind = schema[name].kind
        if is_heavy(kind) or isinstance(kind, Linked):
            raise InvalidInputError(
                f"column {name!r} holds {kind}, which SQL cannot compute; give its values with data="
            )
    relation = Relation(reader, tuple(schema.names), positions)
    listed = ", ".join(f"(\n{expression}\n)" for expression in values.values())
    try:
        result = run_sql(f"SELECT {listed} FROM ds", {"ds": relation})
    except (InvalidInputError, NotFoundError) as error:
        raise type(error)(f"values= has SQL expressions (data= takes values as they are): {error}") from None
    if result.rows is None or not np.array_equal(result.rows, np.arange(len(positions))):
        raise InvalidInputError(
            f"{list(values.values())} are not expressions on single rows; use data= with the values"
        )
    found = {}
    for name, column in zip(values, result.columns, strict=True):
        if isinstance(column, ComputedColumn):
            found[name] = column.values
        elif isinstance(column, TableColumn) and (
            column.column not in schema or not is_heavy(schema[column.column].kind)
        ):
            found[name] = reader.arrow([column.column], positions)[column.column]
        else:
            raise InvalidInputError(f"values[{name!r}] is a column of media or large tensors; give values with data=")
    return found


def _check_expression(name: str, expression: Any) -> None:
    if not isinstance(expression, str):
        raise InvalidInputError(
            f"values[{name!r}] is an SQL expression, a text such as 'reward * 2', not {expression!r}; data= takes"
            " values as they are"
        )
    try:
        tables = table_names(f"SELECT {expression}")
    except InvalidInputError as error:
        raise InvalidInputError(
            f"values[{name!r}] is no SQL expression; data= takes values as they are, and in SQL text has single quotes:"
            f" {error}"
        ) from None
    if tables:
        raise InvalidInputError(f"values[{name!r}] sees the values of one row: a query in it has no table to read")
