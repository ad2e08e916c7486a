"""Rows in memory: one array per column of a fixed shape, so that building a batch is one gather."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.device._accelerator import Accelerator, DeviceRows, Staging
from penstock.device._arena import Runs
from penstock.device._buffer_pool import Allocator
from penstock.device._lazy_array import lazy_empty
from penstock.device._shared_memory import SharedRegions
from penstock.types import cached_property

_DEVICE_ROW_BYTES = 1 << 10
_CHUNK_BYTES = 256 << 10
"""Rows gathered at a time where they are not contiguous, so that they stay in the CPU cache."""
MAX_READERS = 4
"""Processes that write to the slabs of one loader."""
_REGIONS_PER_TABLE = 1 << 13


@dataclass(frozen=True)
class ArrayColumn:
    """A column that is one array: all its values have the same type and shape."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nullable: bool
    """Whether there is a mask of the values that are present."""

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of a row, with its entry in the mask."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize + self.nullable


class SlabColumns:
    """Rows of some columns of a table."""

    def __init__(
        self, columns: Sequence[ArrayColumn], capacity: int = 0, *, table: int = 0, regions: SharedRegions | None = None
    ) -> None:
        """In memory of this process, or in `regions`, of which the first are arenas of the readers."""
        self._columns, self._regions = {column.name: column for column in columns}, regions
        self._first_region = MAX_READERS + table * _REGIONS_PER_TABLE
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
                self.masks[name] = self._new_array(2 * number + 1, (capacity,), bool)

    def _reserve(self, number: int, column: ArrayColumn, capacity: int) -> None:
        self._values[column.name] = self._new_array(number, (capacity, *column.shape), column.dtype)

    def _new_array(self, number: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """A new array; in shared memory it begins with the memory of the smaller one of that number."""
        if self._regions is None:
            return lazy_empty(shape, dtype)
        return self._regions.array(self._first_region + number, shape, dtype)

    def gather(self, column: ArrayColumn, rows: npt.NDArray[np.int64], empty: Allocator) -> Any:
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
        columns: Sequence[ArrayColumn],
        capacity: int,
        *,
        table: int = 0,
        regions: SharedRegions | None = None,
        reader: int = 0,
    ) -> None:
        """Of the rows in shared memory, some belong to each reader of the table."""
        each = SharedRegions.STEP // MAX_READERS // max((column.row_bytes for column in columns), default=1)
        first, self._end = reader * each, (reader + 1) * each
        super().__init__(columns, first + capacity, table=table, regions=regions)
        self._runs = Runs(first + capacity, None if regions is None else self._discard, first)

    def _discard(self, start: int, end: int) -> None:
        assert self._regions is not None
        for number, (name, values) in enumerate(self._values.items()):
            region, row_bytes = self._first_region + 2 * number, values[:1].nbytes
            self._regions.discard(region, start * row_bytes, end * row_bytes)
            if name in self.masks:
                self._regions.discard(region + 1, start, end)

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
        columns: Sequence[ArrayColumn],
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

    def _reserve(self, number: int, column: ArrayColumn, capacity: int) -> None:
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

    def gather(self, column: ArrayColumn, rows: npt.NDArray[np.int64], empty: Allocator) -> Any:
        if column.name not in self._device_rows:
            return super().gather(column, rows, empty)
        with self._accelerator.on_stream():
            return self._device_rows[column.name].gather(rows)


def on_device(column: ArrayColumn) -> bool:
    """Whether rows are large enough for device memory; the CPU gathers small rows as fast."""
    return column.row_bytes >= _DEVICE_ROW_BYTES
