"""Append, update and delete rows."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidInputError
from penstock.format import Field, Schema, infer_schema
from penstock.format.kinds import Image, Tensor, Values, to_numpy
from penstock.table._append import FileWriter, FragmentWriter
from penstock.table._input import Appendable, column_batches
from penstock.table._pages import Int64Array
from penstock.table._read import as_batch
from penstock.table._stage import Stage
from penstock.table._update import update_fragments


def append_rows(stage: Stage, data: Appendable) -> int:
    """Stage rows and return their number; raises `InvalidInputError` and stages none if a row does not fit."""
    encoder = stage.encoder()
    schema = stage.snapshot.schema
    rows = 0
    with FileWriter(stage.store) as files, encoder.discard_on_error():
        writer: FragmentWriter | None = None
        for batch in column_batches(data):
            if not len(schema):
                inferred = infer_schema(batch.columns)
                if not len(inferred):
                    raise InvalidInputError("the table has no columns, and the first rows have none; give a schema")
                schema = Schema((*schema.fields, *inferred.fields))
            if writer is None:
                writer = FragmentWriter(files, list(schema), stage.row_ids)
            writer.write(encoder.batch(schema, batch))
            rows += batch.rows
        if writer is None:
            return 0
        writer.close_fragment()
    nodes = stage.tree.append(stage.snapshot.nodes, writer.fragments)
    stage.update_snapshot(nodes, schema.with_any_shape(encoder.other_shapes), encoder.new_containers)
    stage.changes.record("append", added=rows)
    return rows


def update_rows(
    stage: Stage, positions: Int64Array, values: Mapping[str, Any] | Callable[[dict[str, Values]], Mapping[str, Any]]
) -> int:
    """Stage new values and return the number of rows.

    `values` maps each column to one value for all rows or to a list with one per row; or it is a function from the
    batch of the rows to such a mapping.
    """
    if len(np.unique(positions)) < len(positions):
        raise InvalidInputError("a row to update is selected more than once")
    if not len(positions) or not values:
        return 0
    if callable(values):
        values = values(as_batch(stage.reader.columns(stage.snapshot.schema.names, [positions])[0]))
    fields = [stage.snapshot.schema[name] for name in values]
    encoder = stage.encoder()
    with FileWriter(stage.store) as files, encoder.discard_on_error():
        arrays: dict[int, pa.Array] = {}
        for field in fields:
            column = _broadcast(field, values[field.name], len(positions))
            arrays.update(encoder.column(field, column, rows=len(positions), first_row=0))
        changed = update_fragments(stage, files, positions, fields, arrays)
    stage.replace(changed, encoder.new_containers)
    stage.set_schema(stage.snapshot.schema.with_any_shape(encoder.other_shapes))
    stage.changes.record("update", updated=len(positions))
    return len(positions)


def delete_rows(stage: Stage, positions: Int64Array) -> int:
    """Stage the deletion of rows and return their number."""
    positions = np.unique(positions)
    changed = []
    for selected in stage.locate(positions):
        deleted = np.zeros(selected.fragment.rows, bool)
        deleted[selected.rows] = True
        changed.append((selected.fragment, selected.fragment.without_rows(deleted)))
    if changed:
        stage.replace(changed, {})
        stage.changes.record("delete", deleted=len(positions))
    return len(positions)


def _broadcast(field: Field, value: Any, count: int) -> Any:
    """A column from the value of an update: a list with one value per row, or one value repeated."""
    value = to_numpy(value)
    if isinstance(field.kind, Tensor) and not isinstance(value, pa.Array | pa.ChunkedArray):
        one = value is None or _is_one_tensor(field.kind, value, count)
    elif isinstance(field.kind, Image) and isinstance(value, np.ndarray) and value.dtype != object:
        one = value.ndim < 4 and value.shape[1:] != field.kind.shape
    else:
        one = not isinstance(value, list | tuple | np.ndarray | pa.Array | pa.ChunkedArray)
    if one:
        return [value] * count
    if len(value) != count:
        raise InvalidInputError(f"column {field.name!r}: {count} rows, but {len(value)} values")
    return value


def _is_one_tensor(kind: Tensor, value: Any, count: int) -> bool:
    """Whether a value is the tensor of one row; a list of unequal or missing items has values of several rows."""
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
