"""The loop that asks a store again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import AccessDenied, InvalidInputError, NotFoundError, StorageError, StorageTimeout
from penstock.storage import RetryPolicy
from penstock.storage._retry import retry


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []
        self.repeats = 0

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds

    def repeat(self) -> None:
        self.repeats += 1


def run(policy: RetryPolicy, outcomes: list[tuple[float, Exception | None]], *, jitter: float = 1.0) -> Clock:
    """Play attempts that each take some time and then fail or succeed; the last one repeats."""
    clock = Clock()
    script = iter(outcomes)
    last = outcomes[-1]

    def attempt(allowed_s: float) -> None:
        duration_s, error = next(script, last)
        assert 0 < allowed_s <= policy.attempt_timeout_s
        clock.now_s += min(duration_s, allowed_s)
        if error is not None:
            raise error

    retry(
        policy,
        attempt,
        is_transient=lambda error: "transient" in str(error),
        repeating=clock.repeat,
        clock=lambda: clock.now_s,
        sleep=clock.sleep,
        uniform=lambda: jitter,
    )
    assert clock.repeats == len(clock.pauses)
    return clock


def transient() -> StorageError:
    return StorageError("transient")


def test_success_needs_no_pause() -> None:
    assert run(RetryPolicy(), [(0.1, None)]).pauses == []


def test_pauses_double_up_to_the_longest() -> None:
    policy = RetryPolicy(initial_backoff_s=1, max_backoff_s=5)
    failures: list[tuple[float, Exception | None]] = [(0.0, transient()) for _ in range(5)]
    assert run(policy, [*failures, (0.0, None)]).pauses == [1, 2, 4, 5, 5]
    assert run(policy, [*failures, (0.0, None)], jitter=0.25).pauses == [0.25, 0.5, 1, 1.25, 1.25]


@given(
    deadline_s=st.floats(0.1, 500),
    attempt_timeout_s=st.floats(0.1, 100),
    duration_s=st.floats(0.001, 200),
    jitter=st.floats(0.01, 1),
)
def test_never_longer_than_the_deadline(
    deadline_s: float, attempt_timeout_s: float, duration_s: float, jitter: float
) -> None:
    policy = RetryPolicy(deadline_s=deadline_s, attempt_timeout_s=attempt_timeout_s)
    clock = Clock()

    def attempt(allowed_s: float) -> None:
        clock.now_s += min(duration_s, allowed_s)
        raise transient()

    with pytest.raises(StorageError, match="gave up after"):
        retry(
            policy,
            attempt,
            is_transient=lambda _: True,
            clock=lambda: clock.now_s,
            sleep=clock.sleep,
            uniform=lambda: jitter,
        )
    assert clock.now_s <= deadline_s * (1 + 1e-9)
    assert clock.now_s + max(duration_s, policy.max_backoff_s) >= deadline_s


def test_the_last_error_keeps_its_type() -> None:
    with pytest.raises(StorageTimeout, match=r"transient \(gave up after 1 attempt in 9.0 s\)"):
        run(RetryPolicy(deadline_s=9, attempt_timeout_s=9), [(9.0, StorageTimeout("transient"))])


@pytest.mark.parametrize("error", [NotFoundError("transient"), StorageError("permanent"), ValueError("transient")])
def test_other_errors_pass_at_once(error: Exception) -> None:
    with pytest.raises(type(error), match=r"^[a-z]+$"):
        run(RetryPolicy(), [(0.0, error), (0.0, None)])


def test_a_refusal_is_tried_once_more() -> None:
    assert len(run(RetryPolicy(), [(0.0, AccessDenied("expired")), (0.0, None)]).pauses) == 1
    with pytest.raises(AccessDenied, match=r"^second$"):
        run(RetryPolicy(), [(0.0, AccessDenied("first")), (0.0, transient()), (0.0, AccessDenied("second"))])


@pytest.mark.parametrize(
    "wrong",
    [
        {"deadline_s": 0},
        {"attempt_timeout_s": -1},
        {"deadline_s": float("nan")},
        {"deadline_s": float("inf")},
        {"initial_backoff_s": 2, "max_backoff_s": 1},
    ],
)
def test_policy_is_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError, match=r"RetryPolicy\."):
        RetryPolicy(**wrong)
