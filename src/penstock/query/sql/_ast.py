"""DuckDB's syntax trees as JSON: make nodes, and look at them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

Node: TypeAlias = dict[str, Any]
"""A node of a syntax tree, as `json_serialize_sql` writes it."""


def column(*path: str, like: Node | None = None) -> Node:
    """A reference to a column."""
    return _located({"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": "", "column_names": list(path)}, like)


def constant(value: str | int | float | None, like: Node | None = None) -> Node:
    """A literal."""
    if value is None:
        literal = {"kind": "NULL_LITERAL", "text": ""}
    elif isinstance(value, str):
        literal = {"kind": "STRING", "text": value}
    else:
        literal = {"kind": "INTEGER" if isinstance(value, int) else "NUMERIC", "text": repr(value)}
    return _located({"class": "CONSTANT", "type": "VALUE_CONSTANT", "alias": "", "literal": literal}, like)


def call(name: str, *arguments: Node, like: Node | None = None) -> Node:
    """A call of a function or an operator."""
    return _located(
        {
            "class": "FUNCTION",
            "type": "FUNCTION",
            "alias": "",
            "function_name": name,
            "schema": "",
            "filter": None,
            "order_bys": {"type": "ORDER_MODIFIER", "orders": []},
            "distinct": False,
            "is_operator": not name[0].isalpha() and name[0] != "~" and name[0] != "_",
            "export_state": False,
            "catalog": "",
            "arguments": [{"name": "", "expression": each} for each in arguments],
            "qualified_name": {"path": [name]},
        },
        like,
    )


def star(relation: str) -> Node:
    """All columns of one item of FROM."""
    return {
        "class": "STAR",
        "type": "STAR",
        "alias": "",
        "relation_name": relation,
        "exclude_list": [],
        "replace_list": [],
        "columns": False,
        "expr": None,
        "qualified_exclude_list": [],
        "rename_list": [],
        **_UNLOCATED,
    }


def named(expression: Node, alias: str) -> Node:
    """An expression with a name."""
    return {**expression, "alias": alias}


def arguments(expression: Node) -> list[Node]:
    """The arguments of a call."""
    return [each["expression"] for each in expression.get("arguments", [])]


def is_query_node(value: Any) -> bool:
    """Whether a value is a whole query."""
    return isinstance(value, dict) and str(value.get("type", "")).endswith("_NODE")


def nodes(value: Any, below: Callable[[Node], Iterable[Any]] = dict.values) -> Iterator[Node]:
    """Every node of a tree in order, the value included; `below` gives what to look at below a node."""
    todo: list[Any] = [value]
    while todo:
        value = todo.pop()
        if isinstance(value, list):
            todo += reversed(value)
        elif isinstance(value, dict):
            yield value
            todo += reversed([*below(value)])


def expressions(value: Any) -> Iterator[Node]:
    """Every expression below a value, the value included; those inside of subqueries are left out."""
    found = nodes(value, lambda node: () if is_query_node(node) else node.values())
    return (node for node in found if "class" in node and not is_query_node(node))


_UNLOCATED = {"query_location": 18446744073709551615, "query_location_length": 0}


def _located(node: Node, like: Node | None) -> Node:
    if like is None:
        return {**node, **_UNLOCATED}
    return node | {key: like[key] for key in _UNLOCATED if key in like}
