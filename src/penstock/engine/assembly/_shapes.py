"""The columns of samples that have a fixed shape."""

from typing import Any, NamedTuple

import numpy as np

from penstock.engine._options import DecodeOptions
from penstock.engine.planning import Layout, PackedSamples


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
    found: dict[str, ColumnShape] = {}
    for column in layout.fixed:
        times = layout.times(column.name)
        found[column.name] = ColumnShape(column.dtype, (*times, *column.shape), times if column.nullable else None)
    for field in layout.variable:
        times, shape = layout.times(field.name), decode.image_shape(field)
        if shape is not None and (len(shape) == 3 or decode.resizes(field)):  # others may have 16 bits
            found[field.name] = ColumnShape(np.dtype(np.uint8), (*times, *shape), times if field.nullable else None)
    for name in layout.padded:
        found[f"{name}_pad"] = ColumnShape(np.dtype(bool), layout.times(name), None)
    return found
