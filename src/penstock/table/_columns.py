"""Add, drop and rename columns without rewriting any stored data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidInputError
from penstock.format import (
    ColumnLike,
    Field,
    FileColumn,
    Schema,
    check_column_name,
    encode_file,
    infer_schema,
    make_field,
)
from penstock.format.kinds import Values
from penstock.table._append import FileWriter, concat_batches, write_columns
from penstock.table._gather import take
from penstock.table._read import as_batch
from penstock.table._stage import Stage
from penstock.table._statistics import compute_statistics

_COMPUTE_ROWS = 1024
_MAX_FILL_BYTES = 64 << 10


def add_column(
    stage: Stage,
    name: str,
    column: ColumnLike | None,
    *,
    fill: Any,
    values: Any,
    compute: Callable[[dict[str, Values]], Any] | None,
    inputs: Sequence[str] | None,
) -> None:
    """Stage a column with one value for every row (writes no data), one value per row, or a function of batches."""
    if sum(given is not None for given in (fill, values, compute)) > 1:
        raise InvalidInputError("give only one of fill, values and compute")
    if name in stage.snapshot.schema:
        raise InvalidInputError(f"there is a column {name!r} already; drop it first, or update it")
    check_column_name(name)
    if values is None and compute is None:
        _add_filled(stage, name, column, fill)
    else:
        _add_computed(stage, name, column, _value_source(values, compute, stage, inputs))
    stage.changes.record("add_column")


def drop_column(stage: Stage, name: str) -> None:
    """Stage the removal of a column; older versions still have it."""
    schema = stage.snapshot.schema
    stage.set_schema(schema.with_field(replace(schema[name], dropped=True)))
    stage.changes.record("drop_column")


def rename_column(stage: Stage, old: str, new: str) -> None:
    """Stage a new name for a column."""
    check_column_name(new)
    schema = stage.snapshot.schema
    if new in schema:
        raise InvalidInputError(f"there is a column {new!r} already")
    stage.set_schema(schema.with_field(replace(schema[old], name=new)))
    stage.changes.record("rename_column")


def _add_filled(stage: Stage, name: str, column: ColumnLike | None, fill: Any) -> None:
    if column is None:
        if fill is None:
            raise InvalidInputError(f"column {name!r}: give its kind, or a fill value")
        column = infer_schema({name: [fill]})[name].kind
    field = make_field(name, column)
    if fill is not None:
        encoder = stage.encoder()
        with encoder.discard_on_error():
            arrays = encoder.column(field, [fill], rows=1, first_row=0)
            file, data = encode_file([FileColumn(field)], [arrays[field.id]], row_start=0, page_rows=[1])
            page = file.page_range(0)
            if page.length > _MAX_FILL_BYTES or encoder.blobs:
                raise InvalidInputError(f"column {name!r}: the fill value is too large; give values")
        field = replace(field, fill=bytes(data[page.start : page.end]))
        stage.update_snapshot(stage.snapshot.nodes, stage.snapshot.schema, encoder.new_containers)
    elif not field.nullable and stage.snapshot.live:
        raise InvalidInputError(
            f"column {name!r}: the existing rows need a value: give fill, values or compute, or make it nullable"
        )
    _add_field(stage, field)


def _add_computed(stage: Stage, name: str, column: ColumnLike | None, source: Callable[[Any, int], Any]) -> None:
    encoder = stage.encoder()
    field = None if column is None else make_field(name, column)
    changed = []
    start = 0
    with FileWriter(stage.store) as files, encoder.discard_on_error():
        for fragment in list(stage.tree.fragments(stage.snapshot.nodes)):
            if not fragment.live:
                continue
            batches = []
            for first in range(start, start + fragment.live, _COMPUTE_ROWS):
                positions = np.arange(first, min(first + _COMPUTE_ROWS, start + fragment.live))
                values = source(positions, first)
                if len(values) != len(positions):
                    raise InvalidInputError(f"column {name!r}: {len(positions)} rows, but {len(values)} values")
                if field is None:
                    field = infer_schema({name: values}).fields[0]
                batches.append(encoder.column(field, values, rows=len(positions), first_row=first))
            assert field is not None
            arrays = _expand_deleted(batches, fragment.deleted_rows)
            written = [future.result() for future in write_columns(files, [field], arrays)]
            bounds = tuple(compute_statistics([field], arrays).values())
            after = replace(fragment, files=(*fragment.files, *written), statistics=(*fragment.statistics, *bounds))
            changed.append((fragment, after))
            start += fragment.live
    if field is None:
        raise InvalidInputError(f"column {name!r}: the table has no rows to compute it from; give its kind")
    _add_field(stage, field)
    stage.set_schema(stage.snapshot.schema.with_any_shape(encoder.other_shapes))
    stage.changes.computed.append(name)
    if changed:
        stage.replace(changed, encoder.new_containers)


def _add_field(stage: Stage, field: Field) -> None:
    stage.set_schema(Schema((*stage.snapshot.schema.fields, field)))


def _expand_deleted(batches: Sequence[Mapping[int, pa.Array]], deleted: Any) -> dict[int, pa.Array]:
    """Columns of live rows as columns of all rows; a deleted row repeats the live row before it."""
    arrays = concat_batches(batches)
    if not deleted.any():
        return arrays
    indices = np.maximum(np.cumsum(~deleted) - 1, 0)
    return {id: take(array, indices) for id, array in arrays.items()}


def _value_source(
    values: Any, compute: Callable[[dict[str, Values]], Any] | None, stage: Stage, inputs: Sequence[str] | None
) -> Callable[[Any, int], Any]:
    """A function from positions, and the first of them, to the column's values."""
    if compute is not None:
        reader = stage.reader
        names = list(inputs) if inputs is not None else reader.snapshot.schema.names
        return lambda positions, _: compute(as_batch(reader.columns(names, [positions])[0]))
    count = stage.snapshot.live
    if not hasattr(values, "__len__") or len(values) != count:
        got = len(values) if hasattr(values, "__len__") else type(values).__name__
        raise InvalidInputError(f"values needs one value for each of the {count} rows, got {got}")
    return lambda positions, first: values[first : first + len(positions)]
