"""Change rows: add them, give them other values, remove them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidInputError
from penstock.format import Field, Schema, infer_schema
from penstock.format.kinds import Image, Tensor, Values
from penstock.history import AddField
from penstock.table._append import FileWriter, FragmentWriter
from penstock.table._input import Appendable, column_batches
from penstock.table._pages import take
from penstock.table._read import as_batch
from penstock.table._select import positions
from penstock.table._stage import Stage, Undo
from penstock.table._update import update_fragment


def append_rows(stage: Stage, data: Appendable) -> int:
    """Stage rows; all of them, or none if one is refused."""
    encoder = stage.encoder()
    edits: list[AddField] = []
    schema = stage.snapshot.schema
    rows = 0
    with FileWriter(stage.store) as files, Undo(stage.store, encoder):
        writer: FragmentWriter | None = None
        for batch in column_batches(data):
            if not len(schema):
                inferred = infer_schema(batch.columns)
                if not len(inferred):
                    raise InvalidInputError("the table has no columns, and neither have the first rows")
                edits = [AddField(field) for field in inferred]
                schema = Schema((*schema.fields, *inferred.fields))
            if writer is None:
                writer = FragmentWriter(files, list(schema), stage.row_ids)
            writer.write(encoder.batch(schema, batch))
            rows += batch.rows
        if writer is None:
            return 0
        writer.close_fragment()
    nodes = stage.tree.append(stage.snapshot.nodes, writer.fragments)
    stage.changes.appended += writer.fragments
    stage.changes.edits += edits
    stage.put(nodes, schema, encoder.new_containers)
    stage.changes.note("append", added=rows)
    return rows


def update_rows(
    stage: Stage, where: Any, values: Mapping[str, Any] | Callable[[dict[str, Values]], Mapping[str, Any]]
) -> int:
    """Stage other values for some rows; a mapping has a value for all of them, or a list with one for each."""
    rows = positions(stage.reader, where)
    if len(np.unique(rows)) < len(rows):
        raise InvalidInputError("the rows to update are given more than once")
    if not len(rows) or not values:
        return 0
    if callable(values):
        values = values(as_batch(stage.reader.columns(stage.snapshot.schema.names, [rows])[0]))
    fields = [stage.snapshot.schema[name] for name in values]
    encoder = stage.encoder()
    order = np.argsort(rows, kind="stable")
    with FileWriter(stage.store) as files, Undo(stage.store, encoder):
        arrays: dict[int, pa.Array] = {}
        for field in fields:
            column = _per_row(field, values[field.name], len(rows))
            arrays.update(encoder.column(field, column, rows=len(rows), first_row=0))
        arrays = {id: take(array, order) for id, array in arrays.items()}
        changed, start = [], 0
        for want in stage.wanted(rows[order]):
            part = {id: array.slice(start, len(want.rows)) for id, array in arrays.items()}
            after = update_fragment(stage.store, files, stage.snapshot.schema, want, fields, part)
            changed.append((want.fragment, after))
            start += len(want.rows)
    stage.replace(changed, encoder.new_containers)
    stage.changes.note("update", updated=len(rows))
    return len(rows)


def delete_rows(stage: Stage, where: Any) -> int:
    """Stage the removal of rows."""
    rows = np.unique(positions(stage.reader, where))
    changed = []
    for want in stage.wanted(rows):
        gone = np.zeros(want.fragment.rows, bool)
        gone[want.rows] = True
        changed.append((want.fragment, want.fragment.without_rows(gone)))
    if changed:
        stage.replace(changed, {})
        stage.changes.note("delete", deleted=len(rows))
    return len(rows)


def _per_row(field: Field, value: Any, count: int) -> Any:
    """A column from what an update was given: a list with a value per row, or one value for all."""
    if isinstance(field.kind, Tensor) and not isinstance(value, pa.Array | pa.ChunkedArray):
        one = value is None or _is_one(field.kind, value, count)
    elif isinstance(field.kind, Image) and isinstance(value, np.ndarray) and value.dtype != object:
        one = value.ndim < 4 and value.shape[1:] != field.kind.shape
    else:
        one = not isinstance(value, list | tuple | np.ndarray | pa.Array | pa.ChunkedArray)
    if one:
        return [value] * count
    if len(value) != count:
        raise InvalidInputError(f"column {field.name!r}: {count} rows, but {len(value)} values")
    return value


def _is_one(kind: Tensor, value: Any, count: int) -> bool:
    """Whether numbers are one row's; lists of unequal or missing items are values of several rows."""
    try:
        array = np.asarray(value)
    except ValueError:
        return False
    if array.dtype == object and array.ndim:
        return False
    if array.shape == (0,) and kind.ragged:
        return True
    fits = all(n in (None, m) for n, m in zip(kind.shape, array.shape, strict=False))
    return array.ndim == len(kind.shape) and (fits or len(array) != count)
