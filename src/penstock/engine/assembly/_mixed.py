"""Gather rows; the tables of a mixture write theirs to their places in the same batches."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.engine.assembly._decode import Columns
from penstock.engine.assembly._mixed_columns import SOURCE, MixedColumn
from penstock.engine.assembly._rows import PAD, GatheredRows, RowGatherer
from penstock.engine.assembly._values import Allocators, RowsAt
from penstock.engine.planning import CU_SEQLENS
from penstock.engine.window import BuildTask, SlabColumns
from penstock.table import Allocator, Int64Array

Part = tuple[Int64Array, Columns]
"""The rows of one table: their places, and its columns."""


class SpanGatherer:
    """Gathers the rows of tasks, of a table or of a mixture."""

    def __init__(
        self,
        gatherers: Sequence[RowGatherer],
        slabs: Sequence[SlabColumns],
        columns: Sequence[MixedColumn] | None,
    ) -> None:
        """`columns` are those of a mixture; None for a single table."""
        self._gatherers, self._slabs, self._columns = gatherers, slabs, columns

    def __call__(self, task: BuildTask, empty: Allocators) -> GatheredRows:
        """The columns of a task, in the memory that `empty` allocates."""
        if self._columns is None:
            return self._gatherers[0](task.tables[0], self._slabs[0], empty)
        memory = MixedMemory(len(task), lambda name, shape, dtype: empty(name)(shape, dtype))
        gathered = GatheredRows({})
        tables = np.empty(len(task), np.int64)
        parts: list[Part] = []
        for rows in task.tables:
            indices = np.arange(len(task))[rows.places]
            tables[indices] = rows.table
            part = self._gatherers[rows.table](rows, self._slabs[rows.table], memory.allocators(indices))
            gathered.bad |= {int(indices[index]): bad for index, bad in part.bad.items()}
            if part.failure is not None:
                place = int(indices[part.failure[0]])
                if gathered.failure is None or place < gathered.failure[0]:
                    gathered.failure = place, part.failure[1]
            parts.append((indices, part.columns))
        gathered.columns = join_columns(self._columns, parts, memory)
        gathered.columns[SOURCE] = tables
        if parts and PAD in parts[0][1]:
            flags = np.zeros(len(task), bool)
            for indices, columns in parts:
                flags[indices] = columns[PAD]
            gathered.columns[PAD] = flags
        return gathered


def join_columns(columns: Sequence[MixedColumn], parts: Sequence[Part], memory: "MixedMemory") -> Columns:
    """The columns of a mixture, of which each part has those that its table has, for rows at some places."""
    found: Columns = {}
    for column in columns:
        found[column.name] = _joined(column, parts, memory)
        if column.masked:
            found[column.mask_name] = _mask(column, parts, memory.rows)
    return found


def _joined(column: MixedColumn, parts: Sequence[Part], memory: "MixedMemory") -> Any:
    values: list[tuple[Int64Array, Any]] = [
        (indices, found[column.name] if column.name in found else column.nothing(len(indices)))
        for indices, found in parts
    ]
    if column.name == CU_SEQLENS and column.fixed is not None:
        [width] = column.fixed.shape
        values = [(indices, np.pad(part[:], ((0, 0), (0, width - part.shape[1])), "edge")) for indices, part in values]
    arrays = column.stacked and not any(isinstance(part, list) for _, part in values)
    if arrays and len({part.shape[1:] for _, part in values}) == 1:
        shape, dtype = values[0][1].shape[1:], np.result_type(*(part.dtype for _, part in values))
        whole = memory.array(column.name, shape, dtype)
        if whole.shape[1:] != shape or whole.dtype != dtype:  # 8-bit and 16-bit grayscale
            whole = np.empty((memory.rows, *shape), dtype)
        base = whole.array if isinstance(whole, RowsAt) else whole
        for indices, part in values:
            if not (isinstance(part, RowsAt) and part.array is base):
                whole[indices] = part[:]
        return whole
    listed: list[Any] = [None] * memory.rows
    for indices, part in values:
        for place, value in zip(indices.tolist(), part, strict=True):
            listed[place] = value
    return listed


def _mask(column: MixedColumn, parts: Sequence[Part], rows: int) -> npt.NDArray[np.bool_]:
    mask = np.ones((rows, *column.mask_shape), bool)
    for indices, columns in parts:
        if column.name not in columns:
            mask[indices] = False
        elif column.mask_name in columns:
            mask[indices] = columns[column.mask_name]
        elif isinstance(columns[column.name], list):
            mask[indices] = [value is not None for value in columns[column.name]]
    return mask


class MixedMemory:
    """Columns of a mixture that its tables write to."""

    def __init__(self, rows: int, allocate: Callable[[str, tuple[int, ...], np.dtype[Any]], Any]) -> None:
        self.rows, self._allocate = rows, allocate
        self._arrays: dict[str, Any] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """The memory of a column; the first caller decides the type and the shape of its rows."""
        if name not in self._arrays:
            self._arrays[name] = self._allocate(name, (self.rows, *shape), np.dtype(dtype))
        return self._arrays[name]

    def allocators(self, indices: Int64Array) -> Allocators:
        """Memory for the rows of one table: their places in the columns of all tables."""

        def of(name: str) -> Allocator:
            def allocate(shape: tuple[int, ...], dtype: Any) -> Any:
                whole = self.array(name, shape[1:], dtype)
                if whole.shape[1:] != tuple(shape[1:]) or whole.dtype != dtype:
                    return np.empty(shape, dtype)  # images of other tables have another size
                return RowsAt(whole, indices)

            return allocate

        return of
