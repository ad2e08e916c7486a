"""The columns of batches, and those of a mixture.

A table of a mixture may lack some of its columns, and writes the others to the places of its rows in a batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

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


class MixedColumn(NamedTuple):
    """A column of a mixture."""

    name: str
    fixed: ColumnShape | None
    """The type and shape of its values; None if they have a variable size."""
    mask_shape: tuple[int, ...] | None
    """Of its validity mask, which it has if a table lacks the column, or values can be missing; else None."""
    stacked: bool = True
    """Whether values of one shape are stacked; images of tables with different shapes are not."""


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
        completed = [(part.indices, self.completed(part.table, part.columns, len(part.indices))) for part in parts]
        _, names = completed[0]
        return {
            name: _joined(name, [(indices, columns[name]) for indices, columns in completed], memory) for name in names
        }

    def completed(self, table: int, columns: Columns, rows: int) -> Columns:
        """Rows of one table as rows of the mixture."""
        made: Columns = {}
        for name, fixed, mask_shape, stacked in self.columns:
            values: Any = columns.get(name)
            if values is None:
                values = [None] * rows if fixed is None else np.zeros((rows, *fixed.shape), fixed.dtype)
            if name == CU_SEQLENS and fixed is not None:
                [width] = fixed.shape
                values = np.pad(values[:], ((0, 0), (0, width - values.shape[1])), "edge")
            made[name] = values if stacked else list(values)
            if mask_shape is None:
                continue
            mask = columns.get(f"{name}_mask") if name in columns else None
            if mask is None and isinstance(values, list):
                mask = np.array([value is not None for value in values], bool)
            made[f"{name}_mask"] = np.full((rows, *mask_shape), name in columns) if mask is None else mask
        made[SOURCE] = np.full(rows, table, np.int64)
        return made | ({PAD: columns[PAD]} if PAD in columns else {})


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
        stacked = len({decode.image_shape(field) for field in fields}) == 1
        return MixedColumn(name, None, () if masked else None, stacked)
    mask_shape = (*masks, ())[0] if masked else None
    return MixedColumn(name, first._replace(mask_shape=mask_shape), mask_shape)


def _has_mask(field: Field, decode: DecodeOptions) -> bool:
    """Whether a column of a table comes with a mask; text and lists have None for missing values."""
    tensor = isinstance(value_kind(field.kind), Tensor)
    return field.nullable and (tensor or decode.image_shape(field) is not None)


def _joined(name: str, parts: Sequence[tuple[Int64Array, Any]], memory: "MixedMemory") -> Any:
    """A column, of which each part has the values at some indices."""
    arrays = not any(isinstance(values, list) for _, values in parts)
    if arrays and len({values.shape[1:] for _, values in parts}) == 1:
        shape, dtype = parts[0][1].shape[1:], np.result_type(*(values.dtype for _, values in parts))
        whole = memory.array(name, shape, dtype)
        if whole.shape[1:] != shape or whole.dtype != dtype:  # 8-bit and 16-bit grayscale
            whole = np.empty((memory.rows, *shape), dtype)
        for indices, values in parts:
            if not (isinstance(values, RowsAt) and values.array is whole):
                whole[indices] = values[:]
        return whole
    listed: list[Any] = [None] * memory.rows
    for indices, values in parts:
        for place, value in zip(indices.tolist(), values, strict=True):
            listed[place] = value
    return listed


class MixedMemory:
    """Columns of a mixture that its tables write to."""

    def __init__(self, rows: int, empty: Allocators = lambda _: np.empty) -> None:
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
