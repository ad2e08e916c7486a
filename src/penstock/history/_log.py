"""The log of a branch: numbered create-only commits; a version is created here and nowhere else.

The contract; if the code disagrees with this list, the code is wrong:

- A version exists if and only if its commit object does. Everything a commit refers to was stored before it.
- A commit object is never replaced and never deleted, so that no writer, however late, can create a version twice.
- A writer without a clear response reads back: the write id distinguishes its own commit from another writer's. If the
  outcome stays unknown, it raises `CommitStateUnknownError` and deletes nothing.
- HINT is a lower bound of the newest version. It may be old, missing or damaged; only speed depends on it.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from penstock.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    CommitStateUnknownError,
    CorruptError,
    NotFoundError,
    SnapshotExpiredError,
    StorageError,
)
from penstock.format import LOG_PREFIX, Commit, commit_key, corrupt_error, decode_hint, encode_hint, hint_key
from penstock.storage import Store
from penstock.types import Buffer

_CREATE_ATTEMPTS = 6
_BACKOFF_S = 0.1


class HasWriteId(Protocol):
    """An object with a random id, by which a writer recognises its own after a lost response."""

    @property
    def write_id(self) -> str: ...
    def encode(self) -> bytes: ...


Written = TypeVar("Written", bound=HasWriteId)


def read_commit(store: Store, branch_id: str, version: int) -> Commit:
    """One commit; raises `NotFoundError` if the branch has no such version."""
    key = commit_key(branch_id, version)
    commit = Commit.decode(store.get(key), f"{store.uri}/{key}")
    if (commit.branch, commit.version) != (branch_id, version):
        raise corrupt_error(
            f"{store.uri}/{key}", f"it says that it is version {commit.version!r} of branch {commit.branch!r}"
        )
    return commit


def read_parent(store: Store, commit: Commit) -> Commit | None:
    """The commit that another one is based on; None for the first.

    Raises `CorruptError` if it is not older: a log with a cycle would never end.
    """
    if commit.parent is None:
        return None
    parent = read_commit(store, commit.parent.branch, commit.parent.version)
    check_older(parent, commit, store.uri)
    return parent


def check_older(parent: Commit, commit: Commit, uri: str) -> None:
    """Raise `CorruptError` if a parent is not older than its child."""
    if parent.time_us >= commit.time_us:
        raise corrupt_error(f"{uri}/{commit_key(commit.branch, commit.version)}", "its parent is not older than it")


def read_named_commit(store: Store, branch_id: str, version: int, name: str) -> Commit:
    """One commit; raises a `NotFoundError` that shows the user's `name` for it."""
    try:
        return read_commit(store, branch_id, version)
    except NotFoundError:
        raise NotFoundError(f"{store.uri} has no version {name}; `penstock log` lists the versions") from None


