"""Row indexes: the values of one column by data file. They are derived: a table is complete without them."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pyarrow as pa

from penstock.format._checksum import crc32c
from penstock.format._layout import corrupt_error, decoding
from penstock.types import Buffer

_CRC_BYTES = 4


def encode_row_index(values: Mapping[str, pa.Array], arrow_type: pa.DataType) -> bytes:
    """Encode the values of data files, by file id: an Arrow IPC stream and its crc32c."""
    offsets = np.cumsum([0, *map(len, values.values())], dtype=np.int64)
    flat = pa.chunked_array(list(values.values()), arrow_type).combine_chunks()
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), flat)
    batch = pa.RecordBatch.from_arrays([pa.array(list(values), pa.string()), lists], schema=_schema(arrow_type))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    body = memoryview(sink.getvalue())
    return b"".join([body, crc32c(body).to_bytes(_CRC_BYTES, "little")])


def decode_row_index(data: Buffer, arrow_type: pa.DataType, where: str) -> dict[str, pa.Array]:
    """Verify and decode: the values of each data file, by file id; raises `CorruptError`."""
    body, checksum = memoryview(data)[:-_CRC_BYTES], memoryview(data)[-_CRC_BYTES:]
    if crc32c(body) != int.from_bytes(checksum, "little"):
        raise corrupt_error(where, "its checksum does not match")
    with decoding(where):
        table = pa.ipc.open_stream(pa.py_buffer(body)).read_all()
        table.validate(full=True)
        if table.schema != _schema(arrow_type) or any(column.null_count for column in table.columns):
            raise ValueError("it is no index of this column")
        lists = [values for batch in table.to_batches() for values in _split(batch.column("values"))]
        return dict(zip(table["file"].to_pylist(), lists, strict=True))


def _split(lists: pa.Array) -> list[pa.Array]:
    """The items of each list, without a copy."""
    return [lists.values.slice(start, end - start) for start, end in pairwise(np.asarray(lists.offsets).tolist())]


def _schema(arrow_type: pa.DataType) -> pa.Schema:
    return pa.schema([("file", pa.string()), ("values", pa.large_list(arrow_type))])
