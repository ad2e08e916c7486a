"""Expand `*` and COLUMNS in a select list, so that hidden columns stay hidden."""

from collections.abc import Iterator
from typing import Any

from penstock.query.sql._ast import Node, column, expressions, named, star
from penstock.query.sql._parse import matching_names, unparse_names
from penstock.query.sql.rewrite._question import Question
from penstock.query.sql.rewrite._scope import Output, Scope, Source


def expand_stars(question: Question, scope: Scope, items: list[Node]) -> tuple[list[Node], bool]:
    """The items without stars, and whether that is complete: a star of unknown columns stays."""
    found: list[Node] = []
    for item in items:
        if item["class"] == "STAR" and not item["columns"]:
            found += _star(question, scope, item)
        elif (inner := _columns_call(item)) is not None:
            found += _each_column(question, scope, item, inner)
        else:
            found.append(item)
    return found, all(item["class"] != "STAR" for item in found)


def _star(question: Question, scope: Scope, node: Node) -> Iterator[Node]:
    excluded = {name.lower(): name for name in _excluded(node)}
    replaced = {each["key"].lower(): each["value"] for each in node.get("replace_list", [])}
    renames = {_rename_key(each["key"]).lower(): each["value"] for each in node.get("rename_list", [])}
    unused = {**excluded, **{name: name for name in (*replaced, *renames)}}
    sources = list(_sources(question, scope, node))
    names: list[str] = []
    for source, outputs in sources:
        if not source.complete:
            if unused:
                raise question.errors.invalid("EXCLUDE, REPLACE and RENAME need known columns", node)
            yield star(source.alias)
            continue
        question.grow(len(outputs), node)
        for output in outputs:
            name = output.name.lower()
            names.append(output.name)
            unused.pop(name, None)
            if name in excluded:
                continue
            if name in replaced:
                yield named(replaced[name], output.name)
            elif name in renames:
                yield named(column(source.alias, output.name, like=node), renames[name])
            else:
                yield column(source.alias, output.name, like=node)
    for name in unused.values():
        raise question.errors.unknown("column", name, names, node)


def _sources(question: Question, scope: Scope, node: Node) -> Iterator[tuple[Source, list[Output]]]:
    wanted = node.get("relation_name") or ""
    found = [source for source in scope.sources if not wanted or source.alias.lower() == wanted.lower()]
    if not found and wanted:
        raise question.errors.unknown("relation", wanted, [source.alias for source in scope.sources], node)
    if not found:
        raise question.errors.invalid("* needs a relation in FROM", node)
    for source in found:
        merged = frozenset() if wanted else source.merged
        yield source, [output for output in source.outputs if output.name.lower() not in merged]


def _excluded(node: Node) -> Iterator[str]:
    yield from (name for name in node.get("exclude_list", []) if isinstance(name, str))
    yield from (_rename_key(each) for each in node.get("qualified_exclude_list", []))


def _rename_key(key: Any) -> str:
    return str(key["column"] if isinstance(key, dict) else key)


def _columns_call(item: Node) -> Node | None:
    """The COLUMNS(…) inside of an item."""
    for each in expressions(item):
        if each["class"] == "STAR" and each["columns"]:
            return each
    return None


def _each_column(question: Question, scope: Scope, item: Node, inner: Node) -> Iterator[Node]:
    pattern = inner.get("expr")
    if pattern is not None and (pattern["class"] != "CONSTANT" or pattern["literal"]["kind"] != "STRING"):
        raise question.errors.invalid("COLUMNS takes * or a regular expression", inner)
    size = sum(1 for _ in expressions(item))
    for source, outputs in _sources(question, scope, {**inner, "relation_name": inner.get("relation_name")}):
        if not source.complete:
            raise question.errors.invalid("COLUMNS needs known columns", inner)
        chosen = [output.name for output in outputs]
        if pattern is not None:
            chosen = _matching(question, pattern, chosen)
            if not chosen:
                raise question.errors.invalid(f"no column of {source.alias} matches this", pattern)
        question.grow(size * len(chosen), item)
        found = [
            _replaced(item, inner, {**column(source.alias, name, like=inner), "alias": inner.get("alias", "")})
            for name in chosen
        ]
        if item is not inner and not item.get("alias"):
            names = unparse_names([_replaced(item, inner, column(name)) for name in chosen])
            found = [named(each, name) for each, name in zip(found, names, strict=True)]
        yield from found


def _matching(question: Question, pattern: Node, names: list[str]) -> list[str]:
    """The names that match a regular expression, of the engine's kind: it takes linear time."""
    try:
        return matching_names(pattern["literal"]["text"], names)
    except ValueError as error:
        raise question.errors.invalid(f"COLUMNS takes a regular expression: {error}", pattern) from None


def _replaced(value: Any, old: Node, new: Node) -> Any:
    if value is old:
        return new
    if isinstance(value, dict):
        return {key: _replaced(each, old, new) for key, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each, old, new) for each in value]
    return value
