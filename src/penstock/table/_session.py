"""A session on a branch of a table: staged changes become the next version."""

import getpass
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from penstock.errors import CommitStateUnknownError, ConflictError, InvalidInputError
from penstock.format import Commit, TableInfo, new_id
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
)
from penstock.storage import Store
from penstock.table._links import AllowedLinks
from penstock.table._read import Reader
from penstock.table._stage import Stage


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
        self._unknown_commit: Commit | None = None
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
        """Raise `InvalidInputError` for a pinned version, or an error for a table that needs features unknown here."""
        self._check_process()
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
        if self._unknown_commit is not None and self._resolve_unknown(self._unknown_commit):
            return self.version
        if not self.changes and merged is None:
            return self.version
        self.check_writable()
        staged = replace(self.snapshot, claims=self.row_ids.claims)
        attempts: list[Commit] = []
        try:
            version = commit_changes(
                self.store,
                self.tree,
                self.version,
                staged,
                self.changes,
                single_writer=self.info.single_writer,
                commit_info=self.commit_info(message, merged=merged),
                on_attempt=attempts.append,
            )
        except CommitStateUnknownError:
            self._unknown_commit = attempts[-1]
            raise
        self.move_to(version)
        return version

    def rollback(self) -> None:
        """Drop the staged changes; raises `ConflictError` if a commit of unknown state turns out to be published."""
        if self.changes.pid != os.getpid():
            self._unknown_commit = None  # the parent's to resolve
        elif self._unknown_commit is not None and self._resolve_unknown(self._unknown_commit):
            raise ConflictError("the last commit was published and cannot be rolled back; the table is at its version")
        self.move_to(self.version)

    def reset(self, to: Commit, message: str) -> None:
        """Publish an older version as the newest."""
        self.check_writable()
        self.check_no_changes()
        with protect_versions(self.store, to):
            commit = commit_reset(
                self.store,
                self.version.commit,
                to,
                single_writer=self.info.single_writer,
                commit_info=self.commit_info(message or f"reset to version {to.version}"),
            )
        self.checkout(commit, branch=self.branch, pinned=False)

    def refresh(self) -> None:
        """Move to the newest version of the branch."""
        self.check_no_changes()
        self.checkout(newest_commit(self.store, self.version.commit.branch), branch=self.branch, pinned=False)

    def checkout(self, commit: Commit, *, branch: str, pinned: bool) -> None:
        """Move to another version."""
        self.check_no_changes()
        self.branch, self.pinned = branch, pinned
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
        if self.changes or self._unknown_commit is not None:
            raise InvalidInputError(
                f"{self.store.uri} has changes that were staged in process {pid} before a fork: commit there, or"
                " rollback() here"
            )
        self.move_to(self.version)

    def _resolve_unknown(self, commit: Commit) -> bool:
        """Publish a commit of unknown state again; returns whether it is the version now."""
        published = publish(self.store, commit, single_writer=self.info.single_writer)
        self._unknown_commit = None
        if published:
            self.move_to(Version(commit, read_snapshot(self.store, commit)))
        return published


def author() -> str:
    """The operating system's name of the user; empty if there is none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
