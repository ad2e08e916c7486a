"""Answer a question: parse, rewrite, run over scans, and assemble the result."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidInputError
from penstock.query.scan import ROW, Relation, ScanTrace, TableScan, column_type, handle_member
from penstock.query.sql._ast import Node, nodes
from penstock.query.sql._errors import SqlErrors, translated
from penstock.query.sql._late import LateColumns, late_columns
from penstock.query.sql._params import Params, named_params
from penstock.query.sql._parse import CONDITION, ORDER, parse, parse_condition, parse_order, unparse
from penstock.query.sql._plain_filter import plain_filter
from penstock.query.sql._result import HandleColumn, QueryResult, distinct_names, make_result
from penstock.query.sql._topk import TopK, candidates, restricted, top_k
from penstock.query.sql._udf import Udf
from penstock.query.sql.execution import (
    Apply,
    QueryLimits,
    RunOptions,
    Statement,
    Work,
    is_bounded,
    run_apart,
    run_interruptibly,
)
from penstock.query.sql.rewrite import MakeScores, Queries, Question, Rewritten, make_scores, scan_name
from penstock.table import Int64Array, sorted_distinct


@dataclass(frozen=True)
class Condition:
    """A condition on the rows of the relation `ds`: all columns of the rows that meet it."""

    text: str


@dataclass(frozen=True)
class Order:
    """Terms of ORDER BY: all rows and columns of the relation `ds` in that order."""

    text: str


Sql: TypeAlias = str | Condition | Order
"""A whole SELECT, or a part of one that is parsed by itself."""


def run_sql(
    sql: Sql,
    relations: Mapping[str, Relation],
    params: Params = None,
    *,
    limits: QueryLimits | None = None,
    functions: Iterable[Udf] = (),
    scores: MakeScores = make_scores,
    exact: bool = False,
    cancel: threading.Event | None = None,
) -> QueryResult:
    """Answer one SELECT over relations, or select by a condition or in an order.

    params: values for `?` and `$1` by position, or for `$name` by name.
    functions: functions of the user that the SQL may call.
    scores: makes the scores of `cosine_similarity`, `l2_distance`, `dot` and `bm25`; by default those of the table.
    exact: whether approximate indexes are not used.
    cancel: ends the question when it is set.

    Rows come in the order of the relation unless the SQL orders them. Raises `NotFoundError` for an unknown column,
    relation or function, and `InvalidInputError` for SQL that is not one valid SELECT, or that exceeds its limits.
    """
    options = RunOptions(limits or QueryLimits(), ScanTrace(), cancel)
    return answer(prepare(sql, relations, params, functions, scores, options), options, exact=exact)


@dataclass(frozen=True)
class Prepared:
    """A question that was parsed and rewritten."""

    question: Question
    rewritten: Rewritten
    search: TopK | None
    late: LateColumns | None


def prepare(
    sql: Sql,
    relations: Mapping[str, Relation],
    params: Params,
    functions: Iterable[Udf],
    scores: MakeScores,
    options: RunOptions,
) -> Prepared:
    """Parse and rewrite a question, within its time limit."""
    text = sql if isinstance(sql, str) else getattr(sql, "text", "")
    shift = {Condition: len(CONDITION), Order: len(ORDER)}.get(type(sql), 0)
    errors = SqlErrors(text if isinstance(text, str) else "", shift)
    for relation in relations.values():
        _check_names(relation)
    parse_as = {Condition: parse_condition, Order: parse_order}.get(type(sql), parse)

    def work(own: Work) -> Prepared:
        node = parse_as(text, errors)
        named = {each.name.lower(): each for each in functions}
        question = Question(text, relations, named_params(params), named, scores, errors, check=own.check)
        question.check_params(_parameters(node))
        rewritten = Queries(question).outermost(node)
        return Prepared(question, rewritten, top_k(question, rewritten), late_columns(question, rewritten))

    with translated(errors, []):
        return run_interruptibly(work, options)


def answer(prepared: Prepared, options: RunOptions, *, exact: bool) -> QueryResult:
    """Run a prepared question."""
    question, rewritten, late = prepared.question, prepared.rewritten, prepared.late
    if options.trace.dry:
        return _kept(question, rewritten, options)
    if prepared.search is not None:
        return _search(question, rewritten, prepared.search, options, exact)
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
        table = run_interruptibly(lambda _: scan.to_table([ROW], condition), options)
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
    found = run_interruptibly(lambda _: candidates(search, relation, allowed, exact=exact), options)
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
    with translated(question.errors, run.failures):
        table = run_interruptibly(lambda work: run.table(rewritten.node, work), options)
    return make_result(rewritten, table, run.handle_members)


@dataclass(eq=False)
class _Run:
    """One statement, with the scans and functions that it uses."""

    question: Question
    options: RunOptions
    relations: Mapping[str, Relation]
    failures: list[BaseException] = field(default_factory=list)
    """Errors of scans and functions, which the engine would wrap."""

    @property
    def handle_members(self) -> dict[str, tuple[str, str]]:
        return {
            handle_member(self.question.token, relation, column): (relation, column)
            for relation, columns in self.question.handles.items()
            for column in columns
        }

    def table(self, node: Node, work: Work) -> pa.Table:
        """The result in memory; raises `InvalidInputError` if it is larger than the limit."""
        statement = Statement(
            unparse(node),
            self.question.engine_params(),
            {scan_name(name): self.scan(name, relation) for name, relation in self.relations.items()},
            dict(self._functions(work)),
        )
        batches: list[pa.RecordBatch] = []
        left = limit = self.options.limits.memory_bytes

        def take(batch: pa.RecordBatch) -> None:
            nonlocal left
            work.check()
            batches.append(batch)
            left -= batch.nbytes
            if left < 0:
                raise InvalidInputError(
                    f"the result is larger than the memory limit of {limit:,} bytes; select less, or raise the limit"
                )

        if is_bounded(node):
            with work.connected(self.options.limits) as connection:
                for batch in statement.batches(connection):
                    take(batch)
        else:
            run_apart(statement, self.options.limits, work, take)
        return pa.Table.from_batches(batches, batches[0].schema)

    def scan(self, name: str, relation: Relation) -> TableScan:
        """The rows of a relation, with what the question derives from them."""
        return _GuardedScan(
            relation,
            name=name,
            derived=self.question.derived.get(name),
            handles=sorted(self.question.handles.get(name, ())),
            token=self.question.token,
            budget_bytes=self.options.limits.read_ahead_bytes,
            trace=self.options.trace,
        ).guarded(self.failures)

    def _functions(self, work: Work) -> Iterator[tuple[str, tuple[Apply, pa.DataType]]]:
        for name in self.question.called:
            udf = self.question.functions[name]
            yield self.question.function_name(name), (self._guarded(udf.name, udf.apply, work), udf.returns)
        for name, (relation, column) in self.question.loaded.items():
            returns = column_type(self.question.relations[relation].field(column))
            yield name, (self._guarded(column, self._loader(relation, column), work), returns)

    def _guarded(self, name: str, apply: Apply, work: Work) -> Apply:
        """A function that records its errors, and whose results are not larger than the memory limit."""
        limit = self.options.limits.memory_bytes

        def call(arguments: Sequence[pa.Array]) -> pa.Array:
            try:
                work.check()
                found = apply(arguments)
                work.check()
                if found.nbytes > limit:
                    raise InvalidInputError(
                        f"{name} gives {found.nbytes:,} bytes for {len(found):,} rows, more than memory_limit"
                        f" ({limit:,} bytes); return less, or raise the limit"
                    )
                return found
            except BaseException as error:
                self.failures.append(error)
                raise

        return call

    def _loader(self, relation: str, column: str) -> Apply:
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


def _parameters(node: Node) -> list[str]:
    """The names of all parameters, those of subqueries included."""
    return list(dict.fromkeys(each["identifier"] for each in nodes(node) if each.get("class") == "PARAMETER"))


def _check_names(relation: Relation) -> None:
    seen: dict[str, str] = {}
    for name in relation.columns:
        if name.lower() in seen:
            raise InvalidInputError(
                f"columns {seen[name.lower()]!r} and {name!r} differ only by case, which SQL ignores; rename one"
            )
        seen[name.lower()] = name
