"""Read some rows and columns of a table at one version."""

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.dataset._questions import filter_rows
from penstock.dataset._saved_views import save_view
from penstock.errors import InvalidInputError
from penstock.format import Schema
from penstock.format.kinds import Values
from penstock.plan import take_positions
from penstock.query import Explanation, Params, Relation, TableScan, Udf, as_dataset, explain_sql
from penstock.table import ROW_ID, Int64Array, Reader, as_batch, is_position, resolve_positions

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow.dataset

_ARROW_ROWS = 1 << 14


class Reading:
    """What can be read of some rows and columns."""

    _rows: range | Int64Array
    _question = ""
    """The question that these rows answer, if there is one."""

    def __init__(self, reader: Reader, columns: Sequence[str], rows: Int64Array | range) -> None:
        self._reader, self._columns, self._rows = reader, tuple(columns), rows

    def _pinned(self) -> "Reading":
        """The same rows, which no other thread can change between two steps of a read."""
        return self

    def _relation(self) -> Relation:
        """The rows and columns of this moment."""
        view = self._pinned()
        return Relation(view._reader, view._columns, view._rows)

    @property
    def schema(self) -> Schema:
        """The selected columns; `schema.names` lists their names."""
        view = self._pinned()
        table = view._reader.snapshot.schema
        return Schema(tuple(table[name] for name in view._columns if name != ROW_ID))

    def __len__(self) -> int:
        return len(self._pinned()._rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Rows as dictionaries, prefetched."""
        view = self._pinned()
        if not view._columns:
            yield from ({} for _ in view._rows)
            return
        for columns in view._reader.batches(view._columns, view._groups(256)):
            for index in range(len(next(iter(columns.values())).values)):
                yield {name: column.item(index) for name, column in columns.items()}

    def batches(self, size: int | None = 1024) -> Iterator[dict[str, Values]]:
        """Batches of `size` rows in order, as dictionaries of columns, prefetched in threads.

        A column is an array if all its rows have one shape, otherwise a list. A nullable column that is an array comes
        with `<column>_mask`, true where there is a value. With `size=None`, batches end at the page boundaries of the
        heaviest column, and its arrays are views of the fetched bytes.
        """
        if size is not None and size < 1:
            raise InvalidInputError(f"a batch has at least one row, not {size}")
        view = self._pinned()
        if size is None and isinstance(view._rows, range) and view._rows.step == 1:
            return view._reader.page_batches(view._columns, view._rows.start, view._rows.stop)
        found = view._reader.batches(view._columns, view._groups(size or 1024))
        return (as_batch(columns) for columns in found)

    def to_numpy(self) -> dict[str, Values]:
        """All rows as one batch."""
        view = self._pinned()
        return as_batch(view._reader.columns(view._columns, [view._positions(slice(None))])[0])

    def to_arrow(self) -> pa.Table:
        """All rows as an Arrow table; media stay encoded."""
        view = self._pinned()
        parts = [view._reader.arrow(view._columns, rows) for rows in view._groups(_ARROW_ROWS)]
        return pa.concat_tables(parts or [view._reader.arrow(view._columns, np.zeros(0, np.int64))])

    def to_pandas(self) -> "pandas.DataFrame":
        """All rows as a pandas data frame; media stay encoded, and tensors are arrays. Needs the extra `pandas`."""
        _imported("pandas", "pandas")
        return self.to_arrow().to_pandas()  # type: ignore[no-any-return]

    def to_polars(self) -> "polars.LazyFrame":
        """A lazy frame of polars, which reads only the columns and pages that its `collect()` needs.

        Media stay encoded. Needs the extra `polars`.
        """
        frame: polars.LazyFrame = _imported("polars", "Polars").scan_pyarrow_dataset(self.to_arrow_dataset())
        return frame

    def to_arrow_dataset(self) -> "pyarrow.dataset.Dataset":
        """A `pyarrow.dataset.Dataset` for engines that take one, such as DataFusion and DuckDB.

        They push columns and filters to it, which it applies exactly; media stay encoded. It can be pickled. `sort_by`
        and the joins read all rows into memory; its schema cannot be replaced, and it cannot be part of a union.
        """
        return as_dataset(TableScan(self._relation()))

    def explain(
        self, sql: str, params: Params = None, *, functions: Iterable[Udf] = (), analyze: bool = False
    ) -> Explanation:
        """What `query` would read: fragments and pages that statistics leave, indexes, bytes; print it.

        It reads no rows. With `analyze` it answers the query, and counts what was read. Raises as `query` does.
        """
        relations = {"ds": self._relation()}
        return explain_sql(sql, relations, params, functions=functions, analyze=analyze)

    def save_view(self, name: str, description: str | None = None) -> None:
        """Save this view with its table under a name; `penstock.load(…, view=name)` opens it on any machine.

        It is bound to its version, which vacuum keeps for it. Row ids and computed columns are stored, other columns
        are not copied. The description is by default the SQL that the view came from. Raises `AlreadyExistsError` if
        there is a view of this name, and `InvalidInputError` for a view of uncommitted changes or of a result that is
        not rows of one table.
        """
        save_view(self._relation(), name, self._question if description is None else description)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} rows: {', '.join(map(str, self.schema))})"

    def _positions(self, key: Any) -> Int64Array:
        """Positions in the table of the rows that a key selects."""
        if isinstance(key, slice) and isinstance(self._rows, range):
            chosen = self._rows[key]
            return np.arange(chosen.start, chosen.stop, chosen.step, dtype=np.int64)
        if isinstance(key, pc.Expression):
            return filter_rows(self._relation(), key).positions
        return take_positions(self._rows, resolve_positions(key, len(self)))

    def _groups(self, size: int) -> Iterator[Int64Array]:
        for start in range(0, len(self), size):
            yield np.asarray(self._rows[start : start + size], np.int64)


class ColumnView:
    """One column of a view."""

    def __init__(self, view: Reading, name: str) -> None:
        if name != ROW_ID:
            view.schema[name]
        self._view, self.name = view, name

    def __len__(self) -> int:
        return len(self._view)

    def __getitem__(self, key: Any) -> Any:
        """One value by position; or many by a slice, a list or a mask, as an array if they have one shape.

        Missing values of a nullable column are masked in the array.
        """
        view = self._view._pinned()
        column = view._reader.columns([self.name], [view._positions(key)])[0][self.name]
        if is_position(key):
            return column.item(0)
        if column.mask is not None and not column.mask.all():
            return np.ma.masked_array(column.values, np.broadcast_to(
                ~column.mask.reshape(-1, *[1] * (np.ndim(column.values) - 1)), np.shape(column.values)))  # fmt: skip
        return column.values

    def open(self, row: int) -> Any:
        """The bytes of one value as a seekable binary file; only the ranges that are read are fetched.

        All that is read of a stored value is verified. A linked value that has a checksum is verified by the read that
        completes it from its beginning, which raises `SourceChangedError` if it does not match: bytes returned before
        that, and ranges read on their own, are checked by the object's etag only.
        """
        view = self._view._pinned()
        return view._reader.open(view.schema[self.name], int(view._positions(row)[0]))

    def __repr__(self) -> str:
        what = self.name if self.name == ROW_ID else str(self._view.schema[self.name])
        return f"ColumnView({what}, {len(self):,} rows)"


def _imported(module: str, product: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise InvalidInputError(f"{product} is not installed: pip install 'penstock[{module}]'") from error
