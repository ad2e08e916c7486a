"""A transform that is heavy in Python."""

import time
from typing import Any


def spin(sample: Any, *, loops: int) -> Any:
    """So many turns of a loop, and not so many milliseconds: waiting for a core must not count as work."""
    total = 0
    for turn in range(loops):
        total += turn
    return sample


def loops_per_ms() -> int:
    """Turns of that loop that take a millisecond now."""
    loops = 1_000_000
    start = time.perf_counter()
    spin(None, loops=loops)
    return int(loops / (time.perf_counter() - start) / 1000)
