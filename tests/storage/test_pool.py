"""Threads that live as long as one call."""

import os
import threading
import time

import pytest

from penstock.storage import run_all


def test_results_are_in_order() -> None:
    def late(number: int) -> int:
        time.sleep(0.001 * (10 - number))
        return number * 2

    assert run_all(late, range(10), max_workers=4) == list(range(0, 20, 2))
    assert run_all(late, [], max_workers=4) == []


def test_no_more_at_once_than_asked() -> None:
    lock, running, most = threading.Lock(), 0, 0

    def work(_: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        with lock:
            running -= 1

    run_all(work, range(30), max_workers=3)
    assert most == 3


def test_a_failure_stops_what_has_not_begun_and_waits_for_what_has() -> None:
    begun: list[int] = []
    ended: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        if number == 2:
            raise KeyError(number)
        time.sleep(0.02)
        ended.append(number)

    others = set(threading.enumerate())
    with pytest.raises(KeyError, match="2"):
        run_all(work, range(100), max_workers=4)
    assert len(begun) < 20
    assert sorted([*ended, 2]) == sorted(begun)
    assert set(threading.enumerate()) <= others


def test_calls_nest() -> None:
    square = run_all(lambda row: run_all(lambda column: row * column, range(5), max_workers=5), range(5), max_workers=5)
    assert square == [[row * column for column in range(5)] for row in range(5)]


def test_works_in_a_forked_child() -> None:
    assert run_all(abs, [-1, -2], max_workers=2) == [1, 2]
    child = os.fork()
    if child == 0:
        os._exit(0 if run_all(abs, [-1, -2], max_workers=2) == [1, 2] else 1)
    assert os.waitpid(child, 0)[1] == 0
