"""Rows and columns of a table at one version, to be read."""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa

from penstock.dataset._streaming import Streaming
from penstock.errors import InvalidInputError, NotFoundError
from penstock.format import Schema
from penstock.format.kinds import Values
from penstock.table import ROW_ID, Reader, Rows, as_batch, resolve, rows_at

_ARROW_ROWS = 1 << 14


class View(Streaming):
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
        if isinstance(key, slice) and isinstance(self._rows, range):
            return View(self._reader, self._columns, self._rows[key])
        return View(self._reader, self._columns, self._at(key))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Rows, one by one, read ahead."""
        if not self._columns:
            yield from ({} for _ in self._rows)
            return
        for columns in self._reader.batches(self._columns, self._groups(256)):
            for index in range(len(next(iter(columns.values())).values)):
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
            return self._reader.pages(self._columns, self._rows.start, self._rows.stop)
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
        return rows_at(self._rows, resolve(key, len(self)))

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
        what = self.name if self.name == ROW_ID else str(self._view.schema[self.name])
        return f"ColumnView({what}, {len(self):,} rows)"
