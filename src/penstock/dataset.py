"""The front door: make a table, load one, read it and change it. Each method is a short delegation."""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import pyarrow as pa

from penstock.errors import AlreadyExistsError, InvalidInputError, NotFoundError, PenstockWarning
from penstock.format import LOG_PREFIX, TABLE_KEY, ColumnLike, Commit, Schema, SchemaLike, Snapshot, make_schema, new_id
from penstock.format.kinds import Values
from penstock.history import Note, create_table, history, open_table, open_version
from penstock.storage import Store, open_store, probe
from penstock.table import (
    ROW_ID,
    AllowedLinks,
    Appendable,
    Containers,
    Reader,
    Report,
    Rows,
    Session,
    Verifier,
    Where,
    as_batch,
    author,
    positions,
    resolve,
)

__all__ = ["ColumnView", "Dataset", "Summary", "View", "create", "delete", "exists", "load", "verify"]

Place = str | os.PathLike[str] | Store
"""Where a table is: a path, a URI, or a store that is open already."""
_ARROW_ROWS = 1 << 14


def create(
    uri: Place,
    schema: SchemaLike | None = None,
    *,
    options: Mapping[str, str] | None = None,
    links: AllowedLinks = False,
    message: str = "",
) -> "Dataset":
    """Make a new table in a folder or a bucket.

    Without a schema, the columns are found from the first rows that are appended. `options` are settings of the store
    (see `open_store`); `links` allows containers that link columns point into. The store is asked to prove that it can
    keep two writers apart; where it cannot, a warning says so and the table takes one writer at a time.
    """
    fields = make_schema(schema if schema is not None else {})
    store = _open(uri, options)
    if _is_table(store):
        raise AlreadyExistsError(f"{store.uri} is a table already; load it, or choose another place")
    found = probe(store)
    if not found.create_only:
        warnings.warn(
            f"{store.uri}: {found.detail} Only one process at a time may write this table.",
            PenstockWarning,
            stacklevel=2,
        )
    note = Note(message, author(), new_id())
    info, version = create_table(store, Snapshot(fields), single_writer=not found.create_only, note=note)
    return Dataset(Session(store, info, version, links=links))


def load(
    uri: Place,
    *,
    version: int | str | None = None,
    options: Mapping[str, str] | None = None,
    links: AllowedLinks = False,
) -> "Dataset":
    """Open a table at its newest version, or at the one named (`7` or `"main@7"`), which is then read-only."""
    store = _open(uri, options)
    info = open_table(store)
    number = None if version is None else _version_number(version)
    found = open_version(store, info.main, number)
    return Dataset(Session(store, info, found, links=links, pinned=number is not None))


def exists(uri: Place, *, options: Mapping[str, str] | None = None) -> bool:
    """Whether there is a table; a store that does not answer is an error, and not a no."""
    return _is_table(_open(uri, options))


def delete(uri: Place, *, options: Mapping[str, str] | None = None) -> None:
    """Remove a table with all its versions; refuses a place that is not a table."""
    store = _open(uri, options)
    open_table(store)
    store.delete([TABLE_KEY])
    store.delete([item.key for prefix in _OWN_PREFIXES for item in store.list(prefix)])


def verify(
    uri: Place,
    *,
    options: Mapping[str, str] | None = None,
    links: AllowedLinks | None = None,
    progress: Callable[[Report], None] | None = None,
) -> Report:
    """Read every byte of every version back and name what is damaged; with `links` given, linked objects too."""
    store = _open(uri, options)
    containers = None if links is None else Containers(links)
    if not _is_table(store) and not any(True for _ in store.list(LOG_PREFIX)):
        raise NotFoundError(f"{store.uri} is not a table: there is nothing of one in it")
    return Verifier(store, links=containers, progress=progress or (lambda _: None)).run()


_OWN_PREFIXES = ("log/", "refs/", "ids/", "snapshots/", "manifests/", "data/", "blobs/", "index/", "views/", "leases/",
                 "intents/")  # fmt: skip


