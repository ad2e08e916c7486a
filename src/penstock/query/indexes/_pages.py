"""Sorted tables in pages: written once, read by ranges."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.format import (
    IndexObject,
    PagedTableRef,
    check_directory,
    decode_index_page,
    decode_index_table,
    directory_schema,
    encode_index_table,
    encode_page_file,
)
from penstock.query.indexes._kind import KEY, TableLayout
from penstock.storage import Store, coalesce, thread_map
from penstock.table import Int64Array
from penstock.types import ByteRange, cached_property

KeyOf = Callable[[str], str]
"""The object key of an object id."""

_OBJECT_BYTES = 64 << 20
_MAX_GAP_BYTES = 32 << 10
_MAX_REQUEST_BYTES = 16 << 20
_MAX_REQUESTS = 40


class PageWriter:
    """Writes sorted entries as pages, in objects of a bounded size."""

    def __init__(self, store: Store, key_of: KeyOf, layout: TableLayout) -> None:
        self._store, self._key_of, self._layout = store, key_of, layout
        self._pages: list[pa.RecordBatch] = []
        self._buffered_bytes = 0
        self._objects: list[IndexObject] = []
        self._directory: list[pa.RecordBatch] = []

    def write(self, entries: pa.Table) -> None:
        """Write entries that follow those written before."""
        if not len(entries):
            return
        batch = entries.select(self._layout.schema.names).cast(self._layout.schema).combine_chunks().to_batches()[0]
        for start, end in pairwise(_page_bounds(batch, self._layout)):
            page = batch.slice(start, end - start)
            self._pages.append(page)
            self._buffered_bytes += page.nbytes
            if self._buffered_bytes >= _OBJECT_BYTES:
                self._flush()

    def finish(self) -> PagedTableRef:
        """Store what is buffered, and the directory."""
        self._flush()
        schema = directory_schema(self._layout.schema.field(KEY).type)
        ref, data = encode_index_table(pa.Table.from_batches(self._directory, schema))
        self._store.put(self._key_of(ref.id), data)
        return PagedTableRef(ref, tuple(self._objects))

    def _flush(self) -> None:
        if not self._pages:
            return
        ref, found, data = encode_page_file(self._pages, self._layout.compression)
        self._store.put(self._key_of(ref.id), data)
        keys = [page.column(KEY) for page in self._pages]
        columns = [
            pa.concat_arrays([key[:1] for key in keys]),
            pa.concat_arrays([key[-1:] for key in keys]),
            [len(self._objects)] * len(keys),
            [part.start for part, _ in found],
            [part.length for part, _ in found],
            [crc for _, crc in found],
            list(map(len, keys)),
        ]
        schema = directory_schema(keys[0].type)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        self._directory.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        self._objects.append(ref)
        self._pages, self._buffered_bytes = [], 0


def _page_bounds(batch: pa.RecordBatch, layout: TableLayout) -> list[int]:
    """The first entry of each page, and the end of the last."""
    count = len(batch)
    if not layout.split_at_keys:
        sizes = _entry_bytes(batch)
        is_first = np.diff((np.cumsum(sizes) - 1) // layout.page_bytes, prepend=-1) > 0
        is_large = sizes > layout.page_bytes // 2  # in a page of its own, so that small ones are read without it
        is_first |= is_large
        is_first[1:] |= is_large[:-1]
        return [*np.flatnonzero(is_first).tolist(), count]
    rows = max(1, layout.page_bytes * count // max(1, batch.nbytes))
    keys = batch.column(KEY)
    starts = [0, *(np.flatnonzero(np.asarray(pc.not_equal(keys[1:], keys[:-1]))) + 1).tolist(), count]
    return [start for first, end in pairwise(starts) for start in range(first, end, rows)] + [count]


def _entry_bytes(batch: pa.RecordBatch) -> Int64Array:
    """Bytes of each entry; sizes of text and bytes may differ widely."""
    sizes = np.ones(len(batch), np.int64)
    for column in batch.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            sizes += np.asarray(pc.fill_null(pc.binary_length(column), 0))
        else:
            sizes += max(1, column.nbytes // len(batch))
    return sizes


class PageRead(NamedTuple):
    """Pages of a table to read."""

    table: "PagedTable"
    pages: Sequence[int]


class PagedTable:
    """Reads a sorted table of an index by ranges; the directory is read once."""

    def __init__(self, store: Store, key_of: KeyOf, ref: PagedTableRef, layout: TableLayout) -> None:
        self._store, self._key_of, self.ref, self._layout = store, key_of, ref, layout

    @property
    def schema(self) -> pa.Schema:
        return self._layout.schema

    @cached_property
    def directory(self) -> pa.Table:
        """First and last key, place and number of entries of each page."""
        key = self._key_of(self.ref.directory.id)
        where, schema = f"{self._store.uri}/{key}", directory_schema(self.schema.field(KEY).type)
        table = decode_index_table(self.ref.directory, self._store.get(key), where, schema)
        check_directory(table, self.ref.objects, where)
        return table

    @cached_property
    def keys(self) -> pa.ChunkedArray:
        """The first key of each page."""
        return self.directory[KEY]

    @cached_property
    def _bounds(self) -> tuple[list[Any], list[Any]]:
        return self.keys.to_pylist(), self.directory["last"].to_pylist()

    @cached_property
    def _places(self) -> Mapping[str, list[int]]:
        return {name: self.directory[name].to_pylist() for name in ("object", "offset", "length", "crc", "rows")}

    def __len__(self) -> int:
        """The number of pages."""
        return len(self.directory)

    def pages_between(self, low: Any, high: Any) -> Sequence[int]:
        """The pages that may hold keys from `low` to `high`, both included; None for no bound."""
        firsts, lasts = self._bounds
        start = 0 if low is None else bisect_left(lasts, low)
        return range(start, len(self) if high is None else max(start, bisect_right(firsts, high)))

    def bytes_of(self, pages: Sequence[int]) -> int:
        """Bytes of pages as they are stored."""
        return sum(self._places["length"][page] for page in pages)

    def rows_of(self, pages: Sequence[int]) -> int:
        """Entries of pages."""
        return sum(self._places["rows"][page] for page in pages)

    def requests(self, pages: Sequence[int]) -> list[tuple[str, ByteRange]]:
        """The requests that read pages."""
        by_object: dict[int, list[ByteRange]] = {}
        for page in pages:
            by_object.setdefault(self._places["object"][page], []).append(self._range(page))
        return [
            (self._key_of(self.ref.objects[number].id), part)
            for number, ranges in by_object.items()
            for part in coalesce(ranges, max_gap_bytes=_MAX_GAP_BYTES, max_request_bytes=_MAX_REQUEST_BYTES)
        ]

    def read(self, pages: Sequence[int]) -> list[pa.RecordBatch]:
        """Pages in the order asked for, verified; raises `CorruptError`."""
        return read_pages_of([PageRead(self, pages)])[0]

    def scan(self, *, group: int) -> Iterator[list[pa.RecordBatch]]:
        """All pages in order, some at a time."""
        for first in range(0, len(self), group):
            yield self.read(range(first, min(first + group, len(self))))

    def _range(self, page: int) -> ByteRange:
        start = self._places["offset"][page]
        return ByteRange(start, start + self._places["length"][page])

    def _decode(self, page: int, data: memoryview) -> pa.RecordBatch:
        key = self._key_of(self.ref.objects[self._places["object"][page]].id)
        rows, crc = self._places["rows"][page], self._places["crc"][page]
        is_compressed, where = self._layout.compression is not None, f"page {page} of {self._store.uri}/{key}"
        return decode_index_page(data, self.schema, rows, crc, where, is_compressed=is_compressed)


def read_pages_of(reads: Sequence[PageRead]) -> list[list[pa.RecordBatch]]:
    """Pages of several tables in one round trip, verified; raises `CorruptError`."""
    requests = [(read.table, key, part) for read in reads for key, part in read.table.requests(read.pages)]
    if not requests:
        return [[] for _ in reads]
    store = reads[0].table._store
    fetched = thread_map(
        lambda request: next(iter(store.get_parts(request[1], [request[2]]))),
        requests,
        max_workers=1 if store.is_local else _MAX_REQUESTS,
    )
    data: dict[str, list[tuple[ByteRange, memoryview]]] = {}
    for (_, key, part), found in zip(requests, fetched, strict=True):
        data.setdefault(key, []).append((part, found))
    results = []
    for read in reads:
        batches = []
        for page in read.pages:
            table, wanted = read.table, read.table._range(page)
            key = table._key_of(table.ref.objects[table._places["object"][page]].id)
            part, found = next(one for one in data[key] if one[0].start <= wanted.start and wanted.end <= one[0].end)
            batches.append(table._decode(page, found[wanted.start - part.start : wanted.end - part.start]))
        results.append(batches)
    return results
