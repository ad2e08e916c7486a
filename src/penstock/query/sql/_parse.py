"""Parse SQL to a syntax tree and back; exactly one SELECT is accepted."""

import json
import secrets
from dataclasses import dataclass
from functools import cache
from typing import Any

from penstock.query.sql._ast import Node, constant
from penstock.query.sql._errors import SqlErrors, translated
from penstock.query.sql._size import check_text, check_tree
from penstock.query.sql.execution import QueryLimits, connected, import_duckdb

CONDITION, ORDER = "SELECT ", "SELECT 1 ORDER BY "
"""What a condition and the terms of an order are parsed behind."""
_PARSER = QueryLimits(memory_bytes=1 << 30, threads=1)

_DENIED = """
current_catalog current_connection_id current_database current_query current_query_id current_role
current_schema current_schemas current_setting current_transaction_id current_user currval getenv
getvariable in_search_path json_deserialize_sql json_serialize_plan json_serialize_sql nextval
parse_duckdb_log_message session_user set_config setseed sleep sleep_ms txid_current user version
which_secret write_log
"""
DENIED_FUNCTIONS = frozenset(_DENIED.split())
"""Functions that tell about the process, or change it, instead of computing a value."""


@dataclass(frozen=True)
class Functions:
    """Names of the functions that SQL may call."""

    known: frozenset[str]
    aggregates: frozenset[str]


@cache
def engine_functions() -> Functions:
    """The functions of the engine, without those that look at files, settings or the catalog."""
    with connected(_PARSER) as connection:
        rows = connection.execute(
            "SELECT DISTINCT function_name, function_type FROM duckdb_functions() "
            "WHERE function_type IN ('scalar', 'aggregate', 'macro') AND schema_name = 'main'"
        ).fetchall()
    usable = [(name, kind) for name, kind in rows if not _is_denied(name)]
    window = "row_number rank dense_rank percent_rank cume_dist ntile lag lead first_value last_value nth_value fill"
    special = "coalesce struct_pack row list_value array_value unnest grouping grouping_id if ifnull nullif try"
    return Functions(
        frozenset([*(name for name, _ in usable), *window.split(), *special.split()]),
        frozenset(name for name, kind in usable if kind == "aggregate"),
    )


def _is_denied(name: str) -> bool:
    return name in DENIED_FUNCTIONS or name.startswith(
        ("pg_", "duckdb_", "read_", "has_", "icu_", "add_parquet", "query")
    )


def parse(sql: str, errors: SqlErrors) -> Node:
    """The syntax tree of one SELECT; raises `InvalidInputError` for anything else, and for one that is too large."""
    check_text(sql, errors)
    document = json.loads(_serialized(sql))
    if document["error"]:
        raise _parse_error(document, errors)
    statements = document["statements"]
    if len(statements) != 1:
        raise errors.invalid(f"one SELECT statement is needed, and there are {len(statements)} statements")
    node: Node = statements[0]["node"]
    check_tree(node, errors)
    return node


def _serialized(sql: str) -> str:
    with connected(_PARSER) as connection:
        [[text]] = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
    return str(text)


_serialized_once = cache(_serialized)


def _constant_tree(sql: str) -> Node:
    """The syntax tree of a SELECT of our own, which the caller may change."""
    node: Node = json.loads(_serialized_once(sql))["statements"][0]["node"]
    return node


def parse_condition(condition: str, errors: SqlErrors) -> Node:
    """The tree of `SELECT * FROM ds WHERE …` with a condition, which is one expression and nothing else.

    Raises `InvalidInputError`. The condition is parsed by itself, so that nothing in it can end the clause it is in.
    """
    node = parse(f"{CONDITION}{condition}\n", errors)
    items = node.get("select_list", ())
    if len(items) != 1 or items[0].get("alias") or _differs(node, "select_list"):
        raise errors.invalid("this is not one condition; use query() for a whole SELECT")
    return {**_constant_tree("SELECT * FROM ds"), "where_clause": items[0]}


def parse_order(terms: str, errors: SqlErrors) -> Node:
    """The tree of `SELECT * FROM ds ORDER BY …` with terms and nothing else; raises `InvalidInputError`."""
    node = parse(f"{ORDER}{terms}\n", errors)
    kinds = [each["type"] for each in node["modifiers"]]
    if kinds != ["ORDER_MODIFIER"] or _differs(node, "modifiers"):
        raise errors.invalid("these are not terms of an order; use query() for a whole SELECT")
    return {**_constant_tree("SELECT * FROM ds"), "modifiers": node["modifiers"]}


