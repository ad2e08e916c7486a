"""Limits on the size of SQL, checked before anything is done with it."""

import re
from typing import Any

from penstock.query.scan import HIDDEN
from penstock.query.sql._ast import Node
from penstock.query.sql._errors import SqlErrors

MAX_BYTES = 1 << 20
MAX_TOKENS = 60_000
MAX_NODES = 25_000
"""Expressions: columns, literals, operators, calls."""
MAX_DEPTH = 200
"""Expressions and queries inside of one another; the engine's own limit is 1000."""
MAX_TERMS = 250
"""Conditions that are joined by AND and OR: filters are evaluated by recursion."""
MAX_GROWN_NODES = 100_000
"""Expressions after `*`, COLUMNS and aliases were replaced by what they stand for."""

_PARAMS = "pass many values as one list: WHERE list_contains(?, id), or … IN (SELECT unnest(?))"
_TOKEN = re.compile(r"\w+|[^\w\s]")


def check_text(sql: Any, errors: SqlErrors) -> None:
    """Raise `InvalidInputError` for SQL that would take long to parse."""
    if not isinstance(sql, str) or len(sql) > MAX_BYTES or len(sql.encode(errors="replace")) > MAX_BYTES:
        raise errors.invalid("SQL is a text of 1 MiB at most")
    if HIDDEN in sql:
        raise errors.invalid("SQL cannot contain the character U+001F; pass it in a parameter")
    if len(sql) > MAX_TOKENS and sum(1 for _ in _TOKEN.finditer(sql)) > MAX_TOKENS:
        raise errors.invalid(f"the SQL has more than {MAX_TOKENS:,} words and signs; {_PARAMS}")


def check_tree(node: Node, errors: SqlErrors) -> None:
    """Raise `InvalidInputError` for a syntax tree that would take long to work with."""
    nodes = terms = 0
    todo: list[tuple[Any, int]] = [(node, 0)]
    while todo:
        value, depth = todo.pop()
        if isinstance(value, list):
            todo += [(each, depth) for each in value]
        elif isinstance(value, dict):
            if "class" in value or "type" in value:
                nodes, depth = nodes + 1, depth + 1
            if depth > MAX_DEPTH:
                raise errors.invalid(f"the SQL is nested more than {MAX_DEPTH} deep", value)
            if value.get("class") == "CONJUNCTION":
                terms += len(value["children"])
            todo += [(each, depth) for each in value.values() if isinstance(each, dict | list)]
        if nodes > MAX_NODES:
            raise errors.invalid(f"the SQL has more than {MAX_NODES:,} columns, values and operators; {_PARAMS}")
    if terms > MAX_TERMS:
        raise errors.invalid(
            f"the SQL joins more than {MAX_TERMS:,} conditions by AND and OR; compare with IN (…), or {_PARAMS}"
        )
