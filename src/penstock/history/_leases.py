"""Leases, by which a reader keeps a version, and notices, by which a slow writer keeps what it has not published yet.

Time is the store's own: an object's age is the difference of two times that the store wrote down.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

from penstock.errors import NotFoundError, StorageError
from penstock.format import Commit, known, new_id, seal, unseal
from penstock.storage import Store

ORPHAN_AGE_S = 7 * 86_400.0
"""How long objects that no commit refers to are left alone; a writer that takes longer gives notice."""


@dataclass(frozen=True)
class Lease:
    """A version that is being read."""

    branch: str
    version: int
    snapshot: str
    seconds: float
    """How long it is kept after the lease was last written."""


@dataclass(frozen=True)
class Notice:
    """A writer at work."""

    since_s: float
    """When, by the store's clock, it stored its first object."""


def store_time(store: Store) -> float:
    """What time it is by the store's clock: that of an object written for the purpose."""
    key = f"intents/clock-{new_id()}"
    store.put(key, b"")
    try:
        return store.head(key).modified_s
    finally:
        with suppress(StorageError):
            store.delete([key])


@contextmanager
def lease(store: Store, commit: Commit, *, seconds: float) -> Iterator[None]:
    """Keep a version from vacuum while the block runs, and for so long if it is never left."""
    key = f"leases/{new_id()}.json"
    store.put(key, seal(asdict(Lease(commit.branch, commit.version, commit.snapshot.id, seconds))))
    try:
        yield
    finally:
        with suppress(StorageError):
            store.delete([key])


def live_leases(store: Store, *, now_s: float) -> list[Lease]:
    """The leases that hold."""
    found = []
    for item in store.list("leases/"):
        with suppress(NotFoundError):  # given back while we looked
            held = known(Lease, unseal(store.get(item.key), f"{store.uri}/{item.key}"))
            if item.modified_s + held.seconds > now_s:
                found.append(held)
    return found


class Noticeboard:
    """One writer's notice: put up when it has been at work for long, renewed, and taken down at the end."""

    def __init__(self, store: Store, *, every_s: float = 3600.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._every_s, self._clock = store, every_s, clock
        self._key = f"intents/{new_id()}.json"
        self._since_s: float | None = None
        self._renewed_s = 0.0

    def at_work(self) -> None:
        """Called whenever something is about to be stored; differences of local time are all that is used of it."""
        local_s = self._clock()
        if self._since_s is None:
            self._since_s = self._renewed_s = local_s
        elif local_s - self._renewed_s > self._every_s:
            began = store_time(self._store) - (local_s - self._since_s) - self._every_s
            self._store.put(self._key, seal(asdict(Notice(began))))
            self._renewed_s = local_s

    def done(self) -> None:
        """Everything was published, or given up."""
        if self._since_s is not None and self._renewed_s > self._since_s:
            with suppress(StorageError):
                self._store.delete([self._key])
        self._since_s = None


def oldest_notice(store: Store, *, now_s: float) -> float:
    """Since when objects may belong to a writer at work."""
    times = [now_s - ORPHAN_AGE_S]
    for item in store.list("intents/"):
        if item.key.endswith(".json") and item.modified_s > now_s - ORPHAN_AGE_S:
            with suppress(NotFoundError):
                times.append(known(Notice, unseal(store.get(item.key), f"{store.uri}/{item.key}")).since_s)
    return min(times)
