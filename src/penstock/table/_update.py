"""Change values in place of others: files that hold a changed row are written anew, the rest is shared."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.format import (
    BLOB_REFERENCE,
    Changed,
    DataFile,
    Field,
    Fragment,
    Schema,
    decode_page,
    pack_bitmap,
    unpack_bitmap,
)
from penstock.storage import Store
from penstock.table._append import FileWriter, write_columns
from penstock.table._pages import Pages, Rows, Wanted, concat, fetch, file_column, filled, take
from penstock.table._statistics import merged_statistics, statistics_of

_REMEMBERED = 64
"""How many earlier files a file knows its difference from."""


def update_fragment(
    store: Store,
    files: FileWriter,
    schema: Schema,
    want: Wanted,
    fields: Sequence[Field],
    arrays: Mapping[int, pa.Array],
) -> Fragment:
    """A fragment in which rows have other values; `arrays` has them by field id, in the order of the rows."""
    fragment, rows = want.fragment, want.rows
    lacking = [field for field in fields if not fragment.files_of(field.id)]
    touched = [
        file
        for file in fragment.files
        if any(field.id in file.fields for field in fields) and _inside(file, rows).any()
    ]
    fresh: list[tuple[DataFile | None, Rows, list[Future[DataFile]]]] = []
    for file in touched:
        old = read_file(store, schema, file)
        new = {
            id: array.filter(pa.array(_inside(file, rows))) for id, array in arrays.items() if abs(id) in file.fields
        }
        local = rows[_inside(file, rows)] - file.row_start
        columns = [schema.by_id(id) for id in file.fields if id > 0]
        fresh.append((file, local, write_columns(files, columns, _overlay(old, new, local), row_start=file.row_start)))
    for field in lacking:
        whole = {field.id: filled(field, fragment.rows)}
        new = {id: array for id, array in arrays.items() if abs(id) == field.id}
        fresh.append((None, rows, write_columns(files, [field], _overlay(whole, new, rows))))
    written = [_remember(future.result(), base, local) for base, local, futures in fresh for future in futures]
    before = {bound.field: bound for bound in fragment.statistics}
    changed = statistics_of([f for f in fields if f.id in before], arrays)
    for field in lacking:
        changed.update(statistics_of([field], {field.id: concat([filled(field, 1), arrays[field.id]])}))
    return replace(
        fragment,
        files=(*(file for file in fragment.files if file not in touched), *written),
        statistics=tuple(merged_statistics(before, changed).values()),
    )


def read_file(store: Store, schema: Schema, file: DataFile) -> dict[int, pa.Array]:
    """Every column of a file, verified."""
    whole = Fragment(id=0, rows=file.row_end, live=file.row_end, row_ids=(), files=(file,))
    everything = Wanted(whole, np.arange(file.row_start, file.row_end))
    pages: Pages = fetch(store, [everything], [abs(file.fields[0])], max_workers=4)
    columns = [file_column(schema, id) for id in file.fields]
    batches = [decode_page(columns, pages[file, page]) for page in range(len(file.page_rows))]
    return {id: concat([batch.column(n) for batch in batches]) for n, id in enumerate(file.fields)}


def _inside(file: DataFile, rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return (rows >= file.row_start) & (rows < file.row_end)


def _overlay(old: Mapping[int, pa.Array], new: Mapping[int, pa.Array], rows: Rows) -> dict[int, pa.Array]:
    """Columns with some rows replaced; a value that takes a blob's place takes its reference away."""
    count = len(next(iter(old.values())))
    picked = np.arange(count)
    picked[rows] = count + np.arange(len(rows))
    result = dict(old)
    for id in [id for id in new if id > 0]:
        result[id] = take(pa.concat_arrays([old[id], new[id]]), picked)
        if -id in new or -id in old:
            before = old.get(-id, pa.nulls(count, BLOB_REFERENCE))
            after = new.get(-id, pa.nulls(len(rows), BLOB_REFERENCE))
            result[-id] = take(pa.concat_arrays([before, after]), picked)
    return result


def _remember(file: DataFile, base: DataFile | None, local: Rows) -> DataFile:
    """Note which rows differ from the file before, and from those before that."""
    if base is None:
        return file
    rows = np.zeros(base.rows, bool)
    rows[local] = True
    start = file.row_start - base.row_start
    part = slice(start, start + file.rows)
    earlier = [
        Changed(change.base, pack_bitmap((unpack_bitmap(change.rows, base.rows) | rows)[part]))
        for change in base.changed[: _REMEMBERED - 1]
    ]
    return replace(file, changed=(Changed(base.id, pack_bitmap(rows[part])), *earlier))
