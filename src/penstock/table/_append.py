"""Write rows as fragments: cut columns into groups, groups into files, files into pages; many files at once."""

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.format import (
    BLOB_REFERENCE,
    Column,
    DataFile,
    Field,
    FileColumn,
    Fragment,
    Statistics,
    cut,
    encode_file,
    new_number,
    row_sizes,
)
from penstock.history import discard
from penstock.storage import Store
from penstock.table._encode import rows_of
from penstock.table._pages import concat
from penstock.table._statistics import merged_statistics, statistics_of
from penstock.types import RowRange

FRAGMENT_ROWS = 1 << 20
FRAGMENT_BYTES = 1 << 30
_HEAVY_ROW_BYTES = 256
# Whoever reads a few thousand rows of a heavy column needs only the few kilobytes of the light ones that go with them;
# but many light columns side by side should still have a thousand rows to a page.
_LIGHT_PAGE_BYTES = 32 << 10
_LIGHT_PAGE_ROWS = 1024
_FILES_IN_FLIGHT = 3
_FULL = 0.75
"""A file that is filled so far is not held back: to put it together with a few rows more would be a copy of it all."""


class IdSource(Protocol):
    """Where the ids of new fragments' rows come from."""

    def take(self, count: int) -> tuple[RowRange, ...]: ...


@dataclass
class _Group:
    """Columns that share files, and the rows of them that wait for a file to fill."""

    fields: Sequence[Field]
    waiting: list[Mapping[int, pa.Array]] = field(default_factory=list)
    waiting_bytes: int = 0
    next_row: int = 0
    """First row of the next file, counted in the fragment."""


class FileWriter:
    """Stores data files in threads; a few at a time, so that memory stays bounded."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(_FILES_IN_FLIGHT, "penstock-write")
        self._running: set[Future[DataFile]] = set()
        self._all: list[Future[DataFile]] = []

    def __enter__(self) -> "FileWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Wait for the files; after a failure, remove those that were written: nothing refers to them."""
        wait(self._running)
        self._pool.shutdown()
        if error is not None:
            discard(self._store, [future.result().key for future in self._all if future.exception() is None])

    def submit(self, fields: Sequence[Field], arrays: Mapping[int, pa.Array], row_start: int) -> Future[DataFile]:
        """Store one file; waits while too many are under way."""
        if len(self._running) >= _FILES_IN_FLIGHT:
            done, self._running = wait(self._running, return_when=FIRST_COMPLETED)
            for finished in done:
                finished.result()  # a failure is told now, and not when everything has been sent
        future = self._pool.submit(self._write, fields, [arrays], row_start)
        self._running.add(future)
        self._all.append(future)
        return future

    def _write(self, fields: Sequence[Field], given: list[Mapping[int, pa.Array]], row_start: int) -> DataFile:
        arrays = given.pop()  # the pool holds what it was given until the end, and a slow store would keep rows twice
        columns = [
            FileColumn(known, references=id < 0) for known in fields for id in (known.id, -known.id) if id in arrays
        ]
        by_column = [row_sizes(arrays[column.id]) for column in columns]
        light = not any(column.references for column in columns) and not any(map(_is_heavy, by_column))
        sizes = sum(by_column, np.zeros(rows_of(arrays), np.int64))
        page_bytes = min(known.page_bytes for known in fields)
        if light and page_bytes == Column.page_bytes:
            page_bytes = min(page_bytes, max(_LIGHT_PAGE_BYTES, int(sizes.mean() * _LIGHT_PAGE_ROWS)))
        pages = cut(sizes, page_bytes)
        file, data = encode_file(
            columns, [arrays[column.id] for column in columns], row_start=row_start, page_rows=pages
        )
        del arrays
        self._store.put(file.key, data)
        return file


