"""The retry loop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import AccessDeniedError, InvalidInputError, NotFoundError, StorageError, StorageTimeoutError
from penstock.storage import RetryPolicy
from penstock.storage._retry import retry


class Clock:
    """A fake clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.backoffs: list[float] = []
        self.retries = 0

    def sleep(self, seconds: float) -> None:
        self.backoffs.append(seconds)
        self.now_s += seconds

    def on_retry(self, elapsed_s: float, error: StorageError) -> None:
        assert 0 <= elapsed_s <= self.now_s
        assert str(error) != ""
        self.retries += 1


def run(policy: RetryPolicy, outcomes: list[tuple[float, Exception | None]], *, jitter: float = 1.0) -> Clock:
    """Run scripted attempts with a duration and an outcome each; the last one repeats."""
    clock = Clock()
    script = iter(outcomes)
    last = outcomes[-1]

    def attempt(timeout_s: float) -> None:
        duration_s, error = next(script, last)
        assert 0 < timeout_s <= policy.attempt_timeout_s
        clock.now_s += min(duration_s, timeout_s)
        if error is not None:
            raise error

    retry(
        policy,
        attempt,
        is_transient=lambda error: "transient" in str(error),
        on_retry=clock.on_retry,
        clock=lambda: clock.now_s,
        sleep=clock.sleep,
        uniform=lambda: jitter,
    )
    assert clock.retries == len(clock.backoffs)
    return clock


def transient() -> StorageError:
    return StorageError("transient")


def test_success_needs_no_backoff() -> None:
    assert run(RetryPolicy(), [(0.1, None)]).backoffs == []


def test_backoff_doubles_up_to_the_maximum() -> None:
    policy = RetryPolicy(initial_backoff_s=1, max_backoff_s=5)
    failures: list[tuple[float, Exception | None]] = [(0.0, transient()) for _ in range(5)]
    assert run(policy, [*failures, (0.0, None)]).backoffs == [1, 2, 4, 5, 5]
    assert run(policy, [*failures, (0.0, None)], jitter=0.25).backoffs == [0.25, 0.5, 1, 1.25, 1.25]


@given(
    deadline_s=st.floats(0.1, 500),
    attempt_timeout_s=st.floats(0.1, 100),
    duration_s=st.floats(0.001, 200),
    jitter=st.floats(0.01, 1),
)
def test_deadline_is_never_exceeded(
    deadline_s: float, attempt_timeout_s: float, duration_s: float, jitter: float
) -> None:
    policy = RetryPolicy(deadline_s=deadline_s, attempt_timeout_s=attempt_timeout_s)
    clock = Clock()

    def attempt(timeout_s: float) -> None:
        clock.now_s += min(duration_s, timeout_s)
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


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StorageError("transient"), StorageTimeoutError),
        (StorageTimeoutError("transient"), StorageTimeoutError),
        (AccessDeniedError("transient"), AccessDeniedError),
    ],
)
def test_an_exceeded_deadline_is_a_timeout_with_the_last_error(error: StorageError, kind: type[StorageError]) -> None:
    with pytest.raises(kind, match=r"transient \(gave up after 1 attempt in 9.0 s\)") as raised:
        run(RetryPolicy(deadline_s=9, attempt_timeout_s=9), [(9.0, error)])
    assert raised.value.__cause__ is error


def test_a_second_call_can_share_the_deadline_of_the_first() -> None:
    attempts = 0

    def attempt(_: float) -> None:
        nonlocal attempts
        attempts += 1
        raise transient()

    with pytest.raises(StorageTimeoutError, match=r"after 1 attempt in 8\.9 s"):
        retry(
            RetryPolicy(deadline_s=9, initial_backoff_s=1),
            attempt,
            is_transient=lambda _: True,
            started=100.0,
            clock=lambda: 108.9,
            sleep=lambda _: None,
            uniform=lambda: 1.0,
        )
    assert attempts == 1


@pytest.mark.parametrize("error", [NotFoundError("transient"), StorageError("permanent"), ValueError("transient")])
def test_permanent_errors_are_not_retried(error: Exception) -> None:
    with pytest.raises(type(error), match=r"^[a-z]+$"):
        run(RetryPolicy(), [(0.0, error), (0.0, None)])


def test_access_denied_is_retried_once() -> None:
    assert len(run(RetryPolicy(), [(0.0, AccessDeniedError("expired")), (0.0, None)]).backoffs) == 1
    with pytest.raises(AccessDeniedError, match=r"^second$"):
        run(RetryPolicy(), [(0.0, AccessDeniedError("first")), (0.0, transient()), (0.0, AccessDeniedError("second"))])


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
def test_policy_is_validated(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError, match=r"RetryPolicy\."):
        RetryPolicy(**wrong)
