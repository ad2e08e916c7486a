"""The columns of batches, and those of a mixture.

A table of a mixture may lack some of its columns, and writes the others to the places of its rows in a batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.engine._options import DecodeOptions
from penstock.engine.assembly._decode import Columns
from penstock.engine.assembly._values import Allocators, RowsAt
from penstock.engine.planning import Layout
from penstock.format import Field, value_kind
from penstock.format.kinds import Tensor
from penstock.plan import CU_SEQLENS, PackedSamples
from penstock.table import Int64Array

PAD = "_pad"
"""Name of the column that flags repeated rows of the last step and replacements of bad rows."""
SOURCE = "_source"
"""Name of the column that has the index of a row's source in a mixture."""


class ColumnShape(NamedTuple):
    """The type and shape of a column's value in a sample."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    mask_shape: tuple[int, ...] | None
    """Of its validity mask; None if it has none."""


def sample_shapes(layout: Layout, decode: DecodeOptions) -> dict[str, ColumnShape]:
    """Columns of a fixed shape, and decoded images of a known shape."""
    if isinstance(layout.composition, PackedSamples):
        shapes = layout.composition.shapes()
        return {name: ColumnShape(*shapes[name], None) for name in layout.names}
    known: dict[str, ColumnShape] = {}
    for column in layout.fixed:
        times = layout.times(column.name)
        known[column.name] = ColumnShape(column.dtype, (*times, *column.shape), times if column.nullable else None)
    for field in layout.variable:
        times, shape = layout.times(field.name), decode.image_shape(field)
        if shape is not None and (len(shape) == 3 or decode.resizes(field)):  # others may have 16 bits
            known[field.name] = ColumnShape(np.dtype(np.uint8), (*times, *shape), times if field.nullable else None)
    for name in layout.padded:
        known[f"{name}_pad"] = ColumnShape(np.dtype(bool), layout.times(name), None)
    return known


@dataclass(frozen=True)
class MixedColumn:
    """A column of a mixture."""

    name: str
    fixed: ColumnShape | None
    """The type and shape of its values; None if they have a variable size."""
    masked: bool
    """Whether a table lacks it, or values can be missing."""
    stacked: bool = True
    """Whether values of one shape are stacked; images of tables with different shapes are not."""

    @property
    def mask_name(self) -> str:
        return f"{self.name}_mask"

    @property
    def mask_shape(self) -> tuple[int, ...]:
        """Of the mask of a row."""
        return () if self.fixed is None or self.fixed.mask_shape is None else self.fixed.mask_shape

    def absent(self, rows: int) -> Any:
        """Values of rows of a table that lacks it."""
        return [None] * rows if self.fixed is None else np.zeros((rows, *self.fixed.shape), self.fixed.dtype)


class Part(NamedTuple):
    """The rows of one table, and where they are among those of the mixture."""

    table: int
    indices: Int64Array
    columns: Columns


@dataclass(frozen=True)
class MixedColumns:
    """All columns of a mixture."""

    sources: Sequence[str]
    columns: Sequence[MixedColumn]

    @classmethod
    def of(cls, layouts: Mapping[str, Layout], names: Sequence[str], decode: DecodeOptions) -> "MixedColumns":
        """The columns `names` of tables with these layouts; as in batches of a table, those of a fixed shape first."""
        tables = [(layout, sample_shapes(layout, decode.only(layout.names))) for layout in layouts.values()]
        padded = dict.fromkeys(f"{name}_pad" for layout, _ in tables for name in layout.padded)
        columns = [_mixed_column(name, tables, decode) for name in (*names, *padded)]
        variable = {field.name for layout, _ in tables for field in layout.variable if field.name in layout.delivered}
        columns.sort(key=lambda column: column.fixed is None or column.name in variable)
        return cls(list(layouts), columns)

    def join(self, parts: Sequence[Part], memory: "MixedMemory") -> Columns:
        """The columns of some rows, of which each part has those that its table has."""
        joined: Columns = {}
        for column in self.columns:
            joined[column.name] = _joined(column, parts, memory)
            if column.masked:
                joined[column.mask_name] = _mask(column, parts, memory.rows)
        joined[SOURCE] = tables = np.empty(memory.rows, np.int64)
        for part in parts:
            tables[part.indices] = part.table
        if any(PAD in part.columns for part in parts):
            joined[PAD] = flags = np.empty(memory.rows, bool)
            for part in parts:
                flags[part.indices] = part.columns[PAD]
        return joined

    def row(self, table: int, columns: Columns) -> Columns:
        """A row of one table as a row of the mixture."""
        return self.join([Part(table, np.zeros(1, np.int64), columns)], MixedMemory(1, lambda _: np.empty))


def _mixed_column(
    name: str, tables: Sequence[tuple[Layout, Mapping[str, ColumnShape]]], decode: DecodeOptions
) -> MixedColumn:
    """A column of tables with these layouts and shapes."""
    holders = [(layout, shapes.get(name)) for layout, shapes in tables if name in layout.delivered]
    known = [shape for _, shape in holders]
    masks = [shape.mask_shape for shape in known if shape is not None and shape.mask_shape is not None]
    fields = [field for layout, _ in holders for field in layout.variable if field.name == name]
    masked = len(holders) < len(tables) or bool(masks) or any(_has_mask(field, decode) for field in fields)
    first = known[0] if known else None
    packed = all(isinstance(layout.composition, PackedSamples) for layout, _ in holders)
    if name == CU_SEQLENS and first is not None and packed:
        widest = max(shape.shape for shape in known if shape is not None)  # which ends fill up
        known = [first := first._replace(shape=widest)]
    if first is None or any(shape is None or shape[:2] != first[:2] for shape in known):
        return MixedColumn(name, None, masked, stacked=len({decode.image_shape(field) for field in fields}) == 1)
    return MixedColumn(name, first._replace(mask_shape=(*masks, ())[0] if masked else None), masked)


def _has_mask(field: Field, decode: DecodeOptions) -> bool:
    """Whether a column of a table comes with a mask; text and lists have None for missing values."""
    tensor = isinstance(value_kind(field.kind), Tensor)
    return field.nullable and (tensor or decode.image_shape(field) is not None)


def _joined(column: MixedColumn, parts: Sequence[Part], memory: "MixedMemory") -> Any:
    values: list[tuple[Int64Array, Any]] = [
        (part.indices, part.columns[column.name] if column.name in part.columns else column.absent(len(part.indices)))
        for part in parts
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
    for _, indices, columns in parts:
        if column.name not in columns:
            mask[indices] = False
        elif column.mask_name in columns:
            mask[indices] = columns[column.mask_name]
        elif isinstance(columns[column.name], list):
            mask[indices] = [value is not None for value in columns[column.name]]
    return mask


class MixedMemory:
    """Columns of a mixture that its tables write to."""

    def __init__(self, rows: int, empty: Allocators) -> None:
        self.rows, self._empty = rows, empty
        self._arrays: dict[str, Any] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """The memory of a column; the first caller decides the type and the shape of its rows."""
        if name not in self._arrays:
            self._arrays[name] = self._empty(name)((self.rows, *shape), np.dtype(dtype))
        return self._arrays[name]

    def allocators(self, indices: Int64Array) -> Allocators:
        """Memory for the rows of one table: their places in the columns of all tables."""
        return lambda name: partial(self._rows_at, name, indices)

    def _rows_at(self, name: str, indices: Int64Array, shape: tuple[int, ...], dtype: Any) -> Any:
        whole = self.array(name, shape[1:], dtype)
        if whole.shape[1:] != tuple(shape[1:]) or whole.dtype != dtype:
            return np.empty(shape, dtype)  # images of other tables have another size
        return RowsAt(whole, indices)
