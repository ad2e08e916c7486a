"""Data files: plain Arrow IPC files whose record batches are the pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codecs import Compression
from penstock.format._checksum import combined, crc32c
from penstock.format._layout import damaged, new_id
from penstock.format._manifest import BlobUse, DataFile
from penstock.format._schema import Field
from penstock.types import Buffer

_MAGIC_BYTES = 8
_GROWTH, _PAGE_BYTES, _BUFFER_BYTES = 64, 256, 128
"""What does not compress grows by less than this part; what a page takes in the footer, and a buffer in its frame."""
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


def encode_file(
    columns: Sequence[FileColumn], arrays: Sequence[pa.Array], *, row_start: int, page_rows: Sequence[int]
) -> tuple[DataFile, memoryview]:
    """Write columns of equal length as one file, cut into pages of the given numbers of rows."""
    schema = arrow_schema(columns)
    compression = Compression.parse(columns[0].field.codec)
    codec = None if compression.name == "none" else pa.Codec(compression.name, compression.level)
    batch = pa.RecordBatch.from_arrays(list(arrays), schema=schema)
    parts = [batch.slice(end - count, count) for end, count in zip(accumulate(page_rows), page_rows, strict=True)]
    offsets = [_MAGIC_BYTES + schema.serialize().size]
    room = pa.allocate_buffer(_at_most(parts, offsets[0]))  # a sink that grows would copy what it has, over and over
    sink = pa.FixedSizeBufferWriter(room)
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        for part in parts:
            writer.write_batch(part)
            offsets.append(sink.tell())
    data = memoryview(room)[: sink.tell()]
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
    )
    return entry, data


def _at_most(parts: Sequence[pa.RecordBatch], head_bytes: int) -> int:
    """How large a file of these pages can be; memory that is not written to costs nothing."""
    pages: int = sum(map(pa.ipc.get_record_batch_size, parts))
    buffers = sum(len(column.buffers()) for column in parts[0].columns) if parts else 0
    frames = (1 + len(parts)) * (_PAGE_BYTES + buffers * _BUFFER_BYTES)
    return pages + pages // _GROWTH + frames + 2 * head_bytes


def _blobs(columns: Sequence[FileColumn], batch: pa.RecordBatch) -> tuple[BlobUse, ...]:
    references = [batch.column(n).drop_null().to_pylist() for n, column in enumerate(columns) if column.references]
    return tuple(BlobUse(blob["id"], blob["length"]) for column in references for blob in column)


def arrow_schema(columns: Sequence[FileColumn]) -> pa.Schema:
    """What a file of some columns looks like to Arrow."""
    return pa.schema([column.arrow for column in columns])


def decode_page(schema: pa.Schema, page: Buffer) -> pa.RecordBatch:
    """Parse a verified page; the arrays are views of it where nothing was compressed."""
    return pa.ipc.read_record_batch(pa.py_buffer(page), schema)


def verify_pages(file: DataFile, first: int, end: int, data: memoryview, where: str) -> None:
    """Refuse pages, one behind the other, whose bytes are not those that were written; one pass over all of them."""
    offsets, crcs = file.offsets[first : end + 1], file.page_crcs[first:end].tolist()
    expected = crcs[0]
    for page in range(1, end - first):
        expected = combined(expected, crcs[page], offsets[page + 1] - offsets[page])
    if crc32c(data) == expected:
        return
    for page, (start, stop) in enumerate(pairwise(offsets)):
        if crc32c(data[start - offsets[0] : stop - offsets[0]]) != crcs[page]:
            raise damaged(where, f"the checksum of page {first + page} (bytes {start} to {stop}) does not match")


def values_match(
    file: DataFile, first: int, end: int, heads: Sequence[memoryview], values: Sequence[memoryview]
) -> bool:
    """Whether pages of one column are those that were written, given what is in front of their values, and the values.

    The values of all pages are given in as many runs as they lie in, and are checked in one pass over each.
    """
    found, run = reduce(lambda crc, part: crc32c(part, crc), values, 0), file.bare_run(first, end)
    if run.values_crc is not None:
        return found == run.values_crc
    matches = found == _values_crc(file, first, end, heads)
    if matches:  # so these were the heads that were written, and files never change
        run.values_crc = found
    return matches


def _values_crc(file: DataFile, first: int, end: int, heads: Sequence[memoryview]) -> int:
    """The checksum that the values of pages must have.

    What stands in front of some bytes moves into their checksum by a linear function of its own checksum; so a page's
    head is taken out, and the values of the pages before are put in its place, by adding both.
    """
    expected, start = 0, file.offsets[first]
    for head, crc, stop in zip(
        heads, file.page_crcs[first:end].tolist(), file.offsets[first + 1 : end + 1], strict=True
    ):
        expected = combined(expected ^ _head_crc(bytes(head)), crc, stop - start - len(head))
        start = stop
    return expected


@lru_cache(maxsize=256)
def _head_crc(head: bytes) -> int:
    """The checksum of what stands in front of a page's values: few heads are different, and a call gives up the GIL."""
    return crc32c(head)


