"""Token buckets: how many requests a key or an address may make."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

_BURST_S = 2.0
"""A bucket holds the tokens of this time, so that clients may start together."""


class RateLimit:
    """One bucket per name, `rate` tokens per second; the `capacity` buckets that were used last are in memory.

    A forgotten bucket is full again, so memory is bounded at the cost of a limit that an attacker with more names than
    `capacity` can evade.
    """

    def __init__(self, rate: float, *, capacity: int = 10_000, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = max(1.0, rate * _BURST_S)
        self._capacity = capacity
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # name: tokens, when

    def take(self, name: str) -> float:
        """Take a token; returns 0, or the seconds until there is one."""
        with self._lock:
            tokens = self._tokens(name)
            if tokens >= 1:
                self._store(name, tokens - 1)
            return self._wait_s(tokens)

    def wait_s(self, name: str) -> float:
        """The seconds until there is a token; takes none."""
        with self._lock:
            return self._wait_s(self._tokens(name))

    def _tokens(self, name: str) -> float:
        if name not in self._buckets:
            return self._burst
        tokens, since = self._buckets[name]
        return min(self._burst, tokens + (self._clock() - since) * self._rate)

    def _store(self, name: str, tokens: float) -> None:
        self._buckets[name] = (tokens, self._clock())
        self._buckets.move_to_end(name)
        while len(self._buckets) > self._capacity:
            self._buckets.popitem(last=False)

    def _wait_s(self, tokens: float) -> float:
        return 0.0 if tokens >= 1 else (1 - tokens) / self._rate
