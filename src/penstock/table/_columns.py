"""Add, drop and rename columns without rewriting any stored data."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidInputError
from penstock.format import (
    ColumnLike,
    Field,
    FileColumn,
    Fragment,
    Schema,
    as_column,
    check_column_name,
    encode_file,
    infer_schema,
    make_field,
)
from penstock.format.kinds import Values
from penstock.table._append import FileWriter, concat_batches, write_columns
from penstock.table._compute_column import (
    ComputeOptions,
    Part,
    PartJob,
    PartValues,
    StagedParts,
    compute_values,
    function_digest,
    run_parts,
    split_fragments,
)
from penstock.table._gather import take
from penstock.table._stage import Stage
from penstock.table._statistics import compute_statistics

_MAX_FILL_BYTES = 64 << 10


def add_column(
    stage: Stage,
    name: str,
    column: ColumnLike | None,
    *,
    fill: Any,
    values: Any,
    compute: Callable[[dict[str, Values]], Any] | None,
    options: ComputeOptions,
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
        _add_computed(stage, name, column, values=values, compute=compute, options=options)
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


def _add_computed(
    stage: Stage,
    name: str,
    column: ColumnLike | None,
    *,
    values: Any,
    compute: Callable[[dict[str, Values]], Any] | None,
    options: ComputeOptions,
) -> None:
    reader = stage.reader
    stage.intent.renew()
    inputs = list(options.inputs) if options.inputs is not None else reader.snapshot.schema.names
    source = _given_values(values, stage.snapshot.live)
    seed = None
    if compute is not None:
        source = partial(compute_values, reader, compute, inputs)
        kind = None if column is None else str(as_column(name, column))
        seed = function_digest(compute, stage.info.id, name, inputs, kind)
    job = PartJob(reader, name, None if column is None else make_field(name, column), source)
    fragments = [fragment for fragment in stage.tree.fragments(stage.snapshot.nodes) if fragment.live]
    parts = split_fragments(reader, fragments, seed or b"", inputs if compute is not None else [])
    staged = StagedParts(stage.store, seed, options.stage_every_s)
    staged.find()
    finished = _FinishedFragments(fragments, parts)
    field = job.field
    with FileWriter(stage.store) as files, closing(run_parts(job, parts, staged, options)) as found:
        for field, part, part_values in found:
            stage.intent.renew()
            finished.add(files, field, part, part_values)
    if field is None:
        raise InvalidInputError(f"column {name!r}: the table has no rows to compute it from; give its kind")
    _add_field(stage, field)
    stage.set_schema(stage.snapshot.schema.with_any_shape({field.id} if finished.other_shape else set()))
    stage.changes.computed.append(name)
    if finished.changed:
        changed = [pair for _, pair in sorted(finished.changed.items())]
        stage.replace(changed, finished.containers)
    staged.clear()


class _FinishedFragments:
    """Collects the parts of fragments, and writes the files of a fragment when all its parts are there."""

    def __init__(self, fragments: Sequence[Fragment], parts: Sequence[Part]) -> None:
        self._fragments = fragments
        self._missing = Counter(part.fragment for part in parts)
        self._values: dict[int, dict[int, PartValues]] = {}
        self.changed: dict[int, tuple[Fragment, Fragment]] = {}
        self.containers: dict[str, str] = {}
        self.other_shape = False

    def add(self, files: FileWriter, field: Field, part: Part, values: PartValues) -> None:
        self._values.setdefault(part.fragment, {})[part.number] = values
        self.containers |= values.containers
        self.other_shape |= values.other_shape
        self._missing[part.fragment] -= 1
        if self._missing[part.fragment]:
            return
        fragment = self._fragments[part.fragment]
        found = [values for _, values in sorted(self._values.pop(part.fragment).items())]
        batches = [
            {field.id: one.values} | ({} if one.references is None else {-field.id: one.references}) for one in found
        ]
        arrays = _expand_deleted(batches, fragment.deleted_rows)
        written = [future.result() for future in write_columns(files, [field], arrays)]
        bounds = tuple(compute_statistics([field], arrays).values())
        after = replace(fragment, files=(*fragment.files, *written), statistics=(*fragment.statistics, *bounds))
        self.changed[part.fragment] = (fragment, after)


def _add_field(stage: Stage, field: Field) -> None:
    stage.set_schema(Schema((*stage.snapshot.schema.fields, field)))


def _expand_deleted(batches: Sequence[Mapping[int, pa.Array]], deleted: Any) -> dict[int, pa.Array]:
    """Columns of live rows as columns of all rows; a deleted row repeats the live row before it."""
    arrays = concat_batches(batches)
    if not deleted.any():
        return arrays
    indices = np.maximum(np.cumsum(~deleted) - 1, 0)
    return {id: take(array, indices) for id, array in arrays.items()}


def _given_values(values: Any, count: int) -> Callable[[Any], Any]:
    """A function from positions to the values that a user gave."""
    if values is not None and (not hasattr(values, "__len__") or len(values) != count):
        got = len(values) if hasattr(values, "__len__") else type(values).__name__
        raise InvalidInputError(f"values needs one value for each of the {count} rows, got {got}")
    return lambda positions: values[positions[0] : positions[-1] + 1]
