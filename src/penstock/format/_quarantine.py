"""Quarantine lists: the rows of a version that loaders leave out, by row id, with reasons."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.format._checksum import crc32c
from penstock.format._layout import corrupt_error, decoding, quarantine_key
from penstock.types import Buffer

_SCHEMA = pa.schema([("row_id", pa.int64()), ("reason", pa.string())])


@dataclass(frozen=True, slots=True)
class QuarantineRef:
    """A reference to a quarantine list, as stored in a snapshot."""

    id: str
    length: int
    crc: int

    @property
    def key(self) -> str:
        return quarantine_key(self.id)


def encode_quarantine(id: str, reasons: Mapping[int, str]) -> tuple[QuarantineRef, bytes]:
    """Encode the reasons by row id, and return the reference for the snapshot."""
    ids = sorted(reasons)
    columns = [pa.array(ids, pa.int64()), pa.array([reasons[id] for id in ids], pa.string())]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, _SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
    data: bytes = sink.getvalue().to_pybytes()
    return QuarantineRef(id, len(data), crc32c(data)), data


def decode_quarantine(ref: QuarantineRef, data: Buffer, where: str) -> dict[int, str]:
    """Verify and decode: the reasons by row id, ascending. Raises `CorruptError`."""
    if len(data) != ref.length or crc32c(data) != ref.crc:
        raise corrupt_error(where, "its checksum does not match its snapshot")
    with decoding(where):
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        table.validate(full=True)
        rows = table.select(_SCHEMA.names).cast(_SCHEMA)
        if rows["row_id"].null_count or rows["reason"].null_count:
            raise ValueError("a row has no id or no reason")
        ids = rows["row_id"].to_numpy()
        if len(ids) and (ids[0] < 0 or (np.diff(ids) <= 0).any()):
            raise ValueError("row ids do not ascend from 0")
        return dict(zip(ids.tolist(), rows["reason"].to_pylist(), strict=True))
