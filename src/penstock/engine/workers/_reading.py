"""Read a plan with a pool of threads into one window; say which spans have all their rows there.

The contract; if the code disagrees with this list, the code is wrong:

- Spans are admitted in plan order, and blocks get memory in that order. So a block of the next span never waits for
  memory that a later span holds.
- Blocks are admitted shortly before a thread can fetch them: a block in the fetcher's queue would hold memory of the
  window long before it is written, and so spread the window over more memory than it needs.
- If nothing in flight can free memory, the next block is admitted over budget; reading never deadlocks on memory.
- After the last span of an epoch come the spans of the next one, as far as the window has room, and none after that.
- Between epochs reading is paused: requests in flight complete, and none starts.
- A thread takes the most urgent task: continue the plan, build a span (if threads build), read a page of a local file.
  So there are no more threads than cores that can use them, and if none builds, no more of them work than keep up with
  reads; each further thread would contend for the GIL. Only requests to remote stores have threads of their own.
- `stop` ends every thread after its current task. Threads hold no reference to the user's iterator, so dropping the
  iterator stops its run. An error that ends a thread ends the run.
"""

import atexit
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import Thread, current_thread
from typing import Any

from penstock.engine._stats import StatsCollector
from penstock.engine.planning import Selection, Span
from penstock.engine.window import BuildTask, Window, WindowBlock
from penstock.engine.workers._source import LoaderSource
from penstock.errors import CorruptError
from penstock.storage import FetchRequest, ThreadTurns
from penstock.table import PageRuns

_PLANNED_AHEAD = 64
_MAX_BACKLOG = 64
"""Requests in the fetcher's queue at which planning stops; it continues at half of them, so that it works in runs."""
_JOIN_S = 0.5

_running: "weakref.WeakSet[SpanReader]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_running.clear)


