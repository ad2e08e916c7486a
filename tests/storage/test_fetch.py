"""Requests in flight, and hedging of late ones."""

import time
from functools import partial
from threading import Event

import pytest

from penstock.errors import StorageError, StorageTimeoutError
from penstock.storage import Fetcher, FetchRequest
from tests.engine.watch import soon

Pages = list[tuple[int, memoryview]]


class _Observer:
    hedges = 0
    unanswered_since: float | None = None

    def record_get(self, size: int, seconds: float) -> None:
        pass


class _SlowStore:
    """Requests to a store that does not respond until `go` is set."""

    def __init__(self, error: Exception | None = None) -> None:
        self.started: list[int] = []
        self.responses: list[Pages | BaseException] = []
        self.go = Event()
        self.error = error

    def request(self, number: int) -> FetchRequest[Pages]:
        def read() -> tuple[Pages, int]:
            self.started.append(number)
            assert self.go.wait(240)
            if self.error is not None:
                raise self.error
            return [], 1

        return FetchRequest(read, self.responses.append)


@pytest.mark.parametrize(("max_threads", "in_flight"), [(96, 32), (8, 8)])
def test_high_latency_raises_the_number_of_requests_in_flight(max_threads: int, in_flight: int) -> None:
    store, fetcher = _SlowStore(), Fetcher[Pages](_Observer(), max_threads=max_threads)
    for number in range(80):
        fetcher.submit(store.request(number))
    assert soon(lambda: len(store.started) == in_flight)
    time.sleep(0.1)
    assert sorted(store.started) == list(range(in_flight))
    store.go.set()
    assert soon(lambda: len(store.responses) == 80)
    fetcher.stop()


def test_a_late_request_is_hedged_and_completes_once() -> None:
    observer, responses, attempts = _Observer(), list[Pages | BaseException](), list[int]()
    go, finished = Event(), Event()

    def read(number: int) -> tuple[Pages, int]:
        attempts.append(number)
        if number == 150 and attempts.count(150) == 1:
            assert go.wait(240)
            finished.set()
        time.sleep(0.001)
        return [], 1

    fetcher = Fetcher[Pages](observer, max_threads=4)
    for number in range(200):
        fetcher.submit(FetchRequest(partial(read, number), responses.append))
    assert soon(lambda: len(responses) == 200)
    assert (attempts.count(150), observer.hedges >= 1) == (2, True)
    go.set()
    assert finished.wait(240)
    fetcher.stop()
    time.sleep(0.05)
    assert responses == [[]] * 200


def test_a_large_request_is_not_late_after_the_time_of_small_ones() -> None:
    responses, attempts = list[Pages | BaseException](), list[int]()

    def read(number: int) -> tuple[Pages, int]:
        attempts.append(number)
        time.sleep(0.5 if number == 150 else 0.001)
        return [], 1

    fetcher = Fetcher[Pages](_Observer(), max_threads=4)
    for number in range(200):
        fetcher.submit(FetchRequest(partial(read, number), responses.append, size=1000 if number == 150 else 1))
    assert soon(lambda: len(responses) == 200)
    assert attempts.count(150) == 1
    fetcher.stop()


def test_a_hedge_does_not_extend_the_deadline_of_its_request() -> None:
    responses, attempts = list[Pages | BaseException](), list[int]()
    first, hedge = Event(), Event()
    error = StorageTimeoutError("the deadline is over")

    def read(number: int) -> tuple[Pages, int]:
        attempts.append(number)
        if number == 150:
            assert (first if attempts.count(150) == 1 else hedge).wait(240)
            raise error
        return [], 1

    fetcher = Fetcher[Pages](_Observer(), max_threads=4)
    for number in range(200):
        fetcher.submit(FetchRequest(partial(read, number), responses.append))
    assert soon(lambda: attempts.count(150) == 2)
    first.set()
    assert soon(lambda: error in responses), "the hedge still runs, but the request is over"
    time.sleep(0.2)
    assert attempts.count(150) == 2, "and it is not hedged again"
    hedge.set()
    assert soon(lambda: len(responses) == 200)
    fetcher.stop()


def test_a_hedge_that_fails_leaves_the_first_try_its_time() -> None:
    responses, attempts = list[Pages | BaseException](), list[int]()
    hedged, go = Event(), Event()

    def read(number: int) -> tuple[Pages, int]:
        attempts.append(number)
        if number == 150 and attempts.count(150) == 1:
            assert go.wait(240)
        elif number == 150:
            hedged.set()
            raise StorageError("a hedge failed")
        return [], 1

    fetcher = Fetcher[Pages](_Observer(), max_threads=4)
    for number in range(200):
        fetcher.submit(FetchRequest(partial(read, number), responses.append))
    assert hedged.wait(240)
    go.set()
    assert soon(lambda: len(responses) == 200)
    assert responses == [[]] * 200
    fetcher.stop()


def test_a_store_that_answers_nothing_fails_every_request_after_one_deadline() -> None:
    error = StorageTimeoutError("the deadline is over")
    store, fetcher = _SlowStore(error), Fetcher[Pages](_Observer(), max_threads=8)
    for number in range(80):
        fetcher.submit(store.request(number))
    assert soon(lambda: len(store.started) == 8)
    store.go.set()
    assert soon(lambda: len(store.responses) == 80)
    fetcher.submit(store.request(80))
    assert soon(lambda: len(store.responses) == 81)
    assert (len(store.started), store.responses) == (8, [error] * 81)
    fetcher.stop()


@pytest.mark.parametrize("error", [StorageTimeoutError("the deadline is over"), StorageError("refused")])
def test_a_request_that_fails_while_others_are_answered_fails_alone(error: Exception) -> None:
    responses = list[Pages | BaseException]()

    def read(number: int) -> tuple[Pages, int]:
        time.sleep(0.001)
        if number == 40:
            assert soon(lambda: len(responses) > 60)
            raise error
        return [], 1

    fetcher = Fetcher[Pages](_Observer(), max_threads=8)
    for number in range(200):
        fetcher.submit(FetchRequest(partial(read, number), responses.append))
    assert soon(lambda: len(responses) == 200)
    assert [found for found in responses if found] == [error]
    fetcher.stop()
