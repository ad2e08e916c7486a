"""The window's memory: one array for each column of one shape, so that a batch is one gather."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.device import reserved
from penstock.format import Field, Schema
from penstock.format.kinds import Label, Tensor
from penstock.table import ROW_ID


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

    def __init__(self, columns: list[FixedColumn], capacity: int) -> None:
        self.columns = columns
        self.values: dict[str, npt.NDArray[Any]] = {}
        self.masks: dict[str, npt.NDArray[np.bool_]] = {}
        for column in columns:
            self.values[column.name] = reserved((capacity, *column.shape), column.dtype)
            if column.nullable:
                self.masks[column.name] = np.empty(capacity, bool)
        self._starts, self._ends = [0], [capacity]

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
