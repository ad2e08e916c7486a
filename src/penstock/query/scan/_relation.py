"""Rows of a version that a question is about, and columns that exist only while it is answered."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.format import Field, value_kind
from penstock.format.kinds import Audio, Bytes, Image, Kind, Linked, List, Struct, Tensor
from penstock.plan import take_positions
from penstock.table import Int64Array, Reader, sorted_distinct
from penstock.types import cached_property

HIDDEN = "\x1f"
"""The first character of names that no column has and no SQL can contain."""
ROW = f"{HIDDEN}row"
"""The virtual column of indices into the rows of a relation."""

_LIGHT_TENSOR_BYTES = 256


@dataclass(frozen=True, eq=False)
class Relation:
    """Some rows and columns of a version: what a view shows of it."""

    reader: Reader
    columns: tuple[str, ...]
    """Column names, in order; `_row_id` may be one of them."""
    rows: range | Int64Array
    """Positions of the rows, in any order and perhaps with repeats."""

    @property
    def is_whole(self) -> bool:
        """Whether these are all rows of the version, in table order."""
        return isinstance(self.rows, range) and self.rows == range(self.reader.snapshot.live)

    @cached_property
    def ascending(self) -> bool:
        """Whether positions ascend without repeats."""
        if isinstance(self.rows, range):
            return self.rows.step > 0 or len(self.rows) < 2
        return len(self.rows) < 2 or bool((np.diff(self.rows) > 0).all())

    @cached_property
    def positions(self) -> Int64Array:
        """The positions as an array."""
        if isinstance(self.rows, range):
            return np.arange(self.rows.start, self.rows.stop, self.rows.step, dtype=np.int64)
        return np.asarray(self.rows, np.int64)

    @cached_property
    def distinct(self) -> Int64Array:
        """The positions ascending and without repeats."""
        return self.positions if self.ascending else sorted_distinct(self.positions)

    def at(self, indices: Int64Array) -> Int64Array:
        """Positions of rows by their index."""
        return take_positions(self.rows, indices)

    def indices_of(self, positions: Int64Array) -> Int64Array:
        """The index of each position in the rows, which must ascend."""
        if isinstance(self.rows, range):
            if self.rows.step == 1:
                return positions - self.rows.start if self.rows.start else positions
            return (positions - self.rows.start) // self.rows.step
        return np.searchsorted(self.rows, positions)

    def field(self, name: str) -> Field:
        """A column's field; raises `NotFoundError`."""
        return self.reader.snapshot.schema[name]


@dataclass(frozen=True, eq=False)
class Derived:
    """A column that is computed from the positions of rows, such as a score."""

    type: pa.DataType
    inputs: tuple[str, ...]
    """The columns it is computed from."""
    compute: Callable[[Int64Array], pa.Array]
    """Values at ascending positions."""


def is_heavy(kind: Kind) -> bool:
    """Whether a question passes a column by reference until its values are needed."""
    kind = value_kind(kind) if isinstance(kind, Linked) else kind
    if isinstance(kind, List):
        return is_heavy(kind.of)
    if isinstance(kind, Struct):
        return any(is_heavy(inner) for _, inner in kind.fields)
    if isinstance(kind, Tensor):
        size = kind.fixed_row_bytes
        return len(kind.shape) > 0 and (size is None or size > _LIGHT_TENSOR_BYTES)
    return isinstance(kind, Image | Audio | Bytes)
