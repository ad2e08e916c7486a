"""Rewrite queries: WITH, SELECT and set operations.

A query whose rows are rows of one relation is answered with their indices and its computed columns only; the columns of
the table are read from it afterwards, or never.
"""

from dataclasses import dataclass
from typing import Any

from penstock.query.scan import HIDDEN, ROW
from penstock.query.sql._ast import Node, column, constant, expressions, named
from penstock.query.sql._parse import engine_functions, unparse_names
from penstock.query.sql.rewrite._expressions import Expressions
from penstock.query.sql.rewrite._from import From, renamed
from penstock.query.sql.rewrite._question import Question
from penstock.query.sql.rewrite._scope import Base, Cte, Output, Query, Scope
from penstock.query.sql.rewrite._star import expand_stars
from penstock.types import cached_property

_NONE: tuple[str, ...] = ()
_COLUMNS = ("COLUMN_REF",)
_ALL = ("COLUMN_REF", "FUNCTION", "WINDOW")
"""Kinds of items whose heavy columns are values: rows are compared by them, or merged with those of other queries."""


@dataclass(frozen=True)
class Rewritten:
    """A question as the engine runs it."""

    node: Node
    relation: str | None
    """The relation whose rows the result has; the column `ROW` has their indices."""
    outputs: list[tuple[Output, str | None]]
    """The columns in order, each with its name in the engine's result; None if it is a table column of the row."""


