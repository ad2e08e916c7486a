"""When to ask a store again, and when to give up."""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from penstock.errors import AccessDenied, InvalidInputError, StorageError

T = TypeVar("T")

_jitter = random.Random()  # of its own: nobody's seeded generator is disturbed
_thread = threading.local()


def give_up_when(event: threading.Event) -> None:
    """Let this thread ask nothing again once the event is set: nobody waits for the answer any more."""
    _thread.event = event


def _pause(seconds: float) -> None:
    event: threading.Event | None = getattr(_thread, "event", None)
    if event is None:
        time.sleep(seconds)
    else:
        event.wait(seconds)


def _nobody_waits() -> bool:
    event: threading.Event | None = getattr(_thread, "event", None)
    return event is not None and event.is_set()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to try, and how to wait between tries (exponential backoff, full jitter)."""

    deadline_s: float = 120.0
    """Longest time one call may take, all its attempts and pauses together."""

    attempt_timeout_s: float = 60.0
    """Longest time one request may take, its body included."""

    initial_backoff_s: float = 0.1
    """Longest pause after the first failure; it doubles with each further one."""

    max_backoff_s: float = 10.0
    """Longest pause after any failure."""

    def __post_init__(self) -> None:
        for name in ("deadline_s", "attempt_timeout_s", "initial_backoff_s", "max_backoff_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidInputError(f"RetryPolicy.{name} must be a positive number, not {getattr(self, name)!r}")
        if self.initial_backoff_s > self.max_backoff_s:
            raise InvalidInputError("RetryPolicy.initial_backoff_s must not exceed max_backoff_s")


def retry(
    policy: RetryPolicy,
    attempt: Callable[[float], T],
    *,
    is_transient: Callable[[StorageError], bool],
    repeating: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = _pause,
    uniform: Callable[[], float] = _jitter.random,
) -> T:
    """Call `attempt` with the seconds it may take until it succeeds, fails for good, or the deadline is near.

    A refusal is tried once more, because credentials may have been renewed since they were read. `repeating` is called
    before every attempt but the first.
    """
    started = clock()
    refusals = attempts = 0
    while True:
        try:
            return attempt(min(policy.attempt_timeout_s, started + policy.deadline_s - clock()))
        except StorageError as error:
            attempts += 1
            refusals += isinstance(error, AccessDenied)
            if refusals > 1 or not (isinstance(error, AccessDenied) or is_transient(error)) or _nobody_waits():
                raise
            longest = min(policy.max_backoff_s, policy.initial_backoff_s * 2.0 ** min(attempts - 1, 60))
            pause = longest * uniform()
            elapsed = clock() - started
            if elapsed + pause >= policy.deadline_s:
                times = f"{attempts} attempt{'s' * (attempts > 1)} in {elapsed:.1f} s"
                raise type(error)(f"{error} (gave up after {times})") from error
        sleep(pause)
        repeating()
