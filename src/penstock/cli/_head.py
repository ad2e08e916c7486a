"""`penstock head`."""

from typing import Annotated, Any

import numpy as np
import typer

from penstock.cli._cells import previews
from penstock.cli._show import Preview, facts
from penstock.cli._verb import Answer, Run, Uri, printable
from penstock.cli._versions import AsOf, Branch, Called, Tag, Version, load_at, newest


def head(
    run: Run,
    uri: Uri,
    n: Annotated[int, typer.Option("-n", min=0, max=1000, metavar="ROWS", help="How many rows.")] = 5,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Only these columns.")] = None,
    version: Version = None,
    tag: Tag = None,
    branch: Branch = None,
    as_of: AsOf = None,
    links: Annotated[bool, typer.Option("--links", help="Follow links, and show what they lead to.")] = False,
) -> Answer:
    """Show the first rows: large values by their shape, size and range."""
    dataset = load_at(run, uri, version=version, tag=tag, branch=branch, as_of=as_of, links=links)
    at = Called(dataset)(newest(dataset))
    fields = list(dataset.schema) if columns is None else [dataset.schema[name] for name in columns.split(",")]
    count = min(n, len(dataset))
    found = previews(dataset._reader, fields, np.arange(count), follow=links)
    rows = [{field.name: found[field.name][row] for field in fields} for row in range(count)]
    document = {
        "uri": dataset.uri,
        "version": at,
        "rows": [{name: value.document for name, value in row.items()} for row in rows],
    }
    shown = [f"{len(rows):,} of {len(dataset):,} rows of {printable(dataset.uri)}, {at}"]
    return Answer(document, shown + [part for number, row in enumerate(rows) for part in _record(number, row)])


def _record(number: int, row: dict[str, Preview]) -> list[Any]:
    return ["", f"row {number}", facts(((name, value.line) for name, value in row.items()), indent=2)]
