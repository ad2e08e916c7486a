"""Splits of a table: the split of a key is a pure function of the key, its stratum, the shares and the seed.

The values are a contract: they keep every row in its split for ever. A decision that never changes cannot count the
other rows, so shares are exact in expectation only. Strata are balanced as far as that allows: of consecutive keys of
one stratum, each split gets its share within a few rows.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidInputError
from penstock.plan._random import derive_key, random_u64

_STREAM = 0x53504C4954  # "SPLIT", so that no other use of a seed draws the same numbers
_TOLERANCE = 1e-9
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BLOCK_BITS = 4
"""Consecutive keys of a stratum are balanced in blocks of 16."""
_CHUNK_ROWS = 1 << 16


@dataclass(frozen=True)
class Splits:
    """Disjoint splits by name, each with its share of the rows.

    Equal shares and seeds give equal splits, whatever the order of the names. Larger shares come first in the range of
    the hash, so that a smaller one can be divided later and the larger ones stay. Raises `InvalidInputError`.
    """

    shares: Mapping[str, float]
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.shares, Mapping) or not self.shares:
            raise InvalidInputError(f'splits are names with shares, such as {{"train": 0.9}}, not {self.shares!r}')
        for name, share in self.shares.items():
            if not isinstance(name, str):
                raise InvalidInputError(f"the name of a split is text, not {name!r}")
            if not isinstance(share, Real) or isinstance(share, bool) or not 0 < share <= 1:
                raise InvalidInputError(f"the share of split {name!r} must be above 0 and at most 1, not {share!r}")
        total = math.fsum(self.shares.values())
        if total > 1 + _TOLERANCE:
            raise InvalidInputError(f"the shares of {', '.join(self.shares)} sum to {total:.6g}; at most 1 is possible")
        if not isinstance(self.seed, Integral) or isinstance(self.seed, bool):
            raise InvalidInputError(f"the seed of a split must be a whole number, not {self.seed!r}")

    def assign(self, keys: npt.NDArray[np.int64], strata: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.int64]:
        """For each key the index of its split in `shares`; -1 where shares that sum to less than 1 leave it out."""
        seed = derive_key(_STREAM, int(self.seed))
        names = list(self.shares)
        ranked = sorted(range(len(names)), key=lambda index: (-self.shares[names[index]], names[index]))
        totals = [
            math.fsum(self.shares[names[index]] for index in ranked[:count]) for count in range(1, len(names) + 1)
        ]
        if totals[-1] >= 1 - _TOLERANCE:
            totals.pop()  # the last split ends where the range ends
        ends = np.array([min(int(total * 2.0**64), 2**64 - 1) for total in totals], np.uint64)
        splits, assigned = np.array([*ranked, -1]), np.empty(len(keys), np.int64)
        for start in range(0, len(keys), _CHUNK_ROWS):
            chunk = slice(start, start + _CHUNK_ROWS)
            if strata is None:
                places = random_u64(seed, keys[chunk])
            else:
                places = _balanced_u64(seed, keys[chunk], strata[chunk])
            assigned[chunk] = splits[np.searchsorted(ends, places, side="right")]
        return assigned


def _balanced_u64(seed: int, keys: npt.NDArray[np.int64], strata: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Random numbers that cover the range evenly over consecutive keys of a stratum.

    The high bits are the key's rank in a random permutation of its block, the low bits a sequence of low discrepancy
    over the blocks.
    """
    blocks = (keys >> _BLOCK_BITS).astype(np.uint64)
    offsets = random_u64(derive_key(seed, 1), strata)
    counters = random_u64(derive_key(seed, 2), (offsets + blocks).view(np.int64)).view(np.int64)
    slots = np.arange(1 << _BLOCK_BITS)
    drawn = random_u64(derive_key(seed, 3), counters[:, None] + slots)
    own = drawn[np.arange(len(keys)), keys & slots[-1]]
    places: npt.NDArray[np.uint64] = (drawn < own[:, None]).sum(axis=1).astype(np.uint64)
    places <<= np.uint64(64 - _BLOCK_BITS)
    places |= (offsets + blocks * _GOLDEN) >> np.uint64(_BLOCK_BITS)
    return places
