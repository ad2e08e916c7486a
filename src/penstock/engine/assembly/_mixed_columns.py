"""The columns of a mixture, which its tables may lack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.engine._options import DecodeOptions
from penstock.engine.assembly._decode import Columns
from penstock.engine.assembly._shapes import ColumnShape, sample_shapes
from penstock.engine.planning import CU_SEQLENS, Layout, PackedSamples
from penstock.format import Field, value_kind
from penstock.format.kinds import Tensor

SOURCE = "_source"
"""Name of the column that has the index of a row's source in a mixture."""


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

    def nothing(self, rows: int) -> Any:
        """Values of rows of a table that lacks it."""
        return [None] * rows if self.fixed is None else np.zeros((rows, *self.fixed.shape), self.fixed.dtype)


def mixed_columns(layouts: Sequence[Layout], names: Sequence[str], decode: DecodeOptions) -> list[MixedColumn]:
    """The columns of a mixture of tables with these layouts, those of a fixed shape first, as in batches of a table."""
    shapes = [sample_shapes(layout, decode.only(layout.names)) for layout in layouts]
    padded = dict.fromkeys(f"{name}_pad" for layout in layouts for name in layout.padded)
    fixed: list[MixedColumn] = []
    variable: list[MixedColumn] = []
    for name in (*names, *padded):
        holders = [number for number, layout in enumerate(layouts) if name in layout.delivered]
        known = [shapes[number].get(name) for number in holders]
        masks = [shape.mask_shape for shape in known if shape is not None and shape.mask_shape is not None]
        fields = [field for number in holders for field in layouts[number].variable if field.name == name]
        masked = len(holders) < len(layouts) or bool(masks) or any(_has_mask(field, decode) for field in fields)
        first = known[0] if known else None
        packs = [isinstance(layouts[number].composition, PackedSamples) for number in holders]
        if name == CU_SEQLENS and first is not None and all(packs):
            widest = max(shape.shape for shape in known if shape is not None)  # which ends fill up
            known = [first := first._replace(shape=widest)]
        if first is None or any(shape is None or shape[:2] != first[:2] for shape in known):
            image_shapes = {decode.image_shape(field) for field in fields}
            variable.append(MixedColumn(name, None, masked, stacked=len(image_shapes) == 1))
            continue
        column = MixedColumn(name, first._replace(mask_shape=(*masks, ())[0] if masked else None), masked)
        (variable if fields else fixed).append(column)
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
                row[column.mask_name] = np.zeros((1, *column.mask_shape), bool)
            elif column.masked:
                row.setdefault(column.mask_name, np.ones((1, *column.mask_shape), bool))
        row[SOURCE] = np.array([self.number])
        return row
