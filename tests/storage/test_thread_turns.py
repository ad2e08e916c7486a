"""How many threads of a reader work at a time."""

from collections.abc import Callable, Iterator
from threading import Event, Lock, Thread

import pytest

from penstock.storage import ThreadTurns

THREADS = 8


class _Threads:
    """Threads that work whenever they may, and wait for the end of their work."""

    def __init__(self, *, all_work: bool) -> None:
        self.lock = Lock()
        self.turns = ThreadTurns(self.lock, THREADS, all_work=all_work)
        self.working, self.stopped = 0, False
        self._end = Event()
        self._threads = [Thread(target=self._main) for _ in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def _main(self) -> None:
        with self.lock:
            while not self.stopped and not self.turns.may_work:
                self.turns.wait()
            if self.stopped:
                return
            self.working += 1
            self.turns.wake()
        self._end.wait()

    def settled(self) -> int:
        """Threads that work once all others wait."""
        while True:
            with self.lock:
                if self.working + self.turns.waiting == THREADS:
                    return self.working

    def stop(self) -> None:
        with self.lock:
            self.stopped = True
            self.turns.wake_all()
        self._end.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def start() -> Iterator[Callable[[bool], _Threads]]:
    started: list[_Threads] = []

    def new(all_work: bool) -> _Threads:
        started.append(_Threads(all_work=all_work))
        return started[-1]

    yield new
    for threads in started:
        threads.stop()


def test_few_threads_work_while_reads_are_fast(start: Callable[[bool], _Threads]) -> None:
    threads = start(False)
    for _ in range(100):
        with threads.lock:
            threads.turns.record_read(1 << 20, 0.001)
            threads.turns.wake()
    assert threads.settled() == 2


def test_slow_reads_get_more_threads(start: Callable[[bool], _Threads]) -> None:
    threads = start(False)
    assert threads.settled() == 2
    with threads.lock:
        for _ in range(100):
            threads.turns.record_read(1 << 20, 0.006)  # about twice as long as a fast one
        threads.turns.wake()
    while threads.settled() < 4:
        pass
    assert threads.settled() == 4
    with threads.lock:
        for _ in range(100):
            threads.turns.record_read(1 << 20, 1.0)
        threads.turns.wake()
    while threads.settled() < THREADS:
        pass


def test_all_threads_work_if_they_build(start: Callable[[bool], _Threads]) -> None:
    assert start(True).settled() == THREADS
