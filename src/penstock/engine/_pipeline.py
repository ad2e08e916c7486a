"""Run a plan: some hands around one window, who plan, read and put together; batches leave in the order of the plan.

The contract; if the code disagrees with this list, the code is wrong:

- Spans are admitted in the order of the plan, and a piece gets its room in that order; so what the next span needs
  never waits for what a later one holds.
- Batches are delivered in order. An error comes in its place: after every batch before it, and before any other.
- When nothing under way can free memory, the next span is admitted over the budget rather than never.
- After the last span of an epoch come those of the next, as far as the window has room.
- A hand does whatever is most urgent: plan on, put a span together, read a page of a local file. So there are no more
  threads than cores that could use them, and what is read is put together by whoever is free: every thread more is one
  more to wait for the GIL. Only requests to a store that may keep them waiting have threads of their own.
- `stop` makes every thread end after what it is doing; nothing is delivered after it. Threads never hold the user's
  iterator, so one that is dropped stops its pipeline.
"""

import atexit
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from threading import Condition, Lock, Thread, current_thread
from typing import Any

from penstock.engine._fetch import Fetcher, Request, Runs
from penstock.engine._pieces import Piece, Span
from penstock.engine._planner import Planner, Stretch
from penstock.engine._stats import Gauge
from penstock.engine._window import Window
from penstock.errors import CorruptError, InvalidInputError

_PLANNED_AHEAD = 64
_JOIN_S = 0.5

Work = Callable[[Span], Sequence[Any]]

_running: "weakref.WeakSet[Pipeline]" = weakref.WeakSet()


