"""Answer a question: parse, rewrite, run over scans, and assemble the result."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidInputError
from penstock.query.scan import ROW, Relation, ScanTrace, TableScan, as_dataset, column_type
from penstock.query.sql._ast import Node
from penstock.query.sql._connection import QueryLimits, RunOptions, connected, run_interruptibly
from penstock.query.sql._errors import SqlErrors, translated
from penstock.query.sql._late import LateColumns, late_columns
from penstock.query.sql._params import Params, named_params
from penstock.query.sql._parse import parse, unparse
from penstock.query.sql._plain_filter import plain_filter
from penstock.query.sql._result import HandleColumn, QueryResult, distinct_names, make_result
from penstock.query.sql._topk import TopK, candidates, restricted, top_k
from penstock.query.sql._udf import Udf
from penstock.query.sql.rewrite import MakeScores, Queries, Question, Rewritten, make_scores, scan_name
from penstock.table import Int64Array, sorted_distinct

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def run_sql(
    sql: str,
    relations: Mapping[str, Relation],
    params: Params = None,
    *,
    limits: QueryLimits | None = None,
    functions: Iterable[Udf] = (),
    scores: MakeScores = make_scores,
    exact: bool = False,
    cancel: threading.Event | None = None,
) -> QueryResult:
    """Answer one SELECT over relations.

    params: values for `?` and `$1` by position, or for `$name` by name.
    functions: functions of the user that the SQL may call.
    scores: makes the scores of `cosine_similarity`, `l2_distance`, `dot` and `bm25`; by default those of the table.
    exact: whether approximate indexes are not used.
    cancel: ends the question when it is set.

    Rows come in the order of the relation unless the SQL orders them. Raises `NotFoundError` for an unknown column,
    relation or function, and `InvalidInputError` for SQL that is not one valid SELECT, or that exceeds its limits.
    """
    options = RunOptions(limits or QueryLimits(), ScanTrace(), cancel)
    question, node = prepare(sql, relations, params, functions, scores)
    return answer(question, node, options, exact=exact)


def prepare(
    sql: str, relations: Mapping[str, Relation], params: Params, functions: Iterable[Udf], scores: MakeScores
) -> tuple[Question, Node]:
    """A question and its syntax tree."""
    errors = SqlErrors(sql if isinstance(sql, str) else "")
    for relation in relations.values():
        _check_names(relation)
    with translated(errors, []):
        node = parse(sql, errors)
        named = {each.name.lower(): each for each in functions}
        question = Question(sql, relations, named_params(params), named, scores, errors)
        question.check_params(_parameters(node))
    return question, node


def answer(question: Question, node: Node, options: RunOptions, *, exact: bool) -> QueryResult:
    """Run a prepared question."""
    with translated(question.errors, []):
        rewritten = Queries(question).outermost(node)
        search, late = top_k(question, rewritten), late_columns(question, rewritten)
    if options.trace.dry:
        return _kept(question, rewritten, options)
    if search is not None:
        return _search(question, rewritten, search, options, exact)
    return _kept(question, rewritten, options) if late is None else _in_two(question, rewritten, late, options)


def _kept(question: Question, rewritten: Rewritten, options: RunOptions) -> QueryResult:
    """Answer by a scan alone if it can, else by the engine."""
    condition = plain_filter(question, rewritten)
    if condition is None:
        return execute(question, rewritten, options)
    run = _Run(question, options, question.relations)
    assert rewritten.relation is not None
    scan = run.scan(rewritten.relation, question.relations[rewritten.relation])
    with translated(question.errors, run.failures):
        table = run_interruptibly(None, lambda: scan.to_table([ROW], condition), options)
    return make_result(rewritten, table, {})


def _search(question: Question, rewritten: Rewritten, search: TopK, options: RunOptions, exact: bool) -> QueryResult:
    """Answer by looking at candidates only: first WHERE, then the scores, then the question."""
    relation = question.relations[search.relation]
    allowed: Int64Array | None = None
    if search.where is not None:
        kept = _kept(question, Rewritten(search.where, search.relation, []), options)
        assert kept.rows is not None
        allowed = sorted_distinct(relation.at(kept.rows))
    elif len(relation.rows) != relation.reader.snapshot.live or not relation.ascending:
        allowed = relation.distinct
    found = run_interruptibly(None, lambda: candidates(search, relation, allowed, exact=exact), options)
    if found is None:
        return execute(question, rewritten, options)
    part, indices = restricted(relation, found)
    rest = Rewritten(search.rest, search.relation, rewritten.outputs)
    return _reindexed(execute(question, rest, options, {search.relation: part}), indices)


def _in_two(question: Question, rewritten: Rewritten, late: LateColumns, options: RunOptions) -> QueryResult:
    """Find the rows, then compute costly columns for them."""
    first = execute(question, late.rows, options)
    assert first.relation is not None
    assert first.rows is not None
    relation = question.relations[first.relation]
    part = replace(relation, rows=relation.positions[first.rows])
    second = _reindexed(execute(question, late.columns, options, {first.relation: part}), first.rows)
    early, later = iter(first.columns), iter(second.columns)
    names = {name for _, name in late.columns.outputs}
    columns = [next(later if name in names else early) for _, name in rewritten.outputs]
    given = distinct_names([output.name for output, _ in rewritten.outputs])
    renamed = [replace(column, name=name) for column, name in zip(columns, given, strict=True)]
    return replace(first, columns=tuple(renamed))


def _reindexed(result: QueryResult, indices: Int64Array) -> QueryResult:
    """A result over some rows of a relation as one over all, by the index of each row."""
    assert result.rows is not None
    columns = [
        replace(each, indices=_taken(indices, each.indices))
        if isinstance(each, HandleColumn) and each.relation == result.relation
        else each
        for each in result.columns
    ]
    return replace(result, rows=indices[result.rows], columns=tuple(columns))


def _taken(indices: Int64Array, chosen: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(indices).take(chosen.combine_chunks())])


def execute(
    question: Question, rewritten: Rewritten, options: RunOptions, relations: Mapping[str, Relation] | None = None
) -> QueryResult:
    """Run a rewritten question; `relations` replaces some of the question's by ones with fewer rows."""
    run = _Run(question, options, {**question.relations, **(relations or {})})
    with translated(question.errors, run.failures), connected(options.limits) as connection:
        text = unparse(rewritten.node)
        try:
            table = run_interruptibly(connection, lambda: run.fetch(connection, text), options)
        finally:
            run.close(connection)
    return make_result(rewritten, table, run.handle_members)


