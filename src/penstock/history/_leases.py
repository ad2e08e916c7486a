"""Leases protect a version that is being read from vacuum; write intents protect a slow writer's unpublished objects.

All times are the store's: an object's age is the difference of two modification times.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

from penstock.errors import NotFoundError, StorageError
from penstock.format import Commit, from_members, new_id, seal, unseal
from penstock.storage import Store

ORPHAN_AGE_S = 7 * 86_400.0
"""The age until which vacuum keeps objects that no commit refers to; a slower writer needs a write intent."""


@dataclass(frozen=True)
class Lease:
    """A version that is being read."""

    branch: str
    version: int
    snapshot: str
    seconds: float
    """How long the version is protected after the lease was last written."""


@dataclass(frozen=True)
class Intent:
    """A writer with unpublished objects."""

    since_s: float
    """Time of its first object, by the store's clock."""


def store_time(store: Store) -> float:
    """The store's current time: the modification time of a temporary object."""
    key = f"intents/clock-{new_id()}"
    store.put(key, b"")
    try:
        return store.head(key).modified_s
    finally:
        with suppress(StorageError):
            store.delete([key])


class HeldLease:
    """A lease in the store; only the process that took it renews and releases it, not its forked children."""

    def __init__(self, store: Store, commit: Commit, *, seconds: float) -> None:
        self._store, self._pid = store, os.getpid()
        self._key = f"leases/{new_id()}.json"
        self._body = seal(asdict(Lease(commit.branch, commit.version, commit.snapshot.id, seconds)))
        self.renew()

    def renew(self) -> None:
        """Protect the version for another `seconds` from now."""
        if self._pid == os.getpid():
            self._store.put(self._key, self._body)

    def release(self) -> None:
        """Protect the version no longer; a store that does not respond lets the lease expire."""
        if self._pid == os.getpid():
            with suppress(StorageError):
                self._store.delete([self._key])


@contextmanager
def lease(store: Store, commit: Commit, *, seconds: float) -> Iterator[HeldLease]:
    """Protect a version from vacuum while the block runs, and for `seconds` if the process dies in it.

    A block that runs longer than `seconds` renews the lease in time.
    """
    held = HeldLease(store, commit, seconds=seconds)
    try:
        yield held
    finally:
        held.release()


def live_leases(store: Store, *, now_s: float) -> list[Lease]:
    """The leases that have not expired."""
    found = []
    for item in store.list("leases/"):
        with suppress(NotFoundError):  # released meanwhile
            held = from_members(Lease, unseal(store.get(item.key), f"{store.uri}/{item.key}"))
            if item.modified_s + held.seconds > now_s:
                found.append(held)
    return found


class WriteIntent:
    """One writer's intent object: written once the writer has run for `every_s`, renewed, and deleted at the end."""

    def __init__(self, store: Store, *, every_s: float = 3600.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._every_s, self._clock = store, every_s, clock
        self._key = f"intents/{new_id()}.json"
        self._since_s: float | None = None
        self._renewed_s = 0.0

    def renew(self) -> None:
        """Call before storing objects; of the local clock only differences are used."""
        local_s = self._clock()
        if self._since_s is None:
            self._since_s = self._renewed_s = local_s
        elif local_s - self._renewed_s > self._every_s:
            since_s = store_time(self._store) - (local_s - self._since_s) - self._every_s
            self._store.put(self._key, seal(asdict(Intent(since_s))))
            self._renewed_s = local_s

    def release(self) -> None:
        """Call when all objects are published or discarded."""
        if self._since_s is not None and self._renewed_s > self._since_s:
            with suppress(StorageError):
                self._store.delete([self._key])
        self._since_s = None


def oldest_intent_s(store: Store, *, now_s: float) -> float:
    """The time since which unpublished objects may belong to an active writer."""
    times = [now_s - ORPHAN_AGE_S]
    for item in store.list("intents/"):
        if item.key.endswith(".json") and item.modified_s > now_s - ORPHAN_AGE_S:
            with suppress(NotFoundError):
                times.append(from_members(Intent, unseal(store.get(item.key), f"{store.uri}/{item.key}")).since_s)
    return min(times)
