"""Versions of a dataset: log, checkout, branches, tags, diff, merge, reset."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Self

from penstock.dataset._diff import TableDiff
from penstock.dataset._refs import Branches, Tags
from penstock.dataset._saved_views import SavedViews
from penstock.errors import CommitStateUnknownError, ConflictError, InvalidInputError, PenstockWarning
from penstock.format import Commit
from penstock.history import (
    Version,
    create_branch,
    find_commit_at,
    find_version,
    iter_commits,
    merge_bases,
    newest_commit,
    protect_versions,
    read_commit,
    read_snapshot,
)
from penstock.table import OnConflict, Reader, Session, diff, lease_version, lease_warning, merge

_MERGE_ATTEMPTS = 10


class Versions:
    """The history of a table, as a dataset shows it.

    Where a method takes a version, it is a number on the current branch, `branch@number`, a tag, or a branch for its
    newest version.
    """

    _session: Session
    address: str | None

    def log(self) -> Iterator[Commit]:
        """The commits that led to this version, newest first."""
        return iter_commits(self._session.store, self._session.version.commit)

    def checkout(
        self,
        version: int | str | None = None,
        *,
        tag: str | None = None,
        branch: str | None = None,
        as_of: datetime | str | None = None,
    ) -> Self:
        """Move to another version; without arguments, to the newest version of the current branch.

        A branch is writable; a version, a tag or a time is read-only. Raises `NotFoundError` for a version that does
        not exist, and `ConflictError` if there are uncommitted changes.
        """
        with self._session.exclusive():
            if (version, tag, branch, as_of) == (None, None, None, None):
                self._session.refresh()
            else:
                commit, name, pinned = find(self._session, version=version, tag=tag, branch=branch, as_of=as_of)
                self._session.checkout(commit, branch=name, pinned=pinned)
        return self

    @property
    def branches(self) -> Branches[Self]:
        """Names of the branches and their newest versions; also creates, renames and deletes branches."""
        return Branches(self._session.store, self._session.refs, self._create_branch)

    @property
    def tags(self) -> Tags:
        """Names of the tags and their versions; also creates, renames and deletes tags."""
        return Tags(self._session.store, self._session.refs, self._create_tag)

    def views(self) -> SavedViews:
        """Names of the saved views, with version, rows and description; also renames and deletes them."""
        return SavedViews(self._session.store, self._session.refs)

    def _create_branch(self, name: str, at: int | str | None) -> Self:
        session = self._session
        session.refs.check_available(name)
        start = self._find(at)
        with protect_versions(session.store, start):
            snapshot = read_snapshot(session.store, start)
            first = create_branch(
                session.store,
                start,
                single_writer=session.info.single_writer,
                commit_info=session.commit_info(f"branch {name}"),
            )
            session.refs.create("branches", name, first.branch, None)
        links = session.containers.allowed
        created = Session(session.store, session.info, Version(first, snapshot), branch=name, links=links)
        return type(self)(created, self.address)  # type: ignore[call-arg]

    def _create_tag(self, name: str, at: int | str | None) -> None:
        self._session.refs.check_available(name)
        commit = self._find(at)
        with protect_versions(self._session.store, commit):
            self._session.refs.create("tags", name, commit.branch, commit.version)

    def reset(self, version: int | str, message: str = "") -> str:
        """Commit the content of an earlier version as the newest one, and return its name; history is kept.

        Raises `NotFoundError` for an unknown version, and `ConflictError` if there are uncommitted changes.
        """
        with self._session.exclusive():
            self._session.reset(self._find(version), message)
            return self._session.version_name

    def diff(self, old: int | str, new: int | str | None = None) -> TableDiff:
        """What changed from one version to another, by default to this one with its uncommitted changes.

        The work grows with the difference, not with the table. Raises `NotFoundError` for an unknown version.
        """
        session = self._session
        before = self._find(old)
        after = session.reader if new is None else self._reader_at(self._find(new))
        return TableDiff(
            str(old), self._session.version_name if new is None else str(new), diff(self._reader_at(before), after)
        )

    def merge(self, other: str, *, on_conflict: OnConflict = "raise", message: str = "") -> str:
        """Commit what another branch changed since its merge base with this one, and return the new version.

        Rows are matched by row id. Where both sides changed the same value differently, `on_conflict` decides: "raise"
        a `MergeConflictError` that names rows and columns; keep "ours"; take "theirs"; or a function that gets a
        `Conflict` and returns the value, or "ours" or "theirs" for a conflict that is not about a value.
        """
        with self._session.exclusive():
            return self._merge(other, on_conflict, message)

    def _merge(self, other: str, on_conflict: OnConflict, message: str) -> str:
        session = self._session
        session.check_writable()
        session.check_no_changes()
        theirs = self._find(other)
        for _ in range(_MERGE_ATTEMPTS):
            ours = session.version.commit
            if ours.contains.get(theirs.branch, -1) >= theirs.version:
                return self._session.version_name
            try:
                bases = merge_bases(session.store, ours.contains, theirs.contains)
                with protect_versions(session.store, *bases, theirs):
                    merge(session, self._base_reader(bases), self._reader_at(theirs), on_conflict)
                    session.commit(message or f"merge {other}", merged=theirs)
                return self._session.version_name
            except CommitStateUnknownError:
                raise
            except BaseException as error:
                session.rollback()
                if not isinstance(error, ConflictError):
                    raise
                if newest_commit(session.store, ours.branch, at_least=ours.version) == ours:
                    raise  # the branches conflict; a concurrent commit would be rebased on
                session.refresh()
        raise ConflictError(
            f"other writers committed during each of {_MERGE_ATTEMPTS} attempts; merge again with fewer writers"
        )

    @contextmanager
    def lease(self, duration: timedelta = timedelta(days=1)) -> Iterator[Self]:
        """Protect this version from vacuum inside a `with` block, and for `duration` if the process dies.

        On a store that cannot be written to, it warns, and the version is not protected.
        """
        reader = self._session.reader
        with lease_version(reader, duration.total_seconds()) as held:
            if not held:
                warnings.warn(lease_warning(reader), PenstockWarning, stacklevel=3)
            yield self

    def _find(self, spec: int | str | None) -> Commit:
        session = self._session
        if spec is None:
            return session.version.commit
        return find_version(session.store, session.refs, spec, branch_id=session.version.commit.branch)

    def _base_reader(self, bases: Sequence[Commit]) -> Reader:
        """One merge base of two versions.

        If they have several, none of which contains another, it is the merge of these, so that a row or a change that
        reached both versions by different ways counts as common.
        """
        session = self._session
        newest, *others = bases
        base, contains = self._reader_at(newest), newest.contains
        for other in others:
            stage = session.at(Version(newest, base.snapshot))
            merge(
                stage,
                self._base_reader(merge_bases(session.store, contains, other.contains)),
                self._reader_at(other),
                "ours",
            )
            base = stage.reader
            contains = {
                id: max(side.get(id, -1) for side in (contains, other.contains)) for id in {*contains, *other.contains}
            }
        return base

    def _reader_at(self, commit: Commit) -> Reader:
        session = self._session
        snapshot = read_snapshot(session.store, commit)
        return Reader(
            session.store, session.tree, session.containers.with_declared(snapshot.containers), snapshot, commit
        )


def find(
    session: Session,
    *,
    version: int | str | None,
    tag: str | None,
    branch: str | None,
    as_of: datetime | str | None,
) -> tuple[Commit, str, bool]:
    """The requested commit, the name of its branch, and whether it is read-only."""
    if sum(given is not None for given in (version, tag, as_of)) > 1:
        raise InvalidInputError("pass at most one of version, tag and as_of")
    store, refs = session.store, session.refs
    name = branch if branch is not None else session.branch
    if tag is not None:
        target = refs.tag(tag)
        commit = read_commit(store, target.branch, target.version)
        return commit, refs.branch_name(commit.branch), True
    branch_id = refs.branch(name) if branch is not None else session.version.commit.branch
    if as_of is not None:
        commit = find_commit_at(store, newest_commit(store, branch_id), as_of)
        return commit, name if commit.branch == branch_id else refs.branch_name(commit.branch), True
    if version is None:
        return newest_commit(store, branch_id), name, False
    if str(version) in refs.branches():
        return newest_commit(store, refs.branch(str(version))), str(version), False
    commit = find_version(store, refs, version, branch_id=branch_id)
    return commit, name if commit.branch == branch_id else refs.branch_name(commit.branch), True
