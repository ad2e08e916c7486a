"""Retry policy and the retry loop."""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from penstock.errors import AccessDeniedError, InvalidInputError, StorageError, StorageTimeoutError

T = TypeVar("T")

_jitter = random.Random()  # its own generator: a user's seeded one is not disturbed
_thread = threading.local()


def cancel_retries_on(event: threading.Event) -> None:
    """Make this thread retry no request once the event is set, because its result is no longer needed."""
    _thread.event = event


def _sleep(seconds: float) -> None:
    event: threading.Event | None = getattr(_thread, "event", None)
    if event is None:
        time.sleep(seconds)
    else:
        event.wait(seconds)


def _is_cancelled() -> bool:
    event: threading.Event | None = getattr(_thread, "event", None)
    return event is not None and event.is_set()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Deadlines, and backoff between attempts (exponential, full jitter)."""

    deadline_s: float = 120.0
    """Longest time one call may take, including all attempts and backoff."""

    connect_deadline_s: float = 10.0
    """The same as long as no request has ever reached the store: its address is wrong, or nothing runs there."""

    attempt_timeout_s: float = 60.0
    """Longest time one request may take, including its body."""

    initial_backoff_s: float = 0.1
    """Longest backoff after the first failure; it doubles with each further one."""

    max_backoff_s: float = 10.0
    """Longest backoff after any failure."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidInputError(f"RetryPolicy.{name} must be a positive number, not {getattr(self, name)!r}")
        if self.initial_backoff_s > self.max_backoff_s:
            raise InvalidInputError("RetryPolicy.initial_backoff_s must not exceed max_backoff_s")


def retry(
    policy: RetryPolicy,
    attempt: Callable[[float], T],
    *,
    is_transient: Callable[[StorageError], bool],
    is_unreachable: Callable[[StorageError], bool] = lambda _: False,
    started: float | None = None,
    on_retry: Callable[[float, StorageError], None] = lambda _, __: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = _sleep,
    uniform: Callable[[], float] = _jitter.random,
) -> T:
    """Call `attempt` with its timeout in seconds until it succeeds, fails permanently, or the deadline is near.

    The deadline counts from `started`, by default from now, and is `connect_deadline_s` if `is_unreachable`; after it,
    a `StorageTimeoutError` with the text of the last error is raised. `AccessDeniedError` is retried once, because
    credentials may have been renewed since they were read. `on_retry` is called with the seconds so far and the error
    before every attempt but the first.
    """
    started = clock() if started is None else started
    refusals = attempts = 0
    while True:
        try:
            return attempt(min(policy.attempt_timeout_s, started + policy.deadline_s - clock()))
        except StorageError as error:
            attempts += 1
            refused = isinstance(error, AccessDeniedError)
            refusals += refused
            if refusals > 1 or not (refused or is_transient(error)) or _is_cancelled():
                raise
            max_backoff_s = min(policy.max_backoff_s, policy.initial_backoff_s * 2.0 ** min(attempts - 1, 60))
            backoff_s = max_backoff_s * uniform()
            elapsed_s = clock() - started
            deadline_s = policy.deadline_s
            if is_unreachable(error):
                deadline_s = min(deadline_s, policy.connect_deadline_s)
            if elapsed_s + backoff_s >= deadline_s:
                count = f"{attempts} attempt{'s' * (attempts > 1)} in {elapsed_s:.1f} s"
                kind = AccessDeniedError if refused else StorageTimeoutError
                raise kind(f"{error} (gave up after {count})") from error
            last = error
        sleep(backoff_s)
        on_retry(elapsed_s, last)
