"""Fetch pages in threads: in the order asked, answered in any order, and asked twice where an answer is late.

The contract; if the code disagrees with this list, the code is wrong:

- A request is answered once: with pages that have been verified, or with an error.
- No more requests are under way than the limit. It starts low; if the first answer is long in coming, the store is far,
  and it is raised at once, for the first batch needs many blocks. It grows while requests take little longer than the
  quickest of late, for then the store is far and not busy; and it shrinks when they take much longer, for then more
  only get in each other's way.
- What is late is asked for once more, one request of twenty at most: on top of the others, for whichever answer comes
  first; or, if pages are read to their places, where two answers would be in each other's way, instead of the first.
- `stop` returns at once: requests under way are not repeated, end by themselves, and their answers are dropped.
"""

import time
from collections import deque
from collections.abc import Callable
from threading import Condition, Event, Lock, Thread

from penstock.engine._stats import Gauge
from penstock.errors import StorageTimeout
from penstock.storage import give_up_when

_LEAST_LIMIT, _FAR_LIMIT = 4, 32
_NOT_BUSY, _BUSY = 1.6, 3.0
_HEDGE_SHARE = 0.05
_HEDGE_FACTOR = 3.0
_HEDGE_MIN_S = 0.1
_WATCH_S = 0.02
_LATENCIES = 512

Runs = list[tuple[int, memoryview]]


class Request:
    """Pages that somebody waits for."""

    __slots__ = ("answer", "answered", "in_place", "read", "started_s", "tries")

    def __init__(
        self,
        read: Callable[[float | None], tuple[Runs, int]],
        answer: Callable[[Runs | BaseException], None],
        *,
        in_place: bool = False,
    ) -> None:
        """`read` gives the pages, and the bytes that were fetched for them; none if they were there already.

        If it writes to their place, it raises `StorageTimeout` when they are later than it was told to wait.
        """
        self.read, self.answer, self.in_place = read, answer, in_place
        self.started_s = 0.0
        self.tries = 1
        """Threads that are at it, or will be."""
        self.answered = False


class Fetcher:
    """A pool of threads that read pages."""

    def __init__(self, gauge: Gauge, *, max_threads: int) -> None:
        self._gauge, self._max_threads = gauge, max_threads
        self.limit = min(_LEAST_LIMIT, max_threads)
        self._waiting: deque[Request] = deque()
        self._hedges: deque[Request] = deque()
        self._under_way: set[Request] = set()
        self._idle = self._threads = self._hedging = 0
        self._asked = self._hedged = 0
        self._latencies: deque[float] = deque(maxlen=_LATENCIES)
        self._round: list[float] = []
        """How long requests took since the limit was last looked at."""
        self._late_s = float("inf")
        self._lock = Lock()
        self._work = Condition(self._lock)
        self._stopped = False
        self._over = Event()
        Thread(target=self._watch, name="penstock-hedge", daemon=True).start()
        for _ in range(min(_FAR_LIMIT, max_threads)):  # now, for to start one takes long while others compute
            self._start()

    def ask(self, request: Request) -> None:
        """Fetch pages; the answer is given by a thread of the pool."""
        with self._lock:
            self._waiting.append(request)
            self._asked += 1
            self._staff()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._over.set()
            self._waiting.clear()
            self._hedges.clear()
            self._work.notify_all()

    def _staff(self) -> None:
        """Have a thread for what waits, if it may start; called with the lock."""
        if len(self._under_way) >= self.limit and not self._hedges:
            return
        if self._idle:
            self._work.notify()
        elif self._threads < self.limit + self._hedging and not self._stopped:
            self._start()

    def _start(self) -> None:
        self._threads += 1
        Thread(target=self._run, name="penstock-fetch", daemon=True).start()

    def _next(self) -> Request | None:
        with self._lock:
            while not self._stopped:
                if self._hedges:
                    return self._hedges.popleft()
                if self._waiting and len(self._under_way) < self.limit:
                    request = self._waiting.popleft()
                    request.started_s = time.perf_counter()
                    self._under_way.add(request)
                    return request
                self._idle += 1
                self._work.wait()
                self._idle -= 1
            self._threads -= 1
            return None

    def _run(self) -> None:
        give_up_when(self._over)
        while (request := self._next()) is not None:
            started = time.perf_counter()
            found: Runs | BaseException
            size = 0
            try:
                found, size = self._read(request)
            except BaseException as error:
                found = error
            seconds = time.perf_counter() - started
            if size or isinstance(found, BaseException):
                self._gauge.got(size, seconds)
            with self._lock:
                request.tries -= 1
                # A failure is an answer only if nobody else may still succeed.
                first = not request.answered and not (isinstance(found, BaseException) and request.tries)
                if first:
                    request.answered = True
                    self._under_way.discard(request)
                    if size:
                        self._note(seconds)
                if self._waiting:
                    self._staff()
                stopped = self._stopped
            if first and not stopped:
                request.answer(found)
            del request, found

    def _read(self, request: Request) -> tuple[Runs, int]:
        if request.in_place and self._late_s < float("inf") and self._may_hedge:
            try:
                return request.read(self._late_s)
            except StorageTimeout:
                with self._lock:
                    self._hedged += 1
                    self._gauge.hedges += 1
        return request.read(None)

    @property
    def _may_hedge(self) -> bool:
        return self._hedged < max(1, _HEDGE_SHARE * self._asked)

    def _note(self, seconds: float) -> None:
        self._latencies.append(seconds)
        self._round.append(seconds)
        if len(self._round) >= self.limit:
            typical, quickest = sum(self._round) / len(self._round), min(self._latencies)
            if typical < _NOT_BUSY * quickest and self._waiting:
                self.limit = min(self._max_threads, self.limit + self.limit // 2)
            elif typical > _BUSY * quickest:
                self.limit = max(min(_LEAST_LIMIT, self._max_threads), self.limit - max(1, self.limit // 4))
            self._round.clear()
        if len(self._latencies) >= 32 and (self._asked % 32 == 0 or self._late_s == float("inf")):
            ordered = sorted(self._latencies)
            typical, slow = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.95)]
            self._late_s = max(_HEDGE_MIN_S, min(_HEDGE_FACTOR * typical, 1.5 * slow))

    def _watch(self) -> None:
        """Ask again for what is late."""
        while not self._stopped:
            time.sleep(_WATCH_S)
            now = time.perf_counter()
            with self._lock:
                if not self._latencies and any(now - request.started_s > _WATCH_S for request in self._under_way):
                    self.limit = max(self.limit, min(_FAR_LIMIT, self._max_threads))
                    for _ in range(min(self.limit - len(self._under_way), len(self._waiting))):
                        self._staff()
                late = [
                    request for request in self._under_way
                    if request.tries == 1 and not request.in_place and now - request.started_s > self._late_s
                ]  # fmt: skip
                for request in sorted(late, key=lambda request: request.started_s):
                    if not self._may_hedge:
                        break
                    request.tries += 1
                    self._hedged += 1
                    self._hedging = min(self._hedging + 1, self._max_threads)
                    self._hedges.append(request)
                    self._gauge.hedges += 1
                    self._staff()