class FragmentWriter:
    """Takes batches of rows and makes fragments of them."""

    def __init__(self, files: FileWriter, fields: Sequence[Field], row_ids: IdSource) -> None:
        self._files, self._fields, self._row_ids = files, fields, row_ids
        self._groups: list[_Group] = []
        self._pending: list[Future[DataFile]] = []
        self._rows, self._bytes = 0, 0
        self._statistics: dict[int, Statistics] = {}
        self.fragments: list[Fragment] = []

    def write(self, arrays: Mapping[int, pa.Array]) -> None:
        """Take a batch; stores every file that is full."""
        if not self._groups:
            self._groups = [_Group(fields) for fields in group_fields(self._fields, arrays)]
        self._statistics = merged_statistics(self._statistics, statistics_of(self._fields, arrays))
        for group in self._groups:
            mine = {id: array for id, array in arrays.items() if any(abs(id) == known.id for known in group.fields)}
            size = int(sum(row_sizes(array).sum() for array in mine.values()))
            group.waiting.append(mine)
            group.waiting_bytes += size
            self._bytes += size
            if group.waiting_bytes >= _FULL * _file_bytes(group.fields):
                self._flush(group, all_rows=False)
        self._rows += rows_of(arrays)
        if self._rows >= FRAGMENT_ROWS or self._bytes >= FRAGMENT_BYTES:
            self.close_fragment()

    def close_fragment(self) -> None:
        """Store what waits and end the fragment."""
        for group in self._groups:
            self._flush(group, all_rows=True)
        if self._rows:
            files = tuple(future.result() for future in self._pending)
            fragment = Fragment(
                id=new_number(),
                rows=self._rows,
                live=self._rows,
                row_ids=self._row_ids.take(self._rows),
                files=files,
                statistics=tuple(self._statistics.values()),
            )
            self.fragments.append(fragment)
        self._groups, self._pending, self._statistics = [], [], {}
        self._rows, self._bytes = 0, 0

    def _flush(self, group: _Group, *, all_rows: bool) -> None:
        if not group.waiting:
            return
        arrays = join(group.waiting)
        sizes = sum((row_sizes(array) for array in arrays.values()), np.zeros(rows_of(arrays), np.int64))
        start = 0
        runs = cut(sizes, _file_bytes(group.fields))
        if not all_rows and sizes[-runs[-1] :].sum() < _FULL * _file_bytes(group.fields):
            runs.pop()  # too little for a file of its own yet
        for count in runs:
            part = {id: array.slice(start, count) for id, array in arrays.items()}
            self._pending.append(self._files.submit(group.fields, part, group.next_row))
            group.next_row += count
            start += count
        rest = {id: array.slice(start) for id, array in arrays.items()}
        group.waiting = [rest] if rows_of(rest) else []
        group.waiting_bytes = int(sizes[start:].sum())


def write_columns(
    files: FileWriter, fields: Sequence[Field], arrays: Mapping[int, pa.Array], *, row_start: int = 0
) -> list[Future[DataFile]]:
    """Store columns of a fragment that exists, as one group, in files of the usual size."""
    sizes = sum((row_sizes(array) for array in arrays.values()), np.zeros(rows_of(arrays), np.int64))
    pending, start = [], 0
    for count in cut(sizes, _file_bytes(fields)):
        part = {id: array.slice(start, count) for id, array in arrays.items()}
        pending.append(files.submit(fields, part, row_start + start))
        start += count
    return pending


def group_fields(fields: Sequence[Field], arrays: Mapping[int, pa.Array]) -> list[list[Field]]:
    """Which columns share files: a heavy one is alone, light ones of one codec and one size are together."""
    heavy: list[list[Field]] = []
    light: dict[tuple[str, int, int], list[Field]] = {}
    for known in fields:
        if -known.id in arrays or _is_heavy(row_sizes(arrays[known.id])):
            heavy.append([known])
        else:
            light.setdefault((known.codec, known.file_bytes, known.page_bytes), []).append(known)
    return [*light.values(), *heavy]


def join(batches: Sequence[Mapping[int, pa.Array]]) -> dict[int, pa.Array]:
    """Batches of the same columns as one; where only some have references to blobs, the others get nulls."""
    ids = dict.fromkeys(id for batch in batches for id in batch)
    return {
        id: concat([batch[id] if id in batch else pa.nulls(rows_of(batch), BLOB_REFERENCE) for batch in batches])
        for id in ids
    }


def _is_heavy(sizes: npt.NDArray[np.int64]) -> bool:
    return len(sizes) > 0 and bool(sizes.mean() >= _HEAVY_ROW_BYTES)


def _file_bytes(fields: Sequence[Field]) -> int:
    return min(known.file_bytes for known in fields)