class Pipeline:
    """The threads of one run of a loader, from some point of an epoch on."""

    def __init__(
        self,
        planner: Planner,
        window: Window,
        fetcher: Fetcher | None,
        workers: Sequence[Work],
        *,
        hands: int,
        inline: bool,
        tolerant: bool,
        depth: int,
        gauge: Gauge,
        enter: Callable[[], None] | None = None,
    ) -> None:
        """`depth` spans are put together ahead of the loop; with `inline`, the loop's own thread is the one worker.

        Without a fetcher the hands read by themselves; each of them calls `enter` first. A tolerant pipeline leaves it
        to the workers what to do with damaged pages.
        """
        self._planner, self._window, self._fetcher = planner, window, fetcher
        self._inline = workers[0] if inline else None
        self._free = [] if inline else list(workers)
        self._tolerant, self._depth, self._gauge, self._enter_thread = tolerant, depth, gauge, enter
        self._lock = Lock()
        self._tasks, self._done = Condition(self._lock), Condition(self._lock)
        self._plan: Iterator[None] = iter(())
        self._planning = False
        """Whether a hand is at it, or there is nothing left to plan."""
        self._no_room_since: float | None = None
        self._to_read: deque[tuple[Piece, int]] = deque()
        self._spans_ready: list[tuple[int, Span]] = []
        self._results: dict[int, tuple[Span, Sequence[Any] | BaseException]] = {}
        self._delivered = self._admitted = self._released = self._idle = 0
        self._failure: BaseException | None = None
        self._stopped = self._waited_for = False
        self._threads = [Thread(target=self._lend, name="penstock-hand", daemon=True) for _ in range(hands)]

    def start(self, epoch: int, consumed: int) -> None:
        """Begin to read."""
        self._plan = self._planned(epoch, consumed)
        _running.add(self)
        for thread in self._threads:
            thread.start()

    def stop(self, *, wait: bool = False) -> None:
        """Stop every thread; with `wait`, give them a moment to end."""
        with self._lock:
            self._stopped = True
            self._results.clear()
            self._to_read.clear()
            for condition in (self._tasks, self._done):
                condition.notify_all()
        if self._fetcher is not None:
            self._fetcher.stop()
        if wait and not self._waited_for:
            self._waited_for = True
            ends = time.monotonic() + _JOIN_S
            for thread in self._threads:
                if thread is not current_thread():
                    thread.join(max(0.0, ends - time.monotonic()))

    def next_span(self) -> tuple[Span, Sequence[Any]]:
        """The next span and its batches; raises what went wrong in it."""
        started, busy = time.perf_counter(), 0.0
        with self._lock:
            while (found := self._results.pop(self._delivered, None)) is None:
                if self._failure is not None and self._delivered == self._admitted:
                    raise self._failure
                if self._stopped:
                    raise InvalidInputError("this loader was closed while it was read")
                if self._inline is not None and self._startable():
                    span = heappop(self._spans_ready)[1]
                    self._lock.release()
                    began = time.perf_counter()
                    try:
                        self._put_together(span, self._inline)
                    finally:
                        busy += time.perf_counter() - began
                        self._lock.acquire()
                else:
                    self._done.wait()
            self._delivered += 1
            if self._idle and (self._startable() or self._may_plan()):
                self._tasks.notify()
        waited = time.perf_counter() - started
        self._gauge.add("loop", "starved", waited)
        if self._inline is not None:
            self._gauge.add("work", "busy", busy)
            self._gauge.add("work", "starved", waited - busy)
        span, batches = found
        if isinstance(batches, BaseException):
            raise batches
        return span, batches

    def _lend(self) -> None:
        if self._enter_thread is not None:
            self._enter_thread()
        while (task := self._next_task()) is not None:
            task()
            del task

    def _next_task(self) -> Callable[[], None] | None:
        """What is to be done now; None when stopped."""
        with self._lock:
            while not self._stopped:
                task = self._most_urgent()
                if task is not None:
                    return task
                could_work = self._idle < len(self._free)
                blocked = bool(self._spans_ready)
                started = time.perf_counter()
                self._idle += 1
                self._tasks.wait()
                self._idle -= 1
                if could_work:
                    self._gauge.add("work", "blocked" if blocked else "starved", time.perf_counter() - started)
            return None

    def _most_urgent(self) -> Callable[[], None] | None:
        if self._may_plan():
            self._planning = True
            return self._plan_on
        if self._free and self._startable():
            return partial(self._work, heappop(self._spans_ready)[1], self._free.pop())
        if self._to_read:
            return partial(self._read, *self._to_read.popleft())
        return None

    def _may_plan(self) -> bool:
        far_ahead = self._admitted >= self._delivered + self._depth + _PLANNED_AHEAD
        return not self._planning and not far_ahead and self._no_room_since is None

    def _plan_on(self) -> None:
        try:
            going = next(self._plan, self) is None
        except BaseException as error:
            going = False
            with self._lock:
                self._failure = error
                self._done.notify_all()
        with self._lock:
            self._planning = not going

    def _planned(self, epoch: int, consumed: int) -> Iterator[None]:
        """Admit spans, one after the other; stops after each, and where one must wait for room."""
        while True:
            some = False
            for stretch in self._announced(self._planner.stretches(epoch, consumed)):
                some = True
                for span in stretch.spans:
                    for piece in span.pieces:
                        if not piece.admitted:
                            while not self._has_room(piece):
                                yield
                            self._ask(piece)
                    self._enter(span)
                    yield
            if not some and not consumed:
                return
            epoch, consumed = epoch + 1, 0

    def _announced(self, stretches: Iterator[Stretch]) -> Iterator[Stretch]:
        """Stretches whose pieces are known; where rows are placed, those whose pieces know where all of them go."""
        ahead: deque[Stretch] = deque()
        for stretch in stretches:
            for piece in self._announce(stretch):  # all at once, while the processor has it in its cache
                self._window.describe(piece)
            ahead.append(stretch)
            while ahead and not (self._window.places and ahead[0].open):
                yield ahead.popleft()
        yield from ahead

    def _announce(self, stretch: Stretch) -> list[Piece]:
        """Say which spans will need which pieces, and which pieces nobody will need after them; those that are new."""
        fresh: list[Piece] = []
        with self._lock:
            for span in stretch.spans:
                for piece in span.pieces:
                    if not piece.spans and not piece.admitted:
                        fresh.append(piece)
                    piece.spans += 1
            for piece in stretch.closing:
                piece.closed = True
                if not piece.spans and piece.admitted:
                    self._window.free(piece)
        return fresh

    def _has_room(self, piece: Piece) -> bool:
        with self._lock:
            if self._no_room_since is not None:
                return False
            if not self._window.admit(piece, regardless=self._admitted == self._released):
                self._no_room_since = time.perf_counter()
                return False
        return True

    def _make_room(self, *, by_hand: bool) -> None:
        """Some memory has come free; called with the lock. A hand will plan on by itself; others must wake one."""
        if self._no_room_since is not None:
            self._gauge.add("fetch", "blocked", time.perf_counter() - self._no_room_since)
            self._no_room_since = None
            if self._idle and not by_hand:
                self._tasks.notify()

    def _ask(self, piece: Piece) -> None:
        """Have the pages of a piece read."""
        if not piece.requests:
            self._fill(piece)
        numbers = range(len(piece.requests))
        if self._fetcher is None:
            with self._lock:
                self._to_read += [(piece, number) for number in numbers]
                if self._idle:
                    self._tasks.notify(len(numbers))
            return
        for number in numbers:
            read, answer = partial(self._window.read, piece, number), partial(self._answer, piece, number)
            self._fetcher.ask(Request(read, answer, in_place=number in piece.straight))

    def _enter(self, span: Span) -> None:
        """Everything that a span needs has been asked for."""
        with self._lock:
            for piece in span.pieces:
                if not piece.filled:
                    piece.waiting.append(span)
                    span.missing += 1
            self._admitted += 1
            if not span.missing:
                self._is_ready(span)

    def _read(self, piece: Piece, number: int) -> None:
        started = time.perf_counter()
        found: Runs | BaseException
        size = 0
        try:
            found, size = self._window.read(piece, number)
        except BaseException as error:
            found = error
        seconds = time.perf_counter() - started
        self._gauge.got(size, seconds)
        self._gauge.add("work", "starved", seconds)  # had there been something to put together, this could have waited
        self._answer(piece, number, found)

    def _answer(self, piece: Piece, number: int, found: Runs | BaseException) -> None:
        with self._lock:
            if isinstance(found, BaseException):
                piece.error = piece.error or found
            else:
                piece.pages.add_all(piece.requests[number].file, found)
            piece.missing -= 1
            complete = not piece.missing
        if complete:
            self._fill(piece)

    def _fill(self, piece: Piece) -> None:
        if not self._stopped:
            try:
                if piece.error is None:
                    self._window.fill(piece)
                else:
                    self._window.fill_with_nothing(piece)
            except BaseException as error:
                piece.error = error
        piece.pages = type(piece.pages)()
        with self._lock:
            self._window.filled(piece)
            piece.filled = True
            for span in piece.waiting:
                span.missing -= 1
                if not span.missing:
                    self._is_ready(span)
            piece.waiting = []
            if piece.raw_bytes:
                self._make_room(by_hand=self._fetcher is None)

    def _is_ready(self, span: Span) -> None:
        """A span can be put together; called with the lock."""
        heappush(self._spans_ready, (span.number, span))
        if self._inline is not None:
            self._done.notify()
        elif self._idle and self._startable():
            self._tasks.notify()

    def _startable(self) -> bool:
        return bool(self._spans_ready) and self._spans_ready[0][0] < self._delivered + self._depth

    def _work(self, span: Span, work: Work) -> None:
        with self._gauge.timed("work", "busy"):
            self._put_together(span, work)
        with self._lock:
            self._free.append(work)

    def _put_together(self, span: Span, work: Work) -> None:
        batches: Sequence[Any] | BaseException
        try:
            batches = self._failure_of(span) or work(span)
        except BaseException as error:
            if self._inline is not None and not isinstance(error, Exception):
                raise  # Ctrl-C is for the loop, and now
            batches = error
        with self._lock:
            self._release(span)
            if not self._stopped:
                self._results[span.number] = span, batches
                if span.number == self._delivered:
                    self._done.notify()

    def _failure_of(self, span: Span) -> BaseException | None:
        errors = [piece.error for piece in span.pieces if piece.error is not None]
        return next((error for error in errors if not (self._tolerant and isinstance(error, CorruptError))), None)

    def _release(self, span: Span) -> None:
        for piece in span.pieces:
            piece.spans -= 1
            if not piece.spans and piece.closed:
                self._window.free(piece)
        span.pieces = []
        self._window.release(span)
        self._released += 1
        self._make_room(by_hand=self._inline is None)


@atexit.register
def _stop_all() -> None:
    """Let no thread run into the interpreter's end."""
    for pipeline in list(_running):
        pipeline.stop(wait=True)
