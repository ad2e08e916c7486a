"""Direct reads: pages of one fixed-width column, read into the rows' destination without an intermediate copy."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from penstock.errors import CorruptError
from penstock.format import crc32c, values_match, verify_pages
from penstock.storage import Store
from penstock.table._pages import FragmentRows, Int64Array, PageRequest, read_pages
from penstock.types import ByteRange

_CHECKED = 1 << 20
"""Bytes of pages that are verified together."""


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
    scratch = memoryview(bytearray(run.headers[-1].stop))
    heads = [scratch[part] for part in run.headers]
    values = [out[part] for part in run.values]
    store.read_into(file.key, offsets[first], [*chain.from_iterable(zip(heads, values, strict=True))])
    if not values_match(file, first, end, heads, [out]):
        whole = store.get(file.key, byte_range=ByteRange(offsets[first], offsets[end]))
        verify_pages(file, first, end, whole, f"{store.uri}/{file.key}")  # names the damaged page
        raise CorruptError(f"{store.uri}/{file.key} changed while it was read; read it again")


def check_pages(store: Store, request: PageRequest) -> None:
    """Read pages and verify them, a few at a time, in memory that stays in the processor's cache.

    Raises `CorruptError` for a damaged page.
    """
    file, offsets, crcs = request.file, request.file.offsets, request.file.page_crcs
    scratch = memoryview(b"")
    for first, end in _page_runs(request):
        start, size = offsets[first], offsets[end] - offsets[first]
        if len(scratch) < size:
            scratch = np.empty(size, np.uint8).data
        store.read_into(file.key, start, [scratch[:size]])
        for page in range(first, end):
            if crc32c(scratch[offsets[page] - start : offsets[page + 1] - start]) != crcs[page]:
                read_pages(store, PageRequest(file, (page,)))  # retries once, or raises


def _page_runs(request: PageRequest) -> Iterator[tuple[int, int]]:
    """Runs of consecutive pages, each with its end, that have at most as many bytes as are verified together."""
    offsets, first, end = request.file.offsets, request.pages[0], request.pages[0]
    for page in request.pages:
        if end > first and (page > end or offsets[page + 1] - offsets[first] > _CHECKED):
            yield first, end
            first = page
        end = page + 1
    yield first, end


class RowPlaces(NamedTuple):
    """Where rows of one fixed-width column are in files whose pages are verified."""

    keys: Sequence[str]
    """Of files."""
    places: Int64Array
    """For each row the number of its file, and its offset there; of shape (rows, 2)."""

    @classmethod
    def of(cls, selected: FragmentRows, field_id: int, row_bytes: int) -> "RowPlaces | None":
        """The places of some rows; None if a page must be parsed."""
        rows = selected.rows
        files = selected.fragment.files_between(field_id, int(rows[0]), int(rows[-1]) + 1) if len(rows) else ()
        parts: list[Int64Array] = []
        for number, file in enumerate(files):
            if file.fields != (field_id,) or file.dense_row_bytes != row_bytes:
                return None
            here = rows[np.searchsorted(rows, file.row_start) : np.searchsorted(rows, file.row_start + file.rows)]
            inside = here - file.row_start
            ends = np.asarray(file.page_ends, np.int64)
            page = np.searchsorted(ends, inside, side="right")
            first = ends[page] - np.asarray(file.page_rows, np.int64)[page]
            starts = np.asarray(file.page_offsets, np.int64)[page] + np.array(file.values_at(field_id, row_bytes))[page]
            parts.append(np.stack([np.full(len(page), number), starts + (inside - first) * row_bytes], axis=1))
        places = np.concatenate(parts) if parts else np.zeros((0, 2), np.int64)
        return cls([file.key for file in files], places) if len(places) == len(rows) else None

    @classmethod
    def joined(cls, parts: Sequence["RowPlaces"]) -> "RowPlaces":
        """The rows of all parts, one after the other."""
        keys: list[str] = []
        places = np.concatenate([part.places for part in parts])
        end = 0
        for part in parts:
            places[end : end + len(part.places), 0] += len(keys)
            end += len(part.places)
            keys += part.keys
        return cls(keys, places)

    def take(self, rows: Int64Array | slice) -> "RowPlaces":
        """Some of the rows."""
        return RowPlaces(self.keys, self.places[rows])

    def read(self, store: Store, row_view: Callable[[int], memoryview]) -> None:
        """Read each row into its memory."""
        store.read_scattered(
            [(self.keys[file], start, row_view(row)) for row, (file, start) in enumerate(self.places.tolist())]
        )
