"""Columns of some rows, gathered from pages: as views of fixed-width values if possible, else as Arrow arrays."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.device import Allocator, ArrayColumn
from penstock.format import BLOB_REFERENCE, DataFile, Field, FileColumn, PageDecoder, Schema, array_of
from penstock.format.kinds import Label, Tensor
from penstock.storage import Store
from penstock.table._pages import FragmentRows, Int64Array, Pages, as_slice, fetch_pages
from penstock.types import cached_property

_LABEL_INDEX = Tensor("int64")


@dataclass(frozen=True)
class RawColumn:
    """One column of some rows, not decoded: a dense array if its pages need no parsing, else Arrow arrays."""

    dense: npt.NDArray[Any] | None
    chunks: tuple[pa.Array, ...]
    """One per page; to concatenate them copies all their bytes."""
    references: pa.Array | None = None
    """Blob references, null for inline values; None if no value is a blob."""

    @classmethod
    def of_parts(cls, arrays: Sequence[pa.Array], references: Sequence[pa.Array | None]) -> "RawColumn":
        """Some arrays, and the blob references of each; None for an array without blobs."""
        if all(part is None or part.null_count == len(part) for part in references):
            return cls(None, tuple(arrays))
        padded = [
            pa.nulls(len(array), BLOB_REFERENCE) if part is None else part
            for part, array in zip(references, arrays, strict=True)
        ]
        return cls(None, tuple(arrays), pa.concat_arrays(padded))

    @cached_property
    def array(self) -> pa.Array | None:
        return concat(self.chunks) if self.chunks else None

    @property
    def is_inline(self) -> bool:
        """Whether the chunks hold the bytes of all values; those of blobs and links are elsewhere."""
        return self.references is None and not any(pa.types.is_struct(chunk.type) for chunk in self.chunks)

    def row(self, index: int) -> "RawColumn":
        """One row."""
        dense, references = self.dense, self.references
        return RawColumn(
            None if dense is None else dense[index : index + 1],
            () if self.array is None else (self.array.slice(index, 1),),
            None if references is None else references.slice(index, 1),
        )

    def take(self, indices: Int64Array, allocate: Allocator) -> "RawColumn":
        """Rows by index, in any order and with repeats; `allocate` makes the array for dense values."""
        if self.dense is not None:
            out = allocate((len(indices), *self.dense.shape[1:]), self.dense.dtype)
            # mode="raise" would copy through a temporary buffer
            return RawColumn(np.take(self.dense, indices, axis=0, out=out, mode="clip"), ())
        references = None if self.references is None else take(self.references, indices)
        return RawColumn(None, () if self.array is None else (take(self.array, indices),), references)

    def blobs(self) -> Mapping[int, Any]:
        """Row index to blob reference, for the values that are blobs."""
        if self.references is None:
            return {}
        return {row: blob for row, blob in enumerate(self.references.to_pylist()) if blob is not None}


def gather(
    schema: Schema, field: Field, selection: Sequence[FragmentRows], pages: Pages, *, as_arrow: bool = False
) -> RawColumn:
    """One column of some rows from fetched pages; with `as_arrow` never dense."""
    dense = None if as_arrow else gather_dense(field, selection, pages)
    if dense is not None:
        return RawColumn(dense, ())
    arrays: list[pa.Array] = []
    references: list[pa.Array | None] = []
    for selected in selection:
        if not selected.fragment.files_of(field.id):
            arrays.append(fill_values(field, len(selected.rows)))
            references.append(None)
        for file, page, rows in selected.by_page(field.id):
            batch = pages.parsed(schema, file, page)
            arrays.append(take(batch.column(file.column_of[field.id]), rows))
            blobs = file.column_of.get(-field.id)
            references.append(None if blobs is None else take(batch.column(blobs), rows))
    if not arrays:
        return RawColumn(None, (pa.nulls(0, field.kind.arrow_type),))
    return RawColumn.of_parts(arrays, references)


def read_columns(
    store: Store, schema: Schema, fields: Sequence[Field], selection: Sequence[FragmentRows], *, max_workers: int
) -> dict[int, pa.Array]:
    """Columns of some rows as stored, by field id; blob references by negative field id."""
    pages = fetch_pages(store, selection, [field.id for field in fields], max_workers=max_workers)
    arrays: dict[int, pa.Array] = {}
    for field in fields:
        raw = gather(schema, field, selection, pages)
        arrays[field.id] = raw.array if raw.dense is None else field.kind.to_array(raw.dense)
        if raw.references is not None:
            arrays[-field.id] = raw.references
    return arrays


def dense_kind(field: Field) -> tuple[Tensor, int] | None:
    """The tensor that a fixed-width column stores in each row, and its size in bytes; None for other columns."""
    kind = _LABEL_INDEX if isinstance(field.kind, Label) else field.kind
    return (kind, field.fixed_row_bytes) if isinstance(kind, Tensor) and field.fixed_row_bytes else None


@dataclass(frozen=True)
class FixedColumn(ArrayColumn):
    """A column whose decoded values are one array."""

    field: Field | None
    """None for `_row_id`, which is not stored in files."""


def fixed_column(name: str, field: Field | None) -> FixedColumn | None:
    """The column if its rows have a fixed shape, else None."""
    if field is None:
        return FixedColumn(name, np.dtype(np.int64), (), False, None)
    kind = _LABEL_INDEX if isinstance(field.kind, Label) else field.kind
    if not isinstance(kind, Tensor) or kind.ragged:
        return None
    shape = tuple(length for length in kind.shape if length is not None)
    return FixedColumn(name, kind.element.logical, shape, field.nullable, field)


def dense_views(field: Field, selected: FragmentRows, pages: Pages) -> list[npt.NDArray[Any]] | None:
    """Fixed-width values as one view of each page's bytes; None if a page must be parsed."""
    dense = dense_kind(field)
    if dense is None or not selected.fragment.files_of(field.id):
        return None
    kind, row_bytes = dense
    element, shape = kind.element, kind.stored_shape
    width = row_bytes // element.stored.itemsize
    views: list[npt.NDArray[Any]] = []
    current, starts, counts, offsets = None, [0], [0], [0]
    run, run_start, run_end = memoryview(b""), 0, 0
    for file, page, rows in selected.by_page(field.id):
        if file is not current:
            current, counts, offsets, run_end = file, file.page_rows.tolist(), file.offsets, 0
            starts = file.values_at(field.id, row_bytes)
        if starts[page] < 0:
            return None
        if offsets[page] >= run_end:
            run, run_start = pages.run(file, page)
            run_end = run_start + len(run)
        at = offsets[page] - run_start + starts[page]
        values = np.frombuffer(run, element.stored, counts[page] * width, at).reshape(counts[page], *shape)
        whole = isinstance(rows, slice) and rows.stop - rows.start == counts[page]
        views.append(values if whole else values[rows])
    return views if element.stored == element.logical else [element.from_stored(view) for view in views]


