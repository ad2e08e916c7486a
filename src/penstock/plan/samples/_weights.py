"""Draw rows with replacement, each with a probability proportional to its weight."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidInputError
from penstock.plan._random import derive_key, random_u64

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

_DRAW = (1 << 64) - 1
"""Separates the draw from other random numbers of an epoch; no row id has this value."""


@dataclass(frozen=True, eq=False)
class WeightedDraw:
    """The rows of each epoch: independent draws, a function of the seed and the epoch alone."""

    ends: Float64Array
    """Cumulative weights; their scale is irrelevant."""
    draws: int
    """Draws of an epoch."""

    @classmethod
    def of(cls, weights: Float64Array, draws: int, *, source: str) -> "WeightedDraw":
        """Draws by one weight per row; raises `InvalidInputError` that names `source` and the first bad row."""
        invalid = ~(np.isfinite(weights) & (weights >= 0))
        if invalid.any():
            row = int(np.argmax(invalid))
            raise InvalidInputError(
                f"{source} has the weight {float(weights[row])} in row {row}; weights are finite numbers from 0 on"
            )
        largest = float(weights.max(initial=0.0))
        if not largest:
            raise InvalidInputError(f"{source} sums to 0, so no row can be drawn")
        return cls(np.cumsum(weights / largest), draws)  # scaled, so that the sum of huge weights is finite

    def rows(self, seed: int, epoch: int) -> Int64Array:
        """The drawn rows of an epoch in increasing order, with repeats."""
        random = random_u64(derive_key(seed, epoch, _DRAW), np.arange(self.draws)) >> np.uint64(11)
        points = random.astype(np.float64) * (2.0**-53 * self.ends[-1])
        points.sort()
        np.minimum(points, np.nextafter(self.ends[-1], 0.0), out=points)  # the product may be rounded up to the end
        return np.asarray(np.searchsorted(self.ends, points, side="right"), np.int64)
