"""Rows in the window, as a builder finds them: in this process, or in memory that processes share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.device import Arena
from penstock.plan import groups
from penstock.table import Int64Array, RawColumn, RowPages, take
from penstock.types import Buffer

NULL, IN_BLOCK = -1, -2
"""In place of the bounds of a value in shared memory: there is none, or it is in the columns of its block."""
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
    """The encoded values of a block in shared memory, where a builder finds each without the rest of the block."""

    bounds: Int64Array
    """For each row the start and the end of its bytes, or `NULL`."""
    place: tuple[int, int]
    """Start and size of all of them."""

    @classmethod
    def write(cls, column: RawColumn, arena: Arena) -> "ArenaValues | None":
        """Write the values of a column; None if some are blobs or links."""
        if column.references is not None or any(pa.types.is_struct(chunk.type) for chunk in column.chunks):
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
                bounds[number][~np.asarray(chunk.is_valid())] = NULL
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
class BlockColumns:
    """The columns of a block that are not in the slab."""

    raw: dict[str, RawColumn] = field(default_factory=dict)
    _encoded: dict[str, EncodedRows] = field(default_factory=dict)

    def encoded(self, name: str, view: Callable[[Buffer], Any]) -> EncodedRows | None:
        """The encoded values of a column; None if some are blobs or links."""
        encoded = self._encoded.get(name)
        if encoded is None:
            cells = self.raw[name]
            if cells.references is not None or pa.types.is_struct(cells.chunks[0].type):
                return None
            encoded = self._encoded[name] = EncodedRows(cells.chunks, view)
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
    def from_bytes(cls, data: npt.NDArray[np.uint8]) -> "BlockColumns":
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


class WindowRows(NamedTuple):
    """Where rows are in the window."""

    slab_rows: Int64Array
    """For each row its index in the slab."""
    blocks: Sequence[BlockColumns]
    """Those that hold columns of variable size; none if there is no such column."""
    block_index: Int64Array
    """For each row the index of its block."""
    rows: Int64Array
    """For each row its index in that block."""
    files: Mapping[str, RowPages]
    """Columns of which some rows are read from files, and where these are."""
    bounds: Mapping[str, Int64Array] = {}
    """Columns of which a builder needs the encoded bytes alone: `ArenaValues.bounds` of each row, or `IN_BLOCK`."""
    memory: Callable[[int], npt.NDArray[np.uint8]] | None = None
    """The memory where these are, up to an end."""

    @classmethod
    def joined(cls, parts: Sequence["WindowRows"]) -> "WindowRows":
        """The rows of all parts, one after the other; none of them have `bounds`, which one reader alone gives."""
        firsts = np.cumsum([0, *(len(part.blocks) for part in parts)])[:-1].tolist()
        files = {
            name: RowPages.joined([part.files.get(name) or RowPages.none(len(part.slab_rows)) for part in parts])
            for name in dict.fromkeys(name for part in parts for name in part.files)
        }
        return cls(
            np.concatenate([part.slab_rows for part in parts]),
            [block for part in parts for block in part.blocks],
            np.concatenate([part.block_index + first for part, first in zip(parts, firsts, strict=True)]),
            np.concatenate([part.rows for part in parts]),
            files,
        )

    def take(self, indices: Int64Array | slice) -> "WindowRows":
        """Some of the rows."""
        files = {name: pages.take(indices) for name, pages in self.files.items()}
        bounds = {name: each[indices] for name, each in self.bounds.items()}
        taken = self._replace(slab_rows=self.slab_rows[indices], files=files, bounds=bounds)
        if not self.blocks:
            return taken
        return taken._replace(block_index=self.block_index[indices], rows=self.rows[indices])

    def encoded(self, name: str, view: Callable[[Buffer], Any]) -> list[Any] | None:
        """The bytes of each value of a column; None if some are blobs or links."""
        if name in self.bounds:
            return None if (self.bounds[name] == IN_BLOCK).any() else self._values_at(self.bounds[name], view)
        values: list[Any] = [None] * len(self.rows)
        for number, here in groups(self.block_index):
            encoded = self.blocks[number].encoded(name, view)
            if encoded is None:
                return None
            for index, value in zip(here.tolist(), encoded.values(self.rows[here]), strict=True):
                values[index] = value
        return values

    def _values_at(self, bounds: Int64Array, view: Callable[[Buffer], Any]) -> list[Any]:
        """The bytes at some bounds; None for a null."""
        assert self.memory is not None
        memory = view(self.memory(int(bounds.max(initial=0))).data)
        return [None if start < 0 else memory[start:end] for start, end in bounds.tolist()]

    def raw_column(self, name: str) -> RawColumn:
        """A column of variable size."""
        arrays: list[pa.Array] = []
        references: list[pa.Array | None] = []
        places: list[Int64Array] = []
        for number, here in groups(self.block_index):
            places.append(here)
            if name in self.bounds and self.bounds[name][here[0], 0] != IN_BLOCK:
                values = self._values_at(self.bounds[name][here], memoryview)
                arrays.append(pa.array([None if each is None else bytes(each) for each in values], pa.binary()))
                references.append(None)
                continue
            cells = self.blocks[number].raw[name]
            assert cells.array is not None
            arrays.append(take(cells.array, self.rows[here]))
            references.append(None if cells.references is None else take(cells.references, self.rows[here]))
        order = np.concatenate(places)
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        array = take(pa.concat_arrays(arrays), back)
        if all(part is None for part in references):
            return RawColumn(None, (array,))
        kind = next(part.type for part in references if part is not None)
        whole = [
            pa.nulls(len(values), kind) if part is None else part
            for values, part in zip(arrays, references, strict=True)
        ]
        return RawColumn(None, (array,), take(pa.concat_arrays(whole), back))
