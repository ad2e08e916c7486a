"""Change columns: add, drop and rename them; nothing that is stored is written again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidInputError
from penstock.format import ColumnLike, FileColumn, check_name, encode_file, infer_schema, make_field
from penstock.format.kinds import Values
from penstock.history import AddField, DropField, RenameField
from penstock.table._append import FileWriter, join, write_columns
from penstock.table._pages import take
from penstock.table._read import as_batch
from penstock.table._stage import Stage, Undo
from penstock.table._statistics import statistics_of

_COMPUTE_ROWS = 1024
_LARGEST_FILL = 64 << 10


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
    """Stage a column: one value for every row (no data is written), one for each, or a function of a batch."""
    if sum(given is not None for given in (fill, values, compute)) > 1:
        raise InvalidInputError("give only one of fill, values and compute")
    if name in stage.snapshot.schema:
        raise InvalidInputError(f"there is a column {name!r} already; drop it first, or update it")
    check_name(name)
    if values is None and compute is None:
        _add_filled(stage, name, column, fill)
    else:
        _add_computed(stage, name, column, _source(values, compute, stage, inputs))
    stage.changes.note("add_column")


def drop_column(stage: Stage, name: str) -> None:
    """Stage the removal of a column; its bytes stay for older versions."""
    stage.edit(DropField(stage.snapshot.schema[name].id, name))
    stage.changes.note("drop_column")


def rename_column(stage: Stage, old: str, new: str) -> None:
    """Stage another name for a column."""
    check_name(new)
    if new in stage.snapshot.schema:
        raise InvalidInputError(f"there is a column {new!r} already")
    stage.edit(RenameField(stage.snapshot.schema[old].id, old, new))
    stage.changes.note("rename_column")


def _add_filled(stage: Stage, name: str, column: ColumnLike | None, fill: Any) -> None:
    if column is None:
        if fill is None:
            raise InvalidInputError(f"column {name!r}: give its kind, or a value to fill it with")
        column = infer_schema({name: [fill]})[name].kind
    field = make_field(name, column)
    if fill is not None:
        encoder = stage.encoder()
        with Undo(stage.store, encoder):
            arrays = encoder.column(field, [fill], rows=1, first_row=0)
            file, data = encode_file([FileColumn(field)], [arrays[field.id]], row_start=0, page_rows=[1])
            at = file.page_range(0)
            if at.length > _LARGEST_FILL or encoder.blobs:
                raise InvalidInputError(f"column {name!r}: the fill value is too large; give values")
        field = replace(field, fill=bytes(data[at.start : at.end]))
        stage.put(stage.snapshot.nodes, stage.snapshot.schema, encoder.new_containers)
    elif not field.nullable and stage.snapshot.live:
        raise InvalidInputError(
            f"column {name!r}: the rows that are there need a value: give fill, values or compute, or make it nullable"
        )
    stage.edit(AddField(field))


def _add_computed(stage: Stage, name: str, column: ColumnLike | None, source: Callable[[Any, int], Any]) -> None:
    encoder = stage.encoder()
    field = None if column is None else make_field(name, column)
    changed = []
    start = 0
    with FileWriter(stage.store) as files, Undo(stage.store, encoder):
        for fragment in list(stage.tree.fragments(stage.snapshot.nodes)):
            if not fragment.live:
                continue
            parts = []
            for first in range(start, start + fragment.live, _COMPUTE_ROWS):
                rows = np.arange(first, min(first + _COMPUTE_ROWS, start + fragment.live))
                found = source(rows, first)
                if len(found) != len(rows):
                    raise InvalidInputError(f"column {name!r}: {len(rows)} rows, but {len(found)} values")
                if field is None:
                    field = infer_schema({name: found}).fields[0]
                parts.append(encoder.column(field, found, rows=len(rows), first_row=first))
            assert field is not None
            arrays = _spread(parts, fragment.deleted_rows)
            written = [future.result() for future in write_columns(files, [field], arrays)]
            bounds = tuple(statistics_of([field], arrays).values())
            after = replace(fragment, files=(*fragment.files, *written), statistics=(*fragment.statistics, *bounds))
            changed.append((fragment, after))
            start += fragment.live
    if field is None:
        raise InvalidInputError(f"column {name!r}: the table has no rows to compute it from; give its kind")
    stage.edit(AddField(field, computed=True))
    if changed:
        stage.replace(changed, encoder.new_containers)


def _spread(parts: Sequence[Mapping[int, pa.Array]], deleted: Any) -> dict[int, pa.Array]:
    """Columns of live rows as columns of all rows; a deleted row repeats its neighbour."""
    arrays = join(parts)
    if not deleted.any():
        return arrays
    places = np.maximum(np.cumsum(~deleted) - 1, 0)
    return {id: take(array, places) for id, array in arrays.items()}


def _source(
    values: Any, compute: Callable[[dict[str, Values]], Any] | None, stage: Stage, inputs: Sequence[str] | None
) -> Callable[[Any, int], Any]:
    if compute is not None:
        reader = stage.reader
        names = list(inputs) if inputs is not None else reader.snapshot.schema.names
        return lambda rows, _: compute(as_batch(reader.columns(names, [rows])[0]))
    count = stage.snapshot.live
    if not hasattr(values, "__len__") or len(values) != count:
        got = len(values) if hasattr(values, "__len__") else type(values).__name__
        raise InvalidInputError(f"values needs one value for each of the {count} rows, got {got}")
    return lambda rows, first: values[first : first + len(rows)]
