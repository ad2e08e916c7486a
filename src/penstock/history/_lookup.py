"""Look up commits: by version name, by time, and the merge base of two branches."""

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


def merge_base(store: Store, ours: Commit, theirs: Commit) -> Commit:
    """The newest common ancestor of two commits; raises `InvalidInputError` if they have none."""
    branches = {ours.branch, theirs.branch, *ours.ancestors, *theirs.ancestors}
    shared = [CommitRef(id, min(ours.ancestor_version(id), theirs.ancestor_version(id))) for id in branches]
    commits = [read_commit(store, at.branch, at.version) for at in shared if at.version >= 0]
    if not commits:
        raise InvalidInputError("these two versions have no common ancestor; merge branches of one table")
    return max(commits, key=lambda commit: commit.time_us)


def _as_utc(when: datetime | str) -> datetime:
    try:
        moment = datetime.fromisoformat(when) if isinstance(when, str) else when
    except ValueError:
        raise InvalidInputError(f"{when!r} is not a time; write 2026-01-31 or 2026-01-31T12:00:00+00:00") from None
    return moment.astimezone(UTC)
