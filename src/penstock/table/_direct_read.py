"""Direct reads: pages of one fixed-width column, read into the rows' destination without an intermediate copy."""

from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from penstock.errors import CorruptError
from penstock.format import Field, corrupt_error, crc32c, values_match, verify_pages
from penstock.storage import Store
from penstock.table._pages import FragmentRows, Int64Array, PageRequest
from penstock.types import ByteRange

_MIN_PAGE_ROW_BYTES = 32 << 10


def direct_row_range(request: PageRequest, field_id: int, row_bytes: int, selected: FragmentRows) -> range | None:
    """The rows of a request's pages, as indices into the selected rows; None if the pages cannot be read directly.

    The first and the last page may hold rows outside the selection: the range may start below 0 and end past the last.
    """
    file, first, last = request.file, request.pages[0], request.pages[-1]
    if file.fields != (field_id,) or file.dense_row_bytes != row_bytes:
        return None
    rows = selected.contiguous
    row = file.row_start + (file.row_ends[first - 1] if first else 0)
    row_end = file.row_start + file.row_ends[last]
    if rows is None or last - first + 1 != len(request.pages):
        return None
    return range(row - rows.start, row_end - rows.start)


def read_direct(store: Store, request: PageRequest, out: memoryview) -> None:
    """Read the values of a request's pages into `out`, and verify them.

    Raises `CorruptError` for a damaged page.
    """
    try:
        _read(store, request, out)
    except CorruptError:  # perhaps damaged in transit: retry once
        _read(store, request, out)


def _read(store: Store, request: PageRequest, out: memoryview) -> None:
    file, first, end = request.file, request.pages[0], request.pages[-1] + 1
    offsets, run = file.offsets, file.dense_pages(first, end)
    scratch = memoryview(bytearray(run.header_bounds[-1]))
    heads = [scratch[start:stop] for start, stop in pairwise(run.header_bounds)]
    values = [out[start:stop] for start, stop in pairwise(run.value_bounds)]
    store.read_into(file.key, offsets[first], [*chain.from_iterable(zip(heads, values, strict=True))])
    if not values_match(file, first, end, heads, [out]):
        whole = store.get(file.key, byte_range=ByteRange(offsets[first], offsets[end]))
        verify_pages(file, first, end, whole, f"{store.uri}/{file.key}")  # names the damaged page
        raise CorruptError(f"{store.uri}/{file.key} changed while it was read; read it again")


def reads_by_row(field: Field, rows_per_page: int) -> bool:
    """Whether rows of a column are large, and few in a page; below, a copy is cheaper than a Python call."""
    size = field.fixed_row_bytes or 0
    return size >= _MIN_PAGE_ROW_BYTES and rows_per_page * size >= field.page_bytes


class RowPages(NamedTuple):
    """Where rows of one fixed-width column are whose pages hold few rows: a row is read and verified with its page."""

    keys: Sequence[str]
    """Of files."""
    pages: Int64Array
    """For each row the number of its file, the start and the end of its page there, where it starts in the page, and
    the checksum of the page; of shape (rows, 5). All are -1 for a row that is elsewhere."""

    @classmethod
    def of(cls, selected: FragmentRows, field_id: int, row_bytes: int, most: int) -> "RowPages | None":
        """The pages of some rows; None if a page holds more than `most` rows, or must be parsed."""
        rows = selected.rows
        files = selected.fragment.files_between(field_id, int(rows[0]), int(rows[-1]) + 1) if len(rows) else ()
        parts: list[Int64Array] = []
        for number, file in enumerate(files):
            if file.fields != (field_id,) or file.dense_row_bytes != row_bytes or max(file.page_rows) > most:
                return None
            here = rows[np.searchsorted(rows, file.row_start) : np.searchsorted(rows, file.row_start + file.rows)]
            ends, counts = np.asarray(file.page_ends, np.int64), np.asarray(file.page_rows, np.int64)
            page = np.searchsorted(ends, here - file.row_start, side="right")
            inside = here - file.row_start - ends[page] + counts[page]
            values = np.array(file.values_at(field_id, row_bytes))[page] + inside * row_bytes
            offsets, crcs = np.asarray(file.page_offsets, np.int64), np.asarray(file.page_crcs, np.int64)
            columns = [np.full(len(page), number), offsets[page], offsets[page + 1], values, crcs[page]]
            parts.append(np.stack(columns, axis=1))
        pages = np.concatenate(parts) if parts else np.zeros((0, 5), np.int64)
        return cls([file.key for file in files], pages) if len(pages) == len(rows) else None

    @classmethod
    def none(cls, rows: int) -> "RowPages":
        """Rows that are all elsewhere."""
        return cls((), np.full((rows, 5), -1, np.int64))

    @classmethod
    def joined(cls, parts: Sequence["RowPages"]) -> "RowPages":
        """The rows of all parts, one after the other."""
        keys: list[str] = []
        pages = np.concatenate([part.pages for part in parts])
        end = 0
        for part in parts:
            if part.keys:
                files = pages[end : end + len(part.pages), 0]
                files[files >= 0] += len(keys)
                keys += part.keys
            end += len(part.pages)
        return cls(keys, pages)

    def take(self, rows: Int64Array | slice) -> "RowPages":
        """Some of the rows."""
        return RowPages(self.keys, self.pages[rows])

    @property
    def elsewhere(self) -> Int64Array:
        """The rows that are elsewhere."""
        return np.flatnonzero(self.pages[:, 0] < 0)

    @property
    def bytes(self) -> int:
        """Bytes of the pages of all rows."""
        return int((self.pages[:, 2] - self.pages[:, 1]).sum())

    def read(self, store: Store, row_view: Callable[[int], memoryview]) -> dict[int, CorruptError]:
        """Read rows that are not elsewhere into their memory, and verify their pages; returns the errors by row."""
        errors: dict[int, CorruptError] = {}
        scratch = memoryview(b"")
        for index, (file, start, end, value, crc) in enumerate(self.pages.tolist()):
            if file < 0:
                continue
            row = row_view(index)
            if len(scratch) < end - start:
                scratch = memoryview(bytearray(end - start))
            head, tail = scratch[:value], scratch[value + len(row) : end - start]
            for _ in range(2):  # perhaps damaged in transit: retry once
                store.read_into(self.keys[file], start, (head, row, tail))
                if crc32c(tail, crc32c(row, crc32c(head))) == crc:
                    break
            else:
                where = f"{store.uri}/{self.keys[file]}"
                errors[index] = corrupt_error(where, f"the checksum of the page at byte {start} does not match")
        return errors
