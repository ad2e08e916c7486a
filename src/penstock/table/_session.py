"""A table in use: where it stands in its history, and how changes become the next version."""

import getpass
from dataclasses import replace

from penstock.errors import CommitStateUnknown, ConflictError, InvalidInputError
from penstock.format import Commit, TableInfo, new_id
from penstock.history import (
    Note,
    Refs,
    Version,
    commit_changes,
    commit_reset,
    holding,
    newest_commit,
    publish,
    read_snapshot,
)
from penstock.storage import Store
from penstock.table._links import AllowedLinks
from penstock.table._read import Reader
from penstock.table._stage import Stage


class Session(Stage):
    """A version of a table on a branch, with changes on top that become the branch's next version."""

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
        self._doubtful: Commit | None = None

    @property
    def refs(self) -> Refs:
        return Refs(self.store, self.info)

    def check_writable(self) -> None:
        """Refuse to change a version that is not the branch's newest, or a table with features not known here."""
        if self.pinned:
            raise InvalidInputError(
                f"this is {self.branch}@{self.version.commit.version}, opened to be read; load a branch to change it"
            )
        self.info.features.check_writable(self.store.uri)
        self.snapshot.features.check_writable(self.store.uri)

    def check_no_changes(self) -> None:
        """Refuse to move away from changes that nobody has saved."""
        if self.changes:
            raise InvalidInputError("there are changes that are not committed; commit them or roll them back first")

    def commit(self, message: str, *, merged: Commit | None = None) -> Version:
        """Publish what is staged as the next version; without staged changes nothing happens."""
        if self._doubtful is not None and self._settle_doubt(self._doubtful):
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
                note=self.note(message, merged=merged),
                on_attempt=attempts.append,
            )
        except CommitStateUnknown:
            self._doubtful = attempts[-1]
            raise
        self.move_to(version)
        return version

    def rollback(self) -> None:
        """Forget what is staged."""
        if self._doubtful is not None and self._settle_doubt(self._doubtful):
            raise ConflictError("the commit in doubt had landed and cannot be rolled back; the table is at its version")
        self.move_to(self.version)

    def reset(self, to: Commit, message: str) -> None:
        """Make an older version the newest."""
        self.check_writable()
        self.check_no_changes()
        with holding(self.store, to):
            commit = commit_reset(
                self.store,
                self.version.commit,
                to,
                single_writer=self.info.single_writer,
                note=self.note(message or f"reset to version {to.version}"),
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
        return replace(super().reader, name=f"{self.branch}@{self.version.commit.version}")

    def note(self, message: str, *, merged: Commit | None = None) -> Note:
        """What the log will say."""
        return Note(message, author(), new_id(), merged)

    def _settle_doubt(self, commit: Commit) -> bool:
        """Find out what became of a commit whose outcome was unknown; publishes it if it never arrived."""
        landed = publish(self.store, commit, single_writer=self.info.single_writer)
        self._doubtful = None
        if landed:
            self.move_to(Version(commit, read_snapshot(self.store, commit)))
        return landed


def author() -> str:
    """Who commits, by the name the machine knows."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
