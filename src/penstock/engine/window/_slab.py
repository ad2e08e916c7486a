"""The window's memory: one array per fixed-shape column, so that building a batch is one gather."""

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.device import Accelerator, DeviceRows, SharedRegions, Staging, lazy_empty
from penstock.engine.planning import FixedColumn
from penstock.table import Allocator, Int64Array

_DEVICE_ROW_BYTES = 1 << 10
_CHUNK_BYTES = 256 << 10
"""Rows gathered at a time where they are not contiguous, so that they stay in the CPU cache."""
_IDLE_SHARE = 4
"""Fraction (1/n) of the memory in use that may be free and not given back to the system."""
MAX_READERS = 4
_REGIONS_PER_TABLE = 1 << 13


class PrivateMemory:
    """Memory of this process for numbered arrays."""

    discards = False

    def array(self, number: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:  # noqa: ARG002
        """New memory."""
        return lazy_empty(shape, dtype)

    def discard(self, number: int, start: int, end: int) -> None:
        """Give some bytes of an array back to the system."""


class TableMemory:
    """Memory that processes share, for numbered arrays of one table; the first regions are arenas of the readers."""

    discards = True

    def __init__(self, regions: SharedRegions, table: int) -> None:
        self._regions, self._first = regions, MAX_READERS + table * _REGIONS_PER_TABLE

    def array(self, number: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array; a larger one later begins with the same memory."""
        return self._regions.array(self._first + number, shape, dtype)

    def discard(self, number: int, start: int, end: int) -> None:
        """Give some bytes of an array back to the system."""
        self._regions.discard(self._first + number, start, end)


ArrayMemory = PrivateMemory | TableMemory


class Runs:
    """Allocates runs of a range of numbers, the first that fits; a run that is freed joins its neighbours."""

    def __init__(self, capacity: int, discard: Callable[[int, int], None] | None = None, first: int = 0) -> None:
        """Numbers from `first` to `capacity`; `discard` gives the memory of a free run back to the system."""
        self._starts, self._ends = [first], [capacity]
        self._first, self._capacity, self._discard = first, capacity, discard
        self._used, self._touched = 0, first

    def allocate(self, size: int) -> int | None:
        """The start of a run; None if no free one is long enough."""
        for index, (start, end) in enumerate(zip(self._starts, self._ends, strict=True)):
            if end - start >= size:
                if end - start == size:
                    del self._starts[index], self._ends[index]
                else:
                    self._starts[index] = start + size
                self._used += size
                if start + size > self._touched:
                    self._touch(start + size)
                return start
        return None

    def _touch(self, end: int) -> None:
        """Use memory that was not used before; what is free of the rest may be given back."""
        free = self._touched - self._first - self._used
        if self._discard is not None and free > self._used // _IDLE_SHARE:
            for first, last in zip(self._starts, self._ends, strict=True):
                if first < self._touched:
                    self._discard(first, min(last, self._touched))
        self._touched = end

    def grow(self, size: int) -> tuple[int, int]:
        """A run beyond the capacity, and the new capacity."""
        start, self._capacity = self._capacity, 2 * self._capacity - self._first + size
        self._used += self._capacity - start
        self._touched = start + size
        self.free(start + size, self._capacity - start - size)
        return start, self._capacity

    def free(self, start: int, size: int) -> None:
        """Free a run."""
        end = start + size
        self._used -= size
        index = bisect_left(self._starts, start)
        joins_front = index > 0 and self._ends[index - 1] == start
        joins_back = index < len(self._starts) and self._starts[index] == end
        if joins_front and joins_back:
            self._ends[index - 1] = self._ends[index]
            del self._starts[index], self._ends[index]
        elif joins_front:
            self._ends[index - 1] = end
        elif joins_back:
            self._starts[index] = start
        else:
            self._starts.insert(index, start)
            self._ends.insert(index, end)

    def used(self) -> Iterator[tuple[int, int]]:
        """The runs in use, each with its end."""
        return zip([self._first, *self._ends], [*self._starts, self._capacity], strict=True)


class SlabColumns:
    """Rows of all fixed-shape columns."""

    def __init__(self, columns: Sequence[FixedColumn], memory: ArrayMemory, capacity: int = 0) -> None:
        self._columns, self._memory = {column.name: column for column in columns}, memory
        self._values: dict[str, npt.NDArray[Any]] = {}
        self.masks: dict[str, npt.NDArray[np.bool_]] = {}
        self.capacity = 0
        self.extend(capacity)

    def extend(self, capacity: int) -> None:
        """Have room for this many rows."""
        if capacity <= self.capacity:
            return
        self.capacity = capacity
        for number, (name, column) in enumerate(self._columns.items()):
            self._reserve(2 * number, column, capacity)
            if column.nullable:
                self.masks[name] = self._memory.array(2 * number + 1, (capacity,), bool)

    def _reserve(self, number: int, column: FixedColumn, capacity: int) -> None:
        self._values[column.name] = self._memory.array(number, (capacity, *column.shape), column.dtype)

    def gather(self, column: FixedColumn, rows: Int64Array, empty: Allocator) -> Any:
        """Rows of a column in the given order."""
        values, out = self._values[column.name], empty((len(rows), *column.shape), column.dtype)
        if isinstance(out, np.ndarray) and out.flags.c_contiguous:
            np.take(values, rows, axis=0, out=out, mode="clip")  # mode="raise" would make numpy use a temporary buffer
            return out
        step = max(1, _CHUNK_BYTES // max(1, column.row_bytes))  # numpy would gather all rows into one temporary array
        for first in range(0, len(rows), step):
            out[first : first + step] = values.take(rows[first : first + step], axis=0, mode="clip")
        return out


class Slab(SlabColumns):
    """Rows that are allocated in runs; memory is committed only when rows are written."""

    def __init__(
        self,
        columns: Sequence[FixedColumn],
        capacity: int,
        memory: ArrayMemory | None = None,
        owned: range | None = None,
    ) -> None:
        """`memory` is that of this process by default; of shared memory, only some rows may be this reader's."""
        first, self._end = (0, sys.maxsize) if owned is None else (owned.start, owned.stop)
        super().__init__(columns, memory or PrivateMemory(), first + capacity)
        self._runs = Runs(first + capacity, self._discard if self._memory.discards else None, first)

    def _discard(self, start: int, end: int) -> None:
        for number, (name, values) in enumerate(self._values.items()):
            row_bytes = values[:1].nbytes
            self._memory.discard(2 * number, start * row_bytes, end * row_bytes)
            if name in self.masks:
                self._memory.discard(2 * number + 1, start, end)

    def allocate(self, rows: int) -> int | None:
        """The start of a free run of rows, or None if none is long enough."""
        return self._runs.allocate(rows) if self._columns else 0

    def free(self, start: int, rows: int) -> None:
        """Free a run."""
        if self._columns:
            self._runs.free(start, rows)

    def grow(self, rows: int) -> int:
        """Allocate beyond the capacity; only while no thread reads or writes rows."""
        used, smaller = list(self._runs.used()), ({**self._values}, {**self.masks})
        start, capacity = self._runs.grow(rows)
        if capacity > self._end:
            raise MemoryError(f"the window has no room for {rows:,} more rows; lower memory_budget")
        self.extend(capacity)
        for arrays, larger in zip(smaller, (self._values, self.masks), strict=True):
            for name, values in arrays.items():
                for first, end in used:
                    larger[name][first:end] = values[first:end]
        return start

    def buffer(self, name: str, start: int, rows: int) -> npt.NDArray[Any]:
        """A buffer in which this thread writes rows of a run."""
        return self._values[name][start : start + rows]

    def flush(self, name: str, start: int, rows: int) -> None:
        """Complete the rows that this thread wrote, so that `gather` sees them."""

    def on_host(self, name: str) -> bool:  # noqa: ARG002
        """Whether a column is in host memory."""
        return True


class DeviceSlab(Slab):
    """A slab whose heavy columns are in device memory; rows are copied there after they are written."""

    def __init__(
        self,
        columns: Sequence[FixedColumn],
        capacity: int,
        *,
        accelerator: Accelerator,
        on_copied: Callable[[int], None],
    ) -> None:
        """`on_copied` is called with the number of bytes copied to the device."""
        self._accelerator, self._on_copied = accelerator, on_copied
        self._device_rows: dict[str, DeviceRows] = {}
        super().__init__(columns, capacity)
        self._staging = Staging(accelerator)

    def _reserve(self, number: int, column: FixedColumn, capacity: int) -> None:
        if on_device(column):
            self._device_rows[column.name] = self._accelerator.allocate_rows(capacity, column.dtype, column.shape)
        else:
            super()._reserve(number, column, capacity)

    def grow(self, rows: int) -> int:
        raise MemoryError(f"the window on the device has no room for {rows:,} more rows; raise DeviceOptions(memory=…)")

    def buffer(self, name: str, start: int, rows: int) -> npt.NDArray[Any]:
        device_rows = self._device_rows.get(name)
        if device_rows is None:
            return super().buffer(name, start, rows)
        column = self._columns[name]
        return self._staging.buffer(rows * device_rows.row_bytes).view(column.dtype).reshape(rows, *column.shape)

    def flush(self, name: str, start: int, rows: int) -> None:
        device_rows = self._device_rows.get(name)
        if device_rows is not None:
            self._staging.copy_to_device(device_rows, start)
            self._on_copied(rows * device_rows.row_bytes)

    def on_host(self, name: str) -> bool:
        return name not in self._device_rows

    def gather(self, column: FixedColumn, rows: Int64Array, empty: Allocator) -> Any:
        if column.name not in self._device_rows:
            return super().gather(column, rows, empty)
        with self._accelerator.on_stream():
            return self._device_rows[column.name].gather(rows)


def reader_rows(columns: Sequence[FixedColumn], reader: int) -> range:
    """The rows of a table in shared memory that belong to one of its readers."""
    each = SharedRegions.STEP // MAX_READERS // max((column.row_bytes for column in columns), default=1)
    return range(reader * each, (reader + 1) * each)


def on_device(column: FixedColumn) -> bool:
    """Whether rows are large enough for device memory; the CPU gathers small rows as fast."""
    return column.row_bytes >= _DEVICE_ROW_BYTES