def dense_runs(field: Field, selected: FragmentRows, pages: Pages) -> list[npt.NDArray[Any]] | None:
    """`dense_views` with consecutive whole pages of the same layout as one view of shape [pages, rows, ...].

    A view of one page has the shape [1, rows, ...]. One call of numpy for many pages releases the GIL once.
    """
    dense, rows = dense_kind(field), selected.contiguous
    if dense is not None and rows is not None:
        kind, row_bytes = dense
        files = selected.fragment.files_between(field.id, rows.start, rows.stop)
        if len(files) == 1 and files[0].dense_row_bytes == row_bytes:
            return [kind.element.from_stored(run) for run in _stored_runs(kind, row_bytes, files[0], rows, pages)]
    views = dense_views(field, selected, pages)
    return None if views is None else [view[None] for view in views]


def _stored_runs(kind: Tensor, row_bytes: int, file: DataFile, rows: range, pages: Pages) -> Iterator[npt.NDArray[Any]]:
    row, end = rows.start - file.row_start, rows.stop - file.row_start
    page = bisect_right(file.row_ends, row)
    while row < end:
        data, start = pages.run(file, page)
        page_start = file.row_ends[page - 1] if page else 0
        count, height = 1, min(file.row_ends[page], end) - row
        if row == page_start:
            count = _count_same_layout(file, page, end, start + len(data))
        at = file.offsets[page] - start + int(file.value_starts[page, 0]) + (row - page_start) * row_bytes
        stored = np.ndarray(
            (count, height, *kind.stored_shape),
            kind.element.stored,
            data,
            at,
            (file.offsets[page + 1] - file.offsets[page], *_row_strides(kind, row_bytes)),
        )
        yield stored
        row, page = row + count * height, page + count


