"""A table: a view that can be changed, and that has versions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.dataset._versions import Versions
from penstock.dataset._view import View
from penstock.errors import escape_controls
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
    rename_column,
    update_rows,
)


@dataclass(frozen=True)
class Summary:
    """Size, version and columns of a table; print it."""

    uri: str
    version: str
    has_changes: bool
    """Whether there are uncommitted changes; the other numbers include them."""
    rows: int
    bytes: int
    """Bytes of the data files and blobs of this version, without linked objects."""
    fragments: int
    columns: Mapping[str, str]
    sources: tuple[str, ...]
    """Where `penstock.ingest` read the rows from."""

    def __str__(self) -> str:
        width = max(map(len, self.columns), default=0)
        version = self.version + (" with changes" if self.has_changes else "")
        head = f"{self.uri}  {version}: {self.rows:,} rows, {self.bytes:,} bytes, {self.fragments:,} fragments"
        lines = [head, *(f"  {name:<{width}}  {kind}" for name, kind in self.columns.items())]
        return escape_controls("\n".join(lines))


class Dataset(View, Versions):
    """A table at one version, with uncommitted changes on top; `commit` publishes them."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        self._session.check_writable()
        with self._reader.missing_as_expired():
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
    def uri(self) -> str:
        """Location of the table."""
        return self._session.store.uri

    @property
    def version(self) -> str:
        """The version that was loaded, or that the last commit created, such as `main@7`."""
        return self._session.version_name

    def append(self, data: Appendable) -> int:
        """Append rows and return their number: a dictionary of columns, dictionaries of rows, Arrow data, a data frame.

        Any of them can be a generator, which is streamed. A `pathlib.Path` or an open binary file stands for its bytes.
        A value that does not fit raises `InvalidInputError` with its column and row, and nothing of the call is kept.
        """
        with self._writing() as session:
            return append_rows(session, data)

    def update(self, where: Where, values: Mapping[str, Any] | Callable[[dict[str, Values]], Mapping[str, Any]]) -> int:
        """Replace values of some rows, and return their number.

        `where` is a position, a list of positions, a slice, a mask or a `pyarrow.compute` expression. `values` maps
        columns to one value for all of those rows or to one per row; or it is a function from the batch of those rows
        to such a mapping. A value that does not fit raises `InvalidInputError`, and nothing of the call is kept.
        """
        with self._writing() as session:
            return update_rows(session, where, values)

    def delete(self, where: Where) -> int:
        """Delete some rows, and return their number; `where` is as for `update`."""
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
        """Add a column; existing files are not rewritten.

        `fill` is one value for all rows and writes no data; `values` has one per row; `compute` derives them from
        batches of the columns `inputs`, by default of all. Without any of them, a nullable column is null. Raises
        `InvalidInputError` if the name exists or a value does not fit.
        """
        with self._writing() as session:
            add_column(session, name, column, fill=fill, values=values, compute=compute, inputs=inputs)

    def drop_column(self, name: str) -> None:
        """Drop a column; earlier versions keep it. Raises `NotFoundError` if there is none of this name."""
        with self._writing() as session:
            drop_column(session, name)

    def rename_column(self, old: str, new: str) -> None:
        """Rename a column. Raises `NotFoundError` if there is no `old`, `InvalidInputError` if there is a `new`."""
        with self._writing() as session:
            rename_column(session, old, new)

    def commit(self, message: str = "") -> str:
        """Publish the changes as a new version, rebased on concurrent commits, and return its name.

        Raises `ConflictError` if another writer changed the same values; nothing is published then. Raises
        `CommitStateUnknownError` if the store stops answering before the outcome is known; call `commit` again.
        """
        self._session.commit(message)
        return self.version

    def rollback(self) -> None:
        """Discard uncommitted changes."""
        self._session.rollback()

    def summary(self) -> Summary:
        """Size, version and columns."""
        session, snapshot = self._session, self._session.snapshot
        columns = {field.name: str(field).partition(": ")[2] for field in snapshot.schema}
        return Summary(
            self.uri, self.version, bool(session.changes), snapshot.live, snapshot.bytes, snapshot.fragments, columns,
            tuple(snapshot.sources),
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"Dataset({self.uri!r}, {self.version}, {len(self):,} rows: {', '.join(map(str, self.schema))})"
