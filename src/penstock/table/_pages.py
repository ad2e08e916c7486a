"""Rows to pages: plan which pages to read, read them and verify them."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import CorruptError, NotFoundError
from penstock.format import DataFile, FileColumn, Fragment, Node, PageDecoder, Schema, verify_pages
from penstock.history import Tree
from penstock.storage import Store, thread_map
from penstock.types import Buffer, ByteRange, cached_property

Int64Array: TypeAlias = npt.NDArray[np.int64]

PageRuns: TypeAlias = list[tuple[int, memoryview]]
"""Contiguous pages as they were read: the first page of each run, and the bytes of all its pages."""

_MAX_GAP_BYTES = 64 << 10
_MAX_REQUEST_BYTES = 16 << 20
_NARROW_ROW_BYTES = 1 << 10
_CACHE_BYTES = 64 << 20


@dataclass(frozen=True)
class FragmentRows:
    """Rows of one fragment: indices in ascending order, deleted rows counted."""

    fragment: Fragment
    rows: Int64Array
    _by_page: dict[int, list["PageRows"]] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def contiguous(self) -> range | None:
        """The rows as a range; None if they have gaps."""
        if not len(self.rows) or int(self.rows[-1]) - int(self.rows[0]) != len(self.rows) - 1:  # rows ascend
            return None
        return range(int(self.rows[0]), int(self.rows[-1]) + 1)

    def by_page(self, field_id: int) -> list["PageRows"]:
        """The pages that hold a field of these rows; computed once."""
        if field_id not in self._by_page:
            self._by_page[field_id] = list(rows_by_page(self.fragment, field_id, self.rows))
        return self._by_page[field_id]


class PageRows(NamedTuple):
    """Rows of one page, as indices into the page; a slice if they are contiguous."""

    file: DataFile
    page: int
    rows: slice | Int64Array


class Pages:
    """Verified pages, in contiguous runs as they were read."""

    def __init__(self) -> None:
        self._runs: dict[str, PageRuns] = {}
        self._parsed: dict[tuple[str, int], pa.RecordBatch] = {}
        self._decoders: dict[tuple[int, ...], PageDecoder] = {}

    def add(self, file: DataFile, first: int, data: memoryview) -> None:
        """Add the pages from index `first` on, as many as `data` holds."""
        insort(self._runs.setdefault(file.id, []), (first, data), key=itemgetter(0))

    def add_all(self, file: DataFile, runs: PageRuns) -> None:
        """Add the result of `read_pages`."""
        for first, data in runs:
            self.add(file, first, data)

    def __getitem__(self, at: tuple[DataFile, int]) -> memoryview:
        """One page."""
        file, page = at
        data, start = self.run(file, page)
        return data[file.offsets[page] - start : file.offsets[page + 1] - start]

    def parsed(self, schema: Schema, file: DataFile, page: int) -> pa.RecordBatch:
        """One page as Arrow data, parsed once for all its columns; raises `CorruptError`."""
        found = self._parsed.get((file.id, page))
        if found is None:
            decoder = self._decoders.get(file.fields)
            if decoder is None:
                decoder = self._decoders[file.fields] = page_decoder(schema, file)
            found = self._parsed[file.id, page] = decode_page(decoder, file, page, self[file, page])
        return found

    def run(self, file: DataFile, page: int) -> tuple[memoryview, int]:
        """The run that holds a page, and its offset in the file."""
        runs = self._runs[file.id]
        first, data = runs[bisect_right(runs, page, key=itemgetter(0)) - 1]
        return data, file.offsets[first]


def rows_by_fragment(tree: Tree, nodes: Sequence[Node], positions: Int64Array) -> list[FragmentRows]:
    """Map ascending positions of live rows to rows of fragments."""
    return [
        FragmentRows(fragment, fragment.stored_rows(inside - start))
        for fragment, start, inside in tree.fragments_at(nodes, positions)
    ]


def rows_by_page(fragment: Fragment, field_id: int, rows: Int64Array) -> Iterator[PageRows]:
    """Map ascending rows to the pages that hold a field; pure."""
    if not len(rows):
        return
    start, end = int(rows[0]), int(rows[-1]) + 1
    contiguous = end - start == len(rows)
    for file in fragment.files_between(field_id, start, end):
        if contiguous:
            yield from _page_slices(file, max(start - file.row_start, 0), min(end - file.row_start, file.rows))
            continue
        first, last = np.searchsorted(rows, (file.row_start, file.row_end)).tolist()
        if first == last:
            continue
        inside = rows[first:last] - file.row_start
        if len(inside) < len(file.page_rows):
            pages, starts = np.unique(np.searchsorted(file.page_ends, inside, side="right"), return_index=True)
            parts = np.split(inside, starts[1:])
        else:  # many rows in few pages
            cuts = np.concatenate([[0], np.searchsorted(inside, file.page_ends)])
            pages = np.flatnonzero(np.diff(cuts))
            parts = [inside[cuts[page] : cuts[page + 1]] for page in pages]
        for page, part in zip(pages.tolist(), parts, strict=True):
            local = part - int(file.page_ends[page] - file.page_rows[page])
            run = as_slice(local)
            yield PageRows(file, page, local if run is None else run)


def _page_slices(file: DataFile, start: int, end: int) -> Iterator[PageRows]:
    ends = file.row_ends
    page = bisect_right(ends, start)
    page_start = ends[page - 1] if page else 0
    while page_start < end:
        page_end = ends[page]
        yield PageRows(file, page, slice(max(start, page_start) - page_start, min(end, page_end) - page_start))
        page, page_start = page + 1, page_end


class PageRequest(NamedTuple):
    """Pages of a file that are close enough to be read in one request."""

    file: DataFile
    pages: Sequence[int]

    @property
    def bytes(self) -> int:
        return self.file.offsets[self.pages[-1] + 1] - self.file.offsets[self.pages[0]]


def page_requests(selection: Sequence[FragmentRows], field_ids: Sequence[int]) -> list[PageRequest]:
    """The requests that read every page of these rows and fields; pure."""
    if len(selection) == 1 and selection[0].contiguous is not None:
        return _contiguous_requests(selection[0].fragment, field_ids, selection[0].contiguous)
    needed: dict[str, tuple[DataFile, set[int]]] = {}
    for selected in selection:
        for field_id in field_ids:
            for part in selected.by_page(field_id):
                needed.setdefault(part.file.id, (part.file, set()))[1].add(part.page)
    return [request for file, pages in needed.values() for request in _coalesce(file, sorted(pages))]


def _contiguous_requests(fragment: Fragment, field_ids: Sequence[int], rows: range) -> list[PageRequest]:
    """`page_requests` for contiguous rows, the common case of a loader."""
    found: dict[str, list[PageRequest]] = {}
    for field_id in field_ids:
        for file in fragment.files_between(field_id, rows.start, rows.stop):
            if file.id in found:
                continue
            first = bisect_right(file.row_ends, rows.start - file.row_start)
            last = bisect_left(file.row_ends, rows.stop - file.row_start, hi=len(file.row_ends) - 1)
            if file.offsets[last + 1] - file.offsets[first] <= _MAX_REQUEST_BYTES:
                found[file.id] = [PageRequest(file, range(first, last + 1))]
            else:
                found[file.id] = list(_coalesce(file, range(first, last + 1)))
    return [request for requests in found.values() for request in requests]


def _coalesce(file: DataFile, pages: Sequence[int]) -> Iterator[PageRequest]:
    offsets = file.offsets
    group: list[int] = []
    for page in pages:
        if group and (
            offsets[page] - offsets[group[-1] + 1] > _MAX_GAP_BYTES
            or offsets[page + 1] - offsets[group[0]] > _MAX_REQUEST_BYTES
        ):
            yield PageRequest(file, group)
            group = []
        group.append(page)
    if group:
        yield PageRequest(file, group)


class NarrowPages:
    """Keeps pages of narrow columns, the last used ones, for random reads: each of their pages serves many rows.

    The pages of wide rows are not kept, because a row that is read again has long been displaced.
    """

    def __init__(self, max_bytes: int = _CACHE_BYTES) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._pages: dict[tuple[str, int], memoryview] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return NarrowPages, (self._max_bytes,)

    def keeps(self, file: DataFile) -> bool:
        """Whether pages of this file are kept."""
        return file.offsets[-1] - file.offsets[0] <= _NARROW_ROW_BYTES * file.rows

    def missing(self, request: PageRequest, found: Pages) -> Iterator[PageRequest]:
        """Add the pages of a request that are kept to `found`; yields requests for the others."""
        file = request.file
        others = [page for page in request.pages if (file.id, page) not in self._pages]
        fetched = [range(each.pages[0], each.pages[-1] + 1) for each in _coalesce(file, others)]  # and pages between
        for page in request.pages:
            data = self._pages.pop((file.id, page), None)
            if data is not None:
                self._pages[file.id, page] = data  # the newest now
                if not any(page in pages for pages in fetched):  # runs of pages must not overlap
                    found.add(file, page, data)
        yield from (PageRequest(file, pages) for pages in fetched)

    def add(self, file: DataFile, first: int, data: memoryview) -> None:
        """Keep copies of the pages from index `first` on, as many as `data` holds."""
        start, page = file.offsets[first], first
        while page + 1 < len(file.offsets) and file.offsets[page + 1] - start <= len(data):
            if (file.id, page) not in self._pages:
                copy = memoryview(bytes(data[file.offsets[page] - start : file.offsets[page + 1] - start]))
                self._pages[file.id, page] = copy
                self._bytes += len(copy)
            page += 1
        while self._bytes > self._max_bytes and self._pages:
            self._bytes -= len(self._pages.pop(next(iter(self._pages))))


def fetch_pages(
    store: Store,
    selection: Sequence[FragmentRows],
    field_ids: Sequence[int],
    *,
    max_workers: int,
    cache: NarrowPages | None = None,
) -> Pages:
    """Read and verify every page of these rows and fields; raises `CorruptError` for a damaged page."""
    requests = page_requests(selection, field_ids)
    found = Pages()
    if cache is not None:
        kept = [request for request in requests if cache.keeps(request.file)]
        requests = [request for request in requests if not cache.keeps(request.file)]
        requests += [missing for request in kept for missing in cache.missing(request, found)]
    workers = 1 if store.is_local else max_workers
    fetched = thread_map(lambda request: read_pages(store, request), requests, max_workers=workers)
    for request, runs in zip(requests, fetched, strict=True):
        found.add_all(request.file, runs)
        if cache is not None and cache.keeps(request.file):
            for first, data in runs:
                cache.add(request.file, first, data)
    return found


def read_pages(store: Store, request: PageRequest, allocate: Callable[[int], memoryview] | None = None) -> PageRuns:
    """The pages of one request. A run is verified in one pass, with the GIL released.

    With `allocate`, which returns a buffer of a given size, the pages are read into that buffer. Raises `CorruptError`
    for a page whose checksum does not match after one retry.
    """
    found = []
    file, pages = request
    where = f"{store.uri}/{file.key}"
    offsets = file.offsets
    runs = list(_contiguous_runs(pages))
    ranges = [ByteRange(offsets[first], offsets[end]) for first, end in runs]
    read = store.get_parts(file.key, ranges) if allocate is None else _read_into(allocate, store, file.key, ranges)
    for (first, end), byte_range, data in zip(runs, ranges, read, strict=True):
        try:
            verify_pages(file, first, end, data, where)
        except CorruptError:  # perhaps damaged in transit: retry once
            data = store.get(file.key, byte_range=byte_range)
            verify_pages(file, first, end, data, where)
        found.append((first, data))
    return found


def _read_into(
    allocate: Callable[[int], memoryview], store: Store, key: str, ranges: Sequence[ByteRange]
) -> Iterator[memoryview]:
    start = ranges[0].start
    buffer = allocate(ranges[-1].end - start)
    store.read_into(key, start, [buffer])
    yield from (buffer[part.start - start : part.end - start].toreadonly() for part in ranges)


def _contiguous_runs(pages: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and end of each run of consecutive pages."""
    first = last = pages[0]
    for page in pages[1:]:
        if page != last + 1:
            yield first, last + 1
            first = page
        last = page
    yield first, last + 1


def page_decoder(schema: Schema, file: DataFile) -> PageDecoder:
    """The decoder of a file's pages; raises `CorruptError` if the schema lacks a field of the file."""
    try:
        return PageDecoder([FileColumn(schema.by_id(abs(id)), references=id < 0) for id in file.fields])
    except NotFoundError as error:
        raise CorruptError(f"{file.key} cannot be decoded: {error}. Restore the snapshot from a copy") from error


def decode_page(decoder: PageDecoder, file: DataFile, page: int, data: Buffer) -> pa.RecordBatch:
    """Decode one page of a file; raises `CorruptError` that names the file and the page."""
    return decoder.decode(data, rows=int(file.page_rows[page]), where=f"page {page} of {file.key}")


def as_slice(rows: Int64Array) -> slice | None:
    """The rows as a slice; None if they are not consecutive."""
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and (len(rows) < 3 or (np.diff(rows) == 1).all()):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return None
