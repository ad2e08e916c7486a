"""Counter-based random numbers (splitmix64): each is a pure function of a key and a counter.

The values are a contract: they determine every shuffle order and every checkpoint.
"""

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_INCREMENT = 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def derive_key(*words: int) -> int:
    """A 64-bit key that depends on every word and on their order."""
    key = 0
    for word in words:
        key = _mix((key ^ (word & _MASK)) + _INCREMENT & _MASK)
    return key


def random_u64(key: int, counters: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """One random uint64 for each counter."""
    z = counters.astype(np.uint64)
    z *= np.uint64(_INCREMENT)
    z += np.uint64(key)
    for shift, factor in _ROUNDS:
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    z ^= z >> np.uint64(31)
    return z


def permutation(count: int, key: int) -> npt.NDArray[np.int64]:
    """A random permutation of `range(count)`, determined by `key`."""
    return np.argsort(random_u64(key, np.arange(count)), kind="stable")


def _mix(z: int) -> int:
    """The finalizer of splitmix64."""
    for shift, factor in _ROUNDS:
        z = (z ^ z >> shift) * factor & _MASK
    return z ^ z >> 31