class Queries:
    """Rewrites the queries of one question."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._expressions = Expressions(question, self.rewrite)
        self._from = From(question, self._expressions, self.rewrite)

    def outermost(self, node: Node) -> Rewritten:
        """The whole question."""
        query = self.rewrite(node, Scope(), outermost=True)
        base = query.rows_of
        if base is None or "~items" not in query.node:
            return Rewritten(query.node, None, [(output, None) for output in query.outputs] if query.complete else [])
        items = query.node.pop("~items")
        return Rewritten(query.node, base.name, items)

    def rewrite(self, node: Node, scope: Scope, *, outermost: bool = False) -> Query:
        """A query and the queries in it; `scope` has what is visible from outside."""
        kind = node["type"]
        ctes = self._with(node, scope)
        if kind == "SELECT_NODE":
            query = self._select(node, scope, outermost=outermost)
        elif kind == "SET_OPERATION_NODE":
            query = self._set_operation(node, scope)
        else:
            raise self._question.errors.invalid("this kind of query is not supported", node)
        query.node["cte_map"] = {"map": ctes}
        return query

    def _with(self, node: Node, scope: Scope) -> list[dict[str, Any]]:
        found = []
        for entry in node.get("cte_map", {}).get("map", []):
            name, value = entry["key"], entry["value"]
            inner = value["query_node"] if "query_node" in value else value["query"]["node"]
            if inner["type"] == "RECURSIVE_CTE_NODE":
                query = self._recursive(inner, name, value.get("aliases", []), scope)
            else:
                query = self.rewrite(inner, Scope(parent=scope))
            outputs = renamed(query.outputs, value.get("aliases", []))
            scope.queries[name.lower()] = Cte(outputs, query.complete, query)
            new = (
                {"query_node": query.node}
                if "query_node" in value
                else {"query": {**value["query"], "node": query.node}}
            )
            found.append({"key": name, "value": {**value, **new}})
        return found

    def _recursive(self, node: Node, name: str, aliases: list[str], scope: Scope) -> Query:
        left = self._by_value(node["left"], Scope(parent=scope))
        outputs = [Output(output.name) for output in left.outputs]
        own = Cte(renamed(outputs, aliases), left.complete, None)
        right = self._by_value(node["right"], Scope(parent=scope, queries={name.lower(): own}))
        return Query({**node, "left": left.node, "right": right.node, "cte_map": {"map": []}}, outputs, left.complete)

    def _by_value(self, node: Node, scope: Scope) -> Query:
        return self.rewrite({**node, "~by_value": True}, scope)

    def _set_operation(self, node: Node, scope: Scope) -> Query:
        children = [self._by_value(each, Scope(parent=scope)) for each in node["children"]]
        first = children[0]
        by_name = "BY_NAME" in node["setop_type"]
        outputs = [Output(output.name) for output in first.outputs]
        if by_name:
            names = dict.fromkeys(output.name for child in children for output in child.outputs)
            outputs = [Output(name) for name in names]
        modifiers = [self._set_modifier(each, outputs, scope) for each in node["modifiers"]]
        found = {**node, "children": [child.node for child in children], "modifiers": modifiers}
        found.pop("~by_value", None)
        return Query(found, outputs, all(child.complete for child in children))

    def _set_modifier(self, modifier: Node, outputs: list[Output], scope: Scope) -> Node:
        """ORDER BY of a set operation refers to its columns; LIMIT has parameters."""
        known = {output.name.lower() for output in outputs}
        inner = Scope(parent=scope, parameters=frozenset(known))
        if modifier["type"] == "ORDER_MODIFIER":
            return {**modifier, "orders": [self._order(each, inner) for each in modifier["orders"]]}
        return self._limit(modifier, scope)

    def _order(self, order: Node, scope: Scope) -> Node:
        expression = order["expression"]
        if expression["class"] == "STAR":
            return order
        return {**order, "expression": self._expressions.rewrite(expression, scope)}

    def _limit(self, modifier: Node, scope: Scope) -> Node:
        inner = {
            key: self._expressions.rewrite(modifier[key], scope) for key in ("limit", "offset") if modifier.get(key)
        }
        return {**modifier, **inner}

    def _select(self, given: Node, outer: Scope, *, outermost: bool) -> Query:
        node = {key: value for key, value in given.items() if key != "~by_value"}
        scope = Scope(parent=outer)
        node["from_table"] = self._from.rewrite(node["from_table"], scope)
        items, complete = expand_stars(self._question, scope, node["select_list"])
        scope.aliases = {item["alias"].lower(): {**item, "alias": ""} for item in items if item.get("alias")}
        grouped, merged = self._merges(node, items)
        distinct = any(each["type"] == "DISTINCT_MODIFIER" for each in node["modifiers"])
        by_value = _ALL if "~by_value" in given or distinct else _COLUMNS if merged else _NONE
        rows_of = None
        if not grouped and not merged and len(scope.sources) == 1 and not _joins(node["from_table"]):
            rows_of = scope.sources[0].rows_of
        outputs, selected = self._items(items, scope, by_value=by_value)
        for key in ("where_clause", "having", "qualify"):
            if node.get(key):
                node[key] = self._expressions.rewrite(node[key], scope)
        node["group_expressions"] = [self._expressions.rewrite(each, scope) for each in node["group_expressions"]]
        node["select_list"] = selected
        row = scope.sources[0].expose(rows_of, ROW) if rows_of is not None and outermost else None
        query = Query(
            node,
            outputs,
            complete,
            rows_of,
            scope.sources,
            ordered=_is_ordered(node, scope),
            can_expose=not grouped and not merged,
        )
        if row is None or not complete or rows_of is None:
            node["modifiers"] = [self._modifier(each, scope, query, items) for each in node["modifiers"]]
            return query
        self._drop_table_columns(query, row, rows_of, scope, items)
        return query

    def _items(self, items: list[Node], scope: Scope, *, by_value: tuple[str, ...]) -> tuple[list[Output], list[Node]]:
        outputs: list[Output] = []
        selected: list[Node] = []
        unnamed = [item for item in items if not item.get("alias") and item["class"] not in ("STAR", "COLUMN_REF")]
        names = iter(unparse_names(unnamed))
        for item in items:
            if item["class"] == "STAR":
                selected.append(item)
                continue
            if item["class"] in by_value:
                _, output = self._expressions.passed(item, scope)
                rewritten = self._expressions.rewrite(item, scope)
                output = Output(output.name, None if output.handle else output.origin, False, output.same_row)
            else:
                rewritten, output = self._expressions.passed(item, scope)
            if not output.name:
                output = Output(next(names), output.origin, output.handle, output.same_row)
            outputs.append(output)
            selected.append(named(rewritten, output.name))
        return outputs, selected

    def _merges(self, node: Node, items: list[Node]) -> tuple[bool, bool]:
        """Whether a query aggregates or unnests rows, and whether it compares whole rows or groups them."""
        functions = engine_functions()
        distinct = any(each["type"] == "DISTINCT_MODIFIER" for each in node["modifiers"])
        merged = bool(node["group_expressions"] or node["group_sets"] or distinct or node["having"])
        merged = merged or node["aggregate_handling"] != "STANDARD_HANDLING"
        orders = [each for each in node["modifiers"] if each["type"] == "ORDER_MODIFIER"]
        for expression in expressions([items, orders, node["qualify"]]):
            if expression["class"] == "FUNCTION":
                name = expression["function_name"].lower()
                if name == "unnest" or (name in functions.aggregates and name not in self._question.functions):
                    return True, merged
        return False, merged

    def _modifier(self, modifier: Node, scope: Scope, query: Query, items: list[Node]) -> Node:
        if modifier["type"] == "ORDER_MODIFIER":
            orders = [each for order in modifier["orders"] for each in self._order_by(order, scope, query, items)]
            return {**modifier, "orders": orders}
        if modifier["type"] == "DISTINCT_MODIFIER":
            targets = [self._expressions.rewrite(each, scope) for each in modifier["distinct_on_targets"]]
            return {**modifier, "distinct_on_targets": targets}
        return self._limit(modifier, scope)

    def _order_by(self, order: Node, scope: Scope, query: Query, items: list[Node]) -> list[Node]:
        """ORDER BY of a query that keeps its columns: a name is first that of a column of the result."""
        expression = order["expression"]
        handles = query.handles
        if expression["class"] == "STAR" and any(handles):
            self._question.grow(len(handles), expression)
            return [
                {**order, "expression": self._expressions.rewrite(item, scope) if handle else constant(index)}
                for index, (item, handle) in enumerate(zip(items, handles, strict=True), 1)
            ]
        index = _ordinal(expression)
        if index is not None and 0 < index <= len(handles) and handles[index - 1]:
            return [{**order, "expression": self._expressions.rewrite(items[index - 1], scope)}]
        if index is not None or expression["class"] == "STAR":
            return [order]
        if expression["class"] == "COLUMN_REF" and len(expression["column_names"]) == 1:
            name = expression["column_names"][0].lower()
            found = query.by_name.get(name, [])
            if len(found) == 1 and not found[0].handle and name in scope.aliases:
                return [order]
        return [{**order, "expression": self._expressions.rewrite(expression, scope)}]

    def _drop_table_columns(self, query: Query, row: str, base: Base, scope: Scope, originals: list[Node]) -> None:
        """Make an outermost query return indices of rows and computed columns only."""
        node, kept = query.node, []
        items: list[tuple[Output, str | None]] = []
        keys: list[Node] = []
        for index, (output, item) in enumerate(zip(query.outputs, node["select_list"], strict=True)):
            origin = output.origin
            is_column = origin is not None and origin.base is base and output.same_row
            name = None if is_column else f"{HIDDEN}{index}"
            items.append((output, name))
            keys.append(originals[index] if output.handle else item if name is None else column(name))
            if name is not None:
                kept.append(named(item, name))
        orders = _OuterOrders(self._question, self._expressions, scope, [output for output, _ in items], keys)
        modifiers = [
            {**each, "orders": orders.rewrite(each["orders"])}
            if each["type"] == "ORDER_MODIFIER"
            else self._limit(each, scope)
            for each in node["modifiers"]
        ]
        if not _is_scan(node, scope) and not query.ordered:
            modifiers.insert(0, _order_modifier(column(ROW)))
        node["modifiers"] = modifiers
        node["select_list"] = [named(column(scope.sources[0].alias, row), ROW), *kept]
        node["~items"] = items


@dataclass(frozen=True)
class _OuterOrders:
    """ORDER BY of a query that returns indices of rows: its columns are those that the SQL selected."""

    question: Question
    expressions: Expressions
    scope: Scope
    outputs: list[Output]
    keys: list[Node]
    """What to order by for each column; not rewritten yet for one whose values are handles."""

    @cached_property
    def _by_name(self) -> dict[str, int]:
        """The index of the first column of each name in lower case."""
        return {output.name.lower(): index for index, output in reversed(list(enumerate(self.outputs)))}

    def rewrite(self, orders: list[Node]) -> list[Node]:
        found = []
        for order in orders:
            if order["expression"]["class"] == "STAR":
                self.question.grow(len(self.keys), order["expression"])
                found += [{**order, "expression": self._key(index)} for index in range(len(self.keys))]
            else:
                found.append({**order, "expression": self._expression(order["expression"])})
        # rows that are equal in all terms are in the order of the relation, so that an answer is the same everywhere
        return [*found, *_order_modifier(column(ROW))["orders"]]

    def _expression(self, expression: Node) -> Node:
        index = _ordinal(expression)
        if index is not None:
            if not 1 <= index <= len(self.keys):
                raise self.question.errors.invalid(f"ORDER BY {index}: there are {len(self.keys)} columns", expression)
            return self._key(index - 1)
        if expression["class"] == "COLUMN_REF" and len(expression["column_names"]) == 1:
            name = expression["column_names"][0].lower()
            if name in self.scope.aliases and name in self._by_name:
                return self._key(self._by_name[name])
        return self.expressions.rewrite(expression, self.scope)

    def _key(self, index: int) -> Node:
        key = self.keys[index]
        key = self.expressions.rewrite(key, self.scope) if self.outputs[index].handle else key
        return named(key, "")


def _ordinal(expression: Node) -> int | None:
    """The number of a column."""
    if expression["class"] == "CONSTANT" and expression["literal"]["kind"] == "INTEGER":
        return int(expression["literal"]["text"])
    return None


def _joins(node: Node) -> bool:
    """Whether an item of FROM joins rows; a semi join only leaves some out."""
    return node["type"] == "JOIN" and node["join_type"] not in ("SEMI", "ANTI")


def _is_scan(node: Node, scope: Scope) -> bool:
    """Whether the engine keeps the order of the rows: joins and windows do not."""
    parts = [node["select_list"], node["where_clause"], node["qualify"]]
    kinds = {each["class"] for each in expressions(parts)}
    plain = node["from_table"]["type"] == "BASE_TABLE" and scope.sources[0].base is not None
    return plain and not kinds & {"WINDOW", "SUBQUERY"}


def _is_ordered(node: Node, scope: Scope) -> bool:
    if any(each["type"] == "ORDER_MODIFIER" for each in node["modifiers"]):
        return True
    return len(scope.sources) == 1 and scope.sources[0].query is not None and scope.sources[0].query.ordered


def _order_modifier(expression: Node) -> Node:
    order = {"type": "ORDER_DEFAULT", "null_order": "ORDER_DEFAULT", "expression": expression}
    return {"type": "ORDER_MODIFIER", "orders": [order]}
