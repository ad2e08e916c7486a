"""Read items in order, ahead of their consumer, with threads."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from threading import Condition, Event, RLock, Thread
from typing import Generic, TypeVar

from penstock.storage._retry import cancel_retries_on

T = TypeVar("T")
R = TypeVar("R")

_PENDING_PER_THREAD = 2
_WAIT_S = 60.0
"""Waits have a limit because a signal does not end one without, where another library restarts system calls."""


@dataclass(frozen=True)
class Prefetch:
    """Limits of a read-ahead."""

    max_concurrency: int
    """Reads in flight."""
    max_bytes: int | None = None
    """Bytes in flight or read and not consumed, exceeded by one item at most; None for no limit."""

    def allows(self, pending: int, pending_bytes: int) -> bool:
        """Whether another item may be read beside the pending ones; the first always may."""
        fits = self.max_bytes is None or pending_bytes < self.max_bytes
        return not pending or (pending < _PENDING_PER_THREAD * self.max_concurrency and fits)


def read_ahead(
    read: Callable[[T], R], items: Iterable[T], *, prefetch: Prefetch, size: Callable[[T], int] = lambda _: 0
) -> Iterator[R]:
    """Yield `read(item)` for each item in order, while threads read the next ones.

    The contract; if the code disagrees with this list, the code is wrong:

    - Reads in flight, and the bytes of items that are not consumed yet, stay within `prefetch`.
    - `items` is advanced by the consumer's thread alone, as far as the limits allow.
    - An error of `read` or of `items` is raised in its place, after the results of all earlier items.
    - No read starts, and none is retried, after the iterator is closed or dropped; reads in flight end by themselves.
    - Ctrl-C interrupts a consumer that waits.
    """
    readers = _Readers(read, prefetch.max_concurrency)
    source, exhausted = iter(items), False
    failure: Exception | None = None
    pending: deque[_Task[T, R]] = deque()
    pending_bytes = 0

    def schedule() -> None:
        nonlocal pending_bytes, exhausted, failure
        while not exhausted and prefetch.allows(len(pending), pending_bytes):
            try:
                task = _Task[T, R](item := next(source), size(item))
            except StopIteration:
                exhausted = True
            except Exception as error:
                exhausted, failure = True, error
            else:
                pending.append(task)
                pending_bytes += task.size
                readers.submit(task)

    try:
        schedule()
        while pending:
            result = readers.wait(pending[0])
            pending_bytes -= pending.popleft().size
            if isinstance(result, BaseException):
                raise result
            schedule()
            yield result[0]
            del result
        if failure is not None:
            raise failure
    finally:
        readers.stop()


@dataclass(eq=False, slots=True)
class _Task(Generic[T, R]):
    item: T
    size: int
    result: tuple[R] | BaseException | None = None


class _Readers(Generic[T, R]):
    """Threads that take tasks in order; started as tasks come, and daemons, so that they do not hold up an exit."""

    def __init__(self, read: Callable[[T], R], max_threads: int) -> None:
        self._read, self._max_threads = read, max_threads
        self._queue: deque[_Task[T, R]] = deque()
        self._threads = self._idle = 0
        self._awaited: _Task[T, R] | None = None
        # Reentrant: the garbage collector may close the iterator in a thread that holds the lock.
        lock = RLock()
        self._work, self._done = Condition(lock), Condition(lock)
        self._stopped = Event()

    def submit(self, task: _Task[T, R]) -> None:
        with self._work:
            self._queue.append(task)
            if self._idle:
                self._idle -= 1
                self._work.notify()
            elif self._threads < self._max_threads:
                self._threads += 1
                Thread(target=self._run, name="penstock-prefetch", daemon=True).start()

    def wait(self, task: _Task[T, R]) -> tuple[R] | BaseException:
        with self._work:
            self._awaited = task
            while task.result is None:
                self._done.wait(_WAIT_S)
            self._awaited = None
            return task.result

    def stop(self) -> None:
        if sys.is_finalizing():  # the threads are gone, and one of them may have held the lock
            return
        self._stopped.set()
        with self._work:
            self._queue.clear()
            self._work.notify_all()

    def _run(self) -> None:
        cancel_retries_on(self._stopped)
        while (task := self._next()) is not None:
            result: tuple[R] | BaseException
            try:
                result = (self._read(task.item),)
            except BaseException as error:
                result = error
            with self._work:
                task.result = result
                if task is self._awaited:
                    self._done.notify()
            del task, result

    def _next(self) -> _Task[T, R] | None:
        with self._work:
            while not self._stopped.is_set():
                if self._queue:
                    return self._queue.popleft()
                self._idle += 1
                self._work.wait()
            return None
