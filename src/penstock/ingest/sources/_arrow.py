"""Arrow files (Feather too) and Arrow streams, a record batch at a time.

An Arrow file is a stream between a magic word and an index, and is read as one: from the beginning to the end, which is
how an object store likes to be read. Only a batch that is too large to be held is not read; the rest of its file is
rejected with it, because nothing says where the next one begins without it.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import BinaryIO

import pyarrow as pa

from penstock.ingest._bucket import Bucket
from penstock.ingest._source import Reading, Reject, Source
from penstock.ingest.sources._arrow_columns import ColumnPlan
from penstock.ingest.sources._ipc import CheckedMessages
from penstock.ingest.sources._tabular import Block, all_end_in, data_files, first_readable, open_tabular, plan_columns
from penstock.storage import ObjectInfo

_ENDINGS = (".arrow", ".feather", ".ipc", ".arrows")
_SAMPLED_ROWS = 64


def _open(bucket: Bucket, files: Sequence[ObjectInfo]) -> Reading:
    found = data_files(bucket, files, _ENDINGS)
    return open_tabular(found, first_readable(bucket, found, _plan), _scan)


def _plan(bucket: Bucket, file: ObjectInfo) -> list[ColumnPlan]:
    with closing(bucket.open(file)) as source:
        reader = _stream(source, file.size)
        empty = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in reader.schema], schema=reader.schema)
        return plan_columns(next((batch.slice(0, _SAMPLED_ROWS) for batch in reader if len(batch)), empty))


def _scan(bucket: Bucket, file: ObjectInfo) -> Iterator[Block | Reject]:
    first = 0
    with closing(bucket.open(file)) as source:
        for batch in _stream(source, file.size):
            yield Block(first, batch)
            first += len(batch)


def _stream(source: BinaryIO, size: int) -> pa.RecordBatchReader:
    return pa.ipc.open_stream(pa.PythonFile(CheckedMessages(source, size), mode="r"))


ARROW = Source(
    "arrow",
    "Arrow and Feather files and Arrow streams",
    partial(all_end_in, endings=_ENDINGS),
    _open,
)
