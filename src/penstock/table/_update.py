"""Update values: files that hold a changed row are rewritten, all others are shared with the old version."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.format import (
    BLOB_REFERENCE,
    ChangedRows,
    DataFile,
    Field,
    Fragment,
    Schema,
    pack_bitmap,
    unpack_bitmap,
)
from penstock.storage import Store
from penstock.table._append import FileWriter, write_columns
from penstock.table._gather import concat, fill_values, take
from penstock.table._pages import FragmentRows, Int64Array, fetch_pages
from penstock.table._stage import Stage
from penstock.table._statistics import compute_statistics, merge_statistics

Mask: TypeAlias = npt.NDArray[np.bool_]

_MAX_TRACKED_BASES = 64
"""The number of earlier files whose difference a file records."""


def update_fragments(
    stage: Stage, files: FileWriter, positions: Int64Array, fields: Sequence[Field], arrays: Mapping[int, pa.Array]
) -> list[tuple[Fragment, Fragment]]:
    """Write new values of rows; returns the fragments before and after.

    `arrays` has the values by field id (blob references by negative id), in the order of `positions`.
    """
    order = np.argsort(positions, kind="stable")
    ordered = {id: take(array, order) for id, array in arrays.items()}
    changed, start = [], 0
    for selected in stage.locate(positions[order]):
        part = {id: array.slice(start, len(selected.rows)) for id, array in ordered.items()}
        after = _update_fragment(stage.store, files, stage.snapshot.schema, selected, fields, part)
        changed.append((selected.fragment, after))
        start += len(selected.rows)
    return changed


def _update_fragment(
    store: Store,
    files: FileWriter,
    schema: Schema,
    selected: FragmentRows,
    fields: Sequence[Field],
    arrays: Mapping[int, pa.Array],
) -> Fragment:
    fragment, rows = selected.fragment, selected.rows
    missing = [field for field in fields if not fragment.files_of(field.id)]
    touched = [
        file
        for file in fragment.files
        if any(field.id in file.fields for field in fields) and _inside(file, rows).any()
    ]
    rewrites: list[tuple[DataFile | None, dict[int, Mask], list[Future[DataFile]]]] = []
    for file in touched:
        old = _read_file(store, schema, file)
        new = {
            id: array.filter(pa.array(_inside(file, rows))) for id, array in arrays.items() if abs(id) in file.fields
        }
        local = rows[_inside(file, rows)] - file.row_start
        masks = changed_masks(old, new, local)
        columns = [schema.by_id(id) for id in file.fields if id > 0]
        futures = write_columns(files, columns, overlay(old, new, local), row_start=file.row_start)
        rewrites.append((file, masks, futures))
    for field in missing:
        old = {field.id: fill_values(field, fragment.rows)}
        new = {id: array for id, array in arrays.items() if abs(id) == field.id}
        masks = changed_masks(old, new, rows)
        rewrites.append((None, masks, write_columns(files, [field], overlay(old, new, rows))))
    written = [_record_changes(future.result(), base, masks) for base, masks, futures in rewrites for future in futures]
    before = {bound.field: bound for bound in fragment.statistics}
    changed = compute_statistics([f for f in fields if f.id in before], arrays)
    for field in missing:
        changed.update(compute_statistics([field], {field.id: concat([fill_values(field, 1), arrays[field.id]])}))
    return replace(
        fragment,
        files=(*(file for file in fragment.files if file not in touched), *written),
        statistics=tuple(merge_statistics(before, changed).values()),
    )


def _read_file(store: Store, schema: Schema, file: DataFile) -> dict[int, pa.Array]:
    """Every column of a file, verified."""
    fragment = Fragment(id=0, rows=file.row_end, live=file.row_end, row_ids=(), files=(file,))
    all_rows = FragmentRows(fragment, np.arange(file.row_start, file.row_end))
    pages = fetch_pages(store, [all_rows], [abs(file.fields[0])], max_workers=4)
    batches = [pages.parsed(schema, file, page) for page in range(len(file.page_rows))]
    return {id: concat([batch.column(n) for batch in batches]) for n, id in enumerate(file.fields)}


def _inside(file: DataFile, rows: Int64Array) -> Mask:
    return np.asarray((rows >= file.row_start) & (rows < file.row_end))


def overlay(old: Mapping[int, pa.Array], new: Mapping[int, pa.Array], rows: Int64Array) -> dict[int, pa.Array]:
    """Columns with some rows replaced; an inline value that replaces a blob clears its reference."""
    count = len(next(iter(old.values())))
    indices = np.arange(count)
    indices[rows] = count + np.arange(len(rows))
    result = dict(old)
    for id in [id for id in new if id > 0]:
        result[id] = take(pa.concat_arrays([old[id], new[id]]), indices)
        if -id in new or -id in old:
            before = old.get(-id, pa.nulls(count, BLOB_REFERENCE))
            after = new.get(-id, pa.nulls(len(rows), BLOB_REFERENCE))
            result[-id] = take(pa.concat_arrays([before, after]), indices)
    return result


def changed_masks(old: Mapping[int, pa.Array], new: Mapping[int, pa.Array], rows: Int64Array) -> dict[int, Mask]:
    """By field: the rows whose value differs; a blob counts as changed, because its bytes are not compared."""
    count = len(next(iter(old.values())))
    found = {}
    for id in [id for id in new if id > 0]:
        mask = np.zeros(count, bool)
        mask[rows] = values_differ(take(old[id], rows), new[id])
        if -id in old:
            mask[rows] |= np.asarray(take(old[-id], rows).is_valid())
        if -id in new:
            mask[rows] |= np.asarray(new[-id].is_valid())
        found[id] = mask
    return found


def values_differ(one: pa.Array, other: pa.Array) -> Mask:
    """The mask of rows in which two columns differ bit by bit: NaN equals NaN."""
    one, other = (array.storage if isinstance(array, pa.ExtensionArray) else array for array in (one, other))
    if one.null_count or other.null_count or not _is_fixed_width(one.type):
        return np.array([repr(a) != repr(b) for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True)], bool)
    if not len(one):
        return np.zeros(0, bool)
    left, right = (_raw_bytes(array).reshape(len(array), -1) for array in (one, other))
    return np.asarray((left != right).any(axis=1), bool)


def _is_fixed_width(kind: pa.DataType) -> bool:
    inner = kind.value_type if pa.types.is_fixed_size_list(kind) else kind
    return bool(pa.types.is_primitive(inner)) and not pa.types.is_boolean(inner)


def _raw_bytes(array: pa.Array) -> npt.NDArray[np.uint8]:
    flat = array.flatten() if pa.types.is_fixed_size_list(array.type) else array
    width = flat.type.bit_width // 8
    return np.frombuffer(flat.buffers()[1] or b"", np.uint8, len(flat) * width, flat.offset * width)


def _record_changes(file: DataFile, base: DataFile | None, masks: Mapping[int, Mask]) -> DataFile:
    """Record the rows that differ from the base file, and from the files that the base was made from."""
    if base is None:
        return replace(
            file,
            changed=tuple(ChangedRows("", id, pack_bitmap(_slice_mask(rows, file, 0))) for id, rows in masks.items()),
        )
    known: dict[str, dict[int, Mask]] = {base.id: {}}
    for change in base.changed:
        fields = known.setdefault(change.base, {})
        if change.field:
            fields[change.field] = unpack_bitmap(change.rows, base.rows)
    changed: list[ChangedRows] = []
    for id, fields in list(known.items())[:_MAX_TRACKED_BASES]:
        for field, rows in masks.items():
            fields[field] = fields.get(field, np.zeros(base.rows, bool)) | rows
        sliced = {field: _slice_mask(rows, file, base.row_start) for field, rows in fields.items()}
        nonempty = {field: rows for field, rows in sliced.items() if rows.any()}
        changed += [ChangedRows(id, field, pack_bitmap(rows)) for field, rows in nonempty.items()] or [
            ChangedRows(id, 0, b"")
        ]
    return replace(file, changed=tuple(changed))


def _slice_mask(rows: Mask, file: DataFile, start: int) -> Mask:
    """The part of a mask, which begins at row `start`, that covers a file."""
    return rows[file.row_start - start : file.row_start - start + file.rows]
