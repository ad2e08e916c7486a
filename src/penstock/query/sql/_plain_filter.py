"""Conditions that Arrow evaluates as the engine does: for these, the engine is not asked.

Integers and text, compared with constants of the same type, mean the same to both. Everything else, such as floats
(NaN has an order in SQL), is left to the engine.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.query.scan import ROW, Relation, column_type
from penstock.query.sql._ast import Node
from penstock.query.sql.rewrite import Question, Rewritten

_INT64 = range(-(1 << 63), 1 << 63)
_COMPARE = {
    "COMPARE_EQUAL": lambda one, other: one == other,
    "COMPARE_NOTEQUAL": lambda one, other: one != other,
    "COMPARE_LESSTHAN": lambda one, other: one < other,
    "COMPARE_LESSTHANOREQUALTO": lambda one, other: one <= other,
    "COMPARE_GREATERTHAN": lambda one, other: one > other,
    "COMPARE_GREATERTHANOREQUALTO": lambda one, other: one >= other,
}


class _OtherCondition(Exception):  # noqa: N818
    """A condition that the engine must evaluate."""


def plain_filter(question: Question, rewritten: Rewritten) -> pc.Expression | None:
    """The condition of a question that asks for rows by it and nothing else; None for any other question."""
    node = rewritten.node
    if rewritten.relation is None or node["type"] != "SELECT_NODE" or node["from_table"]["type"] != "BASE_TABLE":
        return None
    others = ("modifiers", "group_expressions", "group_sets", "having", "qualify", "sample")
    names = [each.get("column_names", [""])[-1] for each in node["select_list"]]
    if names != [ROW] or any(node[part] for part in others) or node["cte_map"]["map"] or node["where_clause"] is None:
        return None
    if node["from_table"]["sample"]:
        return None
    try:
        return _Conditions(question.relations[rewritten.relation], question.engine_params()).convert(
            node["where_clause"]
        )
    except _OtherCondition:
        return None


class _Conditions:
    """Converts conditions on the columns of one relation."""

    def __init__(self, relation: Relation, params: dict[str, Any]) -> None:
        self._relation, self._params = relation, params

    def convert(self, node: Node) -> pc.Expression:
        """The same condition as an expression; raises `_OtherCondition`."""
        kind = node["type"]
        if kind in ("CONJUNCTION_AND", "CONJUNCTION_OR"):
            found = [self.convert(each) for each in node["children"]]
            join = pc.Expression.__and__ if kind == "CONJUNCTION_AND" else pc.Expression.__or__
            while len(found) > 1:  # in pairs: Arrow evaluates a filter by recursion
                odd = found[len(found) // 2 * 2 :]
                found = [*map(join, found[::2], found[1::2]), *odd]
            return found[0]
        if kind == "OPERATOR_NOT":
            return ~self.convert(node["children"][0])
        if kind in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
            column, _ = self._column(node["children"][0])
            return column.is_null() if kind == "OPERATOR_IS_NULL" else column.is_valid()
        if kind in _COMPARE:
            column, text = self._column(node["left"])
            return _COMPARE[kind](column, self._constant(node["right"], text=text))
        if kind == "COMPARE_BETWEEN":
            column, text = self._column(node["input"])
            low, high = (self._constant(node[bound], text=text) for bound in ("lower", "upper"))
            return (column >= low) & (column <= high)
        if kind in ("COMPARE_IN", "COMPARE_NOT_IN"):
            column, text = self._column(node["children"][0])
            values = pa.array([self._constant(each, text=text).as_py() for each in node["children"][1:]])
            found = pc.if_else(column.is_valid(), column.isin(values), pa.scalar(None, pa.bool_()))
            return found if kind == "COMPARE_IN" else ~found
        raise _OtherCondition

    def _column(self, node: Node) -> tuple[pc.Expression, bool]:
        """A column of integers or text, and whether it is text."""
        if node["class"] != "COLUMN_REF" or len(node["column_names"]) != 2:
            raise _OtherCondition
        name = node["column_names"][-1]
        if name not in self._relation.reader.snapshot.schema:
            raise _OtherCondition
        kind = column_type(self._relation.field(name))
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if not text and (not pa.types.is_integer(kind) or pa.types.is_uint64(kind)):
            raise _OtherCondition
        return pc.field(name), text

    def _constant(self, node: Node, *, text: bool) -> pa.Scalar:
        """A constant or parameter of the type of its column."""
        value: Any = None
        if node["class"] == "PARAMETER":
            value = self._params[node["identifier"]]
        elif node["class"] == "CONSTANT" and "literal" in node:
            literal = node["literal"]
            if literal["kind"] == "STRING":
                value = literal["text"]
            elif literal["kind"] == "INTEGER":
                value = int(literal["text"])
        if text and type(value) is str:
            return pa.scalar(value, pa.string())
        if not text and type(value) is int and value in _INT64:
            return pa.scalar(value, pa.int64())
        raise _OtherCondition
