"""Questions to rows of a version: SQL, filters, order and samples; each answer is rows of a version again."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInputError
from penstock.format import value_kind
from penstock.format.kinds import Kind
from penstock.plan import derive_key, random_u64, take_positions
from penstock.query import (
    ComputedColumn,
    Condition,
    HandleColumn,
    Order,
    Params,
    QueryLimits,
    QueryResult,
    Relation,
    TableColumn,
    Udf,
    run_sql,
)
from penstock.table import ROW_ID, Int64Array, Reader, find_positions, memory_table, with_computed
from penstock.types import parse_size

TIMEOUT_S = 600.0
MEMORY_LIMIT = "4GiB"
_SAMPLE = 0x73616D706C65
_READ_BYTES = 8 << 20
_FIRST_ROWS = 16
_MAX_ROWS = 1 << 14


def query_limits(timeout_s: float | None, memory_limit: int | str) -> QueryLimits:
    """Limits of a question from a caller's options; raises `InvalidInputError`."""
    size = parse_size("memory_limit", memory_limit)
    return QueryLimits(time_s=timeout_s, memory_bytes=QueryLimits.memory_bytes if size is None else size)


def ask(
    sql: str,
    relations: Mapping[str, Relation],
    params: Params,
    *,
    functions: Iterable[Udf],
    limits: QueryLimits,
    exact: bool,
) -> Relation:
    """The rows and columns of the answer to one SELECT; raises as `run_sql` does."""
    result = run_sql(sql, relations, params, limits=limits, functions=functions, exact=exact)
    return Answer(result, relations, limits.memory_bytes).relation()


def filter_rows(relation: Relation, condition: str | pc.Expression, params: Params = None) -> Relation:
    """The rows that meet a condition in SQL or an expression, in their order; see `View.where`."""
    if isinstance(condition, str):
        result = run_sql(Condition(condition), {"ds": _with_all_columns(relation)}, params)
        if result.rows is None:
            raise InvalidInputError(f"{condition!r} is not a condition on single rows; use query() for a whole SELECT")
        return _chosen(relation, np.sort(result.rows))
    matches = find_positions(relation.reader, condition)
    if relation.is_whole:
        return replace(relation, rows=matches)
    return replace(relation, rows=relation.positions[np.isin(relation.positions, matches)])


def order_rows(relation: Relation, terms: str, params: Params = None) -> Relation:
    """The rows in the order of SQL terms; see `View.order_by`."""
    result = run_sql(Order(terms), {"ds": _with_all_columns(relation)}, params)
    if result.rows is None or len(result.rows) != len(relation.rows):
        raise InvalidInputError(f"{terms!r} is not an order of rows; use query() for a whole SELECT")
    return _chosen(relation, result.rows)


def limit_rows(relation: Relation, count: int) -> Relation:
    """The first rows; see `View.limit`."""
    return replace(relation, rows=relation.rows[: _row_count(count)])


def sample_rows(relation: Relation, count: int, seed: int) -> Relation:
    """Rows chosen at random; see `View.sample`."""
    total, count = len(relation.rows), _row_count(count)
    numbers = random_u64(derive_key(_SAMPLE, seed), np.arange(total))
    chosen = np.sort(np.argsort(numbers, kind="stable")[:count]) if count < total else np.arange(total)
    return _chosen(relation, chosen)