@dataclass(eq=False)
class _Run:
    """One statement on one connection, with the scans and functions that it uses."""

    question: Question
    options: RunOptions
    relations: Mapping[str, Relation]
    failures: list[BaseException] = field(default_factory=list)
    """Errors of scans and functions, which the engine would wrap."""

    @property
    def handle_members(self) -> dict[str, tuple[str, str]]:
        return {
            f"~{relation}.{column}": (relation, column)
            for relation, columns in self.question.handles.items()
            for column in columns
        }

    def fetch(self, connection: "DuckDBPyConnection", text: str) -> pa.Table:
        """The result in memory; raises `InvalidInputError` if it is larger than the limit."""
        for name, relation in self.relations.items():
            connection.register(scan_name(name), as_dataset(self.scan(name, relation)))
        self._register_functions(connection)
        params = self.question.engine_params()
        found = connection.sql(text, params=params) if params else connection.sql(text)
        reader = found.to_arrow_reader(_RESULT_ROWS)
        batches, size = [], 0
        for batch in reader:
            batches.append(batch)
            size += batch.nbytes
            if size > self.options.limits.memory_bytes:
                raise InvalidInputError("the result is larger than the memory limit; select less, or raise the limit")
        return pa.Table.from_batches(batches, reader.schema)

    def scan(self, name: str, relation: Relation) -> TableScan:
        """The rows of a relation, with what the question derives from them."""
        return _GuardedScan(
            relation,
            name=name,
            derived=self.question.derived.get(name),
            handles=sorted(self.question.handles.get(name, ())),
            budget_bytes=self.options.limits.read_ahead_bytes,
            trace=self.options.trace,
        ).guarded(self.failures)

    def _register_functions(self, connection: "DuckDBPyConnection") -> None:
        for name in self.question.called:
            udf = self.question.functions[name]
            self._register(connection, self.question.function_name(name), udf.apply, udf.returns)
        for name, (relation, column) in self.question.loaded.items():
            self._register(connection, name, self._loader(relation, column), self._loaded_type(relation, column))

    def _register(
        self, connection: "DuckDBPyConnection", name: str, apply: Callable[[Sequence[pa.Array]], pa.Array], returns: Any
    ) -> None:
        def call(*arguments: pa.ChunkedArray) -> pa.Array:
            try:
                return apply([_array(each) for each in arguments])
            except BaseException as error:
                self.failures.append(error)
                raise

        kind = connection.from_arrow(pa.schema([("x", returns)]).empty_table()).types[0]
        connection.create_function(name, call, None, kind, type=_ARROW, null_handling=_SPECIAL)

    def _loaded_type(self, relation: str, column: str) -> pa.DataType:
        return column_type(self.question.relations[relation].field(column))

    def _loader(self, relation: str, column: str) -> Callable[[Sequence[pa.Array]], pa.Array]:
        source = self.relations[relation]
        scan = TableScan(source, name=relation, trace=self.options.trace)

        def load(arguments: Sequence[pa.Array]) -> pa.Array:
            [handles] = arguments
            indices = handles.flatten()[0]
            present = np.asarray(indices.drop_null(), np.int64)
            rows = Relation(source.reader, source.columns, source.positions[present])
            values = scan.over(rows).to_table([column])[column].combine_chunks()
            if not indices.null_count:
                return values
            at = np.cumsum(np.asarray(indices.is_valid())) - 1
            return values.take(pa.array(at, mask=np.asarray(indices.is_null())))

        return load

    def close(self, connection: "DuckDBPyConnection") -> None:
        """Remove the functions: they belong to the database."""
        for name in (*map(self.question.function_name, self.question.called), *self.question.loaded):
            try:
                connection.remove_function(name)
            except Exception:
                continue


_RESULT_ROWS = 1 << 16
_ARROW: Any = "arrow"
_SPECIAL: Any = "special"


class _GuardedScan(TableScan):
    """A scan that records its errors, which the engine would wrap."""

    def guarded(self, failures: list[BaseException]) -> "_GuardedScan":
        self._failures = failures
        return self

    def _batches(self, run: Any) -> Any:
        try:
            yield from super()._batches(run)
        except GeneratorExit:
            raise
        except BaseException as error:
            self._failures.append(error)
            raise


def _array(values: Any) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _parameters(node: Any) -> list[str]:
    """The names of all parameters, those of subqueries included."""
    if isinstance(node, dict):
        own = [node["identifier"]] if node.get("class") == "PARAMETER" else []
        return list(dict.fromkeys([*own, *(name for value in node.values() for name in _parameters(value))]))
    if isinstance(node, list):
        return list(dict.fromkeys(name for value in node for name in _parameters(value)))
    return []


def _check_names(relation: Relation) -> None:
    seen: dict[str, str] = {}
    for name in relation.columns:
        if name.lower() in seen:
            raise InvalidInputError(
                f"columns {seen[name.lower()]!r} and {name!r} differ only by case, which SQL ignores; rename one"
            )
        seen[name.lower()] = name