class SpanReader:
    """The threads of one run of a loader, from a position in an epoch on; what is done with its spans is a subclass's.

    A subclass overrides `_on_ready` and `_on_failure`, and `_next_task` and `_wait` if its threads do more than read.
    It calls `_release` for each span that is built.
    """

    _builds = False
    """Whether the threads build spans too."""

    def __init__(
        self,
        source: LoaderSource,
        selections: Sequence[Selection],
        window: Window,
        collector: StatsCollector,
        *,
        reader: int = 0,
        init_thread: Callable[[], None] | None = None,
    ) -> None:
        """Reads the rows of a reader. Each thread calls `init_thread` first."""
        self._source, self._window, self._collector, self._init_thread = source, window, collector, init_thread
        self._planner, self._fetcher = source.planner(selections, reader), source.fetcher(collector)
        """Without a fetcher the threads read by themselves."""
        self._lock, threads = window.lock, source.pipeline.threads
        self._turns = ThreadTurns(self._lock, threads, all_work=self._builds)
        self._needs_positions = source.needs_positions
        self._plan: Iterator[None] = iter(())
        self._planning = False
        """Whether a thread is planning, or the plan is exhausted."""
        self._blocked_since: float | None = None
        self._read_queue: deque[tuple[WindowBlock, int]] = deque()
        self._limit = 0
        """The plan is at most so many spans, and a few more, ahead."""
        self._next_number = 0
        """The number after that of the last admitted span."""
        self._unbuilt = 0
        """Spans that are admitted and not built yet."""
        self._filling = 0
        """Blocks that are admitted and not filled yet."""
        self._stopped = self._joined = False
        self._reading_epoch: int | None = 0
        """None while reading is paused."""
        self._planning_epoch = 0
        self._threads = [Thread(target=self._thread_main, name="penstock-reader", daemon=True) for _ in range(threads)]

    def start(self, epoch: int, consumed: int, number: int = 0, first: int = 0) -> None:
        """Start to read at a position, where span `number` begins; spans before `first` are skipped."""
        self._plan = self._admit_spans(epoch, consumed, number, first)
        self._reading_epoch = self._planning_epoch = epoch
        _running.add(self)
        for thread in self._threads:
            thread.start()

    def read_to(self, epoch: int | None) -> None:
        """Read at most up to the end of the epoch after this one; with None, start no more requests."""
        with self._lock:
            self._reading_epoch = epoch
            self._turns.wake_all()
        if self._fetcher is not None:
            self._fetcher.pause(epoch is None)

    def stop(self, *, wait: bool = False) -> None:
        """Stop every thread; with `wait`, join them for a moment."""
        with self._lock:
            self._stopped = True
            self._read_queue.clear()
            self._turns.wake_all()
        if self._fetcher is not None:
            self._fetcher.stop()
        if wait and not self._joined:
            self._joined = True
            ends = time.monotonic() + _JOIN_S
            for thread in self._threads:
                if thread is not current_thread() and thread.is_alive():  # another thread may still start them
                    thread.join(max(0.0, ends - time.monotonic()))

    def _on_ready(self, span: Span) -> None:
        """All rows of a span are in the window; called with the lock."""
        raise NotImplementedError

    def _on_failure(self, error: BaseException, number: int) -> None:
        """An error ends the run before a span: after those that are admitted, or 0 if not all of them will be built."""
        raise NotImplementedError

    def _thread_main(self) -> None:
        try:
            if self._init_thread is not None:
                self._init_thread()
            while (task := self._wait_for_task()) is not None:
                task()
                del task
        except BaseException as error:
            self._on_failure(error, 0)

    def _wait_for_task(self) -> Callable[[], None] | None:
        """Wait for the next task; None after `stop`."""
        with self._lock:
            while not self._stopped:
                task = self._next_task() if self._turns.may_work else None
                if task is not None:
                    if self._read_queue:
                        self._turns.wake()
                    return task
                self._wait()
            return None

    def _wait(self) -> None:
        """Let a thread without a task wait; called with the lock."""
        self._turns.wait()

    def _next_task(self) -> Callable[[], None] | None:
        """The most urgent task, None if there is none; called with the lock."""
        if self._can_plan():
            self._planning = True
            return self._continue_plan
        if self._read_queue and self._reading_epoch is not None:
            return partial(self._read_local, *self._read_queue.popleft())
        return None

    def _can_plan(self) -> bool:
        if self._planning or self._blocked_since is not None or self._reading_epoch is None:
            return False
        if self._fetcher is not None and self._fetcher.backlog >= _MAX_BACKLOG:
            return False
        return self._next_number < self._limit + _PLANNED_AHEAD and self._planning_epoch <= self._reading_epoch + 1

    def _continue_plan(self) -> None:
        try:
            continues = next(self._plan, self) is None
        except BaseException as error:
            continues = False
            self._on_failure(error, self._next_number)
        with self._lock:
            self._planning = not continues

    def _admit_spans(self, epoch: int, consumed: int, number: int, first: int) -> Iterator[None]:
        """Admit spans in order; yields after each one, between epochs, and while a block waits for memory.

        Those of the next stretch are planned as soon as the last one is admitted, while its requests are in flight.
        """
        for planned in self._planner.planned_spans(epoch, consumed, number, first):
            yield
            self._window.register(planned)
            for span in planned.spans:
                for block in self._window.unadmitted(span):
                    while not self._try_admit(block):
                        yield
                    self._request(block)
                with self._lock:
                    self._unbuilt += 1
                    self._next_number = span.number + 1
                    if self._window.await_blocks(span):
                        self._on_ready(span)
                if span is not planned.spans[-1]:
                    yield
            if planned.last:
                self._planning_epoch += 1
                yield

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

        Threads of this continue by themselves; others must wake one.
        """
        if self._blocked_since is not None:
            self._collector.add_time("fetch", "blocked", time.perf_counter() - self._blocked_since)
            self._blocked_since = None
        elif self._fetcher is None or self._fetcher.backlog > _MAX_BACKLOG // 2:
            return
        if not by_thread and self._can_plan():
            self._turns.wake()

    def _request(self, block: WindowBlock) -> None:
        """Request the pages of a block."""
        indices = range(len(block.requests))
        if not indices:
            self._fill(block)
        if self._fetcher is None:
            with self._lock:
                self._read_queue += [(block, index) for index in indices]
                self._turns.wake()
            return
        for index in indices:
            read, answer = partial(block.table.read, block, index), partial(self._on_response, block, index)
            self._fetcher.submit(FetchRequest(read, answer, block.requests[index].bytes))

    def _read_local(self, block: WindowBlock, index: int) -> None:
        started, size = time.perf_counter(), 0
        pages: PageRuns | BaseException
        try:
            pages, size = block.table.read(block, index)
        except BaseException as error:
            pages = error
        seconds = time.perf_counter() - started
        with self._lock:
            self._turns.record_read(size, seconds)
        self._collector.record_get(size, seconds)
        if self._builds:
            self._collector.add_time("worker", "starved", seconds)  # a thread reads only when no span can be built
        self._on_response(block, index, pages)

    def _on_response(self, block: WindowBlock, index: int, pages: PageRuns | BaseException) -> None:
        try:
            if self._window.add_pages(block, index, pages):
                self._fill(block)
        except BaseException as error:  # in a thread of the fetcher, which must not end
            self._on_failure(error, 0)

    def _fill(self, block: WindowBlock) -> None:
        ready = [] if self._stopped else self._window.fill(block)
        with self._lock:
            for span in ready:
                self._on_ready(span)
            self._filling -= 1
            self._memory_freed(by_thread=self._fetcher is None)

    def _release(self, span: Span, *, by_thread: bool) -> None:
        """Free what a span needed that is built; called with the lock."""
        self._window.release(span)
        self._unbuilt -= 1
        self._memory_freed(by_thread=by_thread)

    def _task(self, span: Span, columns: Callable[[WindowBlock], Any] | None = None) -> BuildTask:
        """What a builder needs of a span; see `Window.task`. Raises the error of a block that was not read.

        If bad samples are replaced, damaged pages are left to the builders.
        """
        source = self._source
        for error in self._window.errors(span):
            if not (source.options.bad_samples.tolerant and isinstance(error, CorruptError)):
                raise error
        keys = source.key_ids(span) if source.keys else None
        return self._window.task(span, keys, positions=self._needs_positions, columns=columns)


@atexit.register
def _stop_all() -> None:
    """Stop all threads before the interpreter shuts down."""
    for reader in list(_running):
        reader.stop(wait=True)