def _row_strides(kind: Tensor, row_bytes: int) -> tuple[int, ...]:
    strides = [row_bytes]
    for length in kind.stored_shape:
        strides.append(strides[-1] // max(1, length))
    return tuple(strides)


def gather_dense(field: Field, selection: Sequence[FragmentRows], pages: Pages) -> npt.NDArray[Any] | None:
    """Fixed-width values as one array, a view if one page holds them all; None if a page must be parsed."""
    views: list[npt.NDArray[Any]] = []
    for selected in selection:
        found = dense_views(field, selected, pages)
        if found is None:
            return None
        views += found
    if not views:
        return None
    return views[0] if len(views) == 1 else np.concatenate(views)


def copy_dense(field: Field, selected: FragmentRows, pages: Pages, out: npt.NDArray[Any]) -> bool:
    """Copy fixed-width values from the pages' bytes into `out`; False if a page must be parsed.

    Whole pages of the same layout are copied in one call, which releases the GIL once.
    """
    if selected.contiguous is not None and field.fixed_row_bytes:
        files = selected.fragment.files_between(field.id, selected.contiguous.start, selected.contiguous.stop)
        if len(files) == 1 and files[0].dense_row_bytes == field.fixed_row_bytes:
            _copy_contiguous(files[0], selected.contiguous, pages, out.reshape(len(out), -1).view(np.uint8))
            return True
    views = dense_views(field, selected, pages)
    if views is None:
        return False
    done = 0
    for view in views:
        out[done : done + len(view)] = view
        done += len(view)
    return True


def _copy_contiguous(file: DataFile, rows: range, pages: Pages, out: npt.NDArray[np.uint8]) -> None:
    """Copy the bytes of contiguous rows of a file that has one column."""
    row, end, width = rows.start - file.row_start, rows.stop - file.row_start, out.shape[1]
    page, done = bisect_right(file.row_ends, row), 0
    while row < end:
        data, start = pages.run(file, page)
        page_start = file.row_ends[page - 1] if page else 0
        count, height = 1, min(file.row_ends[page], end) - row
        if row == page_start:
            count = _count_same_layout(file, page, end, start + len(data))
        at = file.offsets[page] - start + int(file.value_starts[page, 0]) + (row - page_start) * width
        source = np.lib.stride_tricks.as_strided(
            np.frombuffer(data, np.uint8, offset=at),
            (count, height * width),
            (file.offsets[page + 1] - file.offsets[page], 1),
            writeable=False,
        )
        out[done : done + count * height].reshape(count, height * width)[...] = source
        done, row, page = done + count * height, row + count * height, page + count


def _count_same_layout(file: DataFile, page: int, end_row: int, end_byte: int) -> int:
    """Number of consecutive pages, this one included, that have its layout and so lie at a constant stride."""
    layout = _layout(file, page)
    last = page
    while (
        last + 1 < len(file.row_ends)
        and file.row_ends[last + 1] <= end_row
        and file.offsets[last + 2] <= end_byte
        and _layout(file, last + 1) == layout
    ):
        last += 1
    return last - page + 1


def _layout(file: DataFile, page: int) -> tuple[int, int, int]:
    return int(file.page_rows[page]), int(file.value_starts[page, 0]), file.offsets[page + 1] - file.offsets[page]


def take(array: pa.Array, rows: "slice | Int64Array") -> pa.Array:
    """Rows of an array; contiguous rows are not copied."""
    run = rows if isinstance(rows, slice) else as_slice(rows)
    if run is not None:
        return array.slice(run.start, run.stop - run.start)
    indices = array_of(np.asarray(rows))
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(array.type, array.storage.take(indices))
    return array.take(indices)


def concat(arrays: Sequence[pa.Array]) -> pa.Array:
    """Arrays concatenated; a single one is not copied."""
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def fill_values(field: Field, count: int) -> pa.Array:
    """The values of rows whose fragment does not store the field: its fill value, or null."""
    if field.fill is None:
        return pa.nulls(count, field.kind.arrow_type)
    where = f"the fill value of column {field.name!r}"
    one = PageDecoder([FileColumn(field)]).decode(field.fill, rows=1, where=where).column(0)
    return take(one, np.zeros(count, np.int64))
