"""Run a plan with a pool of threads around one window; batches leave in plan order.

The contract; if the code disagrees with this list, the code is wrong:

- Spans are admitted in plan order, and blocks get memory in that order. So a block of the next span never waits for
  memory that a later span holds.
- Batches are delivered in order. An error is raised at its position: after all batches before it, before any other.
- Blocks are admitted shortly before a thread can fetch them: a block in the fetcher's queue would hold memory of the
  window long before it is written, and so spread the window over more memory than it needs.
- If nothing in flight can free memory, the next block is admitted over budget; the pipeline never deadlocks on memory.
- After the last span of an epoch come the spans of the next one, as far as the window has room, and none after that.
- Between epochs the pipeline is paused: requests in flight complete, and none starts.
- A thread takes the most urgent task: continue the plan, build a span, read a page of a local file. So there are no
  more threads than cores that can use them; each further thread would contend for the GIL. Only requests to remote
  stores have threads of their own.
- `stop` ends every thread after its current task; nothing is delivered after it. Threads hold no reference to the
  user's iterator, so dropping the iterator stops its pipeline. An error that ends a thread ends the run: it is raised.
"""

import atexit
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from threading import Condition, Thread, current_thread
from typing import Any, Generic, TypeVar

from penstock.engine._memory_budget import BuildAhead
from penstock.engine._stats import StatsCollector
from penstock.engine.assembly import AnySpan
from penstock.engine.planning import MixedPlanner, Planner
from penstock.engine.window import Fetcher, MixedWindow, PageRuns, Request, Window, WindowBlock
from penstock.errors import CorruptError

_PLANNED_AHEAD = 64
_MAX_BACKLOG = 64
"""Requests in the fetcher's queue at which planning stops; it goes on at half of them, so that it works in runs."""
_JOIN_S = 0.5

AnyPlanner = Planner | MixedPlanner
AnyWindow = Window | MixedWindow
Built = TypeVar("Built")

_running: "weakref.WeakSet[Pipeline[Any]]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_running.clear)


