"""The rows of a relation as DuckDB, Polars and DataFusion see them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInputError, NotFoundError
from penstock.query.scan._arrow import column_type
from penstock.query.scan._read import ScanRun
from penstock.query.scan._relation import HIDDEN, ROW, Derived, Relation
from penstock.query.scan._trace import ScanTrace
from penstock.table import ROW_ID

DEFAULT_BUDGET_BYTES = 256 << 20
_MAX_FRAGMENTS = 16


def handle_column(name: str) -> str:
    """The name of the column that holds handles of a column's values."""
    return f"{HIDDEN}handle.{name}"


def handle_member(token: str, relation: str, column: str) -> str:
    """The name of the one member of a handle; a random token makes it one that no value of a user has."""
    return f"{HIDDEN}{token}.{relation}.{column}"


@dataclass(frozen=True, eq=False)
class RowScanner:
    """What engines use of a `pyarrow.dataset.Scanner`; Arrow's own would read ahead in threads that outlive it."""

    dataset: "TableScan"
    columns: Sequence[str]
    filter: pc.Expression | None

    @property
    def dataset_schema(self) -> pa.Schema:
        """All columns of the dataset."""
        return self.dataset.schema

    @property
    def projected_schema(self) -> pa.Schema:
        """The columns of the batches."""
        return pa.schema([self.dataset.schema.field(name) for name in self.columns])

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows that match, in batches."""
        return self.dataset.to_batches(self.columns, self.filter)

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows that match, as a stream."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def to_table(self) -> pa.Table:
        """The rows that match, in memory."""
        return pa.Table.from_batches(self.to_batches(), self.projected_schema)

    def head(self, num_rows: int) -> pa.Table:
        """The first rows that match."""
        return self.dataset.head(num_rows, self.columns, self.filter)

    def count_rows(self) -> int:
        """The number of rows that match."""
        return self.dataset.count_rows(self.filter)


@dataclass(frozen=True, eq=False)
class ScanFragment:
    """Some rows of a dataset, with what engines use of a `pyarrow.dataset.Fragment`."""

    dataset: "TableScan"

    def scanner(self, schema: pa.Schema | None = None, **options: Any) -> RowScanner:  # noqa: ARG002
        """A scanner of these rows."""
        return self.dataset.scanner(**options)


class TableScan:
    """Rows that are read from a table on demand, page by page; `as_dataset` makes what engines take.

    Projections and filters that an engine pushes down are applied exactly: pages without a match are not read, and
    other columns are read for matching rows only. `condition` is a filter that every read has. The columns are those of
    the relation, then those `derived`, and with `handles` the hidden ones: `_row_id`, `ROW` (the index of the row in
    the relation), and for each of `handles` a struct with that index as its one member, named after the relation and
    the column.
    """

    def __init__(
        self,
        relation: Relation,
        *,
        name: str = "",
        derived: Mapping[str, Derived] | None = None,
        handles: Sequence[str] | None = None,
        token: str = "",
        condition: pc.Expression | None = None,
        budget_bytes: int = DEFAULT_BUDGET_BYTES,
        trace: ScanTrace | None = None,
    ) -> None:
        self._relation, self._name, self._derived = relation, name, dict(derived or {})
        self._handles = {handle_column(column): column for column in handles or ()}
        self._token, self._condition = token, condition
        self._budget_bytes, self._trace = budget_bytes, trace or ScanTrace()
        self._hidden = handles is not None
        self._schema = self._make_schema()

    def _make_schema(self) -> pa.Schema:
        relation = self._relation
        # The engine reads the first column of a table of which it needs no column, as for count(*).
        types = {ROW: pa.int64(), ROW_ID: pa.int64()} if self._hidden else {}
        for name in relation.columns:
            types[name] = pa.int64() if name == ROW_ID else column_type(relation.field(name))
        types |= {name: column.type for name, column in self._derived.items()}
        for handle, column in self._handles.items():
            types[handle] = pa.struct([(handle_member(self._token, self._name, column), pa.int64())])
        return pa.schema(list(types.items()))

    @property
    def schema(self) -> pa.Schema:
        """The columns, the virtual ones included."""
        return self._schema

    @property
    def partition_expression(self) -> pc.Expression:
        """True: every row may be here."""
        return pc.scalar(True)

    def scanner(
        self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any
    ) -> "RowScanner":
        """A scanner of some columns of the rows that match; it reads when it is consumed."""
        return RowScanner(self, self._names(columns), filter)

    def _names(self, columns: Sequence[str] | None) -> list[str]:
        if columns is None:
            return list(self._schema.names)
        if isinstance(columns, str | Mapping):
            raise InvalidInputError("columns is a list of column names here; compute expressions on what is read")
        for name in columns:
            if name not in self._schema.names:
                raise NotFoundError(f"there is no column {name!r}; there are {', '.join(self._schema.names)}")
        return list(columns)

    def _combined(self, filter: pc.Expression | None) -> pc.Expression | None:
        if filter is None or self._condition is None:
            return self._condition if filter is None else filter
        return self._condition & filter

    def _run(self, names: Sequence[str], filter: pc.Expression | None) -> ScanRun:
        trace = self._trace.of(self._name)
        return ScanRun(
            self._relation, self._schema, self._derived, self._handles, names, self._combined(filter),
            self._budget_bytes, trace,
        )  # fmt: skip

    def _batches(self, run: ScanRun) -> Iterator[pa.RecordBatch]:
        run.trace.scans += 1
        names = dict.fromkeys([*run.filter_columns, *run.columns])
        run.trace.add_columns([name for name in names if name in self._relation.reader.snapshot.schema])
        if self._trace.dry:
            run.plan()
            return
        yield from run.batches()

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator["ScanFragment"]:  # noqa: ARG002
        """Consecutive rows, which together are all rows; engines scan them in parallel."""
        rows = self._relation.rows
        step = max(1, -(-len(rows) // _MAX_FRAGMENTS))
        for start in range(0, max(1, len(rows)), step):
            part = Relation(self._relation.reader, self._relation.columns, rows[start : start + step])
            yield ScanFragment(self.over(part))

    def over(self, relation: Relation) -> "TableScan":
        """The same scan of other rows."""
        part = type(self).__new__(type(self))
        part.__dict__.update(self.__dict__)
        part._relation = relation
        return part

    def to_table(self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any) -> pa.Table:
        """The rows that match, in memory."""
        names = self._names(columns)
        schema = pa.schema([self._schema.field(name) for name in names])
        return pa.Table.from_batches(self._batches(self._run(names, filter)), schema)

    def to_batches(
        self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any
    ) -> Iterator[pa.RecordBatch]:
        """The rows that match, in batches."""
        return self._batches(self._run(self._names(columns), filter))

    def head(
        self, num_rows: int, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any
    ) -> pa.Table:
        """The first rows that match."""
        names = self._names(columns)
        found, count = [], 0
        for batch in self.to_batches(names, filter):
            found.append(batch.slice(0, num_rows - count))
            count += len(found[-1])
            if count >= num_rows:
                break
        return pa.Table.from_batches(found, pa.schema([self._schema.field(name) for name in names]))

    def count_rows(self, filter: pc.Expression | None = None, **_: Any) -> int:
        """The number of rows that match."""
        if self._combined(filter) is None:
            return len(self._relation.rows)
        return sum(len(batch) for batch in self.to_batches([], filter))
