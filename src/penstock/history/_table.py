"""Create and open tables, and commit versions."""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from penstock.errors import AlreadyExistsError, ConflictError, NotFoundError
from penstock.format import (
    SINGLE_WRITER,
    TABLE_KEY,
    Commit,
    CommitRef,
    Features,
    Snapshot,
    SnapshotRef,
    TableInfo,
    decode_snapshot,
    encode_snapshot,
    new_id,
)
from penstock.history._changes import Changes
from penstock.history._log import expired_error, newest_commit, publish, read_named_commit
from penstock.history._tree import Tree
from penstock.storage import Store

_MAX_REBASES = 200


@dataclass(frozen=True)
class Version:
    """A commit and its snapshot."""

    commit: Commit
    snapshot: Snapshot


@dataclass(frozen=True)
class CommitInfo:
    """The user-supplied part of a commit."""

    message: str
    author: str
    write_id: str
    merged: Commit | None = None
    """The merged version of another branch."""


def create_table(
    store: Store, snapshot: Snapshot, *, single_writer: bool, commit_info: CommitInfo
) -> tuple[TableInfo, Version]:
    """Create a table with one commit; raises `AlreadyExistsError`. The key that makes it a table is written last."""
    info = TableInfo(new_id(), new_id(), Features(write=(SINGLE_WRITER,) if single_writer else ()))
    commit = _next_commit(info.main, None, _put_snapshot(store, snapshot), 0, "create", commit_info, {})
    publish(store, commit, single_writer=single_writer)
    body = info.encode()
    try:
        store.create(TABLE_KEY, body)
    except AlreadyExistsError:
        if bytes(store.get(TABLE_KEY)) != body:  # not our own write whose response was lost
            raise AlreadyExistsError(f"{store.uri} is a table already; load it, or choose another location") from None
    return info, Version(commit, snapshot)


def open_table(store: Store) -> TableInfo:
    """The identity of the table in a store; raises `NotFoundError` if there is none."""
    try:
        data = store.get(TABLE_KEY)
    except NotFoundError:
        raise NotFoundError(f"{store.uri} is not a table: it has no {TABLE_KEY}") from None
    return TableInfo.decode(data, f"{store.uri}/{TABLE_KEY}")


def open_version(store: Store, branch_id: str, version: int | None = None) -> Version:
    """A version of a branch, by default the newest; raises `NotFoundError`."""
    if version is None:
        commit = newest_commit(store, branch_id)
    else:
        commit = read_named_commit(store, branch_id, version, str(version))
    return Version(commit, read_snapshot(store, commit))


def read_snapshot(store: Store, commit: Commit) -> Snapshot:
    """The snapshot of a commit; raises `SnapshotExpiredError` if vacuum removed it."""
    key = commit.snapshot.key
    try:
        data = store.get(key)
    except NotFoundError:
        raise expired_error(store, commit) from None
    return decode_snapshot(commit.snapshot, data, f"{store.uri}/{key}")


def commit_changes(
    store: Store,
    tree: Tree,
    base: Version,
    staged_on: Callable[[Version], Snapshot],
    changes: Changes,
    *,
    single_writer: bool,
    commit_info: CommitInfo,
    on_attempt: Callable[[Version], None],
) -> Version:
    """Publish staged changes as the next version of the branch, rebased over other writers' commits.

    `staged_on` returns the snapshot with the changes on top of a version, or raises `ConflictError`. `on_attempt` gets
    each version before it is published.
    """
    head = base
    for attempt in range(_MAX_REBASES):
        snapshot = staged_on(head)
        snapshot = replace(snapshot, nodes=tree.save(snapshot.nodes))
        operation = "+".join(changes.operations) or "change"
        commit = _next_commit(
            head.commit.branch,
            head.commit,
            _put_snapshot(store, snapshot),
            snapshot.live,
            operation,
            commit_info,
            changes.counts,
        )
        version = Version(commit, snapshot)
        on_attempt(version)
        if publish(store, commit, single_writer=single_writer):
            return version
        if commit_info.merged is not None:
            raise ConflictError("another writer committed during the merge; refresh and merge again")
        if attempt > 2:
            time.sleep(random.uniform(0, 0.02 * min(attempt, 10)))  # spread out many concurrent writers
        newest = newest_commit(store, head.commit.branch, at_least=commit.version)
        head = Version(newest, read_snapshot(store, newest))
    raise ConflictError(
        f"another writer committed first {_MAX_REBASES} times in a row; commit again when there are fewer writers"
    )


def create_branch(store: Store, at: Commit, *, single_writer: bool, commit_info: CommitInfo) -> Commit:
    """Create a branch at a version: a first commit that shares the version's snapshot."""
    commit = _next_commit(new_id(), at, at.snapshot, at.rows, "branch", commit_info, {})
    publish(store, commit, single_writer=single_writer)
    return commit


def commit_reset(store: Store, head: Commit, to: Commit, *, single_writer: bool, commit_info: CommitInfo) -> Commit:
    """Publish an older version's snapshot as a new commit; raises `ConflictError` if another writer was faster."""
    commit = _next_commit(head.branch, head, to.snapshot, to.rows, "reset", commit_info, {})
    if not publish(store, commit, single_writer=single_writer):
        raise ConflictError("another writer committed in the meantime; refresh, check, and reset again")
    return commit


def _put_snapshot(store: Store, snapshot: Snapshot) -> SnapshotRef:
    ref, data = encode_snapshot(new_id(), snapshot)
    store.put(ref.key, data)
    return ref


def _next_commit(
    branch_id: str,
    parent: Commit | None,
    snapshot: SnapshotRef,
    rows: int,
    operation: str,
    commit_info: CommitInfo,
    counts: Mapping[str, int],
) -> Commit:
    """The commit that makes a stored snapshot the next version."""
    first = parent is None or parent.branch != branch_id
    return Commit(
        branch=branch_id,
        version=0 if parent is None or first else parent.version + 1,
        write_id=commit_info.write_id,
        parent=None if parent is None else CommitRef(parent.branch, parent.version),
        snapshot=snapshot,
        time_us=max(time.time_ns() // 1000, 0 if parent is None else parent.time_us + 1),
        operation=operation,
        message=commit_info.message,
        author=commit_info.author,
        rows=rows,
        changes=dict(counts),
        merged=None if commit_info.merged is None else CommitRef(commit_info.merged.branch, commit_info.merged.version),
        ancestors=_ancestors(branch_id, parent, commit_info.merged),
    )


def _ancestors(branch_id: str, *parents: Commit | None) -> dict[str, int]:
    """By id of every other branch: the newest version that a parent is or contains."""
    found: dict[str, int] = {}
    for parent in parents:
        if parent is not None:
            for id, version in ((parent.branch, parent.version), *parent.ancestors.items()):
                found[id] = max(found.get(id, -1), version)
    found.pop(branch_id, None)
    return found
