"""A table: a view that can be changed, and that has versions."""

import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from penstock.dataset._indexes import Indexes
from penstock.dataset._quarantine import Quarantine
from penstock.dataset._row_choice import Positions, RowChoice, RowIds, choose_rows, computed_values
from penstock.dataset._versions import Versions
from penstock.dataset._view import View
from penstock.errors import CommitStateUnknownError, InvalidInputError, PenstockError, PenstockWarning, escape_controls
from penstock.format import ColumnLike
from penstock.format.kinds import Values
from penstock.history import Changes
from penstock.runners import available_cores
from penstock.table import (
    Appendable,
    ComputeOptions,
    Reader,
    Session,
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
    deleted_rows: int
    """Rows that are deleted, and still in data files until the next compaction."""

    def __str__(self) -> str:
        width = max(map(len, self.columns), default=0)
        version = self.version + (" with changes" if self.has_changes else "")
        head = f"{self.uri}  {version}: {self.rows:,} rows, {self.bytes:,} bytes, {self.fragments:,} fragments"
        lines = [head, *(f"  {name:<{width}}  {kind}" for name, kind in self.columns.items())]
        return escape_controls("\n".join(lines))


class Dataset(View, Versions, Quarantine, Indexes):
    """A table at one version, with uncommitted changes on top; `commit` publishes them.

    As a context manager it commits at the end of the block, and rolls back after an exception. A dataset that is
    deleted, or that the program ends with, warns of changes that were not committed.

    Threads may share it: what one thread stages, the commit of another may publish, and each row is published once.
    Changes and commits wait for each other; reads do not wait, and each sees the table at one moment. After a fork, a
    child cannot commit what was staged before it.
    """

    address: str | None
    """The `penstock://workspace/table` that the table was opened by; None if it was opened by its URI."""

    def __init__(self, session: Session, address: str | None = None) -> None:
        self._session, self.address = session, address
        weakref.finalize(self, _warn_of_changes, session)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._session, self.address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.commit()
        else:
            with suppress(PenstockError):  # the error to report is the first one
                self.rollback()

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        with self._session.exclusive():
            self._session.check_writable()
            with self._session.reader.missing_as_expired():
                yield self._session

    def _commit_change(self, change: Callable[[Session], object], message: str) -> str:
        """Commit one change on its own, and return the version; raises `InvalidInputError` if others are staged."""
        with self._writing() as session:
            session.check_no_changes()
            try:
                change(session)
                session.commit(message)
            except CommitStateUnknownError:
                raise
            except BaseException:
                session.rollback()
                raise
            return session.version_name

    def _pinned(self) -> View:
        reader = self._session.reader
        return View(reader, reader.snapshot.schema.names, range(reader.snapshot.live))

    @property
    def _reader(self) -> Reader:  # type: ignore[override]
        return self._session.reader

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

    def update(
        self,
        where: RowChoice | None = None,
        data: Mapping[str, Any] | Callable[[dict[str, Values]], Mapping[str, Any]] | None = None,
        *,
        values: Mapping[str, str] | None = None,
        positions: Positions | None = None,
        row_ids: RowIds | None = None,
    ) -> int:
        """Replace values of some rows, and return their number.

        where: a view of this table, a condition in SQL such as `"reward < 0"`, a mask, or a `pyarrow.compute`
            expression. SQL, masks and expressions see uncommitted changes; the rows of a view are found by row id.
        data: by column one value for all of those rows, or one per row; or a function from the batch of those rows to
            such a mapping.
        values: in place of `data`, by column an SQL expression over the row, such as `{"reward": "reward * 2"}`.
        positions: in place of `where`, places in the table as in `ds[i]`: an integer, integers or a slice.
        row_ids: in place of `where`, row ids.

        Raises `NotFoundError` for a row that this version does not have, such as one of a view that was deleted since,
        and `InvalidInputError` for a value that does not fit. Nothing of the call is kept then.
        """
        if (data is None) == (values is None):
            raise InvalidInputError("give the new values once: data= as they are, or values= as SQL expressions")
        with self._writing() as session:
            rows = choose_rows(session, where, positions=positions, row_ids=row_ids)
            return update_rows(session, rows, computed_values(session, rows, values or {}) if data is None else data)

    def delete(
        self,
        where: RowChoice | None = None,
        *,
        positions: Positions | None = None,
        row_ids: RowIds | None = None,
    ) -> int:
        """Delete some rows, and return their number; they are chosen as for `update`."""
        with self._writing() as session:
            return delete_rows(session, choose_rows(session, where, positions=positions, row_ids=row_ids))

    def add_column(
        self,
        name: str,
        column: ColumnLike | None = None,
        *,
        fill: Any = None,
        values: Any = None,
        compute: Callable[[dict[str, Values]], Any] | None = None,
        inputs: Sequence[str] | None = None,
        num_workers: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Add a column; existing files are not rewritten.

        fill: one value for all rows; writes no data. Without `fill`, `values` and `compute`, a nullable column is null.
        values: one value per row.
        compute: a function from a batch of 1,024 rows to their values. If it is interrupted, the same call with the
            same function continues: what was finished is kept for five days.
        inputs: the columns that `compute` gets, by default all.
        num_workers: processes that call `compute`, by default one per core if it takes more than a few seconds. 1 calls
            it in this process, as a function needs that changes variables of the program or holds a GPU.
        progress: called with the rows done and the rows in all.

        Raises `InvalidInputError` if the name exists or a value does not fit.
        """
        options = ComputeOptions(inputs, num_workers, available_cores(), progress or (lambda _done, _rows: None))
        with self._writing() as session:
            add_column(session, name, column, fill=fill, values=values, compute=compute, options=options)

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
        with self._session.exclusive():
            self._session.commit(message)
            return self.version

    def rollback(self) -> None:
        """Discard uncommitted changes; publishes nothing.

        After a `CommitStateUnknownError` it raises `ConflictError` if that commit exists after all, and moves to it. If
        it does not exist, a request in flight may still create it; the next commit then raises `ConflictError`.
        """
        with self._session.exclusive():
            self._session.rollback()

    def summary(self) -> Summary:
        """Size, version and columns."""
        session, snapshot = self._session, self._session.snapshot
        columns = {field.name: str(field).partition(": ")[2] for field in snapshot.schema}
        return Summary(
            self.uri, self.version, bool(session.changes), snapshot.live, snapshot.bytes, snapshot.fragments, columns,
            tuple(snapshot.sources), sum(node.rows - node.live for node in snapshot.nodes),
        )  # fmt: skip

    def __repr__(self) -> str:
        staged = f", {_describe(self._session.changes)}" if self._session.changes else ""
        name, columns = self.address or self.uri, ", ".join(map(str, self.schema))
        return f"Dataset({name!r}, {self.version}, {len(self):,} rows{staged}: {columns})"


def _describe(changes: Changes) -> str:
    """Uncommitted changes in a few words."""
    counts = {name: count for name, count in changes.counts.items() if count}
    if counts.keys() == {"added"}:
        return f"{counts['added']:,} uncommitted row{'s' * (counts['added'] > 1)}"
    listed = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    return f"uncommitted changes ({listed})" if listed else "uncommitted changes"


def _warn_of_changes(session: Session) -> None:
    """Called when a dataset is deleted, and when the program ends."""
    if session.changes and session.changes.pid == os.getpid():
        what = _describe(session.changes)
        verb = "was" if what.endswith("row") else "were"
        warnings.warn(
            f"{what} of {session.store.uri} {verb} dropped with their Dataset; call commit() before, or use"
            " `with penstock.load(…) as ds:`, which commits at its end; rollback() drops changes without a warning",
            PenstockWarning,
            stacklevel=1,
        )
