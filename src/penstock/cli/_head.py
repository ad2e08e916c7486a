"""`penstock head`."""

from typing import Annotated, Any

import typer

from penstock.cli._command import CommandContext, CommandResult, Uri, printable
from penstock.cli._preview import Preview, preview
from penstock.cli._render import key_value_table
from penstock.cli._versions import AsOf, Branch, Tag, Version, VersionNamer, load_version, newest_commit
from penstock.dataset import preview_rows


def head(
    context: CommandContext,
    uri: Uri,
    n: Annotated[int, typer.Option("-n", min=0, max=1000, metavar="ROWS", help="Number of rows.")] = 5,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Only these columns.")] = None,
    version: Version = None,
    tag: Tag = None,
    branch: Branch = None,
    as_of: AsOf = None,
    links: Annotated[bool, typer.Option("--links", help="Follow links, and show the linked values.")] = False,
) -> CommandResult:
    """Show the first rows: large values by their shape, size and range."""
    dataset = load_version(context, uri, version=version, tag=tag, branch=branch, as_of=as_of, links=links)
    name = VersionNamer(dataset)(newest_commit(dataset))
    view = dataset.select(dataset.schema.names if columns is None else columns.split(","))[:n]
    kinds = {field.name: field.kind for field in view.schema}
    rows = [
        {column: preview(kinds[column], value) for column, value in row.items()}
        for row in preview_rows(view, follow_links=links)
    ]
    document = {
        "uri": dataset.uri,
        "version": name,
        "rows": [{column: value.document for column, value in row.items()} for row in rows],
    }
    title = f"{len(rows):,} of {len(dataset):,} rows of {printable(dataset.uri)}, {name}"
    return CommandResult(document, [title, *(part for i, row in enumerate(rows) for part in _render_row(i, row))])


def _render_row(position: int, row: dict[str, Preview]) -> list[Any]:
    values = ((column, value.line) for column, value in row.items())
    return ["", f"row {position}", key_value_table(values, indent=2)]
