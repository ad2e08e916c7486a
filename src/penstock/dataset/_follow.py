"""Follow a branch: find its newest version, and open it for a loader that reads an older one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.dataset._weights import Weights
from penstock.engine import Rows
from penstock.errors import InvalidInputError
from penstock.format import encode_snapshot
from penstock.history import Refs, find_version, format_version, newest_commit, open_table, read_snapshot
from penstock.plan import WeightedDraw
from penstock.table import ROW_ID, Int64Array, Reader, without_quarantined


@dataclass(frozen=True)
class BranchFollower:
    """Opens newer versions of the branch of a reader; see `engine.VersionFollower`."""

    reader: Reader
    """The version at which a loader starts."""
    names: Sequence[str]
    weights: Weights

    def newest(self) -> str:
        """The name of the newest version of the branch."""
        commit = self.reader.commit
        found = newest_commit(self.reader.store, commit.branch, at_least=commit.version)
        return format_version(self.reader.name.rpartition("@")[0], found.version)

    def open(self, version: str) -> tuple[Reader, range | Int64Array, WeightedDraw | None]:
        """The table at a version, its rows without quarantined ones, and their draw.

        Raises `InvalidInputError` if a column of the loader is missing or of another kind there.
        """
        reader = self.reader
        refs = Refs(reader.store, open_table(reader.store))
        commit = find_version(reader.store, refs, version, branch_id=reader.commit.branch)
        snapshot = read_snapshot(reader.store, commit)
        for name in self.names:
            before = None if name == ROW_ID else reader.snapshot.schema[name].kind
            after = next((field.kind for field in snapshot.schema if field.name == name), None)
            if before != after:
                what = "does not exist" if after is None else f"holds {after} and not {before}"
                raise InvalidInputError(
                    f"column {name!r} {what} in {version}, so that a loader of {reader.name} cannot follow; create a "
                    "loader of the new version"
                )
        containers = reader.containers.with_declared(snapshot.containers)
        opened = replace(reader, containers=containers, snapshot=snapshot, commit=commit, name=version)
        rows = without_quarantined(opened, range(snapshot.live))
        return opened, rows, self.weights.draw(opened, rows)


def follow_branch(reader: Reader, names: Sequence[str], rows: Rows, weights: Weights) -> BranchFollower:
    """A follower for a loader of all rows; raises `InvalidInputError` for what cannot be found in other versions."""
    if not isinstance(rows, range) or rows != range(reader.snapshot.live):
        raise InvalidInputError(
            "follow=True reads all rows of each version, and this view is a choice of rows of one version; pass "
            "follow=True to a loader of the table itself"
        )
    if encode_snapshot("", reader.snapshot) != encode_snapshot("", read_snapshot(reader.store, reader.commit)):
        raise InvalidInputError("follow=True reads committed versions: commit the changes of this dataset first")
    if weights.is_array:
        raise InvalidInputError(
            "follow=True needs weights of each version: name a column, because an array fits one version only"
        )
    return BranchFollower(reader, names, weights)
