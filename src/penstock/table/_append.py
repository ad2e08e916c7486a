"""Write rows as fragments: group columns into files and split files into pages, several files in flight."""

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import StorageError
from penstock.format import (
    BLOB_REFERENCE,
    Column,
    DataFile,
    Field,
    FileColumn,
    FilePageBounds,
    Fragment,
    Statistics,
    encode_file,
    new_int_id,
    row_sizes,
    split_rows,
)
from penstock.history import discard
from penstock.storage import Store
from penstock.table._encode import num_rows
from penstock.table._gather import concat
from penstock.table._statistics import compute_statistics, merge_statistics, page_bounds
from penstock.types import RowRange

FRAGMENT_ROWS = 1 << 20
FRAGMENT_BYTES = 1 << 30
_HEAVY_ROW_BYTES = 256
# A reader of a few thousand rows of a heavy column needs only a few kilobytes of the light columns beside it, so their
# pages are small; a page of many light columns still holds at least a thousand rows.
_LIGHT_PAGE_BYTES = 32 << 10
_LIGHT_PAGE_ROWS = 1024
# A filter reads a column that is alone: its pages are large enough to cost little each, and small enough that a
# hundredth of a million sorted rows is in a few of them.
_NUMBER_PAGE_BYTES = 64 << 10
_TEXT_PAGE_BYTES = 128 << 10
_MAX_PAGE_ROWS = 16 << 10
_OWN_FILE_BYTES = 512 << 10
"""A light column of this size in a fragment has files of its own, so that a filter reads it and little else."""
_LIGHT_BUFFER_BYTES = 64 << 20
"""Rows of light columns are buffered up to this size, so that each of them fills files of its own."""
_FILES_IN_FLIGHT = 3
_MIN_FILE_FILL = 0.75
"""A file is written once it reaches this share of its target size: waiting for more rows would copy all its bytes."""


class RowIdSource(Protocol):
    """Allocates the row ids of new fragments."""

    def allocate(self, count: int) -> tuple[RowRange, ...]: ...


@dataclass
class _ColumnGroup:
    """Columns that share files, and their buffered rows."""

    fields: Sequence[Field]
    light: bool
    parts: list[list[Field]] = field(default_factory=list)
    """The columns of each file; decided when the first rows of the fragment are stored."""
    buffered: list[Mapping[int, pa.Array]] = field(default_factory=list)
    buffered_bytes: int = 0
    next_row: int = 0
    """First row of the next file, as an index in the fragment."""

    @property
    def file_bytes(self) -> int:
        return _file_bytes(self.fields)

    @property
    def flush_bytes(self) -> float:
        """Buffered bytes at which files are stored."""
        together = max(self.file_bytes, _LIGHT_BUFFER_BYTES) if self.light else self.file_bytes
        return _MIN_FILE_FILL * min(len(self.fields) * self.file_bytes, together)


