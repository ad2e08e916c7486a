"""Values of light columns for all rows, and lengths of ragged ones, from an index that is kept with the table.

The index has the values of each data file, deleted rows included. Data files never change, so an index of one version
serves every other version for the files that both have: only other files are read. It is optional: without one, or with
a damaged one, the column is read; an index that cannot be written is not missed.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInputError, PenstockError
from penstock.format import (
    DataFile,
    Field,
    Node,
    decode_row_index,
    encode_row_index,
    row_index_folder,
    row_index_key,
)
from penstock.format.kinds import Bytes, Label, Tensor, Text
from penstock.history import Tree, discard, list_objects
from penstock.storage import Prefetch, read_ahead
from penstock.table._gather import concat, fill_values, take
from penstock.table._pages import FragmentRows, Int64Array, PageRequest, Pages, page_requests, read_pages
from penstock.table._read import Reader

_MIN_BYTES = 1 << 20
"""An index is written if this many bytes were read to complete it: fewer are read as quickly without one."""
_MAX_CANDIDATES = 4
"""Stored indexes to read: branches with files of their own have one each."""
_PREFETCH = Prefetch(4, 64 << 20)
_CACHE_BYTES = 256 << 20
"""Arrays to hold for each open table, so that repeated calls read nothing."""

_Cache = dict[tuple[tuple[Node, ...], "_Column"], npt.NDArray[Any]]

_caches: "WeakKeyDictionary[Tree, _Cache]" = WeakKeyDictionary()


def row_values(reader: Reader, columns: Sequence[str], *, lengths: Sequence[str] = ()) -> dict[str, npt.NDArray[Any]]:
    """The values of `columns`, and the number of elements of `lengths`, of all live rows in table order.

    Numbers, bools, times and labels are arrays of their dtype. Text and bytes are int64 codes: equal values have equal
    codes, and codes have the order of the values. Arrays are read-only. Raises `InvalidInputError` for a column of
    another kind, and for one with a null.
    """
    schema, nodes = reader.snapshot.schema, reader.snapshot.nodes
    wanted = [_values_of(schema[name]) for name in columns] + [_lengths_of(schema[name]) for name in lengths]
    cache = _caches.setdefault(reader.tree, {})
    cached = {column: cache.get((nodes, column)) for column in wanted}
    loaded = _load(reader, [column for column, values in cached.items() if values is None])
    found = {column: loaded[column] if values is None else values for column, values in cached.items()}
    cache.update({(nodes, column): values for column, values in loaded.items()})
    _evict(cache)
    return {column.field.name: values for column, values in found.items()}


def _evict(cache: _Cache) -> None:
    """Drop the oldest arrays until the rest fits."""
    size = sum(values.nbytes for values in list(cache.values()))
    for key in list(cache):
        if size <= _CACHE_BYTES:
            return
        dropped = cache.pop(key, None)
        size -= 0 if dropped is None else dropped.nbytes


@dataclass(frozen=True)
class _Column:
    """What is indexed of a field: its values, or the number of their elements."""

    field: Field
    lengths: bool

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the indexed values."""
        if self.lengths:
            return pa.int32()
        return pa.large_binary() if isinstance(self.field.kind, Text | Bytes) else self.field.kind.arrow_type

    def indexed(self, array: pa.Array) -> pa.Array:
        """The indexed values of stored ones; a copy, because a view would keep whole pages alive."""
        if self.lengths:
            assert isinstance(self.field.kind, Tensor)
            counts = pc.list_value_length(array)
            components = self.field.kind.element.components
            return counts if components == 1 else pc.divide(counts, pa.scalar(components, pa.int32()))
        return array.take(pa.array(np.arange(len(array)))).cast(self.arrow_type)

    def decoded(self, values: pa.ChunkedArray) -> npt.NDArray[Any]:
        """Indexed values as the caller gets them."""
        kind = self.field.kind
        if self.lengths:
            return np.asarray(values, np.int64)
        if isinstance(kind, Text | Bytes):
            return _codes(values)
        stored = np.asarray(values)
        return kind.element.from_stored(stored) if isinstance(kind, Tensor) else stored


def _values_of(field: Field) -> _Column:
    kind = field.kind
    is_scalar = isinstance(kind, Tensor) and kind.shape == () and kind.element.components == 1
    if not (is_scalar or isinstance(kind, Label | Text | Bytes)):
        raise InvalidInputError(
            f"column {field.name!r} holds {kind}; rows are grouped and ordered by numbers, times, labels or text"
        )
    return _Column(field, lengths=False)


def _lengths_of(field: Field) -> _Column:
    if not (isinstance(field.kind, Tensor) and field.kind.shape == (None,)):
        raise InvalidInputError(
            f"column {field.name!r} holds {field.kind}; only a ragged tensor of one dimension, such as int32[?], has"
            " rows of different lengths"
        )
    return _Column(field, lengths=True)


def _codes(values: pa.ChunkedArray) -> Int64Array:
    chunks = values.dictionary_encode().chunks
    if not chunks:
        return np.zeros(0, np.int64)
    order = np.asarray(pc.array_sort_indices(chunks[0].dictionary))  # all chunks have the same dictionary
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return np.asarray(ranks[np.concatenate([chunk.indices for chunk in chunks])], np.int64)


def _load(reader: Reader, columns: Sequence[_Column]) -> dict[_Column, npt.NDArray[Any]]:
    indexes = [_Index(reader, column) for column in columns]
    with reader.missing_as_corrupt():
        for index in indexes:
            index.load_stored()
        tasks = _read_tasks(reader, indexes)
        read = read_ahead(lambda task: _read(reader, task), tasks, prefetch=_PREFETCH, size=lambda task: task.bytes)
        for task, arrays in read:
            for index, array in zip(task.indexes, arrays, strict=True):
                index.add(task.request, array)
        for index in indexes:
            index.store()
        return {index.column: index.all_rows() for index in indexes}


