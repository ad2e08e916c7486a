"""Steps of a rank that are built together, and the rows in them."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]

Places = slice | Int64Array
"""Which rows of a span, in order; a slice for all of them."""


@dataclass(frozen=True, slots=True)
class SpanSteps:
    """Consecutive steps of one epoch whose batches are built together."""

    number: int
    """Counts the spans of a run, over all its epochs."""
    epoch: int
    start: int
    """The position at which the first step starts, over all ranks."""
    batch_rows: tuple[int, ...]
    """Rows of each batch."""
    consumed: tuple[int, ...]
    """Positions consumed by all ranks after each batch."""
    complete: bool
    """Whether no batch is short or padded."""
    last: bool
    """Whether the epoch ends with it."""

    @property
    def rows(self) -> int:
        """Rows of all batches."""
        return sum(self.batch_rows)


class SourceRows(NamedTuple):
    """The rows of a span that come from one source."""

    places: Places
    """Which rows of the span these are."""
    numbers: Int64Array
    """For each its number among the rows of the source, over all its epochs."""
    padding: npt.NDArray[np.bool_] | None
    """Mask of the rows that only pad the last step; None if none can be."""
    moved: npt.NDArray[np.bool_] | None
    """Mask of the rows that another rank owns; None if none are."""

    def take(self, indices: Int64Array) -> "SourceRows":
        """Some of the rows."""
        places = indices if isinstance(self.places, slice) else self.places[indices]
        padding, moved = (None if mask is None else mask[indices] for mask in (self.padding, self.moved))
        return SourceRows(places, self.numbers[indices], padding, moved)
