"""Resolve a user's selection of rows: positions, slices, masks, or an expression over the columns."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInputError, NotFoundError
from penstock.format import Field
from penstock.format.kinds import Label, Tensor
from penstock.storage import Prefetch, read_ahead
from penstock.table._gather import gather, gather_dense
from penstock.table._pages import FragmentRows, Int64Array, fetch_pages
from penstock.table._prune import CandidateRows, PruneCounts, candidate_rows
from penstock.table._read import Reader, as_native_arrow
from penstock.table.filters import referenced_columns

_TASK_BYTES = 8 << 20
_MAX_TASK_ROWS = 1 << 18
_SCAN_PREFETCH = Prefetch(4)
_READERS = 4
_NO_COLUMN = re.compile(r"No match for FieldRef\.Name\((.*?)\) in ", re.DOTALL)


def find_row_ids(reader: Reader, row_ids: Int64Array, why: str = "") -> Int64Array:
    """Positions of rows by id, in their order; raises `NotFoundError` for an id without a row, and says `why`."""
    found = reader.positions_of(row_ids)
    if (found < 0).any():
        raise NotFoundError(f"there is no row with id {int(row_ids[found < 0][0])} in this version{why}")
    return found


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


def sorted_distinct(positions: Int64Array) -> Int64Array:
    """Positions ascending and without repeats; several times as fast as `numpy.unique`, which hashes integers."""
    rows = np.sort(positions)
    return rows[np.concatenate([[True], rows[1:] != rows[:-1]])] if len(rows) > 1 else rows


def find_positions(reader: Reader, expression: pc.Expression) -> Int64Array:
    """Positions of the rows that match an expression; raises `InvalidInputError` for one that does not fit."""
    fields = _referenced_fields(reader, expression)
    candidates = candidate_rows(reader, expression, range(reader.snapshot.live), PruneCounts())

    def matches(task: Sequence[CandidateRows]) -> Int64Array:
        positions = task[0].positions if len(task) == 1 else np.concatenate([part.positions for part in task])
        columns = comparable_columns(reader, fields, [part.selected for part in task])
        try:
            return np.asarray(pa.table({**columns, "_": positions}).filter(expression)["_"])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise _filter_error(error, reader) from None

    found = list(read_ahead(matches, scan_tasks(candidates, fields), prefetch=_SCAN_PREFETCH))
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def scan_tasks(candidates: Iterable[CandidateRows], fields: Sequence[Field]) -> Iterator[list[CandidateRows]]:
    """Candidate rows in tasks of bounded size: small fragments together, a large one in several."""
    task: list[CandidateRows] = []
    size = 0.0
    for found in candidates:
        fragment, rows = found.selected.fragment, found.selected.rows
        files = {file.id: file for field in fields for file in fragment.files_of(field.id)}
        row_bytes = max(_TASK_BYTES / _MAX_TASK_ROWS, sum(file.length for file in files.values()) / fragment.rows)
        start = 0
        while start < len(rows):
            end = min(len(rows), start + max(1, int((_TASK_BYTES - size) / row_bytes)))
            task.append(CandidateRows(FragmentRows(fragment, rows[start:end]), found.positions[start:end]))
            size += (end - start) * row_bytes
            start = end
            if size > _TASK_BYTES - row_bytes:
                yield task
                task, size = [], 0
    if task:
        yield task


def comparable_columns(
    reader: Reader, fields: Sequence[Field], selection: Sequence[FragmentRows]
) -> dict[str, pa.Array]:
    """Columns of some rows as an expression sees them; numbers without nulls are not parsed."""
    with reader.missing_as_corrupt():
        pages = fetch_pages(reader.store, selection, [field.id for field in fields], max_workers=_READERS)
    columns = {}
    for field in fields:
        dense = gather_dense(field, selection, pages) if _is_scalar(field) else None
        if dense is not None:
            columns[field.name] = _from_dense(field, dense)
        else:
            raw = gather(reader.snapshot.schema, field, selection, pages, as_arrow=True)
            assert raw.array is not None
            columns[field.name] = _comparable(field, raw.array)
    return columns


def _is_scalar(field: Field) -> bool:
    return isinstance(field.kind, Label) or (isinstance(field.kind, Tensor) and field.kind.shape == ())


def _from_dense(field: Field, values: npt.NDArray[Any]) -> pa.Array:
    """`_comparable` of values that were not parsed."""
    if isinstance(field.kind, Tensor) and "float" in field.kind.dtype and values.dtype != np.float64:
        return pa.array(values.astype(np.float32, copy=False))
    return pa.array(values)  # "not a time" is null


def _referenced_fields(reader: Reader, expression: pc.Expression) -> list[Field]:
    """The columns that an expression references; raises `InvalidInputError` if it does not fit the table."""
    fields = list(reader.snapshot.schema)
    empty = pa.table({field.name: _comparable(field, pa.nulls(0, field.kind.arrow_type)) for field in fields})
    try:
        empty.filter(expression)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
        raise _filter_error(error, reader) from None
    return [reader.snapshot.schema[name] for name in referenced_columns(empty, expression)]


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
