"""Rewrite expressions: columns to what the scans offer, classes by name, JSON paths, our own functions."""

from typing import Any

from penstock.format.kinds import Label
from penstock.query.sql._ast import Node, arguments, constant, is_query_node
from penstock.query.sql._errors import near_matches
from penstock.query.sql._parse import DENIED_FUNCTIONS, engine_functions
from penstock.query.sql.rewrite._functions import OWN_FUNCTIONS, rewrite_own
from penstock.query.sql.rewrite._names import Resolved, refer, resolve
from penstock.query.sql.rewrite._question import Question
from penstock.query.sql.rewrite._scope import Output, Scope

_EQUALITIES = ("COMPARE_EQUAL", "COMPARE_NOTEQUAL", "COMPARE_DISTINCT_FROM", "COMPARE_NOT_DISTINCT_FROM")
_PASSING = ("first", "last", "arg_max", "arg_min", "max_by", "min_by", "first_value", "last_value", "lag", "lead")
"""Functions whose result is one of the values of their first argument: a handle will do."""
_PASSING_PRESENT = ("any_value", "coalesce")
"""The same, but they look whether a value is null."""


class Expressions:
    """Rewrites the expressions of one question; `rewrite_query` rewrites a subquery."""

    def __init__(self, question: Question, rewrite_query: Any) -> None:
        self._question, self._rewrite_query = question, rewrite_query

    def rewrite(self, node: Node, scope: Scope) -> Node:
        """An expression whose columns are values."""
        self._question.grow(1, node)
        kind = node["class"]
        if kind == "COLUMN_REF":
            return self._column(node, scope)
        if kind == "PARAMETER":
            return self._parameter(node)
        if kind in ("FUNCTION", "WINDOW"):
            return self._call(node, scope)
        if kind == "SUBQUERY":
            child = node.get("child")
            query = self._rewrite_query(node["subquery"]["node"], Scope(parent=scope))
            found = {**node, "subquery": {**node["subquery"], "node": query.node}}
            return found | ({"child": self.rewrite(child, scope)} if child else {})
        if kind == "LAMBDA" and node["syntax_type"] != "SINGLE_ARROW":  # the arrow is the operator of JSON
            inner = Scope(parent=scope, parameters=_parameter_names(node["lhs"]))
            return {**node, "expr": self.rewrite(node["expr"], inner)}
        if kind == "STAR":
            raise self._question.errors.invalid("* stands for columns only as an item of SELECT", node)
        if kind in ("COMPARISON", "OPERATOR"):
            node = self._with_classes(node, scope)
        if kind == "POSITIONAL_REFERENCE":
            raise self._question.errors.invalid("columns are referred to by name, not by #", node)
        return self._children(node, scope)

    def passed(self, node: Node, scope: Scope) -> tuple[Node, Output]:
        """An expression whose value is passed on, a heavy column as a handle; and what it is, with its name in SQL."""
        name = node.get("alias") or (node["column_names"][-1] if node["class"] == "COLUMN_REF" else "")
        if node["class"] == "COLUMN_REF":
            found = resolve(self._question, scope, node)
            if isinstance(found, Resolved) and not found.path:
                origin = found.output.origin
                heavy = origin is not None and origin.heavy
                handle = heavy and (found.source.base is not None or found.output.handle)
                output = Output(name, origin, handle, found.output.same_row)
                if not node.get("alias"):
                    output = Output(found.output.name, origin, handle, found.output.same_row)
                return refer(self._question, found, node, by_handle=handle), output
        handle_of = self._handle_of(node, scope)
        if handle_of is not None:
            return handle_of[0], Output(name, handle_of[1].origin, True, False)
        return self.rewrite(node, scope), Output(name)

    def _handle_of(self, node: Node, scope: Scope) -> tuple[Node, Output] | None:
        """A call that passes on a heavy column, over handles; None for anything else."""
        if node["class"] not in ("FUNCTION", "WINDOW"):
            return None
        name, given = node["function_name"].lower(), arguments(node)
        if name not in (*_PASSING, *_PASSING_PRESENT) or not given or node.get("distinct"):
            return None
        if any(each["class"] != "COLUMN_REF" for each in given[:1]) or (name == "coalesce" and len(given) > 1):
            return None
        passed, output = self.passed(given[0], scope)
        origin = output.origin
        if not output.handle or origin is None or origin.field is None:
            return None
        if name in _PASSING_PRESENT and origin.field.nullable:
            return None
        rest = {**node, "arguments": node["arguments"][1:]}
        found = self._children(rest, scope)
        first = {**node["arguments"][0], "expression": passed}
        return {**found, "arguments": [first, *found["arguments"]]}, output

    def _column(self, node: Node, scope: Scope) -> Node:
        found = resolve(self._question, scope, node)
        if found is None:
            return node
        if isinstance(found, Resolved):
            return {**refer(self._question, found, node), "alias": node.get("alias", "")}
        aliases = {name: each for name, each in scope.aliases.items() if each is not found}
        inner = Scope(scope.sources, scope.parent, scope.queries, aliases, scope.parameters)
        return {**self.rewrite(found, inner), "alias": node.get("alias", "")}

    def _parameter(self, node: Node) -> Node:
        self._question.param(node)
        name = f"p_{node['identifier']}"
        self._question.used[name] = node["identifier"]
        return {**node, "identifier": name}

    def _call(self, node: Node, scope: Scope) -> Node:
        name = node["function_name"].lower()
        if len(node.get("qualified_name", {}).get("path", [name])) > 1:
            raise self._question.errors.invalid("a function is called by its name alone", node)
        if name in self._question.functions:
            self._question.called.add(name)
            found = self._children(node, scope)
            engine_name = self._question.function_name(name)
            return {**found, "function_name": engine_name, "qualified_name": {"path": [engine_name]}}
        if name in OWN_FUNCTIONS:
            return {**rewrite_own(self._question, scope, node), "alias": node.get("alias", "")}
        self._check_function(name, node)
        return self._children(node, scope)

    def _check_function(self, name: str, node: Node) -> None:
        known = engine_functions().known
        if node.get("is_operator") or name in known:
            return
        if name in DENIED_FUNCTIONS:
            raise self._question.errors.invalid(f"the function {name} is not allowed in a question", node)
        raise self._question.errors.unknown("function", name, [*known, *OWN_FUNCTIONS, *self._question.functions], node)

    def _children(self, node: Node, scope: Scope) -> Node:
        """A node with its inner expressions rewritten."""
        return {key: self._inner(value, scope) for key, value in node.items()}

    def _inner(self, value: Any, scope: Scope) -> Any:
        if isinstance(value, list):
            return [self._inner(each, scope) for each in value]
        if isinstance(value, dict):
            if is_query_node(value):
                return self._rewrite_query(value, Scope(parent=scope)).node
            if value.get("class") == "TYPE":
                return value
            return self.rewrite(value, scope) if "class" in value else self._children(value, scope)
        return value

    def _with_classes(self, node: Node, scope: Scope) -> Node:
        """A comparison of a label with names of classes as one with their indices."""
        if node["type"] in _EQUALITIES:
            left, right = node["left"], node["right"]
            if (label := self._label(left, scope)) is not None:
                return {**node, "right": self._class(label, right)}
            if (label := self._label(right, scope)) is not None:
                return {**node, "left": self._class(label, left)}
        elif node["type"] in ("COMPARE_IN", "COMPARE_NOT_IN"):
            first, *others = node["children"]
            if (label := self._label(first, scope)) is not None:
                return {**node, "children": [first, *(self._class(label, each) for each in others)]}
        return node

    def _label(self, node: Node, scope: Scope) -> Label | None:
        if node["class"] != "COLUMN_REF":
            return None
        found = resolve(self._question, scope, node)
        origin = found.output.origin if isinstance(found, Resolved) and not found.path else None
        field = None if origin is None else origin.field
        return field.kind if field is not None and isinstance(field.kind, Label) and field.kind.names else None

    def _class(self, label: Label, node: Node) -> Node:
        if node["class"] == "CONSTANT" and node["literal"]["kind"] == "STRING":
            name = node["literal"]["text"]
        elif node["class"] == "PARAMETER" and isinstance(self._question.param(node), str):
            name = self._question.param(node)
        else:
            return node
        index = self._question.class_index(label, name)
        if index is None:
            raise self._question.errors.invalid(f"there is no class {name!r}{near_matches(name, label.names)}", node)
        return constant(index, like=node)


def _parameter_names(node: Node) -> frozenset[str]:
    if node["class"] == "COLUMN_REF":
        return frozenset([node["column_names"][0].lower()])
    return frozenset(name for each in arguments(node) for name in _parameter_names(each))
