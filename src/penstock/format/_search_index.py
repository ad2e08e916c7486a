"""Search indexes: sorted Arrow tables in pages, described by a header that the snapshot refers to.

An index is derived: a table is complete without it. Its entries are by row id, and the header says which rows of which
data files it covers, so that every version can tell what it still answers.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import CorruptError
from penstock.format._checksum import crc32c
from penstock.format._layout import corrupt_error, decoding, new_id, search_index_key
from penstock.format._sealed import from_json, load_json
from penstock.types import Buffer, ByteRange, RowRange

_SINGLE_THREADED = pa.ipc.IpcReadOptions(use_threads=False)
_MAGIC_BYTES = 8
_COVERED_SCHEMA = pa.schema([("file", pa.string()), ("starts", pa.list_(pa.int64())), ("ends", pa.list_(pa.int64()))])
_PAGE_COLUMNS = (
    ("object", pa.int32()),
    ("offset", pa.int64()),
    ("length", pa.int64()),
    ("crc", pa.uint32()),
    ("rows", pa.int32()),
)


@dataclass(frozen=True, slots=True)
class IndexObject:
    """A reference to an object of an index."""

    id: str
    length: int
    crc: int

    def verify(self, data: Buffer, where: str) -> None:
        """Raise `CorruptError` unless these are its bytes."""
        if len(data) != self.length or crc32c(data) != self.crc:
            raise corrupt_error(where, "its checksum does not match the index")


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """An index as the snapshot lists it."""

    id: str
    """Names the folder of its objects."""
    name: str
    kind: str
    field: str
    """The id of the indexed field, in sixteen hexadecimal digits."""
    header: IndexObject

    @property
    def key(self) -> str:
        """The key of the header."""
        return search_index_key(self.id, self.header.id, "json")

    @property
    def field_id(self) -> int:
        return int(self.field, 16)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_snapshot(cls, entries: Iterable[Mapping[str, Any]]) -> "list[IndexEntry]":
        """The entries that this version of Penstock understands; others are of later versions."""
        found = []
        for entry in entries:
            with_header = isinstance(entry.get("header"), dict)
            if with_header:
                found.append(from_json(cls, dict(entry)))
        return found


@dataclass(frozen=True, slots=True)
class PagedTableRef:
    """A table of an index: a directory of its pages, and the objects that hold them."""

    directory: IndexObject
    objects: tuple[IndexObject, ...]
    """Arrow IPC files; a page is one record batch. Their own checksums cover the whole file."""


@dataclass(frozen=True, slots=True)
class IndexSegment:
    """The entries of some rows: those of the first build, or of rows that were added later."""

    rows: int
    tables: Mapping[str, PagedTableRef]
    totals: Mapping[str, int]
    """Sums over its rows, defined by the kind of index."""
    superseded: IndexObject | None = None
    """The row ids whose entries later segments replace."""


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """What an index consists of, and which rows it covers."""

    options: Mapping[str, Any]
    objects: Mapping[str, IndexObject]
    """Tables that every search needs, read once."""
    segments: tuple[IndexSegment, ...]
    nodes: tuple[str, ...]
    """Manifests all of whose live rows are covered."""
    files: IndexObject
    """The covered rows of each data file."""
    rows: int
    """The number of covered rows."""

    @property
    def all_objects(self) -> list[IndexObject]:
        """All objects that it refers to."""
        refs = [self.files, *self.objects.values()]
        for segment in self.segments:
            refs += [] if segment.superseded is None else [segment.superseded]
            refs += [ref for table in segment.tables.values() for ref in (table.directory, *table.objects)]
        return refs


def encode_index_header(header: IndexHeader) -> tuple[IndexObject, bytes]:
    """Encode a header, and return the reference for the snapshot's entry."""
    data = json.dumps(asdict(header), ensure_ascii=False, separators=(",", ":")).encode()
    return IndexObject(new_id(), len(data), crc32c(data)), data


def decode_index_header(entry: IndexEntry, data: Buffer, where: str) -> IndexHeader:
    """Verify and decode; raises `CorruptError`."""
    entry.header.verify(data, where)
    with decoding(where):
        return from_json(IndexHeader, load_json(bytes(data)))


