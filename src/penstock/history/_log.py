"""The log of a branch: numbered create-only commits, and the only place where a version comes into being.

The contract; if the code disagrees with this list, the code is wrong:

- A version exists if and only if its commit object does. Everything a commit refers to was stored before it.
- A commit object is never replaced and never deleted, so that no writer, however late, can make a version twice.
- A writer that did not get a clear answer reads back: the write id tells its own commit from another's. What it
  cannot prove it reports as `CommitStateUnknown`, and it removes nothing.
- HINT says that a version is at least so high. It may be old, missing or damaged, and nothing but speed depends on it.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from penstock.errors import (
    AccessDenied,
    AlreadyExistsError,
    CommitStateUnknown,
    CorruptError,
    NotFoundError,
    SnapshotExpired,
    StorageError,
)
from penstock.format import LOG_PREFIX, Commit, commit_key, decode_hint, encode_hint, hint_key
from penstock.storage import Store

_PUBLISH_ATTEMPTS = 6
_BACKOFF_S = 0.1


def read_commit(store: Store, branch_id: str, version: int) -> Commit:
    """One commit; `NotFoundError` where the branch has no such version."""
    key = commit_key(branch_id, version)
    return Commit.decode(store.get(key), f"{store.uri}/{key}")


def newest_commit(store: Store, branch_id: str, *, at_least: int | None = None) -> Commit:
    """The last commit of a branch: from the hint, forward by doubling steps and back by halving them."""
    known = _read(store, branch_id, _hint(store, branch_id) if at_least is None else at_least)
    if known is None:  # no hint, or one that says too much
        known = read_commit(store, branch_id, 0)
    step, missing = 1, None
    while missing is None:
        further = _read(store, branch_id, known.version + step)
        if further is None:
            missing = known.version + step
        else:
            known, step = further, step * 2
    while missing - known.version > 1:
        middle = _read(store, branch_id, (known.version + missing) // 2)
        if middle is None:
            missing = (known.version + missing) // 2
        else:
            known = middle
    return known


def history(store: Store, commit: Commit) -> Iterator[Commit]:
    """A commit and its ancestors, newest first."""
    while True:
        yield commit
        if commit.parent is None:
            return
        commit = read_commit(store, commit.parent.branch, commit.parent.version)


def publish(
    store: Store, commit: Commit, *, single_writer: bool = False, sleep: Callable[[float], None] = time.sleep
) -> bool:
    """Make a version. True: it is this commit; False: it is another's."""
    key, body = commit_key(commit.branch, commit.version), commit.encode()
    doubt: StorageError | None = None
    for attempt in range(_PUBLISH_ATTEMPTS):
        if attempt:
            sleep(random.uniform(0, _BACKOFF_S * 2**attempt))
        try:
            create_object(store, key, body, single_writer=single_writer)
        except AlreadyExistsError:
            pass  # perhaps by an earlier attempt of ours whose answer was lost
        except AccessDenied:
            if doubt is None:
                raise
        except StorageError as error:
            doubt = error
        else:
            _write_hint(store, commit)
            return True
        try:
            found = _read(store, commit.branch, commit.version)
        except StorageError as error:
            doubt = error
            continue
        if found is not None:
            if found.write_id == commit.write_id:
                _write_hint(store, commit)
                return True
            return False
    raise CommitStateUnknown(
        f"the store stopped answering while version {commit.version} was being written to {store.uri}/{key}; it may or"
        " may not exist. Nothing was removed. Commit again when the store answers: if it landed, it will be recognised"
    ) from doubt


def discard(store: Store, keys: Sequence[str]) -> None:
    """Remove objects that nothing refers to: the one way anything of a living table is deleted."""
    assert not any(key.startswith(LOG_PREFIX) for key in keys), "commits are never deleted"
    store.delete(keys)


def expired(store: Store, commit: Commit) -> SnapshotExpired:
    """The error for a version that vacuum has removed."""
    return SnapshotExpired(
        f"version {commit.version} of {store.uri} has been removed by vacuum; tag a version, or hold a lease on it,"
        " to keep it for longer"
    )


def create_object(store: Store, key: str, body: bytes, *, single_writer: bool) -> None:
    """Create-only; where the store ignores that, by looking first: right for one writer at a time, and for no more."""
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
