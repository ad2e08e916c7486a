"""A session on a branch of a table: staged changes become the next version."""

import getpass
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from penstock.errors import CommitStateUnknownError, ConflictError, InvalidInputError
from penstock.format import Commit, Snapshot, TableInfo, new_id
from penstock.history import (
    CommitInfo,
    Refs,
    Version,
    commit_changes,
    commit_reset,
    format_version,
    newest_commit,
    protect_versions,
    publish,
    read_snapshot,
    was_published,
)
from penstock.storage import Store
from penstock.table._links import AllowedLinks
from penstock.table._read import Reader
from penstock.table._stage import Stage
from penstock.table.merging import rebase


class Session(Stage):
    """A version of a table on a branch, with staged changes that become the branch's next version.

    A pinned session is read-only. Threads may share a session: changes and commits run in `exclusive`, and reads take
    the state of one moment without waiting. Staged changes belong to the process that staged them: a forked child
    cannot commit them, and another process gets a session without any.
    """

    def __init__(
        self,
        store: Store,
        info: TableInfo,
        version: Version,
        *,
        branch: str,
        links: AllowedLinks = False,
        pinned: bool = False,
    ) -> None:
        super().__init__(store, info, version, links)
        self.branch, self.pinned = branch, pinned
        self._unknown: Version | None = None
        """The last attempt of a commit whose state is unknown."""
        self._abandoned: Commit | None = None
        """A commit that was rolled back while a request in flight could still publish it."""
        self._locks: dict[int, threading.RLock] = {}

    def __reduce__(self) -> tuple[object, ...]:
        if self.changes:
            raise InvalidInputError("another process cannot see uncommitted changes; commit them first")
        reopen = partial(Session, branch=self.branch, links=self.containers.allowed, pinned=self.pinned)
        return reopen, (self.store, self.info, self.version)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Let no other thread change the session meanwhile."""
        # By process: a thread that held the lock at a fork does not exist in the child.
        with self._locks.setdefault(os.getpid(), threading.RLock()):
            yield

    @property
    def refs(self) -> Refs:
        return Refs(self.store, self.info)

    def check_writable(self) -> None:
        """Raise an error if nothing can be staged.

        The version is pinned, the table needs features unknown here, or the state of the last commit is unknown.
        """
        self._check_process()
        if self._unknown is not None:
            raise CommitStateUnknownError(
                f"it is unknown whether the last commit to {self.store.uri} exists; call commit() or rollback() first"
            )
        if self.pinned:
            raise InvalidInputError(f"this is {self.version_name}, opened read-only; load a branch to change it")
        self.info.features.check_writable(self.store.uri)
        self.snapshot.features.check_writable(self.store.uri)

    def check_no_changes(self) -> None:
        """Raise `InvalidInputError` if there are uncommitted changes."""
        self._check_process()
        if self.changes:
            raise InvalidInputError("there are uncommitted changes; commit them or roll them back first")

    def commit(self, message: str, *, merged: Commit | None = None) -> Version:
        """Publish the staged changes as the next version; without any, the version stays.

        Raises `ConflictError` if they conflict with another writer's commit, and `CommitStateUnknownError` if the store
        stops responding; then call it again.
        """
        self._check_process()
        if self._unknown is not None and self._resolve_unknown(self._unknown):
            return self.version
        if not self.changes and merged is None:
            return self.version
        self.check_writable()
        attempts: list[Version] = []

        def on_attempt(version: Version) -> None:
            self._check_abandoned(version.commit)
            attempts.append(version)

        try:
            version = commit_changes(
                self.store,
                self.tree,
                self.version,
                self._staged_on,
                self.changes,
                single_writer=self.info.single_writer,
                commit_info=self.commit_info(message, merged=merged),
                on_attempt=on_attempt,
            )
        except CommitStateUnknownError:
            self._unknown = attempts[-1]
            raise
        self.move_to(version)
        return version

    def _staged_on(self, head: Version) -> Snapshot:
        """The staged changes on top of the base, or rebased onto a newer version; raises `ConflictError`."""
        stage: Stage = self
        if head is not self.version:
            stage = self.at(head)
            with self.reader.missing_as_expired():
                rebase(stage, replace(self.reader, snapshot=self.version.snapshot), self.reader, self.changes)
        return replace(stage.snapshot, claims=max(stage.snapshot.claims, self.row_ids.claims))

    def rollback(self) -> None:
        """Drop the staged changes; publishes nothing.

        After a commit of unknown state it raises `ConflictError` if that commit exists, and moves to it; and
        `CommitStateUnknownError`, without dropping anything, if the store does not respond. If the commit does not
        exist, a request in flight may still create it: the next commit of this session then raises `ConflictError`.
        """
        unknown, self._unknown = self._unknown, None
        if unknown is not None and self.changes.pid == os.getpid():  # a commit of a parent process is its own to find
            try:
                published = was_published(self.store, unknown.commit)
            except CommitStateUnknownError:
                self._unknown = unknown
                raise
            if published:
                self.move_to(unknown)
                raise ConflictError(
                    f"the commit was published as {self.version_name} and cannot be rolled back; the dataset is at that"
                    " version now, and reset() restores an older one"
                )
            self._abandoned = unknown.commit if published is None else None
        self.move_to(self.version)

    def drop_changes(self) -> None:
        """Drop the staged changes without looking for a commit of unknown state."""
        self._unknown = None
        self.move_to(self.version)

    def reset(self, to: Commit, message: str) -> None:
        """Publish an older version as the newest."""
        self.check_writable()
        self.check_no_changes()
        with protect_versions(self.store, to):
            snapshot = read_snapshot(self.store, to)  # before the commit, which must not fail once it is published
            commit = commit_reset(
                self.store,
                self.version.commit,
                to,
                single_writer=self.info.single_writer,
                commit_info=self.commit_info(message or f"reset to version {to.version}"),
            )
        self.move_to(Version(commit, snapshot))

    def refresh(self) -> None:
        """Move to the newest version of the branch."""
        self.check_no_changes()
        self.checkout(newest_commit(self.store, self.version.commit.branch), branch=self.branch, pinned=False)

    def checkout(self, commit: Commit, *, branch: str, pinned: bool) -> None:
        """Move to another version."""
        self.check_no_changes()
        self.branch, self.pinned = branch, pinned
        if self._abandoned is not None and commit.version >= self._abandoned.version:
            self._abandoned = None  # whether it arrived is visible here
        self.move_to(Version(commit, read_snapshot(self.store, commit)))

    @property
    def reader(self) -> Reader:
        return replace(super().reader, name=self.version_name)

    @property
    def version_name(self) -> str:
        """The name of the base version: `main@7`."""
        return format_version(self.branch, self.version.commit.version)

    def commit_info(self, message: str, *, merged: Commit | None = None) -> CommitInfo:
        """Message, author and write id of a new commit."""
        return CommitInfo(message, author(), new_id(), merged)

    def _check_process(self) -> None:
        """Start anew in a forked child; raise `InvalidInputError` if there are changes of the parent."""
        pid = self.changes.pid
        if pid == os.getpid():
            return
        if self.changes or self._unknown is not None:
            raise InvalidInputError(
                f"{self.store.uri} has changes that were staged in process {pid} before a fork: commit there, or"
                " rollback() here"
            )
        self.move_to(self.version)

    def _resolve_unknown(self, version: Version) -> bool:
        """Publish a commit of unknown state again; returns whether it is the version now."""
        published = publish(self.store, version.commit, single_writer=self.info.single_writer)
        self._unknown = None
        if published:
            self.move_to(version)
        elif version.commit.merged is not None:
            raise ConflictError("another writer committed during the merge; rollback(), checkout() and merge again")
        return published

    def _check_abandoned(self, next_commit: Commit) -> None:
        """Raise `ConflictError` before committing on top of a rolled back commit that was published after all."""
        late = self._abandoned
        if late is not None and next_commit.version > late.version:
            self._abandoned = None
            if was_published(self.store, late):
                raise ConflictError(
                    f"the commit that was rolled back arrived late, and is {format_version(self.branch, late.version)};"
                    " rollback() and checkout() to see its rows, and apply the changes again if they are missing"
                )


def author() -> str:
    """The operating system's name of the user; empty if there is none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