def verify_frame(file: DataFile, head: Buffer, tail: Buffer, where: str) -> None:
    """Refuse a file whose header or footer is not what was written."""
    if crc32c(tail, crc32c(head)) != file.frame_crc:
        raise damaged(where, "the checksum of its header and footer does not match")


def cut(sizes: npt.NDArray[np.int64], target_bytes: int) -> list[int]:
    """Split rows into runs of about `target_bytes`, each of at least one row; returns the length of each run."""
    ends = np.cumsum(sizes)
    runs: list[int] = []
    start, before = 0, 0
    while start < len(sizes):
        goal = before + target_bytes
        end = int(np.searchsorted(ends, goal, side="right"))
        if end < len(sizes) and end > start and ends[end] - goal < goal - ends[end - 1]:
            end += 1  # the nearer of the two boundaries, so that two rows of 150 KB share a page of 256 KiB
        end = max(end, start + 1)
        runs.append(end - start)
        start, before = end, int(ends[end - 1])
    return runs


def row_sizes(array: pa.Array) -> npt.NDArray[np.int64]:
    """About how many bytes each row takes."""
    if isinstance(array, pa.ExtensionArray):
        return row_sizes(array.storage)
    kind, count = array.type, len(array)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        raw = np.frombuffer(array.buffers()[1] or b"\0\0\0\0", np.int32, count + 1 if count else 1, array.offset * 4)
        return np.diff(raw).astype(np.int64) + 4 if count else np.zeros(0, np.int64)
    if pa.types.is_list(kind):
        inner = np.concatenate([[0], np.cumsum(row_sizes(array.values))])
        return np.asarray(np.diff(inner[np.asarray(array.offsets)]) + 4, np.int64)
    if pa.types.is_fixed_size_list(kind):
        width = kind.value_type.bit_width // 8 * kind.list_size
        return np.full(count, width, np.int64)
    if pa.types.is_struct(kind):
        return sum((row_sizes(array.field(i)) for i in range(kind.num_fields)), np.zeros(count, np.int64))
    return np.full(count, max(1, kind.bit_width // 8), np.int64)


def _value_starts(
    columns: Sequence[FileColumn], schema: pa.Schema, pages: Sequence[Buffer], page_rows: Sequence[int], packed: bool
) -> npt.NDArray[np.int32]:
    starts = np.full((len(pages), len(columns)), -1, np.int32)
    plain = [n for n, column in enumerate(columns) if not column.references and column.field.stored_bytes]
    if packed or not plain:
        return starts
    alike = len(plain) == len(columns) and not any(column.field.nullable for column in columns)
    seen: dict[int, npt.NDArray[np.int32]] = {}
    for number, (page, rows) in enumerate(zip(pages, page_rows, strict=True)):
        if alike and rows in seen:  # nothing but numbers: pages of as many rows are laid out alike, …
            starts[number] = seen[rows]
            continue
        whole = pa.py_buffer(page)
        batch = pa.ipc.read_record_batch(whole, schema)
        for n in plain:
            array = batch.column(n)
            if array.null_count == 0:
                start = array.buffers()[-1].address - whole.address
                starts[number, n] = start if start <= np.iinfo(np.int32).max else -1
        if number:  # … but for the first, which Arrow pads with what follows where a buffer is short
            seen[rows] = starts[number]
    return starts
