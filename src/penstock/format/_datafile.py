"""Data files: Arrow IPC files whose record batches are pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codecs import Compression
from penstock.format._checksum import combine_crc32c, crc32c
from penstock.format._fragment import BlobUse, DataFile
from penstock.format._layout import corrupt_error, decoding, new_id
from penstock.format._schema import Field
from penstock.format.kinds import corrupt_struct_reason
from penstock.types import Buffer, cached_property

_MAGIC_BYTES = 8
_MAX_EXPANSION, _PAGE_OVERHEAD, _BUFFER_OVERHEAD = 64, 256, 128
"""Incompressible data grows by less than 1/64; bytes of metadata per page and per buffer, at most."""
BLOB_REFERENCE = pa.struct([("id", pa.string()), ("length", pa.int64()), ("crc", pa.uint32())])


@dataclass(frozen=True, slots=True)
class FileColumn:
    """One Arrow column of a data file: a field's values, or the references to its blobs."""

    field: Field
    references: bool = False

    @property
    def id(self) -> int:
        return -self.field.id if self.references else self.field.id

    @property
    def arrow(self) -> pa.Field:
        if self.references:
            return pa.field(f"{self.field.name}.blob", BLOB_REFERENCE)
        return pa.field(self.field.name, self.field.kind.arrow_type)

    def corrupt_reason(self, array: pa.Array) -> str | None:
        """Why an array of this column, valid as Arrow data, cannot be decoded; None if it can."""
        if self.references:
            return corrupt_struct_reason(array, required=("id", "length", "crc"), lengths=("length",))
        return self.field.kind.corrupt_reason(array)


def encode_file(
    columns: Sequence[FileColumn], arrays: Sequence[pa.Array], *, row_start: int, page_rows: Sequence[int]
) -> tuple[DataFile, memoryview]:
    """Encode columns of equal length as one file, with pages of the given numbers of rows."""
    schema = PageDecoder(columns).schema
    compression = Compression.parse(columns[0].field.codec)
    codec = None if compression.name == "none" else pa.Codec(compression.name, compression.level)
    batch = pa.RecordBatch.from_arrays(list(arrays), schema=schema)
    parts = [batch.slice(end - count, count) for end, count in zip(accumulate(page_rows), page_rows, strict=True)]
    offsets = [_MAGIC_BYTES + schema.serialize().size]
    buffer = pa.allocate_buffer(_max_file_bytes(parts, offsets[0]))  # a growing sink would copy its content repeatedly
    sink = pa.FixedSizeBufferWriter(buffer)
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        for part in parts:
            writer.write_batch(part)
            offsets.append(sink.tell())
    data = memoryview(buffer)[: sink.tell()]
    pages = [data[start:end] for start, end in pairwise(offsets)]
    entry = DataFile(
        id=new_id(),
        length=len(data),
        frame_crc=crc32c(data[offsets[-1] :], crc32c(data[: offsets[0]])),
        fields=tuple(column.id for column in columns),
        row_start=row_start,
        rows=len(batch),
        page_rows=np.array(page_rows, np.int32),
        page_offsets=np.array(offsets, np.int64),
        page_crcs=np.array([crc32c(page) for page in pages], np.uint32),
        value_starts=_value_starts(columns, schema, pages, page_rows, codec is not None),
        blobs=_blobs(columns, batch),
        decoded_bytes=_decoded_bytes(columns, batch),
    )
    return entry, data


def _max_file_bytes(parts: Sequence[pa.RecordBatch], header_bytes: int) -> int:
    """An upper bound of the file size; unwritten memory costs nothing."""
    pages: int = sum(map(pa.ipc.get_record_batch_size, parts))
    buffers = sum(len(column.buffers()) for column in parts[0].columns) if parts else 0
    overhead = (1 + len(parts)) * (_PAGE_OVERHEAD + buffers * _BUFFER_OVERHEAD)
    return pages + pages // _MAX_EXPANSION + overhead + 2 * header_bytes