class Pipeline(Generic[Built]):
    """The threads of one run of a loader, from a position in an epoch on."""

    def __init__(
        self,
        planner: AnyPlanner,
        window: AnyWindow,
        fetcher: Fetcher | None,
        builders: Sequence[Callable[[AnySpan], Built]],
        *,
        threads: int,
        inline: bool,
        tolerant: bool,
        ahead: BuildAhead | None,
        collector: StatsCollector,
        init_thread: Callable[[], None] | None = None,
    ) -> None:
        """Spans are built as far ahead of the consumer as `ahead` says, or those that `raise_limit` allows.

        With `inline`, the consumer's thread is the only builder. Without a fetcher the threads read by themselves. Each
        thread calls `init_thread` first. A tolerant pipeline leaves damaged pages to the builders instead of failing
        the span.
        """
        self._planner: Any = planner
        self._window: Any = window
        self._fetcher = fetcher
        self._inline_builder = builders[0] if inline else None
        self._idle_builders = [] if inline else list(builders)
        self._tolerant, self._collector, self._init_thread = tolerant, collector, init_thread
        self._lock = window.lock
        self._task_ready, self._result_ready = Condition(self._lock), Condition(self._lock)
        self._plan: Iterator[None] = iter(())
        self._planning = False
        """Whether a thread is planning, or the plan is exhausted."""
        self._blocked_since: float | None = None
        self._read_queue: deque[tuple[WindowBlock, int]] = deque()
        self._ready_spans: list[tuple[int, AnySpan]] = []
        self._undelivered: deque[AnySpan] = deque()
        self._results: dict[int, Built | BaseException] = {}
        self._limit = 0
        """Spans with lower numbers may be built."""
        self._ahead = ahead
        self._next_number = 0
        """The number after that of the last admitted span."""
        self._idle_threads = 0
        self._unbuilt = 0
        """Spans that are admitted and not built yet."""
        self._filling = 0
        """Blocks that are admitted and not filled yet."""
        self._failure: BaseException | None = None
        self._stopped = self._joined = self._paused = self._broken = False
        self._reading_epoch = self._planning_epoch = 0
        self._threads = [
            Thread(target=self._thread_main, name="penstock-pipeline", daemon=True) for _ in range(threads)
        ]

    def start(self, epoch: int, consumed: int, number: int = 0, first: int = 0) -> None:
        """Start to read at a position, where span `number` begins; spans before `first` are skipped."""
        self._plan = self._admit_spans(epoch, consumed, number, first)
        self._reading_epoch = self._planning_epoch = epoch
        self._limit = 0 if self._ahead is None else self._ahead.depth
        _running.add(self)
        for thread in self._threads:
            thread.start()

    def raise_limit(self, limit: int) -> None:
        """Allow spans with numbers below `limit` to be built, in memory that is available now."""
        with self._lock:
            self._limit = max(self._limit, limit)
            self._memory_freed(by_thread=False)
            self._task_ready.notify_all()

    def resume(self, epoch: int) -> None:
        """Continue reading, at most up to the end of the epoch after this one."""
        with self._lock:
            self._paused, self._reading_epoch = False, epoch
            self._task_ready.notify_all()
        if self._fetcher is not None:
            self._fetcher.pause(False)

    def pause(self) -> None:
        """Start no more requests until `resume`."""
        self._paused = True
        if self._fetcher is not None:
            self._fetcher.pause(True)

    def stop(self, *, wait: bool = False) -> None:
        """Stop every thread; with `wait`, join them for a moment."""
        with self._lock:
            self._stopped = True
            self._results.clear()
            self._read_queue.clear()
            for condition in (self._task_ready, self._result_ready):
                condition.notify_all()
        if self._fetcher is not None:
            self._fetcher.stop()
        if wait and not self._joined:
            self._joined = True
            ends = time.monotonic() + _JOIN_S
            for thread in self._threads:
                if thread is not current_thread() and thread.is_alive():  # another thread may still start them
                    thread.join(max(0.0, ends - time.monotonic()))

    def next_span(self) -> tuple[AnySpan, Built] | None:
        """The next span and what was built of it, None after `stop`; raises the error that occurred in it."""
        started, busy = time.perf_counter(), 0.0
        with self._lock:
            while (found := self._next_result()) is None:
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
            if self._ahead is not None:
                self._limit = span.number + 1 + self._ahead.depth
            if self._idle_threads and (self._startable() or self._can_plan()):
                self._task_ready.notify()
        waited = time.perf_counter() - started
        self._collector.add_time("loop", "starved", waited)
        if self._inline_builder is not None:
            self._collector.add_time("worker", "busy", busy)
            self._collector.add_time("worker", "starved", waited - busy)
        span, built = found
        if isinstance(built, BaseException):
            raise built
        return span, built

    def _next_result(self) -> tuple[AnySpan, Built | BaseException] | None:
        if not self._undelivered or self._undelivered[0].number not in self._results:
            return None
        span = self._undelivered[0]
        return span, self._results.pop(span.number)

    def _thread_main(self) -> None:
        try:
            if self._init_thread is not None:
                self._init_thread()
            while (task := self._wait_for_task()) is not None:
                task()
                del task
        except BaseException as error:
            self._fail(error, broken=True)

    def _fail(self, error: BaseException, *, broken: bool) -> None:
        """End the run by an error after all admitted spans, or at once if not all will be built."""
        with self._lock:
            self._failure, self._broken = error, broken
            self._result_ready.notify_all()

    def _wait_for_task(self) -> Callable[[], None] | None:
        """Wait for the next task; None after `stop`."""
        with self._lock:
            while not self._stopped:
                task = self._next_task()
                if task is not None:
                    return task
                could_work = self._idle_threads < len(self._idle_builders)
                state = "blocked" if self._ready_spans else "starved"
                started = time.perf_counter()
                self._idle_threads += 1
                self._task_ready.wait()
                self._idle_threads -= 1
                if could_work:
                    self._collector.add_time("worker", state, time.perf_counter() - started)
            return None

    def _next_task(self) -> Callable[[], None] | None:
        if self._can_plan():
            self._planning = True
            return self._continue_plan
        if self._idle_builders and self._startable():
            return partial(self._build_in_thread, heappop(self._ready_spans)[1], self._idle_builders.pop())
        if self._read_queue and not self._paused:
            return partial(self._read_local, *self._read_queue.popleft())
        return None

    def _can_plan(self) -> bool:
        far_ahead = self._next_number >= self._limit + _PLANNED_AHEAD or self._paused
        far_ahead = far_ahead or self._planning_epoch > self._reading_epoch + 1
        far_ahead = far_ahead or (self._fetcher is not None and self._fetcher.backlog >= _MAX_BACKLOG)
        return not self._planning and not far_ahead and self._blocked_since is None

    def _continue_plan(self) -> None:
        try:
            going = next(self._plan, self) is None
        except BaseException as error:
            going = False
            self._fail(error, broken=False)
        with self._lock:
            self._planning = not going

    def _admit_spans(self, epoch: int, consumed: int, number: int, first: int) -> Iterator[None]:
        """Admit spans in order; yields after each one, between epochs, and while a block waits for memory."""
        for planned in self._prepared(self._planner.planned_spans(epoch, consumed, number, first)):
            for span in planned.spans:
                for block in () if span.resident else self._window.blocks(span):
                    if not block.admitted:
                        while not self._try_admit(block):
                            yield
                        self._request(block)
                self._admit(span)
                yield
            if planned.last:
                self._planning_epoch += 1
                yield

    def _prepared(self, planned_spans: Iterator[Any]) -> Iterator[Any]:
        """Register spans with the window; if rows are read into batches, wait until all destinations are known."""
        ahead: deque[Any] = deque()
        for planned in planned_spans:
            self._window.register(planned)
            ahead.append(planned)
            while ahead and (
                planned.last or not (self._window.reads_into_batch and self._window.has_open_blocks(ahead[0]))
            ):
                yield ahead.popleft()
        yield from ahead

    def _try_admit(self, block: WindowBlock) -> bool:
        with self._lock:
            if self._blocked_since is not None:
                return False
            if not self._window.admit(block, force=not self._unbuilt and not self._filling):
                self._blocked_since = time.perf_counter()
                return False
            self._filling += 1
        return True

    def _memory_freed(self, *, by_thread: bool) -> None:
        """Let the plan continue if memory or the backlog held it up; called with the lock.

        Pipeline threads continue by themselves; others must wake one.
        """
        if self._blocked_since is not None:
            self._collector.add_time("fetch", "blocked", time.perf_counter() - self._blocked_since)
            self._blocked_since = None
        elif self._fetcher is None or self._fetcher.backlog > _MAX_BACKLOG // 2:
            return
        if self._idle_threads and not by_thread and self._can_plan():
            self._task_ready.notify()

    def _request(self, block: WindowBlock) -> None:
        """Request the pages of a block."""
        indices = range(len(block.requests))
        if not indices:
            self._fill(block)
        if self._fetcher is None:
            with self._lock:
                self._read_queue += [(block, index) for index in indices]
                self._task_ready.notify(len(indices))
            return
        for index in indices:
            read, answer = partial(self._window.read, block, index), partial(self._on_response, block, index)
            self._fetcher.submit(Request(read, answer))

    def _admit(self, span: AnySpan) -> None:
        """Queue a span whose blocks have all been requested."""
        with self._lock:
            self._unbuilt += 1
            self._next_number = span.number + 1
            self._undelivered.append(span)
            if self._window.await_blocks(span):
                self._mark_ready(span)

    def _read_local(self, block: WindowBlock, index: int) -> None:
        started, size = time.perf_counter(), 0
        found: PageRuns | BaseException
        try:
            found, size = self._window.read(block, index)
        except BaseException as error:
            found = error
        seconds = time.perf_counter() - started
        self._collector.record_get(size, seconds)
        self._collector.add_time("worker", "starved", seconds)  # a thread reads only when no span can be built
        self._on_response(block, index, found)

    def _on_response(self, block: WindowBlock, index: int, found: PageRuns | BaseException) -> None:
        try:
            if self._window.add_pages(block, index, found):
                self._fill(block)
        except BaseException as error:  # in a thread of the fetcher, which must not end
            self._fail(error, broken=True)

    def _fill(self, block: WindowBlock) -> None:
        ready = [] if self._stopped else self._window.fill(block)
        with self._lock:
            for span in ready:
                self._mark_ready(span)
            self._filling -= 1
            self._memory_freed(by_thread=self._fetcher is None)

    def _mark_ready(self, span: AnySpan) -> None:
        """Make a span available to builders; called with the lock."""
        heappush(self._ready_spans, (span.number, span))
        if self._inline_builder is not None:
            self._result_ready.notify()
        elif self._idle_threads and self._startable():
            self._task_ready.notify()

    def _startable(self) -> bool:
        return bool(self._ready_spans) and self._ready_spans[0][0] < self._limit

    def _build_in_thread(self, span: AnySpan, build: Callable[[AnySpan], Built]) -> None:
        with self._collector.timed("worker", "busy"):
            self._build(span, build)
        with self._lock:
            self._idle_builders.append(build)

    def _build(self, span: AnySpan, build: Callable[[AnySpan], Built]) -> None:
        built: Built | BaseException
        try:
            built = _block_error(self._window, span, tolerant=self._tolerant) or build(span)
        except BaseException as error:
            if self._inline_builder is not None and not isinstance(error, Exception):
                raise  # Ctrl-C belongs to the consumer's loop
            built = error
        with self._lock:
            self._window.release(span)
            self._unbuilt -= 1
            self._memory_freed(by_thread=self._inline_builder is None)
            if not self._stopped:
                self._results[span.number] = built
                if span is self._undelivered[0]:
                    self._result_ready.notify()


def _block_error(window: AnyWindow, span: Any, *, tolerant: bool) -> BaseException | None:
    if not (damaged := window.damaged(span)):
        return None
    blocks = window.blocks(span)
    errors = [error for number in damaged if (error := blocks[number].error) is not None]
    return next((error for error in errors if not (tolerant and isinstance(error, CorruptError))), None)


@atexit.register
def _stop_all() -> None:
    """Stop all threads before the interpreter shuts down."""
    for pipeline in list(_running):
        pipeline.stop(wait=True)
