"""From rows to the pages that hold them, and back: plan which pages to read, read and verify them, gather the rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import CorruptError
from penstock.format import BLOB_REFERENCE, DataFile, Field, FileColumn, Fragment, Schema, decode_page, verify_page
from penstock.format.kinds import Label, Tensor
from penstock.storage import Store, coalesce, run_all
from penstock.types import ByteRange

Rows: TypeAlias = npt.NDArray[np.int64]
Pages: TypeAlias = dict[tuple[str, int], memoryview]

_MAX_GAP_BYTES = 64 << 10
_MAX_REQUEST_BYTES = 16 << 20
_NUMBER = Tensor("int64")


@dataclass(frozen=True)
class Wanted:
    """Rows of one fragment, counted with the deleted ones, in rising order."""

    fragment: Fragment
    rows: Rows


@dataclass(frozen=True)
class Cells:
    """One column's part of some rows: an array of numbers where a page needs no parsing, else an Arrow array."""

    numbers: npt.NDArray[Any] | None
    array: pa.Array | None
    references: pa.Array | None = None
    """Where values are blobs: references, null for the others."""


@dataclass(frozen=True)
class PageRows:
    """Rows of one page, counted in the page."""

    file: DataFile
    page: int
    rows: Rows


def page_rows(fragment: Fragment, field_id: int, rows: Rows) -> Iterator[PageRows]:
    """Deal rows out to the pages that hold a field; pure."""
    for file in fragment.files_of(field_id):
        first, last = np.searchsorted(rows, (file.row_start, file.row_end))
        if first == last:
            continue
        inside = rows[first:last] - file.row_start
        ends = file.page_ends
        pages = np.searchsorted(ends, inside, side="right")
        numbers, starts = np.unique(pages, return_index=True)
        for page, part in zip(numbers, np.split(inside, starts[1:]), strict=True):
            yield PageRows(file, int(page), part - int(ends[page] - file.page_rows[page]))


def fetch(store: Store, wanted: Iterable[Wanted], field_ids: Sequence[int], *, max_workers: int) -> Pages:
    """Read and verify every page that the rows need, neighbours together."""
    needed: dict[str, tuple[DataFile, set[int]]] = {}
    for want in wanted:
        for field_id in field_ids:
            for part in page_rows(want.fragment, field_id, want.rows):
                needed.setdefault(part.file.id, (part.file, set()))[1].add(part.page)
    requests = [
        (file, pages, request)
        for file, pages in needed.values()
        for request in coalesce(
            [file.page_range(page) for page in pages],
            max_gap_bytes=_MAX_GAP_BYTES,
            max_request_bytes=_MAX_REQUEST_BYTES,
        )
    ]
    found: Pages = {}
    for fetched in run_all(lambda request: _fetch(store, *request), requests, max_workers=max_workers):
        found.update(fetched)
    return found


def _fetch(store: Store, file: DataFile, pages: set[int], request: ByteRange) -> Pages:
    data = store.get(file.key, byte_range=request)
    found: Pages = {}
    first, last = np.searchsorted(file.page_offsets, (request.start, request.end))
    where = f"{store.uri}/{file.key}"
    offsets = file.page_offsets[first : last + 1].tolist()
    for number, start, end in zip(range(first, last), offsets[:-1], offsets[1:], strict=True):
        if number in pages:
            page = data[start - request.start : end - request.start]
            try:
                verify_page(file, number, page, where)
            except CorruptError:  # perhaps it was the way and not the object: ask once more before saying so
                page = store.get(file.key, byte_range=file.page_range(number))
                verify_page(file, number, page, where)
            found[file.id, number] = page
    return found


