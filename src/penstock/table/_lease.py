"""Leases protect a version from vacuum while it is read, however long that takes."""

import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from penstock.errors import PenstockError, PenstockWarning, StorageError
from penstock.history import HeldLease, check_not_expired, lease
from penstock.storage import cancel_retries_on
from penstock.table._read import Reader

_LEASE_S = 7 * 86_400.0
_RENEWALS = 28
"""Renewals within the life of a lease: every six hours, so that one survives days without a store."""
_RETRY_S = 600.0
_FIRST_WRITE_S = 5.0
"""The longest that a reader waits for the first attempt, which continues in the background."""
_RELEASE_S = 0.5

Wait = Callable[[threading.Event, float], bool]
"""Waits for an event for some seconds; returns whether it is set."""

_warned: set[str] = set()


@contextmanager
def lease_version(reader: Reader, seconds: float) -> Iterator[HeldLease | None]:
    """Protect a version while the block runs, and for `seconds` if the process dies in it.

    Yields None if no lease can be written, for whatever reason. Raises `SnapshotExpiredError` if vacuum has removed the
    version.
    """
    with ExitStack() as stack:
        held = None
        with suppress(StorageError):  # a server that is read-only refuses writes in its own way
            held = stack.enter_context(lease(reader.store, reader.commit, seconds=seconds))
            check_not_expired(reader.store, reader.commit)
        yield held


def lease_warning(reader: Reader) -> str:
    """The warning for a user who reads a version without a lease."""
    return (
        f"no lease protects this version from vacuum while it is read, because {reader.store.uri} does not accept "
        "writes from this user; if vacuum removes the version, reading raises SnapshotExpiredError"
    )


class VersionLease:
    """Protects the versions of some tables from vacuum. Threads write and renew leases, so that no batch waits.

    A lease belongs to the process that acquired it; a forked child acquires its own.
    """

    def __init__(self, readers: Sequence[Reader], *, wait: Wait = threading.Event.wait) -> None:
        self._readers, self._wait = readers, wait
        self._pid = 0
        self._release: Callable[[], object] | None = None

    def acquire(self, *, block: bool = False) -> None:
        """Acquire the lease in the background; with `block`, wait for the first attempt, which may fail."""
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        released, attempts = threading.Event(), [threading.Event() for _ in self._readers]
        threads = [
            threading.Thread(target=_hold, args=(*each, released, self._wait), name="penstock-lease", daemon=True)
            for each in zip(self._readers, attempts, strict=True)
        ]
        self._release = weakref.finalize(self, _release, self._pid, released, threads)
        for thread in threads:
            thread.start()
        for reader, attempted in zip(self._readers, attempts, strict=True):
            if block and not attempted.wait(_FIRST_WRITE_S):
                _warn_without_lease(reader)

    def release(self) -> None:
        """Release the lease; it can be acquired again."""
        if self._release is not None:
            self._release()
        self._pid, self._release = 0, None

    def __reduce__(self) -> tuple[object, ...]:
        return VersionLease, (self._readers,)


def _release(pid: int, released: threading.Event, threads: Sequence[threading.Thread]) -> None:
    if pid == os.getpid():
        released.set()
        for thread in threads:
            thread.join(_RELEASE_S)


def _hold(reader: Reader, attempted: threading.Event, released: threading.Event, wait: Wait) -> None:
    """Hold a lease until `released` is set; what cannot be written is tried again."""
    cancel_retries_on(released)
    pause_s = _LEASE_S / _RENEWALS
    try:
        while not released.is_set():
            with lease_version(reader, _LEASE_S) as held:
                if held is None:
                    _warn_without_lease(reader)
                attempted.set()
                while not wait(released, pause_s) and held is not None:
                    pause_s = _renew(reader.store.uri, held)
    except PenstockError:  # reading an expired version raises its own error
        return
    finally:
        attempted.set()


def _renew(uri: str, held: HeldLease) -> float:
    """Renew a lease; returns the seconds until the next attempt."""
    try:
        held.renew()
    except StorageError as error:
        _warn_once(
            f"{uri} renewal",
            f"the lease that protects the version being read in {uri} from vacuum could not be renewed ({error}); it "
            "stays valid for days, and renewal is retried",
        )
        return _RETRY_S
    return _LEASE_S / _RENEWALS


def _warn_without_lease(reader: Reader) -> None:
    _warn_once(reader.store.uri, lease_warning(reader))


def _warn_once(topic: str, text: str) -> None:
    if topic not in _warned:
        _warned.add(topic)
        warnings.warn(text, PenstockWarning, stacklevel=3)
