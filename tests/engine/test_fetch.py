"""How many requests are under way at once."""

import time
from threading import Event

import pytest

from penstock.engine._fetch import Fetcher, Request
from penstock.engine._stats import Gauge
from tests.engine.watch import soon

Pages = list[tuple[int, memoryview]]


class _Far:
    """Requests to a store that does not answer until it is told to."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.answered: list[Pages | BaseException] = []
        self.go = Event()

    def request(self, number: int) -> Request:
        def read() -> tuple[Pages, int]:
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