def gather(schema: Schema, field: Field, wanted: Sequence[Wanted], pages: Pages, *, parse: bool = False) -> Cells:
    """One column of some rows from pages that were fetched; with `parse` always as an Arrow array."""
    kind = _NUMBER if isinstance(field.kind, Label) else field.kind
    if isinstance(kind, Tensor) and field.stored_bytes and not parse:
        numbers = _numbers(kind, field, wanted, pages)
        if numbers is not None:
            return Cells(numbers, None)
    arrays: list[pa.Array] = []
    references: list[pa.Array] = []
    for want in wanted:
        files = want.fragment.files_of(field.id)
        if not files:
            arrays.append(filled(field, len(want.rows)))
            references.append(pa.nulls(len(want.rows), BLOB_REFERENCE))
        for part in page_rows(want.fragment, field.id, want.rows):
            columns = [file_column(schema, id) for id in part.file.fields]
            batch = decode_page(columns, pages[part.file.id, part.page])
            arrays.append(take(batch.column(part.file.fields.index(field.id)), part.rows))
            if -field.id in part.file.fields:
                references.append(take(batch.column(part.file.fields.index(-field.id)), part.rows))
            else:
                references.append(pa.nulls(len(part.rows), BLOB_REFERENCE))
    if not arrays:
        return Cells(None, pa.nulls(0, field.kind.arrow_type))
    blobs = any(array.null_count < len(array) for array in references)
    return Cells(None, concat(arrays), pa.concat_arrays(references) if blobs else None)


def _numbers(kind: Tensor, field: Field, wanted: Sequence[Wanted], pages: Pages) -> npt.NDArray[Any] | None:
    """Rows straight out of the pages' bytes, a view where one page holds them all; None where a page needs parsing."""
    pieces: list[npt.NDArray[Any]] = []
    for want in wanted:
        if not want.fragment.files_of(field.id):
            return None
        for part in page_rows(want.fragment, field.id, want.rows):
            start = int(part.file.value_starts[part.page, part.file.fields.index(field.id)])
            if start < 0:
                return None
            count = int(part.file.page_rows[part.page])
            width = int(np.prod(kind.stored_shape))
            flat = np.frombuffer(pages[part.file.id, part.page], kind.element.stored, count * width, start)
            pieces.append(_take_numbers(flat.reshape(count, *kind.stored_shape), part.rows))
    if not pieces:
        return None
    return kind.element.from_stored(pieces[0] if len(pieces) == 1 else np.concatenate(pieces))


def _take_numbers(page: npt.NDArray[Any], rows: Rows) -> npt.NDArray[Any]:
    run = _run(rows)
    return page[rows] if run is None else page[run]


def take(array: pa.Array, rows: Rows) -> pa.Array:
    """Rows of an array, without a copy where they follow each other."""
    run = _run(rows)
    if run is not None:
        return array.slice(run.start, run.stop - run.start)
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(array.type, array.storage.take(pa.array(rows)))
    return array.take(pa.array(rows))


def concat(arrays: Sequence[pa.Array]) -> pa.Array:
    """One array of many."""
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def filled(field: Field, count: int) -> pa.Array:
    """The value of rows whose fragment does not hold the field."""
    if field.fill is None:
        return pa.nulls(count, field.kind.arrow_type)
    one = decode_page([FileColumn(field)], memoryview(field.fill)).column(0)
    return take(one, np.zeros(count, np.int64))


def file_column(schema: Schema, id: int) -> FileColumn:
    """What the column of a file with this entry in the manifest is."""
    return FileColumn(schema.by_id(abs(id)), references=id < 0)


def _run(rows: Rows) -> slice | None:
    """The rows as a slice, where they follow each other."""
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and (len(rows) < 3 or (np.diff(rows) == 1).all()):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return None


def by_fragment(found: Iterable[tuple[Fragment, int, Rows]]) -> list[Wanted]:
    """From positions among live rows to rows of fragments."""
    return [
        Wanted(fragment, positions - start if fragment.deleted is None else fragment.live_rows[positions - start])
        for fragment, start, positions in found
    ]


def references_in(cells: Cells) -> Mapping[int, Any]:
    """The blobs among some rows: row to reference."""
    if cells.references is None:
        return {}
    return {row: blob for row, blob in enumerate(cells.references.to_pylist()) if blob is not None}
