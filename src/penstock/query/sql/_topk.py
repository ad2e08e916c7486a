"""The best rows by a score: find candidates with the scores' own search, so that few rows are asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.query.scan import HIDDEN, ROW, Relation
from penstock.query.search import Scores, top_combined
from penstock.query.sql._ast import Node, arguments, expressions
from penstock.query.sql.rewrite import Question, Rewritten
from penstock.table import Int64Array

_FEW_ROWS = 64
"""So few rows are scored without a search."""
_UNMATCHED_ROWS = 4096


@dataclass(frozen=True, eq=False)
class Term:
    """A score and its factor in the order."""

    scores: Scores
    weight: float
    """Positive if a higher value of the score comes first."""
    unmatched_is_zero: bool
    """Whether rows that the search does not return have the score 0, as rows without the words of a text."""


@dataclass(frozen=True, eq=False)
class TopK:
    """`ORDER BY <sum of weighted scores> LIMIT count` over the rows of one relation."""

    relation: str
    terms: tuple[Term, ...]
    count: int
    """Rows to find: the limit and the offset."""
    where: Node | None
    """The query of the indices of rows that WHERE keeps; None without WHERE."""
    rest: Node
    """The question without WHERE, to be asked of the candidates."""


def top_k(question: Question, rewritten: Rewritten) -> TopK | None:
    """The search that a question asks for; None if it needs all rows, or another order."""
    node = rewritten.node
    if rewritten.relation is None or not is_row_by_row(node):
        return None
    order = [each for each in node["modifiers"] if each["type"] == "ORDER_MODIFIER"]
    limit = [each for each in node["modifiers"] if each["type"] == "LIMIT_MODIFIER"]
    if len(order) != 1 or len(limit) != 1 or len(order[0]["orders"]) != 2:  # the last is the order of the relation
        return None
    count = _count(question, limit[0])
    by = order[0]["orders"][0]
    if count is None or by["null_order"] not in ("ORDER_DEFAULT", "NULLS_LAST", "NULLS LAST"):
        return None
    weights = _linear(question, _selected(node, by["expression"]))
    if weights is None or not weights.terms:
        return None
    sign = 1.0 if by["type"] == "DESCENDING" else -1.0
    terms = []
    for name, weight in weights.terms.items():
        scores = question.scores[rewritten.relation, name]
        if weight == 0 or (sign * weight > 0) != scores.higher_is_better:
            return None
        terms.append(Term(scores, sign * weight, name.startswith(f"{HIDDEN}bm25")))
    where = None
    if node["where_clause"] is not None:
        where = {**node, "select_list": node["select_list"][:1], "modifiers": []}
    return TopK(rewritten.relation, tuple(terms), count, where, {**node, "where_clause": None})


def is_row_by_row(node: Node) -> bool:
    """Whether a query selects from one relation, row by row."""
    if node["from_table"]["type"] != "BASE_TABLE" or node["from_table"].get("sample") or node.get("sample"):
        return False
    if node["qualify"] is not None or node["cte_map"]["map"]:
        return False
    kinds = {each["class"] for each in expressions([node["select_list"], node["modifiers"]])}
    return not kinds & {"WINDOW", "SUBQUERY"}


def _count(question: Question, limit: Node) -> int | None:
    if limit.get("limit_type", "ROW_COUNT") != "ROW_COUNT":
        return None
    parts = [limit["limit"], limit["offset"]]
    found = [0.0 if part is None else _number(question, part) for part in parts]
    if limit["limit"] is None or any(each is None for each in found):
        return None
    total = sum(each for each in found if each is not None)
    return int(total) if total > 0 and total == int(total) else None


def _number(question: Question, node: Node) -> float | None:
    if node["class"] == "CONSTANT" and node["literal"]["kind"] in ("INTEGER", "NUMERIC"):
        return float(node["literal"]["text"])
    if node["class"] == "PARAMETER":
        value = question.params[question.used[node["identifier"]]]
        is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
        return float(value) if is_number else None
    if node["class"] == "CAST":
        return _number(question, node["child"])
    return None


@dataclass(frozen=True)
class _Linear:
    """A sum of scores with weights; the constant does not matter for the order."""

    terms: dict[str, float]
    constant: float = 0.0

    def times(self, factor: float) -> "_Linear":
        return _Linear({name: weight * factor for name, weight in self.terms.items()}, self.constant * factor)

    def plus(self, other: "_Linear") -> "_Linear":
        names = dict.fromkeys([*self.terms, *other.terms])
        terms = {name: self.terms.get(name, 0.0) + other.terms.get(name, 0.0) for name in names}
        return _Linear(terms, self.constant + other.constant)


def _linear(question: Question, node: Node) -> _Linear | None:
    number = _number(question, node)
    if number is not None:
        return _Linear({}, number)
    if node["class"] == "COLUMN_REF":
        name = node["column_names"][-1]
        return _Linear({name: 1.0}) if any(name == known for _, known in question.scores) else None
    if node["class"] == "CAST":
        return _linear(question, node["child"])
    if node["class"] != "FUNCTION":
        return None
    parts = [_linear(question, each) for each in arguments(node)]
    known = [part for part in parts if part is not None]
    if len(known) != len(parts):
        return None
    return _combined(node["function_name"], known)


def _combined(operator: str, parts: Sequence[_Linear]) -> _Linear | None:
    if len(parts) == 1 and operator in "+-":
        return parts[0].times(-1.0 if operator == "-" else 1.0)
    if len(parts) != 2:
        return None
    left, right = parts
    if operator == "+":
        return left.plus(right)
    if operator == "-":
        return left.plus(right.times(-1.0))
    if operator == "*" and not left.terms:
        return right.times(left.constant)
    if operator == "*" and not right.terms:
        return left.times(right.constant)
    if operator == "/" and not right.terms and right.constant:
        return left.times(1.0 / right.constant)
    return None


def _selected(node: Node, expression: Node) -> Node:
    """What an expression of ORDER BY is: perhaps an item of the select list."""
    if expression["class"] == "COLUMN_REF" and len(expression["column_names"]) == 1:
        for item in node["select_list"]:
            if item["alias"] == expression["column_names"][0] and item["alias"] != ROW:
                return item  # type: ignore[no-any-return]
    return expression


def candidates(search: TopK, relation: Relation, allowed: Int64Array | None, *, exact: bool) -> Int64Array | None:
    """Ascending positions among which the best rows are; None if it is better to look at all rows."""
    total = relation.reader.snapshot.live if allowed is None else len(allowed)
    if total <= max(_FEW_ROWS, search.count):
        return allowed
    if len(search.terms) == 1:
        ranked = search.terms[0].scores.top(search.count, allowed=allowed, exact=exact)
    else:
        terms = [(term.weight, term.scores) for term in search.terms]
        ranked = top_combined(terms, search.count, allowed, exact)
    found = np.sort(ranked.positions)
    missing = search.count - len(found)
    if missing <= 0:
        return found
    if not all(term.unmatched_is_zero for term in search.terms):
        return None
    return _with_unmatched(search, np.arange(total) if allowed is None else allowed, found, missing)


def _with_unmatched(search: TopK, allowed: Int64Array, found: Int64Array, missing: int) -> Int64Array:
    """Add rows that match no word: their score is 0, unless they have no text."""
    parts = [found]
    for start in range(0, len(allowed), _UNMATCHED_ROWS):
        rows = np.setdiff1d(allowed[start : start + _UNMATCHED_ROWS], found, assume_unique=True)
        present = np.all([~np.isnan(term.scores.at(rows)) for term in search.terms], axis=0)
        parts.append(rows[present][:missing])
        missing -= len(parts[-1])
        if missing <= 0:
            return np.sort(np.concatenate(parts))
    return allowed


def restricted(relation: Relation, positions: Int64Array) -> tuple[Relation, Int64Array]:
    """A relation with the rows at ascending positions only, and the index of each of its rows in the whole one."""
    if isinstance(relation.rows, range) and relation.rows.step == 1:
        return replace(relation, rows=positions), positions - relation.rows.start
    at = np.searchsorted(positions, relation.positions)
    inside = at < len(positions)
    inside[inside] = positions[at[inside]] == relation.positions[inside]
    indices = np.flatnonzero(inside)
    return replace(relation, rows=relation.positions[indices]), indices