def _differs(node: Node, part: str) -> bool:
    """Whether a query has more than a plain one, beside one part of it."""
    plain = _constant_tree("SELECT 1")
    return any(
        _unlocated(node.get(key)) != _unlocated(plain.get(key)) for key in {*node, *plain} - {part, "query_location"}
    )


def _unlocated(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unlocated(each) for key, each in value.items() if not key.startswith("query_location")}
    return [_unlocated(each) for each in value] if isinstance(value, list) else value


def table_names(sql: str) -> list[str]:
    """The tables in FROM of one SELECT and of the queries in it, without those of WITH; as written, each once.

    Names with a schema are left out, because no relation has one. Raises `InvalidInputError` for SQL that is not one
    valid SELECT.
    """
    errors = SqlErrors(sql if isinstance(sql, str) else "")
    found: dict[str, str] = {}
    with translated(errors, []):
        _collect_tables(parse(sql, errors), frozenset(), found)
    return list(found.values())


def unparse(node: Node) -> str:
    """The SQL of a syntax tree."""
    document = json.dumps({"error": False, "statements": [{"node": node}]})
    with connected(_PARSER) as connection:
        [[text]] = connection.execute("SELECT json_deserialize_sql(?::JSON)", [document]).fetchall()
    return str(text)


def unparse_names(expressions: list[Node]) -> list[str]:
    """The names that the engine gives to expressions without an alias: their text."""
    if not expressions:
        return []
    marker = f"~{secrets.token_hex(16)}"
    with connected(_PARSER) as connection:
        document = json.dumps({"error": False, "statements": [{"node": _select(expressions, marker)}]})
        [[text]] = connection.execute("SELECT json_deserialize_sql(?::JSON)", [document]).fetchall()
    separator = f", '{marker}'"
    return [part.removeprefix(", ") for part in str(text).removeprefix("SELECT ").split(separator)[:-1]]


def matching_names(pattern: str, names: list[str]) -> list[str]:
    """The names that match a regular expression; raises `ValueError` if it is none."""
    with connected(_PARSER) as connection:
        try:
            rows = connection.execute(
                "SELECT name FROM (SELECT unnest(?::VARCHAR[]) AS name) WHERE regexp_matches(name, ?)", [names, pattern]
            ).fetchall()
        except import_duckdb().Error as error:
            raise ValueError(str(error).splitlines()[0].partition("Error: ")[2] or str(error)) from None
    return [name for (name,) in rows]


def _select(expressions: list[Node], marker: str) -> Node:
    """A SELECT of expressions, each followed by a marker: the text of an expression may have commas."""
    return {
        "type": "SELECT_NODE",
        "modifiers": [],
        "cte_map": {"map": []},
        "select_list": [item for each in expressions for item in ({**each, "alias": ""}, constant(marker))],
        "from_table": {"type": "EMPTY", "alias": "", "sample": None, "query_location": 0, "query_location_length": 0},
        "where_clause": None,
        "group_expressions": [],
        "group_sets": [],
        "aggregate_handling": "STANDARD_HANDLING",
        "having": None,
        "sample": None,
        "qualify": None,
    }


def _collect_tables(value: Any, queries: frozenset[str], found: dict[str, str]) -> None:
    """Add the tables below a value; `queries` are the lower-case names of the queries of WITH that it sees."""
    if isinstance(value, list):
        for each in value:
            _collect_tables(each, queries, found)
        return
    if not isinstance(value, dict):
        return
    for entry in value.get("cte_map", {}).get("map", []):
        name, body = entry["key"].lower(), entry["value"]
        inner = body["query_node"] if "query_node" in body else body["query"]["node"]
        _collect_tables(body, queries | {name} if inner["type"] == "RECURSIVE_CTE_NODE" else queries, found)
        queries |= {name}
    if value.get("type") == "BASE_TABLE" and len(value.get("qualified_name", {}).get("path", [])) <= 1:
        name = value["table_name"]
        if name.lower() not in queries:
            found.setdefault(name.lower(), name)
    for key, inner in value.items():
        if key != "cte_map":
            _collect_tables(inner, queries, found)


def _parse_error(document: dict[str, Any], errors: SqlErrors) -> Exception:
    message = str(document.get("error_message", ""))
    if document.get("error_type") == "not implemented" and "Only SELECT" in message:
        return errors.invalid("only a SELECT statement can be run: nothing else reads, writes or changes a table here")
    position = document.get("position")
    at = int(position) if position is not None and str(position).isdigit() else None
    return errors.invalid(f"the SQL cannot be parsed: {message.splitlines()[0] if message else 'syntax error'}", at)
