"""`penstock query`."""

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from penstock.cli._command import CommandContext, CommandResult, Uri
from penstock.cli._rows import Force, Output, check_output, rows_result
from penstock.cli._versions import AsOf, Branch, Tag, Version, VersionNamer, load_version, newest_commit
from penstock.errors import InvalidInputError


def query(
    context: CommandContext,
    uri: Uri,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT; the table is called ds.")],
    param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VALUE",
            help="A value for ?, or NAME=VALUE for $NAME; can be repeated. Numbers, lists and quoted text are JSON.",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, max=1_000_000_000, help="Rows to show (by default 20) or to write.")
    ] = None,
    output: Output = None,
    force: Force = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what the query would read, and do not run it.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="End a longer query.")] = 600,
    exact: Annotated[bool, typer.Option("--exact", help="Use no approximate index.")] = False,
    version: Version = None,
    tag: Tag = None,
    branch: Branch = None,
    as_of: AsOf = None,
) -> CommandResult:
    """Ask a table in SQL, and show the answer as a table or write it to a file.

    Example: penstock query data "SELECT * FROM ds WHERE label = 'grasp' ORDER BY reward DESC LIMIT 5"
    """
    check_output(output, force=force)
    params = parse_params(param or [])
    dataset = load_version(context, uri, version=version, tag=tag, branch=branch, as_of=as_of)
    document: dict[str, Any] = {
        "uri": dataset.uri,
        "version": VersionNamer(dataset)(newest_commit(dataset)),
        "sql": sql,
    }
    context.status = lambda: "running the query"
    if explain:
        plan = dataset.explain(sql, params)
        return CommandResult({**document, "explain": str(plan)}, [str(plan)])
    with dataset.lease():
        view = dataset.query(sql, params, timeout_s=timeout, exact=exact)
        return rows_result(context, view, output, document, limit)


def parse_params(given: Sequence[str]) -> list[Any] | dict[str, Any] | None:
    """Values by position, or by name; raises `InvalidInputError` if they are mixed."""
    if not given:
        return None
    pairs = [text.partition("=") for text in given]
    named = [bool(equals) and name.isidentifier() for name, equals, _ in pairs]
    if all(named):
        return {name: _value(value) for name, _, value in pairs}
    if any(named):
        raise InvalidInputError(
            'give all --param by name, as NAME=VALUE, or none; a text with "=" is written in quotes: \'"a=b"\''
        )
    return [_value(text) for text in given]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
