"""The table itself: a view that can be changed, and that has a history."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.dataset._versions import Versions
from penstock.dataset._view import View
from penstock.format import ColumnLike
from penstock.format.kinds import Values
from penstock.table import (
    Appendable,
    Reader,
    Session,
    Where,
    add_column,
    append_rows,
    delete_rows,
    drop_column,
    positions,
    rename_column,
    update_rows,
)


@dataclass(frozen=True)
class Summary:
    """What a table is, in short; print it."""

    uri: str
    version: str
    rows: int
    bytes: int
    """Of the data files and blobs of this version; linked objects are not counted."""
    fragments: int
    columns: Mapping[str, str]

    def __str__(self) -> str:
        width = max(map(len, self.columns), default=0)
        head = f"{self.uri}  {self.version}: {self.rows:,} rows, {self.bytes:,} bytes, {self.fragments:,} fragments"
        return "\n".join([head, *(f"  {name:<{width}}  {kind}" for name, kind in self.columns.items())])


class Dataset(View, Versions):
    """A table at one version, with the changes made to it since; others see them after `commit`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        self._session.check_writable()
        with self._reader.unless_expired():
            yield self._session

    @property
    def _reader(self) -> Reader:  # type: ignore[override]
        return self._session.reader

    @property
    def _columns(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self._session.snapshot.schema.names)

    @property
    def _rows(self) -> range:  # type: ignore[override]
        return range(self._session.snapshot.live)

    @property
    def sources(self) -> tuple[str, ...]:
        """Where rows were taken in from by `penstock.ingest`."""
        return tuple(self._session.snapshot.sources)

    @property
    def uri(self) -> str:
        """Where the table is."""
        return self._session.store.uri

    @property
    def version(self) -> str:
        """The version this was loaded at, or that the last commit made: `main@7`."""
        return f"{self._session.branch}@{self._session.version.commit.version}"

    @property
    def has_changes(self) -> bool:
        """Whether there are changes that are not committed."""
        return bool(self._session.changes)

    def append(self, data: Appendable) -> int:
        """Add rows, and say how many: a dictionary of columns, rows (dictionaries), Arrow data, or a generator.

        A value that does not fit is refused with its column and row, and nothing of the call is kept. A `pathlib.Path`
        or an open binary file stands for the bytes in it.
        """
        with self._writing() as session:
            return append_rows(session, data)

    def update(self, where: Where, values: Mapping[str, Any] | Callable[[dict[str, Values]], Mapping[str, Any]]) -> int:
        """Give rows other values, and say how many: positions, a slice, a mask or a `pyarrow.compute` expression.

        `values` maps columns to one value for all those rows or to a list with one for each; or it is a function from
        the batch of those rows to such a mapping.
        """
        with self._writing() as session:
            return update_rows(session, where, values)

    def delete(self, where: Where) -> int:
        """Remove rows, and say how many: positions, a slice, a mask or a `pyarrow.compute` expression."""
        with self._writing() as session:
            return delete_rows(session, where)

    def add_column(
        self,
        name: str,
        column: ColumnLike | None = None,
        *,
        fill: Any = None,
        values: Any = None,
        compute: Callable[[dict[str, Values]], Any] | None = None,
        inputs: Sequence[str] | None = None,
    ) -> None:
        """Add a column, rewriting nothing.

        `fill` is one value for every row and costs no data; `values` has one for each row; `compute` makes them from
        batches of the columns named in `inputs` (all by default). Without any, a nullable column is empty.
        """
        with self._writing() as session:
            add_column(session, name, column, fill=fill, values=values, compute=compute, inputs=inputs)

    def drop_column(self, name: str) -> None:
        """Remove a column; older versions keep it."""
        with self._writing() as session:
            drop_column(session, name)

    def rename_column(self, old: str, new: str) -> None:
        """Give a column another name."""
        with self._writing() as session:
            rename_column(session, old, new)

    def commit(self, message: str = "") -> str:
        """Make the changes a version that everybody sees, and say which; commits of others in between are kept.

        `ConflictError`: somebody else changed the same; nothing was published. `CommitStateUnknown`: the store stopped
        answering; call `commit` again.
        """
        self._session.commit(message)
        return self.version

    def rollback(self) -> None:
        """Forget the changes that are not committed."""
        self._session.rollback()

    def find(self, where: Where) -> View:
        """A view of the rows that match a `pyarrow.compute` expression."""
        return View(self._reader, self._columns, positions(self._reader, where))

    def summary(self) -> Summary:
        """What the table is, in short."""
        snapshot = self._session.snapshot
        version = self.version + (" with changes" if self.has_changes else "")
        columns = {field.name: str(field).partition(": ")[2] for field in snapshot.schema}
        return Summary(self.uri, version, snapshot.live, snapshot.bytes, snapshot.fragments, columns)

    def __repr__(self) -> str:
        return f"Dataset({self.uri!r}, {self.version}, {len(self):,} rows: {', '.join(map(str, self.schema))})"
