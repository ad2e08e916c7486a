"""Token buckets, with a clock that the test sets."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.server._rate_limit import RateLimit


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def taken(limit: RateLimit, name: str, attempts: int) -> int:
    return sum(limit.take(name) == 0 for _ in range(attempts))


def test_a_bucket_holds_the_tokens_of_two_seconds(clock: Clock) -> None:
    limit = RateLimit(5, clock=clock)
    assert taken(limit, "a", 100) == 10
    clock.now += 3600
    assert taken(limit, "a", 100) == 10


def test_a_bucket_is_refilled_at_its_rate(clock: Clock) -> None:
    limit = RateLimit(4, clock=clock)
    assert taken(limit, "a", 100) == 8
    assert limit.take("a") == pytest.approx(0.25)
    clock.now += 0.125
    assert limit.take("a") == pytest.approx(0.125)
    clock.now += limit.take("a")
    assert limit.take("a") == 0
    clock.now += 1
    assert taken(limit, "a", 100) == 4


def test_asking_takes_no_token(clock: Clock) -> None:
    limit = RateLimit(1, clock=clock)
    assert [limit.wait_s("a") for _ in range(5)] == [0.0] * 5
    assert taken(limit, "a", 5) == 2
    assert limit.wait_s("a") == pytest.approx(1)


def test_names_do_not_share_a_bucket(clock: Clock) -> None:
    limit = RateLimit(1, clock=clock)
    assert taken(limit, "a", 5) == 2
    assert taken(limit, "b", 5) == 2


def test_a_slow_rate_allows_one_request(clock: Clock) -> None:
    limit = RateLimit(0.1, clock=clock)
    assert taken(limit, "a", 5) == 1
    assert limit.take("a") == pytest.approx(10)


def test_memory_is_bounded_and_the_bucket_that_was_used_longest_ago_is_forgotten(clock: Clock) -> None:
    limit = RateLimit(1, capacity=3, clock=clock)
    for name in ("a", "b", "c"):
        assert taken(limit, name, 1) == 1
    assert taken(limit, "a", 5) == 1  # now b is the oldest
    assert taken(limit, "d", 5) == 2
    assert taken(limit, "a", 5) == 0
    assert taken(limit, "c", 5) == 1
    assert taken(limit, "b", 5) == 2  # forgotten, so full again
    for number in range(1000):
        limit.take(f"n{number}")
    assert len(limit._buckets) == 3


def test_threads_take_no_token_twice(clock: Clock) -> None:
    limit, together = RateLimit(500, clock=clock), threading.Barrier(8)

    def take(_: int) -> int:
        together.wait()
        return taken(limit, "a", 1000)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(take, range(8))) == 1000


@given(
    rate=st.floats(0.1, 1000),
    pauses=st.lists(st.floats(0, 5), max_size=100),
)
def test_no_client_exceeds_the_rate(rate: float, pauses: list[float]) -> None:
    """Over any time: at most the burst, and the rate times the time."""
    clock = Clock()
    limit, granted = RateLimit(rate, clock=clock), 0
    for pause in pauses:
        clock.now += pause
        granted += taken(limit, "a", 3)
    assert granted <= max(1, 2 * rate) + rate * sum(pauses) + 1e-6
