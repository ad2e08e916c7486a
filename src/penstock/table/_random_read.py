"""Random reads of single rows of fixed-width columns from local files.

A page is read whole and verified at the first read of one of its rows; later reads of the page cost only the row's
bytes. That is safe because files never change, and local reads are not damaged in transit. Remote stores always read
and verify whole pages: there is a checksum for each page and none for a row. Pages of narrow columns are kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.device import Allocator
from penstock.errors import CorruptError, NotFoundError
from penstock.format import DataFile, Field, Fragment, crc32c
from penstock.storage import Store
from penstock.table._gather import dense_kind, gather_dense
from penstock.table._pages import FragmentRows, Int64Array, NarrowPages, PageRequest, fetch_pages, read_pages

_MAX_TRACKED_PAGES = 1 << 22
_CACHED_COLUMN_BYTES, _CACHE_BYTES = 1 << 20, 64 << 20


class RandomRowReader:
    """Reads rows and tracks which pages are verified; not thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._scratch = bytearray()
        self._columns: dict[tuple[int, int], _ColumnPages | None] = {}
        self._tracked_pages = 0
        self._cache: dict[tuple[int, int], npt.NDArray[Any] | None] = {}
        self._cached_bytes = 0
        self.cache = NarrowPages()
        """For columns that this does not read."""

    @property
    def is_local(self) -> bool:
        """Whether the store is local; only then are random reads faster than reads of whole pages."""
        return self._store.is_local

    def read(
        self,
        field: Field,
        selection: Sequence[FragmentRows],
        destinations: Int64Array,
        out_rows: int,
        allocate: Allocator,
    ) -> npt.NDArray[Any] | None:
        """One column of some rows, each at its destination index in an array of `out_rows` rows.

        None if a page must be parsed.
        """
        dense = dense_kind(field)
        if dense is None or not selection:
            return None
        kind, row_bytes = dense
        if max(selected.fragment.rows for selected in selection) * row_bytes <= _CACHED_COLUMN_BYTES:
            return self._read_cached(field, selection, destinations, out_rows)
        found = allocate((out_rows, *kind.stored_shape), kind.element.stored)
        out = found.reshape(out_rows, -1).view(np.uint8)
        done = 0
        for selected in selection:
            if not self._read_rows(field.id, selected, destinations[done : done + len(selected.rows)], out):
                return None
            done += len(selected.rows)
        return kind.element.from_stored(found)

    def _read_cached(
        self, field: Field, selection: Sequence[FragmentRows], destinations: Int64Array, out_rows: int
    ) -> npt.NDArray[Any] | None:
        """`read` from cached whole columns, for columns so small that a system call per row would cost more."""
        cached = [self._cached_column(field, selected.fragment) for selected in selection]
        if cached[0] is None:
            return None
        found, done = np.empty((out_rows, *cached[0].shape[1:]), cached[0].dtype), 0
        for selected, values in zip(selection, cached, strict=True):
            if values is None:
                return None
            found[destinations[done : done + len(selected.rows)]] = values[selected.rows]
            done += len(selected.rows)
        return found

    def _cached_column(self, field: Field, fragment: Fragment) -> npt.NDArray[Any] | None:
        key = fragment.id, field.id
        if key not in self._cache:
            rows = FragmentRows(fragment, np.arange(fragment.rows))
            try:
                values = gather_dense(field, [rows], fetch_pages(self._store, [rows], [field.id], max_workers=1))
            except (CorruptError, NotFoundError):
                values = None  # the requested rows may be in intact pages
            self._cached_bytes += 0 if values is None else values.nbytes
            if self._cached_bytes > _CACHE_BYTES:
                self._cache.clear()
                self._cached_bytes = 0
            self._cache[key] = None if values is None else values.copy()  # a view would keep whole pages alive
        return self._cache[key]

    def _read_rows(
        self, field_id: int, selected: FragmentRows, destinations: Int64Array, out: npt.NDArray[np.uint8]
    ) -> bool:
        column = self._column(selected.fragment, field_id, out.shape[1])
        if column is None:
            return False
        data, width = out.reshape(-1).data, out.shape[1]
        pages = np.searchsorted(column.first_rows, selected.rows, side="right") - 1
        offsets = column.starts[pages] + (selected.rows - column.first_rows[pages]) * width
        known = column.verified[pages]
        reads: list[tuple[str, int, memoryview]] = []
        for page, offset, destination, verified in zip(
            pages.tolist(), offsets.tolist(), (destinations * width).tolist(), known.tolist(), strict=True
        ):
            row = data[destination : destination + width]
            if verified:
                reads.append((column.keys[page], offset, row))
            else:
                self._read_verified(*column.locate(page), offset, row)
        column.verified[pages] = True
        self._store.read_scattered(reads)
        return True

    def _read_verified(self, file: DataFile, page: int, offset: int, row: memoryview) -> None:
        """Read a row together with the rest of its page, and verify the page."""
        start, end, row_end = file.offsets[page], file.offsets[page + 1], offset + len(row)
        if len(self._scratch) < end - start:
            self._scratch = bytearray(end - start)
        rest = memoryview(self._scratch)[: end - start]
        head, tail = rest[: offset - start], rest[row_end - start :]
        self._store.read_into(file.key, start, (head, row, tail))
        if crc32c(tail, crc32c(row, crc32c(head))) != file.page_crcs[page]:
            [(_, data)] = read_pages(self._store, PageRequest(file, (page,)))  # retries once, or raises
            row[:] = data[offset - start : row_end - start]

    def _column(self, fragment: Fragment, field_id: int, row_bytes: int) -> "_ColumnPages | None":
        key = fragment.id, field_id
        if key not in self._columns:
            if self._tracked_pages > _MAX_TRACKED_PAGES:
                self._columns.clear()
                self._tracked_pages = 0
            column = self._columns[key] = _ColumnPages.of(fragment, field_id, row_bytes)
            self._tracked_pages += 1 if column is None else len(column.keys)
        return self._columns[key]


@dataclass(frozen=True)
class _ColumnPages:
    """The pages that hold one column of a fragment, in row order over all its files."""

    files: Sequence[DataFile]
    keys: list[str]
    """Key of the file of each page."""
    first_rows: Int64Array
    starts: Int64Array
    """Offset of each page's values in its file."""
    verified: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, fragment: Fragment, field_id: int, row_bytes: int) -> "_ColumnPages | None":
        """None if a page must be parsed."""
        files = fragment.files_of(field_id)
        if not files:
            return None
        inside = np.concatenate([file.values_at(field_id, row_bytes) for file in files])
        if (inside < 0).any():
            return None
        return cls(
            files,
            [file.key for file in files for _ in file.row_ends],
            np.concatenate([file.row_start + file.page_ends - file.page_rows for file in files]).astype(np.int64),
            np.concatenate([file.offsets[:-1] for file in files]) + inside,
            np.zeros(len(inside), bool),
        )

    def locate(self, page: int) -> tuple[DataFile, int]:
        """The file that holds a page, and the page's index in that file."""
        for file in self.files:
            if page < len(file.row_ends):
                return file, page
            page -= len(file.row_ends)
        raise IndexError(page)
