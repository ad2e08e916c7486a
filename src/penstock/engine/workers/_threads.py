"""A run in threads of this process.

The contract; if the code disagrees with this list, the code is wrong:

- Batches are delivered in order. An error is raised at its position: after all batches before it, before any other.
- Nothing is delivered after `stop`.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from threading import Condition
from typing import Any

from penstock.engine.assembly import BuiltBatches
from penstock.engine.planning import Span
from penstock.engine.window import BuildTask
from penstock.engine.workers._reading import SpanReader
from penstock.engine.workers._source import DeliveredSpan
from penstock.plan import BuildAhead

Builder = Callable[[BuildTask], BuiltBatches]


class ThreadedRun(SpanReader):
    """Builds spans in the threads that read, as far ahead of the loop as memory allows; see `SpanStream`."""

    _builds = True

    def __init__(
        self,
        *reading: Any,
        builders: Sequence[Builder],
        make_task: Callable[[Span], BuildTask],
        inline: bool,
        ahead: BuildAhead,
        **options: Any,
    ) -> None:
        """With `inline`, the loop's thread is the only builder; what else is given is that of `SpanReader`."""
        super().__init__(*reading, **options)
        self._inline_builder = builders[0] if inline else None
        self._idle_builders = [] if inline else list(builders)
        self._make_task, self._ahead = make_task, ahead
        self._result_ready = Condition(self._lock)
        self._ready_spans: list[tuple[int, Span]] = []
        self._undelivered: deque[Span] = deque()
        self._results: dict[int, BuiltBatches | BaseException] = {}
        self._failure: BaseException | None = None
        self._broken = False
        self._limit = ahead.depth

    def stop(self, *, wait: bool = False) -> None:
        """Stop every thread; with `wait`, join them for a moment."""
        with self._lock:
            self._stopped = True
            self._results.clear()
            self._result_ready.notify_all()
        super().stop(wait=wait)

    def next_span(self) -> DeliveredSpan | None:
        """The next span and what was built of it, None after `stop`; raises the error that occurred in it."""
        started, busy = time.perf_counter(), 0.0
        with self._lock:
            while not (self._undelivered and self._undelivered[0].number in self._results):
                if self._failure is not None and (self._broken or not self._undelivered):
                    raise self._failure
                if self._stopped:
                    return None
                if self._inline_builder is not None and self._startable():
                    span = heappop(self._ready_spans)[1]
                    self._lock.release()
                    began = time.perf_counter()
                    try:
                        self._build(span, self._inline_builder)
                    finally:
                        busy += time.perf_counter() - began
                        self._lock.acquire()
                else:
                    self._result_ready.wait()
            span = self._undelivered.popleft()
            built = self._results.pop(span.number)
            self._limit = span.number + 1 + self._ahead.depth
            if self._startable() or self._can_plan():
                self._turns.wake()
        waited = time.perf_counter() - started
        self._collector.add_time("loop", "starved", waited)
        if self._inline_builder is not None:
            self._collector.add_time("worker", "busy", busy)
            self._collector.add_time("worker", "starved", waited - busy)
        if isinstance(built, BaseException):
            raise built
        return DeliveredSpan(span.steps, built.batches, built.bad, span.blocks_drawn, span.padding)

    def _on_failure(self, error: BaseException, *, broken: bool) -> None:
        with self._lock:
            self._failure, self._broken = error, broken
            self._result_ready.notify_all()

    def _on_admitted(self, span: Span) -> None:
        self._undelivered.append(span)

    def _on_ready(self, span: Span) -> None:
        heappush(self._ready_spans, (span.number, span))
        if self._inline_builder is not None:
            self._result_ready.notify()
        elif self._startable():
            self._turns.wake()

    def _next_build(self) -> Callable[[], None] | None:
        if not self._idle_builders or not self._startable():
            return None
        return partial(self._build_in_thread, heappop(self._ready_spans)[1], self._idle_builders.pop())

    def _waiting_state(self) -> str | None:
        if self._turns.waiting >= len(self._idle_builders):
            return None
        return "blocked" if self._ready_spans else "starved"

    def _startable(self) -> bool:
        return bool(self._ready_spans) and self._ready_spans[0][0] < self._limit

    def _build_in_thread(self, span: Span, build: Builder) -> None:
        with self._collector.timed("worker", "busy"):
            self._build(span, build)
        with self._lock:
            self._idle_builders.append(build)

    def _build(self, span: Span, build: Builder) -> None:
        built: BuiltBatches | BaseException
        try:
            built = self._read_error(span) or build(self._make_task(span))
        except BaseException as error:
            if self._inline_builder is not None and not isinstance(error, Exception):
                raise  # Ctrl-C belongs to the consumer's loop
            built = error
        with self._lock:
            self._release(span, by_thread=self._inline_builder is None)
            if not self._stopped:
                self._results[span.number] = built
                if span is self._undelivered[0]:
                    self._result_ready.notify()
