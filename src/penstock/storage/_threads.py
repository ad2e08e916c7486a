"""Map a function over items with threads.

The threads live as long as the call: none delays the interpreter's exit, is lost in a fork, or deadlocks when calls
nest. Starting one costs tens of microseconds, little beside a request.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def interruptible(fn: Callable[[], R]) -> R:
    """Return `fn()`, interruptible by Ctrl-C: on the main thread a foreign call would delay the signal."""
    if threading.current_thread() is not threading.main_thread():
        return fn()
    [result] = _run([fn], lambda call: call(), 1)
    return result


def thread_map(fn: Callable[[T], R], items: Sequence[T], *, max_workers: int) -> list[R]:
    """Return `[fn(item) for item in items]`; after a failure no further item starts; raises the first one."""
    if len(items) <= 1 or max_workers <= 1:
        return [fn(item) for item in items]
    return _run(items, fn, max_workers)


def _run(items: Sequence[T], fn: Callable[[T], R], max_workers: int) -> list[R]:
    results: list[Any] = [None] * len(items)
    failures: list[BaseException] = []
    pending = iter(range(len(items)))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                index = None if failures else next(pending, None)
            if index is None:
                return
            try:
                results[index] = fn(items[index])
            except BaseException as error:
                with lock:
                    failures.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(max_workers, len(items)))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as interruption:  # Ctrl-C returns at once; calls in progress end by themselves
        with lock:
            failures.append(interruption)
        raise
    if failures:
        try:
            raise failures[0]
        finally:
            failures.clear()  # the traceback refers to this frame: break the cycle
    return results
