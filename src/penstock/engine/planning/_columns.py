"""The columns of a selection: of a fixed shape, or of a variable one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.format import Field, Schema
from penstock.format.kinds import Label, Tensor
from penstock.table import ROW_ID
from penstock.types import cached_property


@dataclass(frozen=True)
class FixedColumn:
    """A column whose rows all have the same shape."""

    name: str
    field: Field | None
    """None for `_row_id`, which is not stored in files."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nullable: bool

    @cached_property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize + self.nullable


def fixed_column(name: str, field: Field | None) -> FixedColumn | None:
    """The column if its rows have a fixed shape, else None."""
    if field is None:
        return FixedColumn(ROW_ID, None, np.dtype(np.int64), (), False)
    kind = Tensor("int64") if isinstance(field.kind, Label) else field.kind
    if not isinstance(kind, Tensor) or kind.ragged:
        return None
    shape = tuple(length for length in kind.shape if length is not None)
    return FixedColumn(name, field, kind.element.logical, shape, field.nullable)


class Layout:
    """Which columns are in the slab (`fixed`), and which have a variable shape or are encoded (`variable`)."""

    def __init__(self, schema: Schema, names: Sequence[str]) -> None:
        self.names = tuple(names)
        fields = {name: None if name == ROW_ID else schema[name] for name in names}
        self.fields = [field for field in fields.values() if field is not None]
        self.fixed = [column for name, field in fields.items() if (column := fixed_column(name, field)) is not None]
        known = {column.name for column in self.fixed}
        self.variable = [field for field in self.fields if field.name not in known]
