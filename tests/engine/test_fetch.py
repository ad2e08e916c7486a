"""Requests in flight, and hedging of late ones."""

import time
from functools import partial
from threading import Event

import pytest

from penstock.engine._fetch import Fetcher, Request
from penstock.engine._stats import StatsCollector
from tests.engine.watch import soon

Pages = list[tuple[int, memoryview]]


class _SlowStore:
    """Requests to a store that does not respond until `go` is set."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.responses: list[Pages | BaseException] = []
        self.go = Event()

    def request(self, number: int) -> Request:
        def read() -> tuple[Pages, int]:
            self.started.append(number)
            assert self.go.wait(240)
            return [], 1

        return Request(read, self.responses.append)


@pytest.mark.parametrize(("max_threads", "in_flight"), [(96, 32), (8, 8)])
def test_high_latency_raises_the_number_of_requests_in_flight(max_threads: int, in_flight: int) -> None:
    store, fetcher = _SlowStore(), Fetcher(StatsCollector(), max_threads=max_threads)
    for number in range(80):
        fetcher.submit(store.request(number))
    assert soon(lambda: len(store.started) == in_flight)
    time.sleep(0.1)
    assert sorted(store.started) == list(range(in_flight))
    store.go.set()
    assert soon(lambda: len(store.responses) == 80)
    fetcher.stop()


def test_a_late_request_is_hedged_and_completes_once() -> None:
    collector, responses, attempts = StatsCollector(), list[Pages | BaseException](), list[int]()
    go, finished = Event(), Event()

    def read(number: int) -> tuple[Pages, int]:
        attempts.append(number)
        if number == 150 and attempts.count(150) == 1:
            assert go.wait(240)
            finished.set()
        time.sleep(0.001)
        return [], 1

    fetcher = Fetcher(collector, max_threads=4)
    for number in range(200):
        fetcher.submit(Request(partial(read, number), responses.append))
    assert soon(lambda: len(responses) == 200)
    assert (attempts.count(150), collector.hedges >= 1) == (2, True)
    go.set()
    assert finished.wait(240)
    fetcher.stop()
    time.sleep(0.05)
    assert responses == [[]] * 200
