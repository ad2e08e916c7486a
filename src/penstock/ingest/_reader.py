"""Read the objects of a source: concurrently, in order, in bounded memory; or link to them without reading."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import compress
from threading import Lock
from typing import Any, BinaryIO

from penstock.errors import NotFoundError, SourceChangedError
from penstock.format.kinds import Kind, Link
from penstock.storage import ObjectInfo, Prefetch, Store, thread_map
from penstock.table import RangeFile
from penstock.types import ByteRange

_PREFETCH_BYTES = 32 << 20
_MAX_CONCURRENCY = 32
_CHUNK_BYTES = 4 << 20
MAX_VALUE_BYTES = 4 << 30
"""Largest size of a single value; a file that declares more is corrupt or malicious."""


class ByteCounter:
    """Counts bytes read, for progress; an unpickled copy starts at zero."""

    def __init__(self) -> None:
        self.bytes = 0
        self._lock = Lock()

    def __reduce__(self) -> tuple[type["ByteCounter"], tuple[()]]:
        return ByteCounter, ()

    def add(self, count: int) -> None:
        with self._lock:
            self.bytes += count


@dataclass(frozen=True)
class SourceReader:
    """Reads the objects of a source; can be pickled."""

    store: Store
    link: bool = False
    """Whether values are links to the source instead of copies."""
    columns: frozenset[str] | None = None
    """The columns to read; None for all. What is wrong with other columns rejects neither rows nor files."""
    declared: Mapping[str, Kind] = field(default_factory=dict)
    """The kinds that the user gave to columns."""
    empty: frozenset[str] = frozenset()
    """Keys of files of 0 bytes, which are not passed to sources."""
    max_concurrency: int = field(default=_MAX_CONCURRENCY, compare=False)
    """Requests in flight for one iterator."""
    byte_counter: ByteCounter = field(default_factory=ByteCounter, compare=False, repr=False)

    def selects(self, column: str) -> bool:
        """Whether a column is read."""
        return self.columns is None or column in self.columns

    def uri(self, key: str) -> str:
        """The URI of an object."""
        return f"{self.store.uri.rstrip('/')}/{key}"

    def read(self, file: ObjectInfo, start: int = 0, length: int | None = None) -> memoryview:
        """An object or a range of it; raises `SourceChangedError` if it is missing or changed since it was listed."""
        end = file.size if length is None else start + length
        if end == start:
            return memoryview(b"")
        try:
            whole = start == 0 and end == file.size
            data = self.store.get(file.key, byte_range=None if whole else ByteRange(start, end), etag=file.etag)
        except NotFoundError as error:
            raise self._missing(file) from error
        self.byte_counter.add(len(data))
        return data

    def read_many(
        self, files: Sequence[ObjectInfo], select: Callable[[ObjectInfo], bool] = lambda _: True
    ) -> Iterator[tuple[ObjectInfo, memoryview | SourceChangedError]]:
        """Whole objects in order, prefetched; an object that cannot be read is paired with its error.

        Objects that `select` excludes are not read and paired with empty data, and so are all if values are links.
        """
        if self.link:
            yield from ((file, memoryview(b"")) for file in files)
            return
        selected = [select(file) for file in files]
        bodies = self.store.get_many(list(compress(files, selected)), Prefetch(self.max_concurrency, _PREFETCH_BYTES))
        for file, read in zip(files, selected, strict=True):
            data = next(bodies) if read else memoryview(b"")
            if isinstance(data, memoryview):
                self.byte_counter.add(len(data))
            yield file, self._missing(file) if isinstance(data, NotFoundError) else data

    def _missing(self, file: ObjectInfo) -> SourceChangedError:
        return SourceChangedError(f"{self.uri(file.key)} was removed after it was listed; run the ingest again")

    def find_changed(self, files: Sequence[ObjectInfo]) -> list[ObjectInfo]:
        """The objects that are missing or differ from the listing."""

        def is_changed(file: ObjectInfo) -> bool:
            try:
                found = self.store.head(file.key)
            except NotFoundError:
                return True
            return (found.size, found.etag) != (file.size, file.etag)

        return list(compress(files, thread_map(is_changed, files, max_workers=self.max_concurrency)))

    def open(self, file: ObjectInfo) -> BinaryIO:
        """An object as a binary file that fetches ranges on demand and prefetches the next one."""
        return io.BufferedReader(_PrefetchedFile(self, file), _CHUNK_BYTES)

    def value_or_link(self, file: ObjectInfo, data: Any, offset: int = 0, length: int | None = None) -> Any:
        """The value of a row: the data, or a link to its bytes."""
        if not self.link:
            return data
        size = file.size - offset if length is None else length
        return Link(self.uri(file.key), offset=offset, length=size, etag=file.etag)


class _PrefetchedFile(RangeFile):
    """Reads an object in chunks and, while reads are sequential, prefetches the next chunk."""

    def __init__(self, reader: SourceReader, file: ObjectInfo) -> None:
        super().__init__(file.size)
        self._reader, self._file = reader, file
        self._pool = ThreadPoolExecutor(1, "penstock-prefetch")
        self._chunks: dict[int, Future[memoryview]] = {}

    def _read(self, wanted: ByteRange, out: memoryview) -> None:
        for chunk in range(wanted.start // _CHUNK_BYTES, -(-wanted.end // _CHUNK_BYTES)):
            sequential = chunk - 1 in self._chunks
            future = self._request(chunk)
            if sequential and (chunk + 1) * _CHUNK_BYTES < self._file.size:
                self._request(chunk + 1)
            offset = chunk * _CHUNK_BYTES
            start = max(wanted.start, offset)
            data = future.result()[start - offset : wanted.end - offset]
            out[start - wanted.start : start - wanted.start + len(data)] = data
            self._chunks = {index: pending for index, pending in self._chunks.items() if chunk <= index <= chunk + 1}

    def _request(self, chunk: int) -> Future[memoryview]:
        if chunk not in self._chunks:
            start = chunk * _CHUNK_BYTES
            length = min(_CHUNK_BYTES, self._file.size - start)
            self._chunks[chunk] = self._pool.submit(self._reader.read, self._file, start, length)
        return self._chunks[chunk]

    def close(self) -> None:
        if not self.closed:
            self._pool.shutdown(wait=False, cancel_futures=True)
        super().close()
