"""Parquet files, a part of a row group at a time.

A row group that is not too large is fetched column after column, in the order in which it lies in the file. One that is
larger is read through a small window for each column, so that it streams whatever its size.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.ingest._bucket import Bucket
from penstock.ingest._source import Reading, Reject, Source
from penstock.ingest.sources._arrow_columns import ColumnPlan
from penstock.ingest.sources._expand import Damaged
from penstock.ingest.sources._tabular import (
    BATCH_BYTES,
    UNREADABLE,
    Block,
    all_end_in,
    data_files,
    first_readable,
    open_tabular,
    plan_columns,
)
from penstock.storage import ObjectInfo
from penstock.table import RangeFile
from penstock.types import ByteRange

_ENDINGS = (".parquet",)
_SAMPLED_ROWS = 64
_MAX_ROWS = 8192
_HELD_BYTES = 64 << 20
"""A row group up to this size is held whole; above, so much is shared by the windows of all columns."""
_WINDOW_BYTES = (64 << 10, 4 << 20)
"""The least and the most that one column's window is."""
_MAX_READ_BYTES = 1 << 30
"""Whoever asks for more at once has been lied to about the size of a page or a row group."""


def _open(bucket: Bucket, files: Sequence[ObjectInfo]) -> Reading:
    found = data_files(bucket, files, _ENDINGS)
    return open_tabular(found, first_readable(bucket, found, _plan), _scan)


def _plan(bucket: Bucket, file: ObjectInfo) -> list[ColumnPlan]:
    with closing(_Exact(bucket, file)) as source:
        table = _parquet(source, buffer_size=_WINDOW_BYTES[0])
        batch = next(table.iter_batches(_SAMPLED_ROWS, use_threads=False), None)
        if batch is None:
            return plan_columns(_empty(table.schema_arrow))
        nulls = _nulls(table.metadata) if table.metadata.row_group(0).num_rows else frozenset()
        return plan_columns(batch.replace_schema_metadata(table.schema_arrow.metadata), nulls)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in schema.empty_table()], schema=schema)


def _nulls(metadata: pq.FileMetaData) -> frozenset[str]:
    """Columns that lack values in the first row group. It must have been read: in a broken one, Arrow aborts."""
    found = set()
    for place in range(metadata.num_columns):
        column = metadata.row_group(0).column(place)
        counted = column.statistics is not None and column.statistics.has_null_count
        if counted and column.statistics.null_count:
            found.add(column.path_in_schema)  # that of a nested column has dots, and is no column's name
    return frozenset(found)


def _scan(bucket: Bucket, file: ObjectInfo) -> Iterator[Block | Reject]:
    with closing(_Exact(bucket, file)) as source:
        metadata = _parquet(source).metadata
        if _largest_group(file, metadata) > _HELD_BYTES:
            least, most = _WINDOW_BYTES
            window = min(most, max(least, _HELD_BYTES // max(1, metadata.num_columns)))
            yield from _groups(file, _parquet(source, metadata=metadata, buffer_size=window))
            return
    with closing(bucket.open(file)) as ahead:
        yield from _groups(file, _parquet(_Sparing(ahead), metadata=metadata))


def _largest_group(file: ObjectInfo, metadata: pq.FileMetaData) -> int:
    """About how many bytes of the file the largest row group is."""
    unpacked = [max(1, metadata.row_group(group).total_byte_size) for group in range(metadata.num_row_groups)]
    return int(file.size * max(unpacked, default=0) // max(1, sum(unpacked)))


def _groups(file: ObjectInfo, table: pq.ParquetFile) -> Iterator[Block | Reject]:
    first = 0
    for group in range(table.metadata.num_row_groups):
        told = table.metadata.row_group(group)
        at, end = first, first + told.num_rows
        rows = BATCH_BYTES * told.num_rows // max(1, told.total_byte_size)
        try:
            for batch in table.iter_batches(min(_MAX_ROWS, max(1, rows)), row_groups=[group], use_threads=False):
                yield Block(at, batch)
                at += len(batch)
        except UNREADABLE as error:
            if table.metadata.num_row_groups == 1 and not at:
                raise
            yield Reject(f"{file.key}:{at}", f"cannot be read from here to row {end} of the file: {error}")
        first = end


def _parquet(source: Any, **options: Any) -> pq.ParquetFile:
    file = pa.PythonFile(source, mode="r")
    return pq.ParquetFile(file, pre_buffer=False, page_checksum_verification=True, **options)


class _Sparing:
    """A file that is not read in too large pieces."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def read(self, size: int) -> bytes:
        _check_size(size)
        return self._source.read(size)


def _check_size(size: int) -> None:
    if size > _MAX_READ_BYTES:
        raise Damaged(f"has a piece of {size:,} bytes, more than the {_MAX_READ_BYTES:,} that are held at once")


class _Exact(RangeFile):
    """An object as a file that fetches just what is asked for, by a reader that jumps about and knows what it needs."""

    def __init__(self, bucket: Bucket, file: ObjectInfo) -> None:
        super().__init__(file.size)
        self._bucket, self._file = bucket, file

    def read(self, size: int = -1) -> bytes | None:
        _check_size(size)
        return super().read(size)

    def _read(self, wanted: ByteRange, out: memoryview) -> None:
        out[: wanted.length] = self._bucket.read(self._file, wanted.start, wanted.length)


PARQUET = Source(
    "parquet",
    "Parquet files, with their columns of images, sound and embeddings",
    partial(all_end_in, endings=_ENDINGS),
    _open,
)
