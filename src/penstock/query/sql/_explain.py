"""What a question reads: fragments and pages that statistics leave, scores and their indexes, bytes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.errors import escape_controls
from penstock.query.scan import HIDDEN, Relation, ScanTrace, TableScan
from penstock.query.search import SearchPlan
from penstock.query.sql._errors import translated
from penstock.query.sql._params import Params
from penstock.query.sql._parse import unparse
from penstock.query.sql._result import QueryResult, TableColumn
from penstock.query.sql._run import answer, prepare
from penstock.query.sql._topk import TopK
from penstock.query.sql._udf import Udf
from penstock.query.sql.execution import QueryLimits, RunOptions
from penstock.query.sql.rewrite import MakeScores, Question, make_scores
from penstock.table import ROW_ID, page_requests, sorted_distinct


@dataclass(frozen=True)
class RelationPlan:
    """What is read of one relation to answer a question."""

    name: str
    fragments: int
    fragments_kept: int
    """Fragments that may have a match, by their statistics."""
    pages: int
    """Pages of the columns of the filter."""
    pages_kept: int
    columns: tuple[str, ...]
    """Columns that are read."""
    indexes: tuple[str, ...]
    """Scalar indexes that answer the filter."""
    bytes_to_read: int

    def __str__(self) -> str:
        by = f" by {', '.join(self.indexes)}" if self.indexes else ""
        return (
            f"{self.name}: {self.fragments_kept} of {self.fragments} fragments, {self.pages_kept} of {self.pages} pages"
            f" of the filter{by}, {self.bytes_to_read:,} bytes of {', '.join(self.columns) or 'no column'}"
        )


@dataclass(frozen=True)
class Explanation:
    """How a question is answered."""

    sql: str
    """What the engine runs."""
    relations: tuple[RelationPlan, ...]
    searches: tuple[str, ...]
    """The scores by which the best rows are found, with the indexes that answer them."""
    bytes_to_read: int
    """Bytes of pages: counted if the question was answered, else at most."""
    result_rows: int | None
    """Rows of the answer; None if the question was not answered."""
    result_bytes: int | None
    """Bytes of the pages with the answer's table columns, which are read when its rows are."""

    def __str__(self) -> str:
        most = "" if self.result_rows is not None else "at most "
        lines = [f"{most}{self.bytes_to_read:,} bytes to read", *(f"  {plan}" for plan in self.relations)]
        lines += [f"  search: {search}" for search in self.searches]
        if self.result_rows is not None:
            lines.append(f"{self.result_rows:,} rows; {self.result_bytes or 0:,} bytes to read all their columns")
        return escape_controls("\n".join([*lines, f"engine: {self.sql}"]))


def explain_sql(
    sql: str,
    relations: Mapping[str, Relation],
    params: Params = None,
    *,
    limits: QueryLimits | None = None,
    functions: Iterable[Udf] = (),
    scores: MakeScores = make_scores,
    analyze: bool = False,
) -> Explanation:
    """Explain a question without reading rows, or with `analyze` by answering it; raises as `run_sql` does.

    Without `analyze`, bytes are those of all columns of the rows that statistics leave; columns that the filter does
    not use are read for matching rows only, and so may need fewer.
    """
    trace = ScanTrace(dry=not analyze)
    options = RunOptions(limits or QueryLimits(), trace, None)
    prepared = prepare(sql, relations, params, functions, scores, options)
    question, search = prepared.question, prepared.search
    with translated(question.errors, []):
        text = unparse(prepared.rewritten.node)
    result = answer(prepared, options, exact=False)
    if not analyze:
        _plan_rest(question, trace)
    plans = tuple(_relation_plan(name, trace) for name in trace.relations)
    planned = _searches(question, search)
    searches = tuple(f"{name}: {plan}" for name, plan in planned)
    total = sum(plan.bytes_to_read for plan in plans) + sum(plan.bytes for _, plan in planned)
    if not analyze:
        return Explanation(text, plans, searches, total, None, None)
    return Explanation(text, plans, searches, total, len(result), _result_bytes(question, result))


def _plan_rest(question: Question, trace: ScanTrace) -> None:
    """Plan the scans that an engine without rows left out, such as those of a join with an empty side."""
    for name, columns in question.referenced.items():
        if not trace.of(name).scans:
            scan = TableScan(question.relations[name], name=name, handles=(), trace=trace)
            scan.to_table(sorted(columns))


def _relation_plan(name: str, trace: ScanTrace) -> RelationPlan:
    found = trace.of(name)
    counts = found.counts
    return RelationPlan(
        name, counts.fragments, counts.fragments_kept, counts.pages, counts.pages_kept, tuple(found.columns),
        tuple(found.indexes), found.bytes_to_read,
    )  # fmt: skip


def _searches(question: Question, search: TopK | None) -> list[tuple[str, SearchPlan]]:
    """The scores that a question ranks by, and what their searches read."""
    if search is None:
        return []
    found = {name: scores.plan(search.count) for (_, name), scores in question.scores.items()}
    return [("{}({})".format(*name.removeprefix(HIDDEN).split(".")[:2]), plan) for name, plan in sorted(found.items())]


def _result_bytes(question: Question, result: QueryResult) -> int:
    if result.relation is None or result.rows is None:
        return 0
    relation = question.relations[result.relation]
    names = {each.column for each in result.columns if isinstance(each, TableColumn)} - {ROW_ID}
    located = relation.reader.locate(sorted_distinct(relation.at(result.rows)))
    return sum(request.bytes for request in page_requests(located, [relation.field(name).id for name in names]))
