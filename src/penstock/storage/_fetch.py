"""Requests with a pool of threads: submitted in order, completed in any order, hedged when late.

The contract; if the code disagrees with this list, the code is wrong:

- A request completes once: with what was read, or with an error.
- The number of requests in flight is limited. The limit starts low; if the first response is slow, latency is high and
  the limit is raised at once, because the first batch needs many blocks. It grows while latency is close to the recent
  minimum, and shrinks when latency is far above it, because then the store is saturated.
- A late request is hedged once, at most one in twenty, by a second one; the first response counts. A failure counts
  only if it is the first try's: so the store's deadline for one read bounds a request with its hedge. If requests are
  larger than those before, they are late only after a longer time.
- If a read exceeds its deadline, and nothing was read for the second half of its time, the store is dead: every pending
  request, and every later one, fails with that error at once.
- While it is paused, no request starts.
- `stop` returns at once: requests in flight are not retried, end by themselves, and their responses are dropped.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition, Event, Lock, Thread
from typing import Generic, Protocol, TypeVar

from penstock.errors import StorageTimeoutError
from penstock.storage._retry import cancel_retries_on

T = TypeVar("T")

_MIN_LIMIT, _HIGH_LATENCY_LIMIT = 4, 32
_GROW_BELOW, _SHRINK_ABOVE = 1.6, 3.0
_HEDGE_SHARE = 0.05
_HEDGE_FACTOR = 3.0
_HEDGE_MIN_S = 0.1
_HEDGE_CHECK_S = 0.02
_LATENCIES = 512


class FetchObserver(Protocol):
    """Statistics of requests."""

    hedges: int
    unanswered_since: float | None
    """When the store last answered, if requests are pending."""

    def record_get(self, size: int, seconds: float) -> None:
        """Count a GET; called by any thread."""


@dataclass(slots=True, eq=False)
class FetchRequest(Generic[T]):
    """A pending read."""

    read: Callable[[], tuple[T, int]]
    """Returns what was read and the number of bytes fetched, 0 if they were cached."""
    on_done: Callable[[T | BaseException], None]
    size: int = 0
    """Expected bytes."""
    started_s: float = 0.0
    hedged: bool = False
    done: bool = False


class Fetcher(Generic[T]):
    """A pool of threads that send requests."""

    def __init__(self, observer: FetchObserver, *, max_threads: int) -> None:
        self._observer, self._max_threads = observer, max_threads
        self.limit = min(_MIN_LIMIT, max_threads)
        self._queue: deque[FetchRequest[T]] = deque()
        self._hedges: deque[FetchRequest[T]] = deque()
        self._in_flight: set[FetchRequest[T]] = set()
        self._idle = self._threads = self._hedge_threads = 0
        self._submitted = self._hedged = 0
        self._latencies: deque[float] = deque(maxlen=_LATENCIES)
        self._sizes: deque[int] = deque(maxlen=_LATENCIES)
        self._recent: list[float] = []
        """Latencies since the limit was last adjusted."""
        self._hedge_after_s, self._mean_size = float("inf"), 1.0
        self._last_read_s = -float("inf")
        """When a read last succeeded."""
        self._dead: StorageTimeoutError | None = None
        """The error of a store that does not answer."""
        self._lock = Lock()
        self._work = Condition(self._lock)
        self._stopped = self._paused = False
        self._cancelled = Event()
        Thread(target=self._hedge_late_requests, name="penstock-hedge", daemon=True).start()
        for _ in range(min(_HIGH_LATENCY_LIMIT, max_threads)):  # now: starting a thread is slow under a busy GIL
            self._start()

    @property
    def backlog(self) -> int:
        """Requests that have not started."""
        return len(self._queue)

    def submit(self, request: FetchRequest[T]) -> None:
        """Read; a thread of the pool calls `on_done`, or this one if the store is dead."""
        with self._lock:
            dead = self._dead
            if dead is None:
                self._queue.append(request)
                self._submitted += 1
                self._wake_thread()
        if dead is not None:
            request.on_done(dead)

    def pause(self, paused: bool) -> None:
        """Start no more requests, or start them again."""
        with self._lock:
            self._paused = paused
            for _ in range(0 if paused else min(self.limit, len(self._queue))):
                self._wake_thread()

    def stop(self) -> None:
        """Start no more requests, and drop the responses to those in flight."""
        with self._lock:
            self._stopped = True
            self._cancelled.set()
            self._queue.clear()
            self._hedges.clear()
            self._work.notify_all()

    def _wake_thread(self) -> None:
        """Wake or start a thread if a request may start; called with the lock."""
        if len(self._in_flight) >= self.limit and not self._hedges:
            return
        if self._idle:
            self._work.notify()
        elif self._threads < self.limit + self._hedge_threads and not self._stopped:
            self._start()

    def _start(self) -> None:
        self._threads += 1
        Thread(target=self._run, name="penstock-fetch", daemon=True).start()

    def _next(self) -> tuple[FetchRequest[T], bool] | None:
        """The next request to read, and whether this is its hedge."""
        with self._lock:
            while not self._stopped:
                if self._hedges:
                    return self._hedges.popleft(), True
                if self._queue and not self._paused and len(self._in_flight) < self.limit:
                    request = self._queue.popleft()
                    request.started_s = time.perf_counter()
                    self._in_flight.add(request)
                    return request, False
                self._idle += 1
                self._work.wait()
                self._idle -= 1
            self._threads -= 1
            return None

    def _run(self) -> None:
        cancel_retries_on(self._cancelled)
        while (task := self._next()) is not None:
            request, is_hedge = task
            started = time.perf_counter()
            outcome: T | BaseException
            size = 0
            try:
                outcome, size = request.read()
            except BaseException as error:
                outcome = error
            seconds = time.perf_counter() - started
            if size or isinstance(outcome, BaseException):
                self._observer.record_get(size, seconds)
            with self._lock:
                completed = self._complete(request, outcome, size, seconds, is_hedge=is_hedge)
                if self._queue:
                    self._wake_thread()
                if self._stopped:
                    completed = []
            for each in completed:
                each.on_done(outcome)
            del task, request, outcome, completed

    def _complete(
        self, request: FetchRequest[T], outcome: T | BaseException, size: int, seconds: float, *, is_hedge: bool
    ) -> list[FetchRequest[T]]:
        """Take the outcome of a read; returns the requests that it completes."""
        now = time.perf_counter()
        if size:
            self._last_read_s = now
        if request.done or (is_hedge and isinstance(outcome, BaseException)):
            return []
        completed = [request]
        if size:
            self._record_latency(seconds, size)
        elif isinstance(outcome, StorageTimeoutError) and now - self._last_read_s > seconds / 2:
            self._dead = outcome
            completed += [other for other in (*self._in_flight, *self._queue) if other is not request]
            self._queue.clear()
            self._hedges.clear()
        for each in completed:
            each.done = True
            self._in_flight.discard(each)
        return completed

    def _record_latency(self, seconds: float, size: int) -> None:
        self._latencies.append(seconds)
        self._sizes.append(size)
        self._recent.append(seconds)
        if len(self._recent) >= self.limit:
            typical, quickest = sum(self._recent) / len(self._recent), min(self._latencies)
            if typical < _GROW_BELOW * quickest and self._queue:
                self.limit = min(self._max_threads, self.limit + self.limit // 2)
            elif typical > _SHRINK_ABOVE * quickest:
                self.limit = max(min(_MIN_LIMIT, self._max_threads), self.limit - max(1, self.limit // 4))
            self._recent.clear()
        if len(self._latencies) >= 32 and (not self._recent or self._hedge_after_s == float("inf")):
            ordered = sorted(self._latencies)
            typical, slow = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.95)]
            self._hedge_after_s = max(_HEDGE_MIN_S, min(_HEDGE_FACTOR * typical, 1.5 * slow))
            self._mean_size = sum(self._sizes) / len(self._sizes)

    def _hedge_late_requests(self) -> None:
        """Hedge late requests, and note since when the store has not answered."""
        while not self._stopped:
            time.sleep(_HEDGE_CHECK_S)
            now = time.perf_counter()
            with self._lock:
                started = min((request.started_s for request in self._in_flight), default=None)
                self._observer.unanswered_since = None if started is None else max(started, self._last_read_s)
                if not self._latencies and any(now - request.started_s > _HEDGE_CHECK_S for request in self._in_flight):
                    self.limit = max(self.limit, min(_HIGH_LATENCY_LIMIT, self._max_threads))
                    for _ in range(min(self.limit - len(self._in_flight), len(self._queue))):
                        self._wake_thread()
                mean = sum(request.size for request in self._in_flight) / max(1, len(self._in_flight))
                late = [
                    request for request in self._in_flight
                    if not request.hedged and now - request.started_s
                    > self._hedge_after_s * max(1.0, mean / self._mean_size, request.size / self._mean_size)
                ]  # fmt: skip
                for request in sorted(late, key=lambda request: request.started_s):
                    if self._hedged >= max(1, _HEDGE_SHARE * self._submitted):
                        break
                    request.hedged = True
                    self._hedged += 1
                    self._hedge_threads = min(self._hedge_threads + 1, self._max_threads)
                    self._hedges.append(request)
                    self._observer.hedges += 1
                    self._wake_thread()
        self._observer.unanswered_since = None