def newest_commit(store: Store, branch_id: str, *, at_least: int | None = None) -> Commit:
    """The last commit of a branch: exponential search from the hint, then binary search."""
    known = _read(store, branch_id, _hint(store, branch_id) if at_least is None else at_least)
    if known is None:  # no hint, or one that is too high
        known = read_commit(store, branch_id, 0)
    step, missing = 1, None
    while missing is None:
        later = _read(store, branch_id, known.version + step)
        if later is None:
            missing = known.version + step
        else:
            known, step = later, step * 2
    while missing - known.version > 1:
        middle = _read(store, branch_id, (known.version + missing) // 2)
        if middle is None:
            missing = (known.version + missing) // 2
        else:
            known = middle
    return known


def iter_commits(store: Store, commit: Commit) -> Iterator[Commit]:
    """A commit and its ancestors, newest first."""
    at: Commit | None = commit
    while at is not None:
        yield at
        at = read_parent(store, at)


def publish(
    store: Store, commit: Commit, *, single_writer: bool = False, sleep: Callable[[float], None] = time.sleep
) -> bool:
    """Create a version: True if it is this commit, False if it is another writer's.

    Raises `CommitStateUnknownError` if the store stops responding before the outcome is known.
    """
    key = commit_key(commit.branch, commit.version)
    try:
        found = create_or_read(store, key, commit, Commit.decode, single_writer=single_writer, sleep=sleep)
    except AccessDeniedError:
        raise
    except StorageError as error:
        raise CommitStateUnknownError(
            f"the store stopped responding while version {commit.version} was written to {store.uri}/{key}; it may or"
            " may not exist. Nothing was deleted. Commit again when the store responds: a commit that exists will be"
            " recognised"
        ) from error
    if found.write_id == commit.write_id:
        _write_hint(store, commit)
    return found.write_id == commit.write_id


def was_published(store: Store, commit: Commit) -> bool | None:
    """Whether a commit exists; None if its version does not exist, so that a request in flight may still create it.

    Raises `CommitStateUnknownError` if the store does not respond.
    """
    try:
        found = _read(store, commit.branch, commit.version)
    except StorageError as error:
        raise CommitStateUnknownError(
            f"it is still unknown whether version {commit.version} exists in {store.uri}, because the store does not"
            " respond; call commit() or rollback() again when it does. Until then the changes stay staged"
        ) from error
    return None if found is None else found.write_id == commit.write_id


def create_or_read(
    store: Store,
    key: str,
    mine: Written,
    decode: Callable[[Buffer, str], Written],
    *,
    single_writer: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> Written:
    """Create an object that has a write id, and return what the key holds then: it, or another writer's object.

    An attempt without a clear response is repeated. Raises `AccessDeniedError` if the first attempt is denied; after
    any other `StorageError` the object may or may not exist.
    """
    unknown: StorageError | None = None
    for attempt in range(_CREATE_ATTEMPTS):
        if attempt:
            sleep(random.uniform(0, _BACKOFF_S * 2**attempt))
        try:
            create_object(store, key, mine.encode(), single_writer=single_writer)
        except AlreadyExistsError:
            pass  # perhaps by an earlier attempt whose response was lost
        except AccessDeniedError:
            if unknown is None:
                raise
        except StorageError as error:
            unknown = error
        else:
            return mine
        try:
            return decode(store.get(key), f"{store.uri}/{key}")
        except NotFoundError:
            continue
        except StorageError as error:
            unknown = error
    raise StorageError(f"the store stopped responding while {store.uri}/{key} was created; try again") from unknown


def discard(store: Store, keys: Sequence[str]) -> None:
    """Delete objects that nothing refers to; every deletion in a live table is made here."""
    assert not any(key.startswith(LOG_PREFIX) for key in keys), "commits are never deleted"
    store.delete(keys)


def expired_error(store: Store, commit: Commit) -> SnapshotExpiredError:
    """The error for a version that vacuum has removed."""
    return SnapshotExpiredError(
        f"version {commit.version} of {store.uri} was removed by vacuum; to protect a version, tag it or hold a lease"
    )


def create_object(store: Store, key: str, body: bytes, *, single_writer: bool) -> None:
    """Create an object; raises `AlreadyExistsError`.

    With `single_writer`, for stores without create-only puts, it checks and then puts: unsafe for concurrent writers.
    """
    if not single_writer:
        store.create(key, body)
        return
    try:
        store.head(key)
    except NotFoundError:
        store.put(key, body)
    else:
        raise AlreadyExistsError(f"{store.uri}/{key} exists")


def _read(store: Store, branch_id: str, version: int) -> Commit | None:
    try:
        return read_commit(store, branch_id, version)
    except NotFoundError:
        return None


def _hint(store: Store, branch_id: str) -> int:
    key = hint_key(branch_id)
    try:
        return decode_hint(store.get(key), f"{store.uri}/{key}")
    except (NotFoundError, CorruptError):
        return 0


def _write_hint(store: Store, commit: Commit) -> None:
    with suppress(StorageError):
        store.put(hint_key(commit.branch), encode_hint(commit.version))
