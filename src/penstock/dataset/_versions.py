"""A table's history: move in it, name its versions, compare and merge them, and clean up behind it."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Self

from penstock.dataset._diff import TableDiff
from penstock.dataset._names import Names
from penstock.errors import ConflictError, InvalidInputError, PenstockWarning
from penstock.format import Commit
from penstock.history import (
    Vacuum,
    Vacuumed,
    Version,
    create_branch,
    find_time,
    find_version,
    history,
    holding,
    merge_base,
    newest_commit,
    read_commit,
    read_snapshot,
)
from penstock.table import OnConflict, Reader, Session, compact, diff, merge

RETENTION = timedelta(days=30)
_MERGE_ATTEMPTS = 10


class Versions:
    """What a dataset can do with its versions. A version is a number, `branch@number`, a tag or a branch."""

    _session: Session

    def log(self) -> Iterator[Commit]:
        """The commits that led to this version, newest first."""
        return history(self._session.store, self._session.version.commit)

    def refresh(self) -> str:
        """Move to the newest version of the branch, with what others have committed."""
        self._session.refresh()
        return self._here

    def checkout(
        self,
        version: int | str | None = None,
        *,
        tag: str | None = None,
        branch: str | None = None,
        as_of: datetime | str | None = None,
    ) -> Self:
        """Move to another version. A branch can be changed; a version, a tag or a time is only read."""
        commit, name, pinned = find(self._session, version=version, tag=tag, branch=branch, as_of=as_of)
        self._session.checkout(commit, branch=name, pinned=pinned)
        return self

    @property
    def branches(self) -> Names:
        """Names of the branches and their newest versions; `.rename(old, new)`, `.delete(name)`."""
        return Names(self._session.store, self._session.refs, "branches")

    @property
    def tags(self) -> Names:
        """Names of the tags and their versions; `.rename(old, new)`, `.delete(name)`."""
        return Names(self._session.store, self._session.refs, "tags")

    def branch(self, name: str, at: int | str | None = None) -> Self:
        """Begin a branch at this version, or at another, and return the table on it."""
        session = self._session
        session.refs.check_free(name)
        start = self._find(at)
        with holding(session.store, start):
            first = create_branch(
                session.store, start, single_writer=session.info.single_writer, note=session.note(f"branch {name}")
            )
            session.refs.create("branches", name, first.branch, None)
        version = Version(first, read_snapshot(session.store, first))
        links = session.containers.allowed
        return type(self)(Session(session.store, session.info, version, branch=name, links=links))  # type: ignore[call-arg]

    def tag(self, name: str, at: int | str | None = None) -> None:
        """Give this version, or another, a name that keeps it from vacuum."""
        self._session.refs.check_free(name)
        commit = self._find(at)
        with holding(self._session.store, commit):
            self._session.refs.create("tags", name, commit.branch, commit.version)

    def reset(self, version: int | str, message: str = "") -> str:
        """Make the table what it was at a version, as a new commit."""
        self._session.reset(self._find(version), message)
        return self._here

    def diff(self, old: int | str, new: int | str | None = None) -> TableDiff:
        """What changed from one version to another, or to this one with its uncommitted changes."""
        session = self._session
        before = self._find(old)
        after = session.reader if new is None else self._reader_at(self._find(new))
        return TableDiff(str(old), self._here if new is None else str(new), diff(self._reader_at(before), after))

    def merge(self, other: str, *, on_conflict: OnConflict = "raise", message: str = "") -> str:
        """Take in what another branch changed since it parted from this one, as a new commit.

        Both sides' rows and columns are kept, by row id. Where both changed the same value differently, `on_conflict`
        says what happens: `raise` a `MergeConflict` that names rows and columns, keep `ours`, take `theirs`, or ask a
        function, which gets a `Conflict` and returns the value (or "ours" or "theirs" where it is no value).
        """
        session = self._session
        session.check_writable()
        session.check_no_changes()
        theirs = self._find(other)
        for _ in range(_MERGE_ATTEMPTS):
            ours = session.version.commit
            base = merge_base(session.store, ours, theirs)
            if base == theirs:
                return self._here
            try:
                merge(session, self._reader_at(base), self._reader_at(theirs), on_conflict)
                session.commit(message or f"merge {other}", merged=theirs)
                return self._here
            except ConflictError:
                session.rollback()
                if newest_commit(session.store, ours.branch, at_least=ours.version) == ours:
                    raise  # a conflict of the two branches, and not somebody else's commit in between
                session.refresh()
        raise ConflictError("somebody else was faster every time; merge again when there are fewer writers")

    def compact(self, message: str = "") -> str:
        """Join small fragments and drop deleted rows from storage, as a new commit; rows, order and ids stay."""
        self._session.check_writable()
        self._session.check_no_changes()
        with self._session.reader.unless_expired():
            compact(self._session)
        self._session.commit(message or "compact")
        return self._here

    def vacuum(
        self,
        older_than: timedelta = RETENTION,
        *,
        dry_run: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> Vacuumed:
        """Remove what no version needs that is kept.

        Kept are versions that are the newest of a branch, or were less than `older_than` ago, or are tagged or leased.
        """
        if older_than < timedelta(0):
            raise InvalidInputError("older_than cannot be negative")
        session = self._session
        run = Vacuum(session.store, session.info, older_than.total_seconds(), progress or (lambda _: None))
        return run.run(dry_run=dry_run)

    @contextmanager
    def lease(self, duration: timedelta = timedelta(days=1)) -> Iterator[Self]:
        """Keep this version from vacuum while the block runs, and for `duration` if the process dies."""
        with self._session.reader.lease(duration.total_seconds()) as held:
            if not held:
                warnings.warn(self._session.reader.without_lease, PenstockWarning, stacklevel=3)
            yield self

    @property
    def _here(self) -> str:
        return f"{self._session.branch}@{self._session.version.commit.version}"

    def _find(self, spec: int | str | None) -> Commit:
        session = self._session
        if spec is None:
            return session.version.commit
        return find_version(session.store, session.refs, spec, branch_id=session.version.commit.branch)

    def _reader_at(self, commit: Commit) -> Reader:
        session = self._session
        snapshot = read_snapshot(session.store, commit)
        return Reader(session.store, session.tree, session.containers.at(snapshot.containers), snapshot, commit)


def find(
    session: Session,
    *,
    version: int | str | None,
    tag: str | None,
    branch: str | None,
    as_of: datetime | str | None,
) -> tuple[Commit, str, bool]:
    """The commit that a user asks for, the name of its branch, and whether it is only to be read."""
    if sum(given is not None for given in (version, tag, as_of)) > 1:
        raise InvalidInputError("ask for one of version, tag and as_of")
    store, refs = session.store, session.refs
    name = branch if branch is not None else session.branch
    if tag is not None:
        target = refs.tag(tag)
        commit = read_commit(store, target.branch, target.version)
        return commit, refs.name_of(commit.branch), True
    branch_id = refs.branch(name) if branch is not None else session.version.commit.branch
    if as_of is not None:
        commit = find_time(store, newest_commit(store, branch_id), as_of)
        return commit, name if commit.branch == branch_id else refs.name_of(commit.branch), True
    if version is None:
        return newest_commit(store, branch_id), name, False
    if str(version) in refs.branches():
        return newest_commit(store, refs.branch(str(version))), str(version), False
    commit = find_version(store, refs, version, branch_id=branch_id)
    return commit, name if commit.branch == branch_id else refs.name_of(commit.branch), True