class _Index:
    """The index of one column at one version."""

    def __init__(self, reader: Reader, column: _Column) -> None:
        self._reader, self.column = reader, column
        self._rows: dict[str, int] = {}
        """The rows of each file that holds the column."""
        self._values: dict[str, list[pa.Array]] = {}
        """The values of each file, in consecutive parts."""
        self._read_bytes = 0
        self._stored: dict[str, set[str]] = {}
        """The files of each stored index that was read, by its key."""

    @property
    def _key(self) -> str:
        return row_index_key(self.column.field.id, self._reader.commit.snapshot.id, lengths=self.column.lengths)

    def load_stored(self) -> None:
        """Take values from stored indexes: first from that of this version, then from the newest ones of others."""
        store, field_id = self._reader.store, self.column.field.id
        size = 0
        for fragment in self._reader.tree.fragments(self._reader.snapshot.nodes):
            self._rows |= {file.id: file.rows for file in fragment.files_of(field_id)}
            size += sum(file.length for file in fragment.files_of(field_id))
        if size < _MIN_BYTES:
            return
        with suppress(PenstockError):
            listed = list_objects(store, row_index_folder(field_id, lengths=self.column.lengths))
            best_first = sorted(listed, key=lambda item: (item.key == self._key, item.modified_s), reverse=True)
            for item in best_first[:_MAX_CANDIDATES]:
                if len(self._values) < len(self._rows):
                    self._take_stored(item.key)

    def _take_stored(self, key: str) -> None:
        """Take the values of files that are needed and not known; a damaged index has none."""
        store = self._reader.store
        with suppress(PenstockError):
            found = decode_row_index(store.get(key), self.column.arrow_type, f"{store.uri}/{key}")
            self._stored[key] = set(found)
            for file, values in found.items():
                if self._rows.get(file) == len(values):
                    self._values.setdefault(file, [values])

    def lacks(self, file: DataFile) -> bool:
        """Whether the file holds the column and its values are not known."""
        return file.id in self._rows and file.id not in self._values

    def add(self, request: PageRequest, values: pa.Array) -> None:
        """Add the values of the next pages of a file."""
        self._values.setdefault(request.file.id, []).append(values)
        self._read_bytes += request.bytes

    def store(self) -> None:
        """Store the index of this version if that saves reads, and delete those that have nothing more.

        A version with uncommitted changes has no index. A store that refuses is not an error.
        """
        is_committed = all(node.length for node in self._reader.snapshot.nodes)
        if self._read_bytes < _MIN_BYTES or not is_committed:
            return
        store, values = self._reader.store, {file: concat(self._values[file]) for file in self._rows}
        superseded = [key for key, files in self._stored.items() if key != self._key and files <= values.keys()]
        with suppress(PenstockError):
            store.put(self._key, encode_row_index(values, self.column.arrow_type))
            if superseded:
                discard(store, superseded)

    def all_rows(self) -> npt.NDArray[Any]:
        """The values of all live rows; raises `InvalidInputError` if one is null."""
        field, column = self.column.field, self.column
        parts: list[pa.Array] = []
        position = 0
        for fragment in self._reader.tree.fragments(self._reader.snapshot.nodes):
            stored = [part for file in fragment.files_of(field.id) for part in self._values[file.id]]
            values = concat(stored) if stored else column.indexed(fill_values(field, fragment.rows))
            parts.append(values if fragment.deleted is None else take(values, fragment.live_rows))
            if parts[-1].null_count:
                row = position + int(np.asarray(parts[-1].is_null()).argmax())
                raise InvalidInputError(
                    f"column {field.name!r} has no value in row {row}, so rows cannot be grouped, ordered or packed by"
                    " it; give every row a value, or delete those without one"
                )
            position += fragment.live
        found = column.decoded(pa.chunked_array(parts, column.arrow_type))
        found.setflags(write=False)
        return found


@dataclass(frozen=True)
class _ReadTask:
    """Pages of a file, and the columns to index from them."""

    request: PageRequest
    indexes: Sequence[_Index]

    @property
    def bytes(self) -> int:
        return self.request.bytes


def _read_tasks(reader: Reader, indexes: Sequence[_Index]) -> Iterator[_ReadTask]:
    """The reads of all files whose values are not known, each file once."""
    seen: set[str] = set()
    for fragment in reader.tree.fragments(reader.snapshot.nodes):
        for file in fragment.files:
            lacking = [index for index in indexes if file.id not in seen and index.lacks(file)]
            seen.add(file.id)
            if lacking:
                rows = FragmentRows(fragment, np.arange(file.row_start, file.row_end))
                for request in page_requests([rows], [lacking[0].column.field.id]):
                    yield _ReadTask(request, lacking)


def _read(reader: Reader, task: _ReadTask) -> tuple[_ReadTask, list[pa.Array]]:
    file, pages = task.request.file, Pages()
    pages.add_all(file, read_pages(reader.store, task.request))
    batches = [pages.parsed(reader.snapshot.schema, file, page) for page in task.request.pages]
    found = []
    for index in task.indexes:
        field = index.column.field
        blobs = file.column_of.get(-field.id)
        if blobs is not None and any(batch.column(blobs).null_count < len(batch) for batch in batches):
            raise InvalidInputError(f"column {field.name!r} holds large values; rows are grouped by short ones")
        found.append(concat([index.column.indexed(batch.column(file.column_of[field.id])) for batch in batches]))
    return task, found
