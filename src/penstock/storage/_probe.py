"""Test whether a store honours the contract that commits depend on."""

import secrets
import threading
from dataclasses import dataclass

from penstock.errors import AlreadyExistsError, CorruptError, NotFoundError, StorageError
from penstock.storage._store import Store
from penstock.storage._threads import thread_map
from penstock.types import ByteRange


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Results of a probe."""

    create_only: bool
    """Exactly one of the racing `create` calls succeeded, every time; without it only one writer at a time is safe."""

    list_after_write: bool
    """A listing includes objects that were just written."""

    ranged_reads: bool
    """A range of an object can be read alone."""

    detail: str
    """The results, one sentence each."""


def probe(store: Store, *, racers: int = 8, rounds: int = 3) -> Capabilities:
    """Race `create` calls on new keys, list, and read a range; removes the keys afterwards."""
    prefix = f"probe-{secrets.token_hex(8)}"
    keys = [f"{prefix}-{index}" for index in range(rounds)]
    try:
        faults = [fault for key in keys if (fault := _race(store, key, racers))]
        listed = [info.key for info in store.list(f"{prefix}-")] == keys
        ranged = _reads_range(store, keys[0])
    finally:
        store.delete(keys)
    findings = [faults[0] if faults else f"one of {racers} racing creates succeeded, {rounds} times of {rounds}."]
    findings.append("Listings include new objects." if listed else "A listing lacks a new object.")
    findings.append("Ranged reads work." if ranged else "A ranged read returned the wrong bytes.")
    detail = f"{store.uri}: " + " ".join(findings)
    return Capabilities(create_only=not faults, list_after_write=listed, ranged_reads=ranged, detail=detail)


def _race(store: Store, key: str, racers: int) -> str | None:
    """Race `create` calls on one key; returns the fault found, if any."""
    start = threading.Barrier(racers)
    bodies = [f"{index:04} {secrets.token_hex(16)}".encode() for index in range(racers)]

    def create(body: bytes) -> bool | StorageError:
        start.wait()
        return _create(store, key, body)

    outcomes = dict(zip(bodies, thread_map(create, bodies, max_workers=racers), strict=True))
    winners = [body for body, outcome in outcomes.items() if outcome is True]
    unknown = [outcome for outcome in outcomes.values() if isinstance(outcome, StorageError)]
    if len(winners) > 1:
        return f"{len(winners)} of {racers} racing creates reported success: only one writer at a time is safe."
    try:
        content = bytes(store.get(key))
    except NotFoundError as error:
        if not winners and unknown:
            raise unknown[0] from error
        return "racing creates completed, but no object was written: only one writer at a time is safe."
    if outcomes.get(content, False) is False or (winners and content != winners[0]):
        return "a create that reported failure wrote the object: only one writer at a time is safe."
    if _create(store, key, b"late") is True or bytes(store.get(key)) != content:
        return "an existing object was created again: only one writer at a time is safe."
    return None


def _create(store: Store, key: str, body: bytes) -> bool | StorageError:
    """Whether the store reports that it created the object, or the error that leaves this unknown."""
    try:
        store.create(key, body)
    except AlreadyExistsError:
        return False
    except StorageError as error:  # such as a rate limit on updates of one key
        return error
    return True


def _reads_range(store: Store, key: str) -> bool:
    whole = bytes(store.get(key))
    try:
        return bytes(store.get(key, byte_range=ByteRange(1, 3))) == whole[1:3]
    except (CorruptError, NotFoundError):
        return False
