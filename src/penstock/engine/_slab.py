"""The window's memory: one array for each column of one shape, so that a batch is one gather."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.device import Accelerator, DeviceRows, Staging, reserved
from penstock.format import Field, Schema
from penstock.format.kinds import Label, Tensor
from penstock.table import ROW_ID, Empty, Rows

_DEVICE_ROW_BYTES, _PLACED_ROW_BYTES = 1 << 10, 32 << 10


@dataclass(frozen=True)
class FixedColumn:
    """A column whose rows all have one shape."""

    name: str
    field: Field | None
    """None for row ids, which no file holds."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nullable: bool

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize + self.nullable


def fixed_column(name: str, field: Field | None) -> FixedColumn | None:
    """The column, if its rows have one shape."""
    if field is None:
        return FixedColumn(ROW_ID, None, np.dtype(np.int64), (), False)
    kind = Tensor("int64") if isinstance(field.kind, Label) else field.kind
    if not isinstance(kind, Tensor) or kind.ragged:
        return None
    shape = tuple(length for length in kind.shape if length is not None)
    return FixedColumn(name, field, kind.element.logical, shape, field.nullable)


class Layout:
    """Which columns are in the slab, and which are not because their rows differ in shape or must be decoded."""

    def __init__(self, schema: Schema, names: Sequence[str]) -> None:
        fields = {name: None if name == ROW_ID else schema[name] for name in names}
        self.fields = [field for field in fields.values() if field is not None]
        self.fixed = [column for name, field in fields.items() if (column := fixed_column(name, field)) is not None]
        known = {column.name for column in self.fixed}
        self.loose = [field for field in self.fields if field.name not in known]


class Slab:
    """Rows of all columns of one shape, given out in runs; memory is touched only where rows have been."""

    def __init__(self, columns: Sequence[FixedColumn], capacity: int) -> None:
        self._values: dict[str, npt.NDArray[Any]] = {}
        self.masks: dict[str, npt.NDArray[np.bool_]] = {}
        for column in columns:
            self._reserve(column, capacity)
            if column.nullable:
                self.masks[column.name] = np.empty(capacity, bool)
        self._starts, self._ends = [0], [capacity]

    def _reserve(self, column: FixedColumn, capacity: int) -> None:
        self._values[column.name] = reserved((capacity, *column.shape), column.dtype)

    def take(self, rows: int) -> int | None:
        """The first row of a free run, the lowest there is; None where none is long enough."""
        for index, (start, end) in enumerate(zip(self._starts, self._ends, strict=True)):
            if end - start >= rows:
                if end - start == rows:
                    del self._starts[index], self._ends[index]
                else:
                    self._starts[index] = start + rows
                return start
        return None

    def give_back(self, start: int, rows: int) -> None:
        """Free a run, and join it with its neighbours."""
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

    def room(self, name: str, start: int, rows: int) -> npt.NDArray[Any]:
        """Where this thread may write rows of a run."""
        return self._values[name][start : start + rows]

    def written(self, name: str, start: int, rows: int) -> None:
        """This thread has written them."""

    def holds(self, name: str) -> bool:  # noqa: ARG002
        """Whether a column's rows are here, and not on a device."""
        return True

    def gather(self, column: FixedColumn, rows: Rows, empty: Empty) -> Any:
        """Some rows of a column, in this order."""
        out = empty((len(rows), *column.shape), column.dtype)
        # With mode="raise", numpy would fill a buffer of its own first.
        np.take(self._values[column.name], rows, axis=0, out=out, mode="clip")
        return out


class DeviceSlab(Slab):
    """The same with the heavy columns in a device's memory, to which rows cross when they have been written."""

    def __init__(
        self,
        columns: Sequence[FixedColumn],
        capacity: int,
        *,
        accelerator: Accelerator,
        crossed: Callable[[int], None],
    ) -> None:
        """`crossed` is told of bytes that were copied to the device."""
        self._accelerator, self._crossed = accelerator, crossed
        self._there: dict[str, DeviceRows] = {}
        super().__init__(columns, capacity)
        self._columns = {column.name: column for column in columns}
        self._staging = Staging(accelerator)

    def _reserve(self, column: FixedColumn, capacity: int) -> None:
        if on_device(column):
            self._there[column.name] = self._accelerator.rows(capacity, column.dtype, column.shape)
        else:
            super()._reserve(column, capacity)

    def room(self, name: str, start: int, rows: int) -> npt.NDArray[Any]:
        there = self._there.get(name)
        if there is None:
            return super().room(name, start, rows)
        column = self._columns[name]
        return self._staging.room(rows * there.row_bytes).view(column.dtype).reshape(rows, *column.shape)

    def written(self, name: str, start: int, rows: int) -> None:
        there = self._there.get(name)
        if there is not None:
            self._staging.cross(there, start)
            self._crossed(rows * there.row_bytes)

    def holds(self, name: str) -> bool:
        return name not in self._there

    def gather(self, column: FixedColumn, rows: Rows, empty: Empty) -> Any:
        if column.name not in self._there:
            return super().gather(column, rows, empty)
        with self._accelerator.working():
            return self._there[column.name].gather(rows)


def on_device(column: FixedColumn) -> bool:
    """Whether a column is worth a device's memory: rows of a few bytes are gathered as fast by the processor."""
    return column.row_bytes >= _DEVICE_ROW_BYTES


def placeable(column: FixedColumn) -> bool:
    """Whether a row is worth being read to a place of its own: for less, a copy costs less than a step of Python."""
    return column.field is not None and (column.field.stored_bytes or 0) >= _PLACED_ROW_BYTES
