"""Parts of a large append: written anywhere, as fragments whose rows have no ids yet, and joined later."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.errors import InvalidInputError
from penstock.format import Field, Fragment, Schema
from penstock.format.kinds import Label
from penstock.history import AddField, ExtendLabel
from penstock.storage import Store
from penstock.table._append import FileWriter, FragmentWriter
from penstock.table._encode import Encoder
from penstock.table._input import ColumnBatch, column_batches
from penstock.table._links import Containers
from penstock.table._stage import Stage, Undo
from penstock.types import RowRange


@dataclass(frozen=True)
class Chunk:
    """Some rows, and what to call each of them when it is refused."""

    data: Mapping[str, Any] | pa.RecordBatch | Sequence[Mapping[str, Any]]
    names: Sequence[str] | str
    """A name for each row, or one for all."""

    def name(self, row: int) -> str:
        return f"{self.names}, row {row}" if isinstance(self.names, str) else self.names[row]


def write_part(
    store: Store,
    schema: Schema,
    chunks: Iterable[Chunk],
    *,
    containers: Mapping[str, str],
    refuse: Callable[[str, str], None],
) -> list[Fragment]:
    """Store rows, which nobody sees before `append_parts`; a row that does not fit is told to `refuse` and left out."""
    encoder = Encoder(store, Containers(True, dict(containers)), {}, [])
    with FileWriter(store) as files, Undo(store, encoder):
        writer = FragmentWriter(files, list(schema), _NoIds())
        for chunk in chunks:
            for batch in column_batches(chunk.data):
                for arrays in _encoded(encoder, schema, batch, chunk, refuse):
                    writer.write(arrays)
        writer.close_fragment()
    return writer.fragments


def append_parts(
    stage: Stage, schema: Schema, fragments: Sequence[Fragment], containers: Mapping[str, str], operation: str
) -> int:
    """Stage the rows of parts, in their order; columns and classes that the table has not got are added."""
    for field in schema:
        if field.name not in stage.snapshot.schema:
            stage.edit(AddField(field))
        elif isinstance(field.kind, Label) and (more := _more_classes(stage.snapshot.schema[field.name], field.kind)):
            stage.edit(ExtendLabel(field.id, more))
    whole = [replace(fragment, row_ids=stage.row_ids.take(fragment.rows)) for fragment in fragments]
    stage.changes.appended += whole
    stage.put(stage.tree.append(stage.snapshot.nodes, whole), stage.snapshot.schema, containers)
    rows = sum(fragment.rows for fragment in whole)
    stage.changes.note(operation, added=rows)
    return rows


def _more_classes(there: Field, wanted: Label) -> tuple[str, ...]:
    """The classes that a column has not got yet."""
    names = there.kind.names if isinstance(there.kind, Label) else ()
    return wanted.names[len(names) :]


class _NoIds:
    """Ids are claimed when the part is appended: rows of a part that never is should cost none."""

    def take(self, count: int) -> tuple[RowRange, ...]:
        return (RowRange(0, count),)


def _encoded(
    encoder: Encoder, schema: Schema, batch: ColumnBatch, chunk: Chunk, refuse: Callable[[str, str], None]
) -> Iterator[Mapping[int, pa.Array]]:
    """The arrays of a batch; where a row does not fit, those of the parts around it."""
    try:
        yield encoder.batch(schema, batch)
        return
    except InvalidInputError as error:
        if batch.rows == 1:
            refuse(chunk.name(batch.first_row), _reason(error))
            return
    middle = batch.rows // 2
    yield from _encoded(encoder, schema, _cut(batch, 0, middle), chunk, refuse)
    yield from _encoded(encoder, schema, _cut(batch, middle, batch.rows), chunk, refuse)


def _cut(batch: ColumnBatch, start: int, end: int) -> ColumnBatch:
    return ColumnBatch(
        {name: values[start:end] for name, values in batch.columns.items()},
        end - start,
        batch.first_row + start,
        {name: gap[start:end] for name, gap in batch.gaps.items()},
    )


def _reason(error: InvalidInputError) -> str:
    return str(error).removesuffix(". Nothing of this call was kept")
