"""A table's identity and its versions: make one, open one, add to one."""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from penstock.errors import AlreadyExistsError, ConflictError, NotFoundError
from penstock.format import (
    SINGLE_WRITER,
    TABLE_KEY,
    Commit,
    Features,
    Parent,
    Snapshot,
    SnapshotRef,
    TableInfo,
    decode_snapshot,
    encode_snapshot,
    new_id,
)
from penstock.history._changes import Changes
from penstock.history._log import expired, newest_commit, publish, read_commit
from penstock.history._tree import Tree
from penstock.storage import Store

_REBASES = 200


@dataclass(frozen=True)
class Version:
    """A commit together with the snapshot it made."""

    commit: Commit
    snapshot: Snapshot


@dataclass(frozen=True)
class Note:
    """What the log says about a commit beside what it did."""

    message: str
    author: str
    write_id: str
    merged: Commit | None = None
    """The version of another branch that is taken in."""


def create_table(store: Store, snapshot: Snapshot, *, single_writer: bool, note: Note) -> tuple[TableInfo, Version]:
    """Make an empty table with one commit; the key that makes it a table is written last."""
    info = TableInfo(new_id(), new_id(), Features(write=(SINGLE_WRITER,) if single_writer else ()))
    commit = _describe(info.main, None, _put_snapshot(store, snapshot), 0, "create", note, {})
    publish(store, commit, single_writer=single_writer)
    body = info.encode()
    try:
        store.create(TABLE_KEY, body)
    except AlreadyExistsError:
        if bytes(store.get(TABLE_KEY)) != body:  # another's, and not our own write whose answer was lost
            raise AlreadyExistsError(f"{store.uri} is a table already; load it, or choose another place") from None
    return info, Version(commit, snapshot)


def open_table(store: Store) -> TableInfo:
    """Read what makes a place a table; `NotFoundError` where it is none."""
    try:
        data = store.get(TABLE_KEY)
    except NotFoundError:
        raise NotFoundError(f"{store.uri} is not a table: there is no {TABLE_KEY} in it") from None
    return TableInfo.decode(data, f"{store.uri}/{TABLE_KEY}")


def open_version(store: Store, branch_id: str, version: int | None = None) -> Version:
    """A version of a branch, the newest if none is named."""
    if version is None:
        commit = newest_commit(store, branch_id)
    else:
        try:
            commit = read_commit(store, branch_id, version)
        except NotFoundError:
            raise NotFoundError(f"{store.uri} has no version {version}; `penstock log` lists those there are") from None
    return Version(commit, read_snapshot(store, commit))


def read_snapshot(store: Store, commit: Commit) -> Snapshot:
    """The snapshot a commit made."""
    key = commit.snapshot.key
    try:
        data = store.get(key)
    except NotFoundError:
        raise expired(store, commit) from None
    return decode_snapshot(commit.snapshot, data, f"{store.uri}/{key}")


def commit_changes(
    store: Store,
    tree: Tree,
    base: Version,
    staged: Snapshot,
    changes: Changes,
    *,
    single_writer: bool,
    note: Note,
    on_attempt: Callable[[Commit], None],
) -> Version:
    """Publish staged changes on top of the branch, rebasing them over the commits of others as often as it takes."""
    head, snapshot = base, staged
    for attempt in range(_REBASES):
        snapshot = replace(snapshot, nodes=tree.save(snapshot.nodes))
        operation = "+".join(changes.operations) or "change"
        commit = _describe(
            head.commit.branch,
            head.commit,
            _put_snapshot(store, snapshot),
            snapshot.live,
            operation,
            note,
            changes.counts,
        )
        on_attempt(commit)
        if publish(store, commit, single_writer=single_writer):
            return Version(commit, snapshot)
        if note.merged is not None:
            raise ConflictError("somebody else committed while the branches were merged; refresh and merge again")
        if attempt > 2:
            time.sleep(random.uniform(0, 0.02 * min(attempt, 10)))  # let a crowd of writers spread out
        newest = newest_commit(store, head.commit.branch, at_least=commit.version)
        head = Version(newest, read_snapshot(store, newest))
        snapshot = changes.apply(tree, head.snapshot)
        snapshot = replace(snapshot, claims=max(snapshot.claims, staged.claims))
    raise ConflictError(f"{_REBASES} times in a row another writer was faster; commit again when there are fewer")


def create_branch(store: Store, at: Commit, *, single_writer: bool, note: Note) -> Commit:
    """Begin a branch at a version: its own first commit, and the snapshot that is there."""
    commit = _describe(new_id(), at, at.snapshot, at.rows, "branch", note, {})
    publish(store, commit, single_writer=single_writer)
    return commit


def commit_reset(store: Store, head: Commit, to: Commit, *, single_writer: bool, note: Note) -> Commit:
    """Make an older version the newest one, as a commit of its own."""
    commit = _describe(head.branch, head, to.snapshot, to.rows, "reset", note, {})
    if not publish(store, commit, single_writer=single_writer):
        raise ConflictError("somebody else committed in the meantime; refresh, look, and reset again")
    return commit


def _put_snapshot(store: Store, snapshot: Snapshot) -> SnapshotRef:
    ref, data = encode_snapshot(new_id(), snapshot)
    store.put(ref.key, data)
    return ref


def _describe(
    branch_id: str,
    parent: Commit | None,
    snapshot: SnapshotRef,
    rows: int,
    operation: str,
    note: Note,
    counts: Mapping[str, int],
) -> Commit:
    """The commit that would make a stored snapshot the next version."""
    first = parent is None or parent.branch != branch_id
    return Commit(
        branch=branch_id,
        version=0 if parent is None or first else parent.version + 1,
        write_id=note.write_id,
        parent=None if parent is None else Parent(parent.branch, parent.version),
        snapshot=snapshot,
        time_us=max(time.time_ns() // 1000, 0 if parent is None else parent.time_us + 1),
        operation=operation,
        message=note.message,
        author=note.author,
        rows=rows,
        changes=dict(counts),
        merged=None if note.merged is None else Parent(note.merged.branch, note.merged.version),
        ancestors=_ancestors(branch_id, parent, note.merged),
    )


def _ancestors(branch_id: str, *parents: Commit | None) -> dict[str, int]:
    """Of every other branch, the newest version that one of the parents is or contains."""
    found: dict[str, int] = {}
    for parent in parents:
        if parent is not None:
            for id, version in ((parent.branch, parent.version), *parent.ancestors.items()):
                found[id] = max(found.get(id, -1), version)
    found.pop(branch_id, None)
    return found
