"""`thread_map`."""

import os
import threading
import time

import pytest

from penstock.storage import thread_map


def test_results_are_in_order() -> None:
    def slow_first(index: int) -> int:
        time.sleep(0.001 * (10 - index))
        return index * 2

    assert thread_map(slow_first, range(10), max_workers=4) == list(range(0, 20, 2))
    assert thread_map(slow_first, [], max_workers=4) == []


def test_concurrency_is_bounded() -> None:
    lock, running, max_running = threading.Lock(), 0, 0

    def work(_: int) -> None:
        nonlocal running, max_running
        with lock:
            running += 1
            max_running = max(max_running, running)
        time.sleep(0.002)
        with lock:
            running -= 1

    thread_map(work, range(30), max_workers=3)
    assert max_running == 3


def test_failure_starts_nothing_more_and_waits_for_calls_in_flight() -> None:
    started: list[int] = []
    ended: list[int] = []

    def work(index: int) -> None:
        started.append(index)
        if index == 2:
            raise KeyError(index)
        time.sleep(0.02)
        ended.append(index)

    others = set(threading.enumerate())
    with pytest.raises(KeyError, match="2"):
        thread_map(work, range(100), max_workers=4)
    assert len(started) < 20
    assert sorted([*ended, 2]) == sorted(started)
    assert set(threading.enumerate()) <= others


def test_calls_nest() -> None:
    products = thread_map(
        lambda row: thread_map(lambda column: row * column, range(5), max_workers=5), range(5), max_workers=5
    )
    assert products == [[row * column for column in range(5)] for row in range(5)]


def test_works_in_a_forked_child() -> None:
    assert thread_map(abs, [-1, -2], max_workers=2) == [1, 2]
    child = os.fork()
    if child == 0:
        os._exit(0 if thread_map(abs, [-1, -2], max_workers=2) == [1, 2] else 1)
    assert os.waitpid(child, 0)[1] == 0
