"""Find out whether a store keeps its promises, rather than trust that it does."""

import secrets
import threading
from dataclasses import dataclass

from penstock.errors import AlreadyExistsError, CorruptError, NotFoundError, StorageError
from penstock.storage._pool import run_all
from penstock.storage._store import Store
from penstock.types import ByteRange


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store did when it was tried."""

    create_only: bool
    """Exactly one of racing creators won, every time; without it only one writer at a time is safe."""

    list_after_write: bool
    """A listing showed what had just been written."""

    ranged_reads: bool
    """A part of an object could be read alone."""

    detail: str
    """The findings in one sentence each."""


def probe(store: Store, *, racers: int = 8, rounds: int = 3) -> Capabilities:
    """Race creators on fresh keys, list, and read a part; the keys are removed afterwards."""
    prefix = f"probe-{secrets.token_hex(8)}"
    keys = [f"{prefix}-{number}" for number in range(rounds)]
    try:
        faults = [fault for key in keys if (fault := _race(store, key, racers))]
        listed = [info.key for info in store.list(f"{prefix}-")] == keys
        ranged = _reads_range(store, keys[0])
    finally:
        store.delete(keys)
    findings = [faults[0] if faults else f"exactly one of {racers} racing creators won, {rounds} times of {rounds}."]
    findings.append("A listing shows what was written." if listed else "A listing does not show what was just written.")
    findings.append("Ranged reads work." if ranged else "A ranged read returned other bytes than were asked for.")
    detail = f"{store.uri}: " + " ".join(findings)
    return Capabilities(create_only=not faults, list_after_write=listed, ranged_reads=ranged, detail=detail)


def _race(store: Store, key: str, racers: int) -> str | None:
    """Return what was wrong with one race."""
    start = threading.Barrier(racers)
    bodies = [f"{number:04} {secrets.token_hex(16)}".encode() for number in range(racers)]

    def create(body: bytes) -> bool | StorageError:
        start.wait()
        return _create(store, key, body)

    answers = dict(zip(bodies, run_all(create, bodies, max_workers=racers), strict=True))
    winners = [body for body, answer in answers.items() if answer is True]
    doubtful = [answer for answer in answers.values() if isinstance(answer, StorageError)]
    if len(winners) > 1:
        return f"{len(winners)} of {racers} racing creators were told that they won: only one writer at a time is safe."
    try:
        content = bytes(store.get(key))
    except NotFoundError as error:
        if not winners and doubtful:
            raise doubtful[0] from error
        return "racing creators were answered, but nothing was written: only one writer at a time is safe."
    if answers.get(content, False) is False or (winners and content != winners[0]):
        return "a creator that was told that it lost has won: only one writer at a time is safe."
    if _create(store, key, b"late") is True or bytes(store.get(key)) != content:
        return "an object that was there was created again: only one writer at a time is safe."
    return None


def _create(store: Store, key: str, body: bytes) -> bool | StorageError:
    """Say whether the store says that it created the object, or why that is not known."""
    try:
        store.create(key, body)
    except AlreadyExistsError:
        return False
    except StorageError as error:  # such as a limit on the rate of updates to one name
        return error
    return True


def _reads_range(store: Store, key: str) -> bool:
    whole = bytes(store.get(key))
    try:
        return bytes(store.get(key, byte_range=ByteRange(1, 3))) == whole[1:3]
    except (CorruptError, NotFoundError):
        return False
