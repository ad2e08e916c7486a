"""The columns of a mixture, which its tables may lack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.engine._options import DecodeOptions
from penstock.engine.assembly._decode import Columns
from penstock.engine.planning import Layout
from penstock.format import Field, value_kind
from penstock.format.kinds import Tensor

SOURCE = "_source"
"""Name of the column that has the index of a row's source in a mixture."""


@dataclass(frozen=True)
class MixedColumn:
    """A column of a mixture."""

    name: str
    dtype: np.dtype[Any] | None
    """None if its values have a variable size."""
    shape: tuple[int, ...]
    """Of a row."""
    masked: bool
    """Whether a table lacks it, or values can be missing."""
    stacked: bool = True
    """Whether values of one shape are stacked; images of tables with different shapes are not."""

    @property
    def mask_name(self) -> str:
        return f"{self.name}_mask"

    def nothing(self, rows: int) -> Any:
        """Values of rows of a table that lacks it."""
        return [None] * rows if self.dtype is None else np.zeros((rows, *self.shape), self.dtype)


def mixed_columns(layouts: Sequence[Layout], names: Sequence[str], decode: DecodeOptions) -> list[MixedColumn]:
    """The columns of a mixture of tables with these layouts, those of a fixed shape first, as in batches of a table."""
    fixed: list[MixedColumn] = []
    variable: list[MixedColumn] = []
    for name in names:
        holders = [layout for layout in layouts if name in layout.names]
        columns = [column for layout in holders for column in layout.fixed if column.name == name]
        fields = [field for layout in holders for field in layout.variable if field.name == name]
        lacking = len(holders) < len(layouts)
        if columns:
            nullable = lacking or any(column.nullable for column in columns)
            fixed.append(MixedColumn(name, columns[0].dtype, columns[0].shape, nullable))
            continue
        shapes = {decode.image_shape(field) for field in fields}
        [shape] = shapes if len(shapes) == 1 else [None]
        known = shape is not None and (len(shape) == 3 or all(map(decode.resizes, fields)))
        nullable = lacking or any(_has_mask(field, decode) for field in fields)
        dtype = np.dtype(np.uint8) if known else None
        row_shape = shape if known and shape is not None else ()
        variable.append(MixedColumn(name, dtype, row_shape, nullable, stacked=len(shapes) == 1))
    return fixed + variable


def _has_mask(field: Field, decode: DecodeOptions) -> bool:
    """Whether a column of a table comes with a mask; text and lists have None for missing values."""
    tensor = isinstance(value_kind(field.kind), Tensor)
    return field.nullable and (tensor or decode.image_shape(field) is not None)


@dataclass(frozen=True)
class MixedRows:
    """Completes rows of one table to rows of the mixture."""

    number: int
    """Index of the table."""
    name: str
    columns: Sequence[MixedColumn]

    def complete(self, found: Mapping[str, Any]) -> Columns:
        """The columns of one row of the table, as those of the mixture."""
        row = dict(found)
        for column in self.columns:
            if column.name not in row:
                row[column.name] = column.nothing(1)
                row[column.mask_name] = np.zeros(1, bool)
            elif column.masked:
                row.setdefault(column.mask_name, np.ones(1, bool))
        row[SOURCE] = np.array([self.number])
        return row
