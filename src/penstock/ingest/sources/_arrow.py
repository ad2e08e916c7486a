"""Arrow files (Feather too) and Arrow streams, a record batch at a time.

An Arrow file is a stream between a magic number and an index, and is read sequentially as a stream, which suits object
stores. A record batch that is too large to decode in memory is rejected together with the rest of its file.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import BinaryIO

import pyarrow as pa

from penstock.ingest._reader import SourceReader
from penstock.ingest._source import Reject, Source, SourceScan
from penstock.ingest.sources._arrow_columns import ColumnPlan
from penstock.ingest.sources._ipc import ValidatedMessages
from penstock.ingest.sources._tabular import (
    RecordBlock,
    all_end_in,
    data_files,
    empty_batch,
    first_readable,
    open_tabular,
    plan_columns,
)
from penstock.storage import ObjectInfo

_ENDINGS = (".arrow", ".feather", ".ipc", ".arrows")
_SAMPLED_ROWS = 64


def _open(reader: SourceReader, files: Sequence[ObjectInfo]) -> SourceScan:
    found = data_files(reader, files, _ENDINGS)
    return open_tabular(reader, found, first_readable(reader, found, _plan), _scan)


def _plan(reader: SourceReader, file: ObjectInfo) -> list[ColumnPlan]:
    with closing(reader.open(file)) as source:
        batches = _open_stream(source, file.size)
        sampled = (batch.slice(0, _SAMPLED_ROWS) for batch in batches if len(batch))
        return plan_columns(next(sampled, empty_batch(batches.schema)))


def _scan(reader: SourceReader, file: ObjectInfo) -> Iterator[RecordBlock | Reject]:
    first_row = 0
    with closing(reader.open(file)) as source:
        for batch in _open_stream(source, file.size):
            yield RecordBlock(first_row, batch)
            first_row += len(batch)


def _open_stream(source: BinaryIO, size: int) -> pa.RecordBatchReader:
    return pa.ipc.open_stream(pa.PythonFile(ValidatedMessages(source, size), mode="r"))


ARROW = Source(
    "arrow",
    "Arrow and Feather files and Arrow streams",
    _ENDINGS,
    partial(all_end_in, endings=_ENDINGS),
    _open,
)
