"""How many requests are under way at once, and what happens to those that are late."""

import time
from functools import partial
from threading import Event, Lock

import pytest

from penstock.engine._fetch import Fetcher, Request
from penstock.engine._stats import Gauge
from penstock.errors import StorageTimeout
from tests.engine.watch import soon

Pages = list[tuple[int, memoryview]]


class _Far:
    """Requests to a store that does not answer until it is told to."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.answered: list[Pages | BaseException] = []
        self.go = Event()

    def request(self, number: int) -> Request:
        def read(late_s: float | None) -> tuple[Pages, int]:
            self.started.append(number)
            assert self.go.wait(60)
            return [], 1

        return Request(read, self.answered.append)


@pytest.mark.parametrize(("max_threads", "at_once"), [(96, 32), (8, 8)])
def test_a_store_that_is_long_in_answering_is_asked_for_more_at_once(max_threads: int, at_once: int) -> None:
    far, fetcher = _Far(), Fetcher(Gauge(), max_threads=max_threads)
    for number in range(80):
        fetcher.ask(far.request(number))
    assert soon(lambda: len(far.started) == at_once)
    time.sleep(0.1)
    assert sorted(far.started) == list(range(at_once))
    far.go.set()
    assert soon(lambda: len(far.answered) == 80)
    fetcher.stop()


def test_what_is_read_to_its_place_is_asked_for_again_when_late_and_never_twice_at_once() -> None:
    under_way, most, gauge = 0, 0, Gauge()
    lock, answered = Lock(), list[Pages | BaseException]()

    def read(late: bool, late_s: float | None) -> tuple[Pages, int]:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        time.sleep(0.002 if not late or late_s is None else late_s)
        with lock:
            under_way -= 1
        if late and late_s is not None:
            raise StorageTimeout("late")
        return [], 1

    fetcher = Fetcher(gauge, max_threads=1)
    for number in range(200):
        fetcher.ask(Request(partial(read, number == 150), answered.append, in_place=True))
    assert soon(lambda: len(answered) == 200)
    fetcher.stop()
    assert answered == [[]] * 200
    assert (gauge.hedges, most) == (1, 1)
