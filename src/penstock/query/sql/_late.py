"""Columns that are computed for the rows of the answer only: `SELECT f(image) … LIMIT 5` needs five images."""

from dataclasses import dataclass

from penstock.query.scan import is_heavy
from penstock.query.sql._ast import Node, expressions
from penstock.query.sql._topk import is_row_by_row
from penstock.query.sql.rewrite import Question, Rewritten


@dataclass(frozen=True)
class LateColumns:
    """A question in two: the rows, and the columns that are computed when the rows are known."""

    rows: Rewritten
    columns: Rewritten


def late_columns(question: Question, rewritten: Rewritten) -> LateColumns | None:
    """Split a question with a limit; None if that saves nothing."""
    node, relation = rewritten.node, rewritten.relation
    if relation is None or not is_row_by_row(node):
        return None
    if all(each["type"] != "LIMIT_MODIFIER" for each in node["modifiers"]):
        return None
    row, *items = node["select_list"]
    ordered = {each["column_names"][0] for each in expressions(node["modifiers"]) if each["class"] == "COLUMN_REF"}
    late = [item for item in items if item["alias"] not in ordered]
    if not any(_is_costly(question, relation, item) for item in late):
        return None
    names = {item["alias"] for item in late}
    first = [item for item in items if item["alias"] not in names]
    return LateColumns(
        Rewritten(
            {**node, "select_list": [row, *first]},
            relation,
            [each for each in rewritten.outputs if each[1] not in names],
        ),
        Rewritten(
            {**node, "select_list": [row, *late], "where_clause": None, "modifiers": []},
            relation,
            [each for each in rewritten.outputs if each[1] in names],
        ),
    )


def _is_costly(question: Question, relation: str, item: Node) -> bool:
    """Whether an expression reads a heavy column, computes a score, or calls a function of the user."""
    derived, schema = question.derived.get(relation, {}), question.relations[relation].reader.snapshot.schema
    for each in expressions(item):
        if each["class"] == "FUNCTION" and each["function_name"].startswith("~"):
            return True
        if each["class"] == "COLUMN_REF":
            name = each["column_names"][-1]
            if name in derived or (name in schema and is_heavy(schema[name].kind)):
                return True
    return False
