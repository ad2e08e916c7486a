"""Random numbers by counter: any of them can be computed alone, anywhere, always the same (splitmix64)."""

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def derive(*words: int) -> int:
    """A key that depends on every one of these numbers and on their order."""
    key = 0
    for word in words:
        key = _scramble((key ^ (word & _MASK)) + _STEP & _MASK)
    return key


def mix(key: int, counters: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """One random number of 64 bits for each counter."""
    z = counters.astype(np.uint64)
    z *= np.uint64(_STEP)
    z += np.uint64(key)
    for shift, factor in _ROUNDS:
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    z ^= z >> np.uint64(31)
    return z


def permutation(count: int, key: int) -> npt.NDArray[np.int64]:
    """The numbers below `count` in an order that `key` decides."""
    return np.argsort(mix(key, np.arange(count)), kind="stable")


def _scramble(z: int) -> int:
    for shift, factor in _ROUNDS:
        z = (z ^ z >> shift) * factor & _MASK
    return z ^ z >> 31
