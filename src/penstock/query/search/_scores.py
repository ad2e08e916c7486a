"""What every score of rows can do, whether a vector, a text or an index answers it."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from penstock.format import Field
from penstock.table import Int64Array, Reader, page_requests

Float32Array = npt.NDArray[np.float32]


class Ranked(NamedTuple):
    """Positions of rows and their scores, the best first; equal scores in the order of their positions."""

    positions: Int64Array
    scores: Float32Array


@dataclass(frozen=True)
class SearchPlan:
    """What a search for the best rows reads."""

    index: str | None
    """The name of the index that answers; None if the column is read."""
    bytes: int
    """Bytes of pages, of the index and of rows that it lacks."""

    def __str__(self) -> str:
        return f"{self.bytes:,} bytes " + ("of the column" if self.index is None else f"by index {self.index}")


class Scores(Protocol):
    """A score of every row of a version."""

    @property
    def higher_is_better(self) -> bool:
        """Whether the best row has the highest score; distances are better if they are lower."""

    @property
    def deep_is_cheap(self) -> bool:
        """Whether a long ranking costs little more than a short one."""

    def at(self, positions: Int64Array) -> Float32Array:
        """The exact scores of rows at ascending positions; NaN for a row without a value."""

    def top(self, count: int, *, allowed: Int64Array | None, exact: bool) -> Ranked:
        """The best rows among the `allowed` ones (ascending positions; None for all), without rows whose score is NaN.

        Uses an index if the version has one; with `exact`, an approximate index is not used, and scores are exact.
        """

    def plan(self, count: int) -> SearchPlan:
        """What `top` reads to find some rows among all."""


def column_bytes(reader: Reader, field: Field, positions: Int64Array) -> int:
    """Bytes of the pages that hold rows of a column."""
    return sum(request.bytes for request in page_requests(reader.locate(positions), [field.id]))
