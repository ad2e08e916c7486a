"""Views of which a loader reads other rows in each epoch: drawn by weights, or those of the newest version."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from penstock.dataset._streaming import Streaming
from penstock.dataset._weights import Weights
from penstock.engine import Source, VersionFollower, schema_of
from penstock.errors import InvalidInputError
from penstock.format import Schema, encode_snapshot
from penstock.history import Refs, find_version, format_version, newest_commit, open_table, read_snapshot
from penstock.plan import Rows, WeightedDraw
from penstock.table import ROW_ID, Int64Array, Reader, without_quarantined

if TYPE_CHECKING:
    import numpy.typing as npt


class EpochChoices(Streaming):
    """What can be chosen about the rows of each epoch."""

    _rows: Rows
    _columns: tuple[str, ...]

    def _pinned(self) -> "EpochChoices":
        raise NotImplementedError

    def _source(self, weights: Weights | None = None) -> Source:
        """What a loader reads: all rows but the quarantined ones, or those that weights draw in each epoch."""
        raise NotImplementedError

    def select(self, columns: str | Sequence[str]) -> "EpochChoices":
        """A view of some columns."""
        raise NotImplementedError

    def weighted(self, weights: "str | npt.ArrayLike", rows: int | None = None) -> "EpochView":
        """A view that draws rows with replacement, each with a probability proportional to its weight.

        weights: a numeric column of the table, or an array with one number for each row or sample of this view. A
            window has the weight of its own row; packed sequences need an array.
        rows: draws of an epoch; by default as many as this view has rows.

        Each epoch has other draws, a function of the seed and the epoch alone; all ranks share them. Raises
        `InvalidInputError` for weights that cannot be drawn by, and `NotFoundError` for an unknown column.
        """
        return self._by_epoch(Weights(weights, rows))

    def balanced(self, column: str, rows: int | None = None) -> "EpochView":
        """A view that draws rows with replacement, each class of a column equally often; else as `weighted` does.

        column: labels, integers, booleans or text.
        """
        return self._by_epoch(Weights(column, rows, classes=True))

    def following(self) -> "EpochView":
        """A view that begins at this version and moves to the newest one of the branch at the end of each epoch.

        All ranks move together. The state of a loader has the version being read, and resumes there. Raises
        `InvalidInputError` for a view of chosen rows, and for uncommitted changes: all rows of each version are read.
        """
        return self._by_epoch(None, follows=True)

    def _by_epoch(self, weights: Weights | None, *, follows: bool = False) -> "EpochView":
        view = self._pinned()
        source = view._source(weights)
        if follows:
            _check_followed(source.reader, view._rows, weights)
        return EpochView(view, source, weights, follows)


class EpochView(EpochChoices):
    """Rows that are drawn anew, or that are those of a newer version, in each epoch; it streams, and can be mixed.

    Choose rows, windows and packed sequences before: `ds.where(…).windows(…).weighted(…)`.
    """

    def __init__(self, view: EpochChoices, source: Source, weights: Weights | None, follows: bool) -> None:
        self._view, self._first, self._weights, self._follows = view, source, weights, follows

    def _pinned(self) -> "EpochView":
        return self

    def _source(self, weights: Weights | None = None) -> Source:  # noqa: ARG002
        return self._first

    def _row_source(self) -> Source:
        return self[0]

    def _follower(self) -> VersionFollower | None:
        return BranchFollower(self._first.reader, self._first.names, self._weights) if self._follows else None

    def _by_epoch(self, weights: Weights | None, *, follows: bool = False) -> "EpochView":
        if weights is not None and self._weights is not None:
            raise InvalidInputError("this view is weighted already: multiply the weights into one column or array")
        return self._view._by_epoch(weights or self._weights, follows=follows or self._follows)

    @property
    def schema(self) -> Schema:
        """The columns; `schema.names` lists their names."""
        return schema_of(self._first)

    def __len__(self) -> int:
        """Rows of an epoch, of the version it begins at."""
        return len(self._first)

    def __getitem__(self, key: object) -> NoReturn:
        """Raises `InvalidInputError`, because rows have no positions here."""
        raise InvalidInputError(
            "the rows of a view that is weighted or follows a branch are chosen in each epoch, and have no positions; "
            "read it with a loader, as ds.pytorch(batch_size=…) gives one, or index the view that it was made from"
        )

    def select(self, columns: str | Sequence[str]) -> "EpochView":
        """A view of some columns. Raises `NotFoundError` for an unknown column."""
        view = self._view.select(columns)
        return EpochView(view, replace(self._first, names=view._columns), self._weights, self._follows)

    def __repr__(self) -> str:
        return f"EpochView({len(self):,} rows in each epoch, of {self._view!r})"


@dataclass(frozen=True)
class BranchFollower:
    """Opens newer versions of the branch of a reader; see `engine.VersionFollower`."""

    reader: Reader
    """The version at which a loader starts."""
    names: Sequence[str]
    weights: Weights | None

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
        return opened, rows, None if self.weights is None else self.weights.draw(opened, rows)


def _check_followed(reader: Reader, rows: Rows, weights: Weights | None) -> None:
    """Raise `InvalidInputError` for what cannot be found in other versions."""
    if not isinstance(rows, range) or rows != range(reader.snapshot.live):
        raise InvalidInputError(
            "following() reads all rows of each version, and this view is a choice of rows of one version; call it on "
            "the table itself"
        )
    if encode_snapshot("", reader.snapshot) != encode_snapshot("", read_snapshot(reader.store, reader.commit)):
        raise InvalidInputError("following() reads committed versions: commit the changes of this dataset first")
    if weights is not None and weights.is_array:
        raise InvalidInputError(
            "following() needs weights of each version: name a column, because an array fits one version only"
        )
