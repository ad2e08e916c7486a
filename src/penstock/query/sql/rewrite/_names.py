"""Resolve column names, and refer to what they mean."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.format.kinds import Json
from penstock.query.scan import handle_column
from penstock.query.sql._ast import Node, call, column, constant
from penstock.query.sql.rewrite._question import Question
from penstock.query.sql.rewrite._scope import Output, Scope, Source

_TIMES = {
    "current_date": "current_date",
    "current_time": "get_current_time",
    "current_timestamp": "get_current_timestamp",
    "localtime": "current_localtime",
    "localtimestamp": "current_localtimestamp",
}
"""Functions that are called without parentheses: an alias of that name would be taken for a column."""


@dataclass(frozen=True)
class Resolved:
    """A column of an item of FROM, and the path inside of its values."""

    source: Source
    output: Output
    path: Sequence[str] = ()
    merged: bool = False
    """Whether the name means a column that a join merged."""


def resolve(question: Question, scope: Scope, node: Node) -> Resolved | Node | None:
    """What a column reference means: a column, the expression of an alias, or None for a name that stays as it is.

    Raises `NotFoundError` for an unknown name.
    """
    names = node["column_names"]
    for level in scope.chain():
        if names[0].lower() in level.parameters:
            return None
        found = _in_sources(question, level, names, node)
        if found is not None:
            return found
        if names[0].lower() in level.aliases and len(names) == 1:
            return level.aliases[names[0].lower()]
        if any(not source.complete for source in level.sources):
            return None
    if len(names) == 1 and names[0].lower() in _TIMES:
        return call(_TIMES[names[0].lower()], like=node)
    raise _unknown(question, scope, node)


def _in_sources(question: Question, scope: Scope, names: Sequence[str], node: Node) -> Resolved | None:
    if len(names) > 1:
        for source in scope.sources:
            if source.alias.lower() == names[0].lower():
                output = source.find(names[1])
                if output is not None:
                    return Resolved(source, output, names[2:])
    found = []
    for source in scope.sources:
        output = source.find(names[0])
        if output is not None and names[0].lower() not in source.merged:
            found.append(Resolved(source, output, names[1:]))
    if len(found) > 1:
        places = " and ".join(f"{each.source.alias}.{each.output.name}" for each in found)
        raise question.errors.invalid(f"{names[0]!r} is ambiguous: it can be {places}", node)
    if not found:
        return None
    merged = any(names[0].lower() in source.merged for source in scope.sources)
    return Resolved(found[0].source, found[0].output, found[0].path, merged)


def _unknown(question: Question, scope: Scope, node: Node) -> Exception:
    names = node["column_names"]
    for level in scope.chain():
        for source in level.sources:
            if source.alias.lower() == names[0].lower():
                if len(names) == 1:
                    return question.errors.invalid(f"{names[0]!r} is a relation; name its columns, or write *", node)
                known = [output.name for output in source.outputs]
                name = ".".join(names[1:]) if any("." in each for each in known) else names[1]
                return question.errors.unknown(f"column in {source.alias}:", name, known, node)
    aliases = [alias for level in scope.chain() for alias in level.aliases]
    return question.errors.unknown("column", ".".join(names), [*scope.visible(), *aliases], node)


def refer(question: Question, found: Resolved, node: Node, *, by_handle: bool = False) -> Node:
    """An expression for a column: its values, or with `by_handle` handles of them."""
    output, alias = found.output, found.source.alias
    origin = output.origin
    if found.source.base is not None and origin is not None:
        name = origin.column
        if origin.heavy and by_handle:
            question.handles.setdefault(origin.base.name, set()).add(name)
            return column(alias, handle_column(name), like=node)
        question.referenced.setdefault(origin.base.name, set()).add(name)
    else:
        name = output.name
    reference = column(name, like=node) if found.merged else column(alias, name, like=node)
    if output.handle and not by_handle:
        assert origin is not None
        reference = load(question, origin.base.name, origin.column, reference)
    if not found.path:
        return reference
    if origin is not None and origin.field is not None and isinstance(origin.field.kind, Json):
        path = "$" + "".join(f".{json.dumps(part, ensure_ascii=False)}" for part in found.path)
        return call("json_extract_string", reference, constant(path), like=node)
    for part in found.path:
        reference = call("struct_extract", reference, constant(part), like=node)
    return reference


def load(question: Question, relation: str, name: str, handle: Node) -> Node:
    """An expression that loads values by handle."""
    return call(question.loader(relation, name), handle, like=handle)
