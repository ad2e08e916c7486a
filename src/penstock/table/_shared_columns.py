"""Columns in memory that processes share: as an Arrow stream, or as encoded values that are found by their bounds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.device import Arena
from penstock.format import Field
from penstock.table._gather import RawColumn
from penstock.table._pages import Int64Array
from penstock.types import Buffer

NULL_BOUNDS = -1
"""In place of the bounds of a value in shared memory: there is none."""
_REFERENCES = "\0references of "
"""Prefix of the columns of a written batch that have references to blobs; no column of a table has it."""


class EncodedRows:
    """The encoded values of a column as offsets into pages; a view of each value would be an object per row."""

    def __init__(self, chunks: Sequence[pa.Array], view: Callable[[Buffer], Any]) -> None:
        """The rows of arrays of bytes, or of lists of numbers, as slices of a `view` of their memory."""
        bounds = [_byte_bounds(chunk) for chunk in chunks]
        self._memory = [view(chunk.buffers()[-1] or b"") for chunk in chunks]
        self._chunk = np.repeat(np.arange(len(chunks)), [len(chunk) for chunk in chunks])
        self.starts = np.concatenate([each[:-1] for each in bounds])
        self._ends = np.concatenate([each[1:] for each in bounds])
        if any(chunk.null_count for chunk in chunks):
            self._chunk[np.concatenate([~np.asarray(chunk.is_valid()) for chunk in chunks])] = -1

    def memory(self, rows: Int64Array) -> list[Any]:
        """The memory that holds each value; None for a null."""
        return [None if chunk < 0 else self._memory[chunk] for chunk in self._chunk[rows].tolist()]

    def values(self, rows: Int64Array) -> list[Any]:
        """The bytes of each value; None for a null."""
        places = zip(self.memory(rows), self.starts[rows].tolist(), self._ends[rows].tolist(), strict=True)
        return [None if memory is None else memory[start:end] for memory, start, end in places]


class ArenaValues(NamedTuple):
    """The encoded values of a column in shared memory, where each is found without the others."""

    bounds: Int64Array
    """For each row the start and the end of its bytes, or `NULL_BOUNDS`."""
    place: tuple[int, int]
    """Start and size of all of them."""

    @classmethod
    def write(cls, column: RawColumn, arena: Arena) -> "ArenaValues | None":
        """Write the values of a column; None if some are blobs or links."""
        if not column.is_inline:
            return None
        bounds = [_byte_bounds(chunk) for chunk in column.chunks]
        size = sum(int(each[-1] - each[0]) for each in bounds)
        start = end = arena.allocate(size)
        memory = arena.bytes(start, size)
        for number, (chunk, each) in enumerate(zip(column.chunks, bounds, strict=True)):
            first, last = int(each[0]), int(each[-1])
            if last > first:
                memory[end - start :][: last - first] = np.frombuffer(chunk.buffers()[-1], np.uint8)[first:last]
            bounds[number] = np.stack([each[:-1], each[1:]], axis=1) + (end - first)
            if chunk.null_count:
                bounds[number][~np.asarray(chunk.is_valid())] = NULL_BOUNDS
            end += last - first
        return cls(np.concatenate(bounds), (start, size))


def _byte_bounds(chunk: pa.Array) -> npt.NDArray[np.int64]:
    """Where each value of an array starts in its last buffer, and the end."""
    width = np.dtype(np.int64 if chunk.type == pa.large_binary() else np.int32)
    bounds = np.frombuffer(chunk.buffers()[1], width, len(chunk) + 1, chunk.offset * width.itemsize).astype(np.int64)
    if pa.types.is_list(chunk.type):
        bounds = (bounds + chunk.values.offset) * (chunk.type.value_type.bit_width // 8)
    return bounds


@dataclass(slots=True)
class RawColumns:
    """Columns of some rows, not decoded."""

    raw: dict[str, RawColumn] = field(default_factory=dict)
    _encoded: dict[str, EncodedRows] = field(default_factory=dict)

    @classmethod
    def nulls(cls, fields: Iterable[Field], rows: int) -> "RawColumns":
        """Columns without a value in any row."""
        return cls({each.name: RawColumn(None, (pa.nulls(rows, each.kind.arrow_type),)) for each in fields})

    def encoded(self, name: str, view: Callable[[Buffer], Any]) -> EncodedRows | None:
        """The encoded values of a column; None if some are blobs or links."""
        encoded = self._encoded.get(name)
        if encoded is None:
            if not self.raw[name].is_inline:
                return None
            encoded = self._encoded[name] = EncodedRows(self.raw[name].chunks, view)
        return encoded

    def write(self, arena: Arena) -> tuple[int, int]:
        """Write all columns to shared memory, as an Arrow stream; returns its start and size."""
        arrays = {name: cells.array for name, cells in self.raw.items()}
        arrays |= {_REFERENCES + name: cells.references for name, cells in self.raw.items() if cells.references}
        batch = pa.record_batch(list(arrays.values()), list(arrays))
        measured = pa.MockOutputStream()
        _write_stream(batch, measured)
        place = arena.allocate(size := int(measured.size())), size
        _write_stream(batch, pa.FixedSizeBufferWriter(pa.py_buffer(arena.bytes(*place))))
        return place

    @classmethod
    def from_bytes(cls, data: npt.NDArray[np.uint8]) -> "RawColumns":
        """Inverse of `write`; the columns are views of the bytes."""
        batch = pa.ipc.open_stream(pa.py_buffer(data)).read_next_batch()
        arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
        raw = {
            name: RawColumn(None, (array,), arrays.get(_REFERENCES + name))
            for name, array in arrays.items()
            if not name.startswith(_REFERENCES)
        }
        return cls(raw)


def _write_stream(batch: pa.RecordBatch, sink: pa.NativeFile) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
