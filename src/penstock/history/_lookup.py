"""Look up commits: by version name, by time, and the merge bases of two branches."""

from collections.abc import Mapping
from datetime import UTC, datetime

from penstock.errors import InvalidInputError, NotFoundError
from penstock.format import Commit, CommitRef
from penstock.history._log import newest_commit, read_commit, read_named_commit, read_parent
from penstock.history._refs import Refs
from penstock.history._version_names import parse_version
from penstock.storage import Store


def find_version(store: Store, refs: Refs, spec: int | str, *, branch_id: str) -> Commit:
    """The commit of a number on this branch, of `branch@number`, of a tag, or the newest of a branch.

    Raises `NotFoundError`.
    """
    text = str(spec)
    parsed = parse_version(text)
    if parsed is not None:
        branch, number = parsed
        return read_named_commit(store, branch_id if branch is None else refs.branch(branch), number, text)
    try:
        target = refs.tag(text)
    except NotFoundError:
        try:
            return newest_commit(store, refs.branch(text))
        except NotFoundError:
            raise NotFoundError(
                f"{store.uri} has no version, tag or branch {text!r}; a version is written as main@7"
            ) from None
    return read_commit(store, target.branch, target.version)


def find_commit_at(store: Store, head: Commit, when: datetime | str) -> Commit:
    """The last commit at or before a time, among `head` and its ancestors, whose times ascend.

    Raises `NotFoundError` for a time before the table was created.
    """
    moment = _as_utc(when)
    bound = int(moment.timestamp() * 1e6)
    newest = head
    while True:
        first = read_commit(store, newest.branch, 0)
        if first.time_us <= bound:
            break
        parent = read_parent(store, first)
        if parent is None:
            raise NotFoundError(f"{store.uri} was created at {first.time:%Y-%m-%d %H:%M:%S} UTC, after {moment}")
        newest = parent
    low, high = first, newest.version + 1
    if newest.time_us <= bound:
        return newest
    while high - low.version > 1:
        middle = read_commit(store, newest.branch, (low.version + high) // 2)
        if middle.time_us <= bound:
            low = middle
        else:
            high = middle.version
    return low


def merge_bases(store: Store, ours: Mapping[str, int], theirs: Mapping[str, int]) -> list[Commit]:
    """The common ancestors of two versions, newest first, without those that another one contains.

    A version is given by what it contains (`Commit.contains`). Raises `InvalidInputError` if there are none.
    """
    shared = [CommitRef(id, min(ours[id], theirs[id])) for id in ours.keys() & theirs.keys()]
    commits = [read_commit(store, at.branch, at.version) for at in shared]
    if not commits:
        raise InvalidInputError("these two versions have no common ancestor; merge branches of one table")
    newest_first = sorted(commits, key=lambda commit: -commit.time_us)
    return [
        commit
        for index, commit in enumerate(newest_first)
        if all(newer.contains.get(commit.branch, -1) < commit.version for newer in newest_first[:index])
    ]


def _as_utc(when: datetime | str) -> datetime:
    try:
        moment = datetime.fromisoformat(when) if isinstance(when, str) else when
    except ValueError:
        raise InvalidInputError(f"{when!r} is not a time; write 2026-01-31 or 2026-01-31T12:00:00+00:00") from None
    return moment.astimezone(UTC)