def _blobs(columns: Sequence[FileColumn], batch: pa.RecordBatch) -> tuple[BlobUse, ...]:
    references = [batch.column(n).drop_null().to_pylist() for n, column in enumerate(columns) if column.references]
    return tuple(BlobUse(blob["id"], blob["length"]) for column in references for blob in column)


def _decoded_bytes(columns: Sequence[FileColumn], batch: pa.RecordBatch) -> tuple[int | None, ...]:
    found = [
        None if column.references else column.field.kind.decoded_bytes(batch.column(n))
        for n, column in enumerate(columns)
    ]
    return () if all(size is None for size in found) else tuple(found)


@dataclass(frozen=True)
class PageDecoder:
    """Decodes the pages of files with the same columns."""

    columns: Sequence[FileColumn]

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of a file with these columns."""
        return pa.schema([column.arrow for column in self.columns])

    def decode(self, page: Buffer, *, rows: int, where: str) -> pa.RecordBatch:
        """Decode a page whose checksum matches; uncompressed arrays are views of it. Raises `CorruptError`.

        Every offset is checked here, once: a checksum does not show that the content is benign, and neither Arrow nor
        the readers check an offset again. That reads the offsets of lists and bytes, and the text of strings.
        """
        with decoding(where):
            batch = pa.ipc.read_record_batch(pa.py_buffer(page), self.schema)
            batch.validate(full=True)
        if len(batch) != rows:
            raise corrupt_error(where, f"it has {len(batch)} rows and not {rows}")
        for column, array in zip(self.columns, batch.columns, strict=True):
            if (reason := column.corrupt_reason(array)) is not None:
                raise corrupt_error(where, f"column {column.field.name!r}: {reason}")
        return batch


def verify_pages(file: DataFile, first: int, end: int, data: memoryview, where: str) -> None:
    """Verify consecutive pages in one pass; raises `CorruptError` with the first page that does not match."""
    offsets, crcs = file.offsets[first : end + 1], file.page_crcs[first:end].tolist()
    expected = crcs[0]
    for page in range(1, end - first):
        expected = combine_crc32c(expected, crcs[page], offsets[page + 1] - offsets[page])
    if crc32c(data) == expected:
        return
    for page, (start, stop) in enumerate(pairwise(offsets)):
        if crc32c(data[start - offsets[0] : stop - offsets[0]]) != crcs[page]:
            raise corrupt_error(where, f"the checksum of page {first + page} (bytes {start} to {stop}) does not match")


def values_match(
    file: DataFile, first: int, end: int, headers: Sequence[memoryview], values: Sequence[memoryview]
) -> bool:
    """Whether dense pages match their checksums, given the headers and the values of the pages separately.

    `values` are the values of all pages in order, in any number of buffers; each is checked in one pass.
    """
    found, pages = reduce(lambda crc, part: crc32c(part, crc), values, 0), file.dense_pages(first, end)
    if pages.values_crc is not None:
        return found == pages.values_crc
    matches = found == _values_crc(file, first, end, headers)
    if matches:  # then the headers match too, and files are immutable
        pages.values_crc = found
    return matches


def _values_crc(file: DataFile, first: int, end: int, headers: Sequence[memoryview]) -> int:
    """The expected checksum of the values of dense pages, without their headers.

    A CRC is linear: preceding bytes contribute to a checksum only through their own checksum. XOR removes a page's
    header and puts the values of the preceding pages in its place.
    """
    expected, start = 0, file.offsets[first]
    for header, crc, stop in zip(
        headers, file.page_crcs[first:end].tolist(), file.offsets[first + 1 : end + 1], strict=True
    ):
        expected = combine_crc32c(expected ^ _header_crc(bytes(header)), crc, stop - start - len(header))
        start = stop
    return expected


@lru_cache(maxsize=256)
def _header_crc(header: bytes) -> int:
    """Cached: most page headers are equal, and each call releases the GIL."""
    return crc32c(header)


def verify_frame(file: DataFile, header: Buffer, footer: Buffer, where: str) -> None:
    """Verify the bytes of a file before its first and after its last page; raises `CorruptError`."""
    if crc32c(footer, crc32c(header)) != file.frame_crc:
        raise corrupt_error(where, "the checksum of its header and footer does not match")


def split_rows(sizes: npt.NDArray[np.int64], target_bytes: int) -> list[int]:
    """Split rows into runs of about `target_bytes` and at least one row; return the number of rows of each."""
    ends = np.cumsum(sizes)
    runs: list[int] = []
    start, before = 0, 0
    while start < len(sizes):
        target = before + target_bytes
        end = int(np.searchsorted(ends, target, side="right"))
        if end < len(sizes) and end > start and ends[end] - target < target - ends[end - 1]:
            end += 1  # the nearer boundary, so that two rows of 150 KB share a page of 256 KiB
        end = max(end, start + 1)
        runs.append(end - start)
        start, before = end, int(ends[end - 1])
    return runs


def row_sizes(array: pa.Array) -> npt.NDArray[np.int64]:
    """The approximate number of bytes of each row."""
    if isinstance(array, pa.ExtensionArray):
        return row_sizes(array.storage)
    kind, count = array.type, len(array)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        raw = np.frombuffer(array.buffers()[1] or b"\0\0\0\0", np.int32, count + 1 if count else 1, array.offset * 4)
        return np.diff(raw).astype(np.int64) + 4 if count else np.zeros(0, np.int64)
    if pa.types.is_list(kind):
        ends = np.asarray(array.offsets).astype(np.int64)
        if pa.types.is_primitive(kind.value_type):  # without a number per element: a batch has few rows, but millions
            return np.diff(ends) * _width(kind.value_type) + 4
        items = array.values.slice(int(ends[0]), int(ends[-1] - ends[0]))
        inner = np.concatenate([[0], np.cumsum(row_sizes(items))])
        return np.asarray(np.diff(inner[ends - ends[0]]) + 4, np.int64)
    if pa.types.is_fixed_size_list(kind):
        width = kind.value_type.bit_width // 8 * kind.list_size
        return np.full(count, width, np.int64)
    if pa.types.is_struct(kind):
        return sum((row_sizes(array.field(i)) for i in range(kind.num_fields)), np.zeros(count, np.int64))
    return np.full(count, _width(kind), np.int64)


def _width(kind: pa.DataType) -> int:
    """Bytes of a fixed-width value."""
    return max(1, int(kind.bit_width) // 8)


def _value_starts(
    columns: Sequence[FileColumn],
    schema: pa.Schema,
    pages: Sequence[Buffer],
    page_rows: Sequence[int],
    compressed: bool,
) -> npt.NDArray[np.int32]:
    starts = np.full((len(pages), len(columns)), -1, np.int32)
    dense = [n for n, column in enumerate(columns) if not column.references and column.field.fixed_row_bytes]
    if compressed or not dense:
        return starts
    uniform = len(dense) == len(columns) and not any(column.field.nullable for column in columns)
    seen: dict[int, npt.NDArray[np.int32]] = {}
    for index, (page, rows) in enumerate(zip(pages, page_rows, strict=True)):
        if uniform and rows in seen:  # pages of fixed-width values with equal row counts have equal layouts, …
            starts[index] = seen[rows]
            continue
        whole = pa.py_buffer(page)
        batch = pa.ipc.read_record_batch(whole, schema)
        for n in dense:
            array = batch.column(n)
            if array.null_count == 0:
                start = array.buffers()[-1].address - whole.address
                starts[index, n] = start if start <= np.iinfo(np.int32).max else -1
        if index:  # … except the first, where Arrow writes the bytes after a short buffer as padding
            seen[rows] = starts[index]
    return starts
