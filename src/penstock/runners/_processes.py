"""Call a function for many items in worker processes.

The contract; if the code disagrees with this list, the code is wrong:

- The function travels once to each process, by cloudpickle: lambdas, closures and functions of a script or a notebook
  work, and scripts need no main guard.
- A process has one item at a time. A side sends only when the other waits to receive, so that no send can block for
  ever, whatever the size of items and results.
- An error of the function is raised by the iterator with its type, and the traceback of its process. A process that
  dies is an error that names its exit code.
- When the iterator ends, is closed, or raises, all processes are ended.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import cloudpickle

from penstock.errors import PenstockError
from penstock.runners._errors import RemoteError
from penstock.runners._start import ConnectedProcess

T = TypeVar("T")
R = TypeVar("R")


def can_travel(function: Callable[..., Any]) -> bool:
    """Whether a function can be sent to another process."""
    try:
        cloudpickle.dumps(function)
    except Exception:
        return False
    return True


def map_in_processes(function: Callable[[T], R], items: Iterable[T], num_workers: int) -> Iterator[tuple[T, R]]:
    """Items with their results, as they are finished; raises the error of the function, or `PenstockError`."""
    run = _Run(cloudpickle.dumps(function), iter(items), num_workers)
    try:
        yield from run.results()
    finally:
        run.end()


class _Run:
    def __init__(self, function: bytes, items: Iterator[Any], num_workers: int) -> None:
        self._function, self._items = function, items
        self._lock = threading.Lock()
        self._stopped = False
        self._finished: queue.Queue[tuple[Any, Any, BaseException | None] | None] = queue.Queue()
        self._free = threading.Semaphore(2 * num_workers)
        """Bounds the results that wait for the caller."""
        self._processes = [ConnectedProcess("penstock.runners._worker") for _ in range(num_workers)]
        self._threads = [
            threading.Thread(target=self._serve, args=(process,), name="penstock-compute", daemon=True)
            for process in self._processes
        ]
        for thread in self._threads:
            thread.start()

    def results(self) -> Iterator[tuple[Any, Any]]:
        running = len(self._threads)
        while running:
            found = self._finished.get()
            if found is None:
                running -= 1
                continue
            self._free.release()
            item, result, error = found
            if error is not None:
                raise error
            yield item, result

    def end(self) -> None:
        self._stopped = True
        for process in self._processes:
            process.end()
        for _ in self._threads:
            self._free.release()
        for thread in self._threads:
            thread.join()

    def _serve(self, process: ConnectedProcess) -> None:
        """Give items to a process, one at a time, until there are no more."""
        item: Any = None
        connection = process.connection
        try:
            connection.send_bytes(self._function)
            while (item := self._next()) is not None:
                connection.send_bytes(cloudpickle.dumps(item[0]))
                result, error = cloudpickle.loads(connection.recv_bytes()), None
                if isinstance(result, RemoteError):
                    error = result.revive(lambda text: PenstockError(f"a function raised {text}"))
                self._finished.put((item[0], result, error))
        except BaseException as error:  # whatever happens here, the caller must learn of it
            if not self._stopped:
                self._finished.put((None, None, _death(process, error)))
        finally:
            self._finished.put(None)

    def _next(self) -> tuple[Any] | None:
        self._free.acquire()
        with self._lock:
            if self._stopped:
                return None
            for item in self._items:
                return (item,)
        return None


def _death(process: ConnectedProcess, error: BaseException) -> BaseException:
    """The error of a process that closed its connection; any other error as it is."""
    if not isinstance(error, EOFError | OSError):
        return error
    return PenstockError(
        f"a worker process ended with exit code {process.wait()} while it computed; a code of -9 often means that "
        "memory ran out: take fewer with num_workers"
    )