def _row_count(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
        raise InvalidInputError(f"a number of rows is a whole number from 0 on, not {count!r}")
    return int(count)


def _with_all_columns(relation: Relation) -> Relation:
    return replace(relation, columns=tuple(relation.reader.snapshot.schema.names))


def _chosen(relation: Relation, indices: Int64Array) -> Relation:
    return replace(relation, rows=relation.at(indices))


@dataclass(frozen=True, eq=False)
class Answer:
    """The result of a question, and what it was about."""

    result: QueryResult
    relations: Mapping[str, Relation]
    memory_bytes: int
    """The most that values may take that are read to make rows of their own."""

    def relation(self) -> Relation:
        """The rows and columns of the answer.

        Rows of one relation, each at most once, are rows of its table, with computed columns; their other values stay
        where they are. Any other result becomes a table in memory, with all values of its columns.
        """
        source = self._row_source()
        return self._as_table() if source is None else self._as_rows(*source)

    def _row_source(self) -> tuple[Relation, Int64Array] | None:
        """The relation whose rows the result has, and their positions; None if it has rows of its own."""
        result = self.result
        handles = [column for column in result.columns if isinstance(column, HandleColumn)]
        name, indices = result.relation, result.rows
        if name is None and handles:
            name, indices = handles[0].relation, _indices(handles[0])
        if name is None or indices is None:
            return None
        source = self.relations[name]
        positions = take_positions(source.rows, indices)
        only_stored = all(self._stored(column, name, indices) is not None for column in result.columns)
        if result.relation is None and not any(self._stored(column, name, indices) for column in handles):
            return None
        if not only_stored and len(np.unique(positions)) < len(positions):
            return None
        return source, positions

    def _stored(self, column: object, relation: str, indices: Int64Array) -> str | None:
        """The column of the relation that a result's column is, row by row; None if it is another one."""
        if isinstance(column, TableColumn):
            is_renamed_id = column.column == ROW_ID and column.name != ROW_ID
            return None if is_renamed_id else column.column
        if isinstance(column, HandleColumn) and column.relation == relation:
            found = _indices(column)
            return column.column if found is not None and np.array_equal(found, indices) else None
        return None

    def _as_rows(self, source: Relation, positions: Int64Array) -> Relation:
        result = self.result
        name = next(known for known, relation in self.relations.items() if relation is source)
        indices = result.rows
        if indices is None:
            indices = next(found for column in result.columns if (found := _handle_indices(column)) is not None)
        renamed, computed, kinds = {}, {}, {}
        for column in result.columns:
            stored = self._stored(column, name, indices)
            if stored is None:
                computed[column.name], kind = self._values(column, source, positions)
                kinds.update({column.name: kind} if kind is not None else {})
            elif stored != column.name:
                renamed[column.name] = stored
        reader = source.reader
        if renamed or computed:
            reader = with_computed(reader, positions, pa.table(computed), renamed=renamed, kinds=kinds)
        return Relation(reader, tuple(column.name for column in result.columns), positions)

    def _as_table(self) -> Relation:
        values, kinds = {}, {}
        for column in self.result.columns:
            values[column.name], kind = self._values(column, None, None)
            kinds.update({column.name: kind} if kind is not None else {})
        uris = ", ".join(dict.fromkeys(relation.reader.store.uri for relation in self.relations.values()))
        reader = memory_table(pa.table(values), f"query of {uris}" if uris else "query", kinds=kinds)
        return Relation(reader, tuple(values), range(len(self.result)))

    def _values(
        self, column: object, source: Relation | None, positions: Int64Array | None
    ) -> tuple[pa.ChunkedArray, Kind | None]:
        """The values of a column, and their kind if it does not follow from their type."""
        if isinstance(column, ComputedColumn):
            return column.values, None
        if isinstance(column, HandleColumn):
            relation = self.relations[column.relation]
            kind = value_kind(relation.field(column.column).kind)
            return self._load(relation, column), kind
        assert isinstance(column, TableColumn)
        if source is None or positions is None:  # rows of one relation, but some of them more than once
            assert self.result.relation is not None
            assert self.result.rows is not None
            source = self.relations[self.result.relation]
            positions = take_positions(source.rows, self.result.rows)
        if column.column == ROW_ID:
            return _read_row_ids(source.reader, positions), None
        handle = HandleColumn(
            column.name, self.result.relation or "", column.column, pa.chunked_array([self.result.rows])
        )
        return self._load(source, handle), value_kind(source.field(column.column).kind)

    def _load(self, relation: Relation, column: HandleColumn) -> pa.ChunkedArray:
        """The values of a handle column, null where there is no handle."""
        parts, size = [], 0
        for part in self._read(relation, column):
            size += part.nbytes
            if size > self.memory_bytes:
                raise InvalidInputError(
                    f"the values of column {column.name!r} in the {len(self.result):,} rows of this result exceed the"
                    f" memory limit of {self.memory_bytes:,} bytes, and they are copied because the rows are not rows"
                    " of one table, each at most once; select _row_id instead of the column, ask for fewer rows, or"
                    " raise memory_limit"
                )
            parts.append(part)
        kind = relation.reader.arrow([column.column], np.zeros(0, np.int64))[column.column].type
        return pa.chunked_array(parts, kind)

    def _read(self, relation: Relation, column: HandleColumn) -> Iterator[pa.Array]:
        """The values in parts of some MiB."""
        start, count = 0, _FIRST_ROWS
        while start < len(column.indices):
            part = column.indices.slice(start, count)
            present = np.asarray(part.drop_null(), np.int64)
            values = relation.reader.arrow([column.column], take_positions(relation.rows, present))[column.column]
            valid = np.asarray(part.is_valid())
            found = _taken(values.combine_chunks(), pa.array(np.cumsum(valid) - 1, mask=~valid))
            yield found
            start += count
            count = int(np.clip(_READ_BYTES * len(found) // max(1, found.nbytes), 1, _MAX_ROWS))


def _taken(array: pa.Array, indices: pa.Array) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(array.type, array.storage.take(indices))
    return array.take(indices)


def _indices(column: HandleColumn) -> Int64Array | None:
    """The indices of a handle column; None if one is missing."""
    return None if column.indices.null_count else np.asarray(column.indices, np.int64)


def _handle_indices(column: object) -> Int64Array | None:
    return _indices(column) if isinstance(column, HandleColumn) else None


def _read_row_ids(reader: Reader, positions: Int64Array) -> pa.ChunkedArray:
    unique, inverse = np.unique(positions, return_inverse=True)
    return pa.chunked_array([reader.row_ids(unique)[inverse]])
