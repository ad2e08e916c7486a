"""Parts of a large append: written anywhere, as fragments without ids of their own, and appended to the table later."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.errors import ConflictError, InvalidInputError
from penstock.format import Field, Fragment, Schema, new_int_id
from penstock.format.kinds import Image, Label
from penstock.storage import Store
from penstock.table._append import FileWriter, FragmentWriter
from penstock.table._encode import ROLLED_BACK, Encoder
from penstock.table._input import ColumnBatch, column_batches
from penstock.table._links import LinkContainers
from penstock.table._stage import Stage
from penstock.types import RowRange


@dataclass(frozen=True)
class RowChunk:
    """Some rows, and the names under which rejected rows are reported."""

    data: Mapping[str, Any] | pa.RecordBatch | Sequence[Mapping[str, Any]]
    names: Sequence[str] | str
    """One name per row, or one for all."""

    def name(self, row: int) -> str:
        return f"{self.names}, row {row}" if isinstance(self.names, str) else self.names[row]


def write_part(
    store: Store,
    schema: Schema,
    chunks: Iterable[RowChunk],
    *,
    containers: Mapping[str, str],
    on_reject: Callable[[str, str], None],
) -> tuple[list[Fragment], set[int]]:
    """Store rows that stay invisible until `append_parts`.

    Returns their fragments, and the ids of the fields with an image of another shape than was inferred. A row that does
    not fit the schema is skipped and reported to `on_reject` with its name and the reason.
    """
    encoder = Encoder(store, LinkContainers(True, dict(containers)), {}, [])
    with FileWriter(store) as files, encoder.discard_on_error():
        writer = FragmentWriter(files, list(schema), _UnassignedIds())
        for chunk in chunks:
            for batch in column_batches(chunk.data):
                for arrays in _encode_valid(encoder, schema, batch, chunk, on_reject):
                    writer.write(arrays)
        writer.close_fragment()
    return writer.fragments, encoder.other_shapes


def append_parts(
    stage: Stage, schema: Schema, fragments: Sequence[Fragment], containers: Mapping[str, str], operation: str
) -> int:
    """Stage the rows of parts in order, and add missing columns and classes; returns the number of rows."""
    for field in schema:
        stage.set_schema(_with_column(stage.snapshot.schema, field))
    # A part may have been appended before, by a run that died after its commit: these are other rows, so the fragments
    # are others too.
    appended = [
        replace(fragment, id=new_int_id(), row_ids=stage.row_ids.allocate(fragment.rows)) for fragment in fragments
    ]
    stage.update_snapshot(stage.tree.append(stage.snapshot.nodes, appended), stage.snapshot.schema, containers)
    rows = sum(fragment.rows for fragment in appended)
    stage.changes.record(operation, added=rows)
    return rows


def _with_column(schema: Schema, field: Field) -> Schema:
    """A schema with the column of a part, or with what an existing column lacks: classes, or images of any shape.

    Raises `ConflictError` if the column is not what it was when the part was written.
    """
    known = next((known for known in schema.fields if known.id == field.id), None)
    if known is None and field.name not in schema:
        return Schema((*schema.fields, field))
    changed = ConflictError(f"column {field.name!r} was changed since these rows were written; write them again")
    if known is None or known.dropped:
        raise changed
    if isinstance(field.kind, Image) and field.kind.shape is None:
        return schema.with_any_shape({field.id})
    if not isinstance(known.kind, Label) or not isinstance(field.kind, Label):
        return schema
    classes, more = sorted((known.kind.names, field.kind.names), key=len)
    if more[: len(classes)] != classes:
        raise changed
    return schema.with_field(replace(known, kind=Label(more)))


class _UnassignedIds:
    """Placeholder ids: real ones are claimed by `append_parts`, so that an abandoned part claims none."""

    def allocate(self, count: int) -> tuple[RowRange, ...]:
        return (RowRange(0, count),)


def _encode_valid(
    encoder: Encoder, schema: Schema, batch: ColumnBatch, chunk: RowChunk, on_reject: Callable[[str, str], None]
) -> Iterator[Mapping[int, pa.Array]]:
    """Encode a batch; if a row does not fit, bisect the batch until that row is alone."""
    try:
        yield encoder.batch(schema, batch)
        return
    except InvalidInputError as error:
        if batch.rows == 1:
            on_reject(chunk.name(batch.first_row), _reason(error))
            return
    middle = batch.rows // 2
    yield from _encode_valid(encoder, schema, _slice_batch(batch, 0, middle), chunk, on_reject)
    yield from _encode_valid(encoder, schema, _slice_batch(batch, middle, batch.rows), chunk, on_reject)


def _slice_batch(batch: ColumnBatch, start: int, end: int) -> ColumnBatch:
    return ColumnBatch(
        {name: values[start:end] for name, values in batch.columns.items()},
        end - start,
        batch.first_row + start,
        {name: mask[start:end] for name, mask in batch.absent.items()},
    )


def _reason(error: InvalidInputError) -> str:
    return str(error).removesuffix(ROLLED_BACK)
