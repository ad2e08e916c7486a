"""A run in threads of this process.

The contract; if the code disagrees with this list, the code is wrong:

- Batches are delivered in order. An error is raised at its position: after all batches before it, before any other.
- Nothing is delivered after `stop`.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from threading import Condition

from penstock.engine._stats import StatsCollector
from penstock.engine.assembly import BuiltBatches
from penstock.engine.planning import Selection, Span
from penstock.engine.window import BuildTask, Window
from penstock.engine.workers._reading import SpanReader
from penstock.engine.workers._source import DeliveredSpan, LoaderSource
from penstock.plan import BuildAhead


class ThreadedRun(SpanReader):
    """Builds spans in the threads that read, as far ahead of the loop as memory allows."""

    _builds = True

    def __init__(
        self,
        source: LoaderSource,
        selections: Sequence[Selection],
        window: Window,
        collector: StatsCollector,
        *,
        build: Callable[[BuildTask], BuiltBatches],
        ahead: BuildAhead,
        init_thread: Callable[[], None] | None,
    ) -> None:
        """`build` makes the batches of a task; what else is given is that of `SpanReader`."""
        super().__init__(source, selections, window, collector, init_thread=init_thread)
        self._build_batches, self._ahead = build, ahead
        self._inline = source.options.workers.count == 0
        """Whether the loop's thread is the only one that builds."""
        self._idle_builders = 0 if self._inline else max(1, source.pipeline.builders)
        """How many more threads may build."""
        self._result_ready = Condition(self._lock)
        self._ready_spans: list[tuple[int, Span]] = []
        self._results: dict[int, DeliveredSpan | BaseException] = {}
        self._next = 0
        """The number of the span that is delivered next."""
        self._failure: tuple[BaseException, int] | None = None
        """An error that ends the run, and the first span that will not be built."""
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
            while self._next not in self._results:
                if self._failure is not None and self._next >= self._failure[1]:
                    raise self._failure[0]
                if self._stopped:
                    return None
                if self._inline and self._startable():
                    span = heappop(self._ready_spans)[1]
                    self._lock.release()
                    began = time.perf_counter()
                    try:
                        self._build(span)
                    finally:
                        busy += time.perf_counter() - began
                        self._lock.acquire()
                else:
                    self._result_ready.wait()
            result = self._results.pop(self._next)
            self._next += 1
            self._limit = self._next + self._ahead.depth
            if self._startable() or self._can_plan():
                self._turns.wake()
        waited = time.perf_counter() - started
        self._collector.add_time("loop", "starved", waited)
        if self._inline:
            self._collector.add_time("worker", "busy", busy)
            self._collector.add_time("worker", "starved", waited - busy)
        if isinstance(result, BaseException):
            raise result
        return result

    def _on_failure(self, error: BaseException, number: int) -> None:
        with self._lock:
            self._failure = error, number
            self._result_ready.notify_all()

    def _on_ready(self, span: Span) -> None:
        heappush(self._ready_spans, (span.number, span))
        if self._inline:
            self._result_ready.notify()
        elif self._startable():
            self._turns.wake()

    def _next_task(self) -> Callable[[], None] | None:
        if self._idle_builders and self._startable() and not self._can_plan():
            self._idle_builders -= 1
            return partial(self._build_in_thread, heappop(self._ready_spans)[1])
        return super()._next_task()

    def _wait(self) -> None:
        counts = self._turns.waiting < self._idle_builders
        state, started = "blocked" if self._ready_spans else "starved", time.perf_counter()
        super()._wait()
        if counts:
            self._collector.add_time("worker", state, time.perf_counter() - started)

    def _startable(self) -> bool:
        return bool(self._ready_spans) and self._ready_spans[0][0] < self._limit

    def _build_in_thread(self, span: Span) -> None:
        with self._collector.timed("worker", "busy"):
            self._build(span)
        with self._lock:
            self._idle_builders += 1

    def _build(self, span: Span) -> None:
        result: DeliveredSpan | BaseException
        try:
            batches, bad = self._build_batches(self._task(span))
            result = DeliveredSpan(span.steps, batches, bad, span.blocks_drawn, span.padding)
        except BaseException as error:
            if self._inline and not isinstance(error, Exception):
                raise  # Ctrl-C belongs to the consumer's loop
            result = error
        with self._lock:
            self._release(span, by_thread=not self._inline)
            if not self._stopped:
                self._results[span.number] = result
                if span.number == self._next:
                    self._result_ready.notify()
