"""The window's memory: one array per fixed-shape column, so that building a batch is one gather."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.device import Accelerator, DeviceRows, Staging, lazy_empty
from penstock.engine.planning import FixedColumn
from penstock.table import Allocator, Int64Array

_DEVICE_ROW_BYTES, _MIN_DIRECT_ROW_BYTES = 1 << 10, 32 << 10
_CHUNK_BYTES = 256 << 10
"""Rows gathered at a time where they are not contiguous, so that they stay in the CPU cache."""


class RowsAt:
    """Some rows of an array, which need not be evenly spaced; what is assigned to it is written to their places."""

    __slots__ = ("array", "places")

    def __init__(self, array: "npt.NDArray[Any] | RowsAt", places: Int64Array) -> None:
        self.array: npt.NDArray[Any] = array.array if isinstance(array, RowsAt) else array
        self.places: Int64Array = array.places[places] if isinstance(array, RowsAt) else places

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.places), *self.array.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, key: Any) -> Any:
        return self.array[self.places[key]]

    def __setitem__(self, key: Any, values: Any) -> None:
        self.array[self.places[key]] = values


class Slab:
    """Rows of all fixed-shape columns, allocated in runs; memory is committed only when rows are written."""

    def __init__(self, columns: Sequence[FixedColumn], capacity: int) -> None:
        self._values: dict[str, npt.NDArray[Any]] = {}
        self.masks: dict[str, npt.NDArray[np.bool_]] = {}
        for column in columns:
            self._reserve(column, capacity)
            if column.nullable:
                self.masks[column.name] = lazy_empty((capacity,), bool)
        self._starts, self._ends = [0], [capacity]
        self._columns = {column.name: column for column in columns}
        self._capacity = capacity

    def _reserve(self, column: FixedColumn, capacity: int) -> None:
        self._values[column.name] = lazy_empty((capacity, *column.shape), column.dtype)

    def allocate(self, rows: int) -> int | None:
        """First-fit allocation: the start of a free run of rows, or None if none is long enough."""
        for index, (start, end) in enumerate(zip(self._starts, self._ends, strict=True)):
            if end - start >= rows:
                if end - start == rows:
                    del self._starts[index], self._ends[index]
                else:
                    self._starts[index] = start + rows
                return start
        return None

    def grow(self, rows: int) -> int:
        """Allocate beyond the capacity; only while no thread reads or writes rows."""
        used = list(zip([0, *self._ends], [*self._starts, self._capacity], strict=True))
        start, self._capacity = self._capacity, 2 * self._capacity + rows
        for name, column in self._columns.items():
            self._copy_used(self._values, name, lazy_empty((self._capacity, *column.shape), column.dtype), used)
            if column.nullable:
                self._copy_used(self.masks, name, lazy_empty((self._capacity,), bool), used)
        self.free(start + rows, self._capacity - start - rows)
        return start

    @staticmethod
    def _copy_used(arrays: dict[str, npt.NDArray[Any]], name: str, larger: Any, used: list[tuple[int, int]]) -> None:
        for first, end in used:
            larger[first:end] = arrays[name][first:end]
        arrays[name] = larger

    def free(self, start: int, rows: int) -> None:
        """Free a run and merge it with its neighbours."""
        end = start + rows
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

    def buffer(self, name: str, start: int, rows: int) -> npt.NDArray[Any]:
        """A buffer in which this thread writes rows of a run."""
        return self._values[name][start : start + rows]

    def flush(self, name: str, start: int, rows: int) -> None:
        """Complete the rows that this thread wrote, so that `gather` sees them."""

    def on_host(self, name: str) -> bool:  # noqa: ARG002
        """Whether a column is in host memory."""
        return True

    def gather(self, column: FixedColumn, rows: Int64Array, empty: Allocator) -> Any:
        """Rows of a column in the given order."""
        values, out = self._values[column.name], empty((len(rows), *column.shape), column.dtype)
        if isinstance(out, RowsAt) and column.row_bytes >= _MIN_DIRECT_ROW_BYTES:
            target = out.array
            for place, row in zip(out.places.tolist(), rows.tolist(), strict=True):
                target[place] = values[row]  # without a temporary array
            return out
        if isinstance(out, np.ndarray) and out.flags.c_contiguous:
            np.take(values, rows, axis=0, out=out, mode="clip")  # mode="raise" would make numpy use a temporary buffer
            return out
        step = max(1, _CHUNK_BYTES // max(1, column.row_bytes))  # numpy would gather all rows into one temporary array
        for first in range(0, len(rows), step):
            out[first : first + step] = values.take(rows[first : first + step], axis=0, mode="clip")
        return out


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

    def _reserve(self, column: FixedColumn, capacity: int) -> None:
        if on_device(column):
            self._device_rows[column.name] = self._accelerator.allocate_rows(capacity, column.dtype, column.shape)
        else:
            super()._reserve(column, capacity)

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


def on_device(column: FixedColumn) -> bool:
    """Whether rows are large enough for device memory; the CPU gathers small rows as fast."""
    return column.row_bytes >= _DEVICE_ROW_BYTES


def reads_into_batch(column: FixedColumn) -> bool:
    """Whether rows are large enough for direct reads into the batch; below, a copy is cheaper than a Python call."""
    return column.field is not None and (column.field.fixed_row_bytes or 0) >= _MIN_DIRECT_ROW_BYTES
