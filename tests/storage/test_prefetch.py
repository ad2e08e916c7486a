"""`read_ahead`: ordered, bounded, and stopped with its consumer."""

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import StorageError
from penstock.storage import Prefetch, RetryPolicy, read_ahead
from penstock.storage._retry import retry


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def prefetch_threads() -> int:
    return sum(thread.name == "penstock-prefetch" for thread in threading.enumerate())


@settings(deadline=None, max_examples=50)
@given(
    sizes=st.lists(st.integers(0, 100), max_size=60),
    max_concurrency=st.integers(1, 8),
    max_bytes=st.one_of(st.none(), st.integers(1, 300)),
)
def test_results_are_in_order_and_bounded(sizes: list[int], max_concurrency: int, max_bytes: int | None) -> None:
    lock, running, max_running = threading.Lock(), 0, 0
    scheduled: list[int] = []
    consumed = 0

    def items() -> Iterator[int]:
        for index in range(len(sizes)):
            scheduled.append(index)
            yield index

    def read(index: int) -> int:
        nonlocal running, max_running
        with lock:
            running += 1
            max_running = max(max_running, running)
        time.sleep(0.0001 * (index % 3))
        with lock:
            running -= 1
        return index

    limits = Prefetch(max_concurrency, max_bytes)
    for expected, index in enumerate(read_ahead(read, items(), prefetch=limits, size=lambda index: sizes[index])):
        assert index == expected
        consumed += 1
        pending = scheduled[consumed:]
        assert len(pending) <= 2 * max_concurrency
        assert max_bytes is None or sum(sizes[index] for index in pending[:-1]) < max_bytes or len(pending) <= 1
    assert consumed == len(sizes)
    assert max_running <= max_concurrency


def test_reads_run_concurrently() -> None:
    barrier = threading.Barrier(4)
    results = read_ahead(lambda _: barrier.wait(10), range(4), prefetch=Prefetch(4))
    assert sorted(results) == [0, 1, 2, 3]


@pytest.mark.parametrize("source_fails", [False, True])
def test_errors_are_raised_in_their_place(source_fails: bool) -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        if source_fails:
            raise KeyError("three")
        yield from range(3, 9)

    def read(index: int) -> int:
        if index == 3:
            raise KeyError("three")
        time.sleep(0.01)
        return index

    results = read_ahead(read, items(), prefetch=Prefetch(4))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="three"):
        next(results)
    assert list(results) == []


@pytest.mark.parametrize("stop", ["close", "drop"])
def test_threads_stop_with_the_iterator(stop: str) -> None:
    before = prefetch_threads()
    started: list[int] = []
    results = read_ahead(started.append, range(1000), prefetch=Prefetch(4))
    next(results)
    if stop == "close":
        results.close()  # type: ignore[attr-defined]
    del results
    gc.collect()
    wait_until(lambda: prefetch_threads() == before)
    assert len(started) <= 9


def test_reads_in_flight_are_not_retried_after_the_iterator_is_closed() -> None:
    attempts: list[int] = []

    def attempt(_: float) -> None:
        attempts.append(1)
        raise StorageError("transient")

    def read(index: int) -> None:
        if index:
            retry(
                RetryPolicy(initial_backoff_s=0.3, max_backoff_s=0.3),
                attempt,
                is_transient=lambda _: True,
                uniform=lambda: 1,
            )

    before = prefetch_threads()
    results = read_ahead(read, range(2), prefetch=Prefetch(2))
    next(results)
    wait_until(lambda: bool(attempts))
    results.close()  # type: ignore[attr-defined]
    wait_until(lambda: prefetch_threads() == before)
    assert len(attempts) <= 2


def test_ctrl_c_interrupts_a_waiting_consumer() -> None:
    release = threading.Event()
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(read_ahead(lambda _: release.wait(30), range(4), prefetch=Prefetch(2)))
    assert time.monotonic() - started < 5
    release.set()


def test_read_ahead_nests() -> None:
    outer = read_ahead(lambda index: range(index), range(20), prefetch=Prefetch(3))
    flat = (value for values in outer for value in values)
    expected = [value for index in range(20) for value in range(index)]
    assert list(read_ahead(lambda value: value, flat, prefetch=Prefetch(2))) == expected
