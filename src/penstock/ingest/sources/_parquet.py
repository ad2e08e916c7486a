"""Parquet files, a part of a row group at a time.

A row group of moderate size is fetched in file order, one column chunk after the other. A larger one is read through a
small buffer per column, so that it streams in bounded memory whatever its size.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.ingest._reader import SourceReader
from penstock.ingest._source import Reject, Source, SourceScan
from penstock.ingest.sources._arrow_columns import ColumnPlan
from penstock.ingest.sources._limits import UNREADABLE, check_block
from penstock.ingest.sources._streams import ExactFile
from penstock.ingest.sources._tabular import (
    BATCH_BYTES,
    RecordBlock,
    all_end_in,
    data_files,
    empty_batch,
    first_readable,
    open_tabular,
    plan_columns,
)
from penstock.storage import ObjectInfo

_ENDINGS = (".parquet",)
_SAMPLED_ROWS = 64
_MAX_ROWS = 8192
_UNIT = "row group"
_STRINGS = "BYTE_ARRAY"
_BUFFERED_GROUP_BYTES = 64 << 20
"""A row group up to this size is buffered as a whole; for a larger one this is the total of the column buffers."""
_COLUMN_BUFFER_BYTES = (64 << 10, 4 << 20)
"""The smallest and the largest buffer of one column."""


def _open(reader: SourceReader, files: Sequence[ObjectInfo]) -> SourceScan:
    found = data_files(reader, files, _ENDINGS)
    return open_tabular(reader, found, first_readable(reader, found, _plan), _scan)


def _plan(reader: SourceReader, file: ObjectInfo) -> list[ColumnPlan]:
    with closing(_BoundedExactFile(reader, file)) as source:
        table = _parquet(source, buffer_size=_COLUMN_BUFFER_BYTES[0])
        batch = next(table.iter_batches(_SAMPLED_ROWS, use_threads=False), None)
        if batch is None:
            return plan_columns(empty_batch(table.schema_arrow))
        nulls = _nulls(table.metadata) if table.metadata.row_group(0).num_rows else frozenset()
        return plan_columns(batch.replace_schema_metadata(table.schema_arrow.metadata), nulls)


def _nulls(metadata: pq.FileMetaData) -> frozenset[str]:
    """Columns with nulls in the first row group, which must be valid: Arrow aborts the process on a corrupt one."""
    found = set()
    for index in range(metadata.num_columns):
        column = metadata.row_group(0).column(index)
        counted = column.statistics is not None and column.statistics.has_null_count
        if counted and column.statistics.null_count:
            found.add(column.path_in_schema)  # the path of a nested column has dots and matches no column name
    return frozenset(found)


def _scan(reader: SourceReader, file: ObjectInfo) -> Iterator[RecordBlock | Reject]:
    with closing(_BoundedExactFile(reader, file)) as source:
        metadata = _parquet(source).metadata
        if _largest_group(file, metadata) > _BUFFERED_GROUP_BYTES:
            smallest, largest = _COLUMN_BUFFER_BYTES
            buffer_size = min(largest, max(smallest, _BUFFERED_GROUP_BYTES // max(1, metadata.num_columns)))
            yield from _groups(file, _parquet(source, metadata=metadata, buffer_size=buffer_size))
            return
    with closing(reader.open(file)) as buffered:
        yield from _groups(file, _parquet(_BoundedFile(buffered), metadata=metadata))


def _largest_group(file: ObjectInfo, metadata: pq.FileMetaData) -> int:
    """The approximate stored size of the largest row group."""
    unpacked = [max(1, metadata.row_group(group).total_byte_size) for group in range(metadata.num_row_groups)]
    return int(file.size * max(unpacked, default=0) // max(1, sum(unpacked)))


def _groups(file: ObjectInfo, table: pq.ParquetFile) -> Iterator[RecordBlock | Reject]:
    first_row = 0
    for group in range(table.metadata.num_row_groups):
        info = table.metadata.row_group(group)
        row, end = first_row, first_row + info.num_rows
        try:
            for batch in table.iter_batches(_batch_rows(table, group), row_groups=[group], use_threads=False):
                yield RecordBlock(row, batch)
                row += len(batch)
        except UNREADABLE as error:
            if table.metadata.num_row_groups == 1 and not row:
                raise
            yield Reject(f"{file.key}:{row}", f"cannot be read from this row to row {end}: {error}")
        first_row = end


def _batch_rows(table: pq.ParquetFile, group: int) -> int:
    """How many rows of a row group are decoded at a time.

    A dictionary can be a thousand times smaller than the values that refer to it, so that the sizes in the metadata say
    little; if that is possible, the first rows of the group are decoded to measure them.
    """
    info = table.metadata.row_group(group)
    row_bytes = info.total_byte_size / max(1, info.num_rows)
    columns = (info.column(index) for index in range(info.num_columns))
    longest = sum(c.total_uncompressed_size for c in columns if c.has_dictionary_page and c.physical_type == _STRINGS)
    if longest * min(_MAX_ROWS, info.num_rows) > BATCH_BYTES:
        first = next(table.iter_batches(_SAMPLED_ROWS, row_groups=[group], use_threads=False), None)
        row_bytes = max(row_bytes, first.nbytes / max(1, len(first)) if first is not None else 0)
    return min(_MAX_ROWS, max(1, int(BATCH_BYTES / max(1, row_bytes))))


def _parquet(source: Any, **options: Any) -> pq.ParquetFile:
    file = pa.PythonFile(source, mode="r")
    return pq.ParquetFile(file, pre_buffer=False, page_checksum_verification=True, **options)


class _BoundedFile:
    """A file that refuses reads above the limit: Arrow reads whatever length the file declares for a page."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def read(self, size: int) -> bytes:
        check_block(size, _UNIT)
        return self._source.read(size)


class _BoundedExactFile(ExactFile):
    """The same over exact ranges."""

    def read(self, size: int = -1) -> bytes | None:
        check_block(max(0, size), _UNIT)
        return super().read(size)


PARQUET = Source(
    "parquet",
    "Parquet files, with their columns of images, sound and embeddings",
    _ENDINGS,
    partial(all_end_in, endings=_ENDINGS),
    _open,
)
