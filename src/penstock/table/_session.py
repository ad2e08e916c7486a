"""A session on a branch of a table: staged changes become the next version."""

import getpass
from dataclasses import replace

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
    publish,
    read_snapshot,
    temporary_lease,
)
from penstock.storage import Store
from penstock.table._links import AllowedLinks
from penstock.table._read import Reader
from penstock.table._stage import Stage
from penstock.table.merging import rebase


class Session(Stage):
    """A version of a table on a branch, with staged changes that become the branch's next version.

    A pinned session is read-only.
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

    @property
    def refs(self) -> Refs:
        return Refs(self.store, self.info)

    def check_writable(self) -> None:
        """Raise `InvalidInputError` for a pinned version, or an error for a table that needs features unknown here."""
        if self.pinned:
            raise InvalidInputError(f"this is {self.version_name}, opened read-only; load a branch to change it")
        self.info.features.check_writable(self.store.uri)
        self.snapshot.features.check_writable(self.store.uri)

    def check_no_changes(self) -> None:
        """Raise `InvalidInputError` if there are uncommitted changes."""
        if self.changes:
            raise InvalidInputError("there are uncommitted changes; commit them or roll them back first")

    def commit(self, message: str, *, merged: Commit | None = None) -> Version:
        """Publish the staged changes as the next version; without any, the version stays.

        Raises `ConflictError` if they conflict with another writer's commit, and `CommitStateUnknownError` if the store
        stops responding; then call it again.
        """
        if self._unknown_commit is not None and self._resolve_unknown(self._unknown_commit):
            return self.version
        if not self.changes and merged is None:
            return self.version
        self.check_writable()
        attempts: list[Commit] = []
        try:
            version = commit_changes(
                self.store,
                self.tree,
                self.version,
                self._staged_on,
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

    def _staged_on(self, head: Version) -> Snapshot:
        """The staged changes on top of the base, or rebased onto a newer version; raises `ConflictError`."""
        stage: Stage = self
        if head is not self.version:
            stage = self.at(head)
            with self.reader.missing_as_expired():
                rebase(stage, replace(self.reader, snapshot=self.version.snapshot), self.reader, self.changes)
        return replace(stage.snapshot, claims=max(stage.snapshot.claims, self.row_ids.claims))

    def rollback(self) -> None:
        """Drop the staged changes; raises `ConflictError` if a commit of unknown state turns out to be published."""
        if self._unknown_commit is not None and self._resolve_unknown(self._unknown_commit):
            raise ConflictError("the last commit was published and cannot be rolled back; the table is at its version")
        self.move_to(self.version)

    def reset(self, to: Commit, message: str) -> None:
        """Publish an older version as the newest."""
        self.check_writable()
        self.check_no_changes()
        with temporary_lease(self.store, to):
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