def encode_index_table(table: pa.Table, compression: str | None = "zstd") -> tuple[IndexObject, memoryview]:
    """Encode a table that is read as a whole."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    data = memoryview(sink.getvalue())
    return IndexObject(new_id(), len(data), crc32c(data)), data


def decode_index_table(ref: IndexObject, data: Buffer, where: str, schema: pa.Schema | None = None) -> pa.Table:
    """Verify and decode; raises `CorruptError`, also if it does not have the columns of `schema` without nulls."""
    ref.verify(data, where)
    with decoding(where):
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        table.validate(full=True)
        if schema is not None:
            table = table.select(schema.names).cast(schema)
            if any(column.null_count for column in table.columns):
                raise ValueError("it has nulls")
        return table.combine_chunks()


def encode_covered(files: Mapping[str, Sequence[RowRange]]) -> tuple[IndexObject, memoryview]:
    """Encode the covered row ids of data files, as ranges."""
    columns = [
        pa.array(list(files), pa.string()),
        pa.array([[run.start for run in runs] for runs in files.values()], pa.list_(pa.int64())),
        pa.array([[run.end for run in runs] for runs in files.values()], pa.list_(pa.int64())),
    ]
    return encode_index_table(pa.Table.from_arrays(columns, schema=_COVERED_SCHEMA))


def decode_covered(ref: IndexObject, data: Buffer, where: str) -> dict[str, tuple[RowRange, ...]]:
    """Verify and decode: ascending ranges of row ids by data file. Raises `CorruptError`."""
    table = decode_index_table(ref, data, where, _COVERED_SCHEMA)
    found = {}
    with decoding(where):
        for id, starts, ends in zip(*(table[name].to_pylist() for name in _COVERED_SCHEMA.names), strict=True):
            runs = tuple(RowRange(start, end) for start, end in zip(starts, ends, strict=True))
            if any(run.start < 0 or run.end <= run.start for run in runs) or any(
                after.start < before.end for before, after in pairwise(runs)
            ):
                raise ValueError("its ranges of row ids do not ascend")
            found[id] = runs
    return found


def encode_page_file(
    pages: Sequence[pa.RecordBatch], compression: str | None
) -> tuple[IndexObject, list[tuple[ByteRange, int]], memoryview]:
    """Encode pages as one Arrow IPC file: its reference, the range and checksum of each page, and its bytes."""
    schema = pages[0].schema
    offsets = [_MAGIC_BYTES + len(schema.serialize())]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for page in pages:
            writer.write_batch(page)
            offsets.append(sink.tell())
    data = memoryview(sink.getvalue())
    ranges = [ByteRange(start, end) for start, end in pairwise(offsets)]
    found = [(part, crc32c(data[part.start : part.end])) for part in ranges]
    return IndexObject(new_id(), len(data), crc32c(data)), found, data


def directory_schema(key: pa.DataType) -> pa.Schema:
    """The columns of a directory: the first and last key of each page, and where it is."""
    return pa.schema([("key", key), ("last", key), *_PAGE_COLUMNS])


def check_directory(table: pa.Table, objects: Sequence[IndexObject], where: str) -> None:
    """Raise `CorruptError` unless every page lies inside its object."""
    numbers = {name: table[name].to_numpy() for name, _ in _PAGE_COLUMNS}
    lengths = np.array([ref.length for ref in objects], np.int64)
    inside = (numbers["object"] >= 0) & (numbers["object"] < len(objects))
    fits = inside.all() and (numbers["offset"] >= 0).all() and (numbers["length"] > 0).all()
    if fits and len(table):
        room = lengths[numbers["object"]] - numbers["offset"]
        fits = bool((numbers["length"] <= room).all() and (numbers["rows"] > 0).all())
    if not fits:
        raise corrupt_error(where, "a page lies outside its object")


def decode_index_page(
    data: Buffer, schema: pa.Schema, rows: int, crc: int, where: str, *, is_compressed: bool
) -> pa.RecordBatch:
    """Verify and decode a page; uncompressed arrays are views of it. Raises `CorruptError`."""
    if crc32c(data) != crc:
        raise corrupt_error(where, "its checksum does not match the directory")
    with decoding(where):
        if is_compressed:  # a page is small: threads cost more than they save
            stream = pa.py_buffer(b"".join([schema.serialize(), data]))
            batch = next(pa.ipc.open_stream(stream, options=_SINGLE_THREADED), None)
            if batch is None:
                raise CorruptError(f"{where} has no rows and not {rows}")
        else:
            batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
        batch.validate(full=True)
        if len(batch) != rows:
            raise CorruptError(f"{where} has {len(batch)} rows and not {rows}")
        return batch
