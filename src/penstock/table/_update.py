"""Change values in place of others: files that hold a changed row are written anew, the rest is shared."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.format import (
    BLOB_REFERENCE,
    Changed,
    DataFile,
    Field,
    Fragment,
    Schema,
    pack_bitmap,
    unpack_bitmap,
)
from penstock.storage import Store
from penstock.table._append import FileWriter, write_columns
from penstock.table._pages import Pages, Rows, Wanted, concat, fetch, filled, take
from penstock.table._statistics import merged_statistics, statistics_of

Bits: TypeAlias = npt.NDArray[np.bool_]

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
    fresh: list[tuple[DataFile | None, dict[int, Bits], list[Future[DataFile]]]] = []
    for file in touched:
        old = read_file(store, schema, file)
        new = {
            id: array.filter(pa.array(_inside(file, rows))) for id, array in arrays.items() if abs(id) in file.fields
        }
        local = rows[_inside(file, rows)] - file.row_start
        bits = _changed_bits(old, new, local)
        columns = [schema.by_id(id) for id in file.fields if id > 0]
        fresh.append((file, bits, write_columns(files, columns, _overlay(old, new, local), row_start=file.row_start)))
    for field in lacking:
        whole = {field.id: filled(field, fragment.rows)}
        new = {id: array for id, array in arrays.items() if abs(id) == field.id}
        bits = _changed_bits(whole, new, rows)
        fresh.append((None, bits, write_columns(files, [field], _overlay(whole, new, rows))))
    written = [remember(future.result(), base, bits) for base, bits, futures in fresh for future in futures]
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
    batches = [pages.parsed(schema, file, page) for page in range(len(file.page_rows))]
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


def _changed_bits(old: Mapping[int, pa.Array], new: Mapping[int, pa.Array], rows: Rows) -> dict[int, Bits]:
    """By field: which rows really get another value; a blob is another value, whatever is in it."""
    count = len(next(iter(old.values())))
    found = {}
    for id in [id for id in new if id > 0]:
        bits = np.zeros(count, bool)
        bits[rows] = differing(take(old[id], rows), new[id])
        if -id in old:
            bits[rows] |= np.asarray(take(old[-id], rows).is_valid())
        if -id in new:
            bits[rows] |= np.asarray(new[-id].is_valid())
        found[id] = bits
    return found


def differing(one: pa.Array, other: pa.Array) -> Bits:
    """Where two columns of equal length differ, bit by bit: NaN is the same as NaN."""
    one, other = (array.storage if isinstance(array, pa.ExtensionArray) else array for array in (one, other))
    if one.null_count or other.null_count or not _is_plain(one.type):
        return np.array([repr(a) != repr(b) for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True)], bool)
    if not len(one):
        return np.zeros(0, bool)
    left, right = (_bytes_of(array).reshape(len(array), -1) for array in (one, other))
    return np.asarray((left != right).any(axis=1), bool)


def _is_plain(kind: pa.DataType) -> bool:
    inner = kind.value_type if pa.types.is_fixed_size_list(kind) else kind
    return bool(pa.types.is_primitive(inner)) and not pa.types.is_boolean(inner)


def _bytes_of(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    flat = array.flatten() if pa.types.is_fixed_size_list(array.type) else array
    width = flat.type.bit_width // 8
    return np.frombuffer(flat.buffers()[1] or b"", np.uint8, len(flat) * width, flat.offset * width)


def remember(file: DataFile, base: DataFile | None, bits: Mapping[int, Bits]) -> DataFile:
    """Note what differs from the file before, and from those before that."""
    if base is None:
        return replace(
            file, changed=tuple(Changed("", id, pack_bitmap(_part(rows, file, 0))) for id, rows in bits.items())
        )
    known: dict[str, dict[int, Bits]] = {base.id: {}}
    for change in base.changed:
        fields = known.setdefault(change.base, {})
        if change.field:
            fields[change.field] = unpack_bitmap(change.rows, base.rows)
    notes: list[Changed] = []
    for id, fields in list(known.items())[:_REMEMBERED]:
        for field, rows in bits.items():
            fields[field] = fields.get(field, np.zeros(base.rows, bool)) | rows
        parts = {field: _part(rows, file, base.row_start) for field, rows in fields.items()}
        some = {field: rows for field, rows in parts.items() if rows.any()}
        notes += [Changed(id, field, pack_bitmap(rows)) for field, rows in some.items()] or [Changed(id, 0, b"")]
    return replace(file, changed=tuple(notes))


def _part(rows: Bits, file: DataFile, start: int) -> Bits:
    """The bits of a file among those of the rows it was made from."""
    return rows[file.row_start - start : file.row_start - start + file.rows]