class FileWriter:
    """Stores data files in threads, with a bounded number in flight.

    As a context manager it waits for all files; after an error it deletes those that were written, because nothing
    refers to them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(_FILES_IN_FLIGHT, "penstock-write")
        self._in_flight: set[Future[DataFile]] = set()
        self._submitted: list[Future[DataFile]] = []

    def __enter__(self) -> "FileWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        wait(self._in_flight)
        self._pool.shutdown()
        if error is not None:
            with suppress(StorageError):  # vacuum removes what is left; the error to report is the first one
                discard(self._store, [future.result().key for future in self._submitted if future.exception() is None])

    def submit(self, fields: Sequence[Field], arrays: Mapping[int, pa.Array], row_start: int) -> Future[DataFile]:
        """Store one file; blocks while too many are in flight, and raises the error of an earlier file."""
        if len(self._in_flight) >= _FILES_IN_FLIGHT:
            done, self._in_flight = wait(self._in_flight, return_when=FIRST_COMPLETED)
            for finished in done:
                finished.result()
        future = self._pool.submit(self._write, fields, [arrays], row_start)
        self._in_flight.add(future)
        self._submitted.append(future)
        return future

    def _write(self, fields: Sequence[Field], boxed: list[Mapping[int, pa.Array]], row_start: int) -> DataFile:
        arrays = boxed.pop()  # the pool holds its arguments until the end: a list that is emptied frees the rows early
        columns = [
            FileColumn(known, references=id < 0) for known in fields for id in (known.id, -known.id) if id in arrays
        ]
        by_column = [row_sizes(arrays[column.id]) for column in columns]
        light = not any(column.references for column in columns) and not any(map(_is_heavy, by_column))
        sizes = sum(by_column, np.zeros(num_rows(arrays), np.int64))
        page_bytes = min(known.page_bytes for known in fields)
        if light and page_bytes == Column.page_bytes:
            page_bytes = _light_page_bytes(fields, float(sizes.mean()))
        pages = split_rows(sizes, page_bytes)
        bounds = page_bounds(fields, arrays, pages)
        file, data = encode_file(
            columns, [arrays[column.id] for column in columns], row_start=row_start, page_rows=pages
        )
        del arrays
        self._store.put(file.key, data)
        return replace(file, bounds=FilePageBounds.of(bounds, len(pages)))


class FragmentWriter:
    """Writes batches of rows as fragments."""

    def __init__(self, files: FileWriter, fields: Sequence[Field], row_ids: RowIdSource) -> None:
        self._files, self._fields, self._row_ids = files, fields, row_ids
        self._groups: list[_ColumnGroup] = []
        self._pending: list[Future[DataFile]] = []
        self._rows, self._bytes = 0, 0
        self._statistics: dict[int, Statistics] = {}
        self.fragments: list[Fragment] = []

    def write(self, arrays: Mapping[int, pa.Array]) -> None:
        """Buffer a batch and store every file that is full."""
        if not self._groups:
            self._groups = group_fields(self._fields, arrays)
        self._statistics = merge_statistics(self._statistics, compute_statistics(self._fields, arrays))
        for group in self._groups:
            mine = {id: arrays[id] for known in group.fields for id in (known.id, -known.id) if id in arrays}
            size = int(_total_sizes(mine).sum())
            group.buffered.append(mine)
            group.buffered_bytes += size
            self._bytes += size
            if group.buffered_bytes >= group.flush_bytes:
                self._flush(group, all_rows=False)
        self._rows += num_rows(arrays)
        if self._rows >= FRAGMENT_ROWS or self._bytes >= FRAGMENT_BYTES:
            self.close_fragment()

    def close_fragment(self) -> None:
        """Store the buffered rows and end the fragment."""
        for group in self._groups:
            self._flush(group, all_rows=True)
        if self._rows:
            files = tuple(future.result() for future in self._pending)
            fragment = Fragment(
                id=new_int_id(),
                rows=self._rows,
                live=self._rows,
                row_ids=self._row_ids.allocate(self._rows),
                files=files,
                statistics=tuple(self._statistics.values()),
            )
            self.fragments.append(fragment)
        self._groups, self._pending, self._statistics = [], [], {}
        self._rows, self._bytes = 0, 0

    def _flush(self, group: _ColumnGroup, *, all_rows: bool) -> None:
        if not group.buffered:
            return
        arrays = concat_batches(group.buffered)
        if not group.parts:
            group.parts = divide_columns(group.fields, arrays) if group.light else [list(group.fields)]
        sizes = _total_sizes(arrays)
        rows = len(sizes)
        if len(group.parts) == 1 and not all_rows:
            last = split_rows(sizes, group.file_bytes)[-1]
            if last < rows and sizes[-last:].sum() < _MIN_FILE_FILL * group.file_bytes:
                rows -= last
        for fields in group.parts:
            ids = [id for known in fields for id in (known.id, -known.id) if id in arrays]
            part = {id: arrays[id].slice(0, rows) for id in ids}
            self._pending += write_columns(self._files, fields, part, row_start=group.next_row)
        group.next_row += rows
        rest = {id: array.slice(rows) for id, array in arrays.items()}
        group.buffered = [rest] if num_rows(rest) else []
        group.buffered_bytes = int(sizes[rows:].sum())


def write_columns(
    files: FileWriter, fields: Sequence[Field], arrays: Mapping[int, pa.Array], *, row_start: int = 0
) -> list[Future[DataFile]]:
    """Store columns of an existing fragment, as one group, in files of the configured size."""
    pending, start = [], 0
    for count in split_rows(_total_sizes(arrays), _file_bytes(fields)):
        part = {id: array.slice(start, count) for id, array in arrays.items()}
        pending.append(files.submit(fields, part, row_start + start))
        start += count
    return pending


def group_fields(fields: Sequence[Field], arrays: Mapping[int, pa.Array]) -> list[_ColumnGroup]:
    """Decide which columns are buffered together: a heavy column is alone, light ones with equal settings are not."""
    heavy: list[_ColumnGroup] = []
    light: dict[tuple[str, int, int], list[Field]] = {}
    for known in fields:
        if -known.id in arrays or _is_heavy(row_sizes(arrays[known.id])):
            heavy.append(_ColumnGroup([known], light=False))
        else:
            light.setdefault((known.codec, known.file_bytes, known.page_bytes), []).append(known)
    return [*(_ColumnGroup(together, light=True) for together in light.values()), *heavy]


def divide_columns(fields: Sequence[Field], arrays: Mapping[int, pa.Array]) -> list[list[Field]]:
    """Decide which light columns share files, by their bytes in a fragment.

    A large column is alone. Small numbers are together, and so are small texts and lists; if all of that is little, it
    is one file, so that a small append does not store many.
    """
    sizes = {known.id: int(row_sizes(arrays[known.id]).sum()) for known in fields}
    alone = [[known] for known in fields if sizes[known.id] >= _OWN_FILE_BYTES]
    small = [known for known in fields if sizes[known.id] < _OWN_FILE_BYTES]
    numbers = [known for known in small if known.kind.fixed_row_bytes]
    others = [known for known in small if not known.kind.fixed_row_bytes]
    if sum(sizes[known.id] for known in small) < _OWN_FILE_BYTES:
        numbers, others = small, []
    return [*([numbers] if numbers else []), *([others] if others else []), *alone]


def concat_batches(batches: Sequence[Mapping[int, pa.Array]]) -> dict[int, pa.Array]:
    """Concatenate batches of the same columns; a batch without blob references gets null references."""
    ids = dict.fromkeys(id for batch in batches for id in batch)
    return {
        id: concat([batch[id] if id in batch else pa.nulls(num_rows(batch), BLOB_REFERENCE) for batch in batches])
        for id in ids
    }


def _total_sizes(arrays: Mapping[int, pa.Array]) -> npt.NDArray[np.int64]:
    """Bytes of each row over all columns."""
    return sum((row_sizes(array) for array in arrays.values()), np.zeros(num_rows(arrays), np.int64))


def _is_heavy(sizes: npt.NDArray[np.int64]) -> bool:
    return len(sizes) > 0 and bool(sizes.mean() >= _HEAVY_ROW_BYTES)


def _light_page_bytes(fields: Sequence[Field], row_bytes: float) -> int:
    """The target size of pages of light columns."""
    if len(fields) > 1:
        return min(Column.page_bytes, max(_LIGHT_PAGE_BYTES, int(row_bytes * _LIGHT_PAGE_ROWS)))
    target = _NUMBER_PAGE_BYTES if fields[0].kind.fixed_row_bytes else _TEXT_PAGE_BYTES
    return min(target, int(row_bytes * _MAX_PAGE_ROWS))


def _file_bytes(fields: Sequence[Field]) -> int:
    return min(known.file_bytes for known in fields)