class View:
    """Some rows and columns of a table at one version; reading it fetches only them."""

    def __init__(self, reader: Reader, columns: Sequence[str], rows: Rows | range) -> None:
        self._reader, self._columns, self._rows = reader, tuple(columns), rows

    @property
    def schema(self) -> Schema:
        """The columns there are."""
        known = self._reader.snapshot.schema
        return Schema(tuple(known[name] for name in self._columns if name != ROW_ID))

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._columns)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, key: str) -> "ColumnView": ...
    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: "slice | Sequence[int] | Rows") -> "View": ...
    def __getitem__(self, key: Any) -> Any:
        """A row by its position, a column by its name, or a view of some rows by a slice, a list or a mask."""
        if isinstance(key, str):
            return ColumnView(self, key)
        if isinstance(key, int | np.integer):
            row = self._reader.columns(self._columns, [self._at(key)])[0]
            return {name: column.item(0) for name, column in row.items()}
        return View(self._reader, self._columns, self._at(key))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Rows, one by one, read ahead."""
        for columns in self._reader.batches(self._columns, self._groups(256)):
            for index in range(len(next(iter(columns.values())).values) if columns else 0):
                yield {name: column.item(index) for name, column in columns.items()}

    def select(self, columns: str | Sequence[str]) -> "View":
        """A view of these columns; `_row_id` is one of them where it is named."""
        names = [columns] if isinstance(columns, str) else list(columns)
        for name in names:
            if name != ROW_ID:
                self.schema[name]
        return View(self._reader, names, self._rows)

    def rows(self, ids: Sequence[int] | Rows) -> "View":
        """A view of the rows that have these ids, in this order."""
        wanted = np.asarray(ids, np.int64).reshape(-1)
        found = self._reader.positions_of(wanted)
        if (found < 0).any():
            raise NotFoundError(f"there is no row with id {int(wanted[found < 0][0])} in this version")
        return View(self._reader, self._columns, found)

    def batches(self, size: int | None = 1024) -> Iterator[dict[str, Values]]:
        """Rows in batches of `size`, a dictionary of columns each, read ahead in threads.

        A column is an array where all rows have one shape, else a list. A nullable column that is an array comes with
        `<column>_mask`, true where a value is there. With `size=None` batches end where the pages of the heaviest
        column do: its arrays are then views of the bytes that were fetched.
        """
        if size is not None and size < 1:
            raise InvalidInputError(f"a batch has at least one row, not {size}")
        if size is None and isinstance(self._rows, range) and self._rows.step == 1:
            found = self._reader.pages(self._columns, self._rows.start, self._rows.stop)
        else:
            found = self._reader.batches(self._columns, self._groups(size or 1024))
        return (as_batch(columns) for columns in found)

    def to_numpy(self) -> dict[str, Values]:
        """All rows as one batch."""
        return as_batch(self._reader.columns(self._columns, [self._at(slice(None))])[0])

    def to_arrow(self) -> pa.Table:
        """All rows as an Arrow table; media stay encoded."""
        parts = [self._reader.arrow(self._columns, rows) for rows in self._groups(_ARROW_ROWS)]
        return pa.concat_tables(parts or [self._reader.arrow(self._columns, np.zeros(0, np.int64))])

    def to_pandas(self) -> Any:
        """All rows as a pandas data frame; media stay encoded."""
        return self.to_arrow().to_pandas()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} rows: {', '.join(map(str, self.schema))})"

    def _at(self, key: Any) -> Rows:
        if isinstance(key, slice) and isinstance(self._rows, range):
            chosen = self._rows[key]
            return np.arange(chosen.start, chosen.stop, chosen.step, dtype=np.int64)
        return np.asarray(self._rows, np.int64)[resolve(key, len(self))]

    def _groups(self, size: int) -> Iterator[Rows]:
        for start in range(0, len(self), size):
            yield np.asarray(self._rows[start : start + size], np.int64)


class ColumnView:
    """One column of a view."""

    def __init__(self, view: View, name: str) -> None:
        if name != ROW_ID:
            view.schema[name]
        self._view, self.name = view, name

    def __len__(self) -> int:
        return len(self._view)

    def __getitem__(self, key: Any) -> Any:
        """One value by its position, or many by a slice, a list or a mask: an array where they have one shape."""
        column = self._view._reader.columns([self.name], [self._view._at(key)])[0][self.name]
        if isinstance(key, int | np.integer):
            return column.item(0)
        if column.mask is not None and not column.mask.all():
            return np.ma.masked_array(column.values, np.broadcast_to(
                ~column.mask.reshape(-1, *[1] * (np.ndim(column.values) - 1)), np.shape(column.values)))  # fmt: skip
        return column.values

    def open(self, row: int) -> Any:
        """One value of bytes as a binary file, which fetches only what is read of it."""
        field = self._view.schema[self.name]
        return self._view._reader.open(field, int(self._view._at(row)[0]))

    def __repr__(self) -> str:
        return f"ColumnView({self._view.schema[self.name]}, {len(self):,} rows)"


@dataclass(frozen=True)
class Summary:
    """What a table is, in short; print it."""

    uri: str
    version: str
    rows: int
    bytes: int
    """Of the data files of this version; blobs and linked objects are not counted."""
    fragments: int
    columns: Mapping[str, str]

    def __str__(self) -> str:
        width = max(map(len, self.columns), default=0)
        head = f"{self.uri}  {self.version}: {self.rows:,} rows, {self.bytes:,} bytes, {self.fragments:,} fragments"
        return "\n".join([head, *(f"  {name:<{width}}  {kind}" for name, kind in self.columns.items())])


class Dataset(View):
    """A table at one version, with the changes made to it since; others see them after `commit`."""

    def __init__(self, session: Session) -> None:
        self._session = session

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
        """Where the table is."""
        return self._session.store.uri

    @property
    def version(self) -> str:
        """The version this was loaded at, or that the last commit made: `main@7`."""
        return f"main@{self._session.version.commit.version}"

    @property
    def has_changes(self) -> bool:
        """Whether there are changes that are not committed."""
        return bool(self._session.changes)

    def append(self, data: Appendable) -> int:
        """Add rows, and say how many: a dictionary of columns, rows (dictionaries), Arrow data, or a generator.

        A value that does not fit is refused with its column and row, and nothing of the call is kept. A `pathlib.Path`
        or an open binary file stands for the bytes in it.
        """
        return self._session.append(data)

    def update(self, where: Where, values: Mapping[str, Any] | Callable[[dict[str, Values]], Mapping[str, Any]]) -> int:
        """Give rows other values, and say how many: positions, a slice, a mask or a `pyarrow.compute` expression.

        `values` maps columns to one value for all those rows or to a list with one for each; or it is a function from
        the batch of those rows to such a mapping.
        """
        return self._session.update(where, values)

    def delete(self, where: Where) -> int:
        """Remove rows, and say how many: positions, a slice, a mask or a `pyarrow.compute` expression."""
        return self._session.delete(where)

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
        self._session.add_column(name, column, fill=fill, values=values, compute=compute, inputs=inputs)

    def drop_column(self, name: str) -> None:
        """Remove a column; older versions keep it."""
        self._session.drop_column(name)

    def rename_column(self, old: str, new: str) -> None:
        """Give a column another name."""
        self._session.rename_column(old, new)

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

    def refresh(self) -> str:
        """Move to the newest version, with what others have committed."""
        self._session.refresh()
        return self.version

    def log(self) -> Iterator[Commit]:
        """The commits that led to this version, newest first."""
        return history(self._session.store, self._session.version.commit)

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


def _open(place: Place, options: Mapping[str, str] | None) -> Store:
    return place if isinstance(place, Store) else open_store(place, options=options)


def _is_table(store: Store) -> bool:
    try:
        store.head(TABLE_KEY)
    except NotFoundError:
        return False
    return True


def _version_number(version: int | str) -> int:
    text = str(version)
    branch, at, number = text.rpartition("@")
    if (at and branch != "main") or not number.isdigit():
        raise InvalidInputError(f"a version is a number or main@NUMBER, not {version!r}")
    return int(number)
