"""Rewrite FROM: relations to their scans, queries, joins, and the few table functions that are allowed."""

from typing import Any

from penstock.query.scan import HIDDEN
from penstock.query.sql._ast import Node
from penstock.query.sql.rewrite._expressions import Expressions
from penstock.query.sql.rewrite._question import Question
from penstock.query.sql.rewrite._scope import Base, Origin, Output, Scope, Source

TABLE_FUNCTIONS = ("unnest", "range", "generate_series")
_PRESERVING = ("SEMI", "ANTI")


def scan_name(relation: str) -> str:
    """The name under which the engine knows a relation."""
    return f"{HIDDEN}scan.{relation}"


class From:
    """Rewrites items of FROM and collects the columns they offer."""

    def __init__(self, question: Question, expressions: Expressions, rewrite_query: Any) -> None:
        self._question, self._expressions, self._rewrite_query = question, expressions, rewrite_query

    def rewrite(self, node: Node, scope: Scope) -> Node:
        """An item of FROM; its sources are added to the scope."""
        kind = node["type"]
        if kind == "EMPTY":
            return node
        if kind == "BASE_TABLE":
            return self._table(node, scope)
        if kind == "SUBQUERY":
            query = self._rewrite_query(node["subquery"]["node"], Scope(parent=scope))
            alias = node["alias"] or "unnamed_subquery"
            outputs = renamed(query.outputs, node["column_name_alias"])
            scope.sources.append(Source(alias, outputs, query.complete, query=query))
            return {**node, "alias": alias, "subquery": {**node["subquery"], "node": query.node}}
        if kind == "JOIN":
            return self._join(node, scope)
        if kind == "TABLE_FUNCTION":
            return self._function(node, scope)
        if kind == "EXPRESSION_LIST":
            values = [[self._expressions.rewrite(each, scope) for each in row] for row in node["values"]]
            names = [f"col{index}" for index in range(len(values[0]))]
            outputs = renamed([Output(name) for name in names], node.get("expected_names") or [])
            scope.sources.append(Source(node["alias"] or "valueslist", outputs))
            return {**node, "values": values}
        raise self._question.errors.invalid(
            "this cannot stand in FROM; select from the relations of the question", node
        )

    def _table(self, node: Node, scope: Scope) -> Node:
        name, path = node["table_name"], node.get("qualified_name", {}).get("path", [])
        if node.get("at_clause"):
            raise self._question.errors.invalid("AT is not supported; load that version instead", node)
        alias = node["alias"] or name
        cte = scope.cte(name) if len(path) <= 1 else None
        if cte is not None:
            outputs = renamed(cte.outputs, node["column_name_alias"])
            scope.sources.append(Source(alias, outputs, cte.complete, query=cte.query))
            return node
        found = self._question.relation(name) if len(path) <= 1 else None
        if found is None:
            raise self._question.errors.unknown("relation", ".".join(path) or name, self._question.relations, node)
        base = Base(*found)
        columns = [Output(each, Origin(base, each)) for each in base.relation.columns]
        if node["column_name_alias"]:
            raise self._question.errors.invalid("columns of a table are renamed in SELECT, with AS", node)
        scope.sources.append(Source(alias, columns, base=base))
        physical = scan_name(base.name)
        return {**node, "alias": alias, "table_name": physical, "schema_name": "", "catalog_name": "",
                "qualified_name": {"path": [physical]}}  # fmt: skip

    def _join(self, node: Node, scope: Scope) -> Node:
        before = len(scope.sources)
        left = self.rewrite(node["left"], scope)
        middle = len(scope.sources)
        right = self.rewrite(node["right"], scope)
        lefts, rights = scope.sources[before:middle], scope.sources[middle:]
        using = list(node.get("using_columns", []))
        found = {**node, "left": left, "right": right}
        if node["ref_type"] == "NATURAL":
            using = self._common(lefts, rights, node)
            found |= {"ref_type": "REGULAR", "using_columns": using}
        for name in using:
            for side in (lefts, rights):
                if all(source.complete and source.find(name) is None for source in side):
                    known = [output.name for source in side for output in source.outputs]
                    raise self._question.errors.unknown("column", name, known, node)
        for source in rights:
            source.merged = frozenset(name.lower() for name in using)
        if node.get("condition"):
            found["condition"] = self._expressions.rewrite(node["condition"], scope)
        if node["join_type"] in _PRESERVING:
            del scope.sources[middle:]
        return found

    def _common(self, lefts: list[Source], rights: list[Source], node: Node) -> list[str]:
        if not all(source.complete for source in (*lefts, *rights)):
            raise self._question.errors.invalid("NATURAL JOIN needs known columns on both sides; write USING", node)
        right = {output.name.lower() for source in rights for output in source.outputs}
        names = [output.name for source in lefts for output in source.outputs if output.name.lower() in right]
        if not names:
            raise self._question.errors.invalid("the sides of NATURAL JOIN have no column in common", node)
        return list(dict.fromkeys(names))

    def _function(self, node: Node, scope: Scope) -> Node:
        function = node["function"]
        name = function["function_name"].lower()
        if name not in TABLE_FUNCTIONS:
            raise self._question.errors.invalid(
                f"{name} cannot stand in FROM; relations, queries, VALUES, {', '.join(TABLE_FUNCTIONS)} can", node
            )
        rewritten = self._expressions.rewrite(function, scope)
        alias = node["alias"] or name
        names = node["column_name_alias"]
        scope.sources.append(Source(alias, [Output(each) for each in names], complete=False))
        return {**node, "function": rewritten, "alias": alias}


def renamed(outputs: list[Output], names: list[str]) -> list[Output]:
    """Columns under other names; the last ones keep theirs if there are fewer names."""
    both = zip(outputs, [*names, *(output.name for output in outputs[len(names) :])], strict=False)
    return [Output(name, each.origin, each.handle, each.same_row) for each, name in both]
