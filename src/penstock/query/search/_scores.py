"""What every score of rows can do, whether a vector, a text or an index answers it."""

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from penstock.table import Int64Array

Float32Array = npt.NDArray[np.float32]


class Ranked(NamedTuple):
    """Positions of rows and their scores, the best first; equal scores in the order of their positions."""

    positions: Int64Array
    scores: Float32Array


class Scores(Protocol):
    """A score of every row of a version."""

    @property
    def higher_is_better(self) -> bool:
        """Whether the best row has the highest score; distances are better if they are lower."""

    def at(self, positions: Int64Array) -> Float32Array:
        """The exact scores of rows at ascending positions; NaN for a row without a value."""

    def top(self, count: int, *, allowed: Int64Array | None, exact: bool) -> Ranked:
        """The best rows among the `allowed` ones (ascending positions; None for all), without rows whose score is NaN.

        Uses an index if the version has one; with `exact`, an approximate index is not used, and scores are exact.
        """
