"""Threads of which no more work than keep up with reads, because each further one contends for the GIL."""

import math
from threading import Condition, Lock

_FEW_THREADS = 2
"""So many work while reads are fast, as those of cached files are; of slow reads more are in flight at a time."""
_FAST_READ_S, _FAST_BYTES_PER_S = 1e-3, 500e6
"""A fast read takes no longer than this time and that of its bytes at this rate."""
_READS_MEASURED = 8
"""About so many reads say how slow they are."""


class ThreadTurns:
    """Which of some threads work, and which wait; it is used with the lock."""

    def __init__(self, lock: Lock, threads: int, *, all_work: bool) -> None:
        """Without `all_work` only so many work as keep up with reads."""
        self._changed, self._threads, self._all_work = Condition(lock), threads, all_work
        self.waiting = 0
        self._slowness = 0.0
        """The time of reads relative to fast ones."""

    @property
    def may_work(self) -> bool:
        """Whether a thread that does not wait may take a task."""
        return self._missing >= 0

    @property
    def _missing(self) -> int:
        """How many more should work."""
        wanted = self._threads if self._all_work else math.ceil(_FEW_THREADS * max(1.0, self._slowness))
        return min(wanted, self._threads) - (self._threads - self.waiting)

    def wait(self) -> None:
        """Let a thread wait until it is woken."""
        self.waiting += 1
        self._changed.wait()
        self.waiting -= 1

    def wake(self) -> None:
        """Wake a thread, unless enough work."""
        if self.waiting and self._missing > 0:
            self._changed.notify()

    def wake_all(self) -> None:
        """Wake all threads that wait."""
        self._changed.notify_all()

    def record_read(self, size: int, seconds: float) -> None:
        """Count a read."""
        self._slowness += (seconds / (_FAST_READ_S + size / _FAST_BYTES_PER_S) - self._slowness) / _READS_MEASURED
