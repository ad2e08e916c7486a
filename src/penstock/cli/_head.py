"""`penstock head`."""

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

import penstock
from penstock.cli._show import Preview, amount, preview
from penstock.cli._verb import Answer, Run, Uri, Version, printable
from penstock.errors import PenstockError
from penstock.format import Field
from penstock.format.kinds import Linked, Place
from penstock.table import Reader


def head(
    run: Run,
    uri: Uri,
    n: Annotated[int, typer.Option("-n", min=0, max=1000, metavar="ROWS", help="How many rows.")] = 5,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Only these columns.")] = None,
    version: Version = None,
    links: Annotated[bool, typer.Option("--links", help="Follow links, and show what they lead to.")] = False,
) -> Answer:
    """Show the first rows: large values by their shape, size and range."""
    dataset = penstock.load(uri, version=version, options=run.options, links=links)
    fields = list(dataset.schema) if columns is None else [dataset.schema[name] for name in columns.split(",")]
    found = _previews(dataset._reader, fields, min(n, len(dataset)), follow=links)
    rows = [{field.name: found[field.name][row] for field in fields} for row in range(min(n, len(dataset)))]
    document = {
        "uri": dataset.uri,
        "version": dataset.version,
        "rows": [{name: value.document for name, value in row.items()} for row in rows],
    }
    shown = [f"{len(rows):,} of {len(dataset):,} rows of {printable(dataset.uri)}, {dataset.version}"]
    return Answer(document, shown + [part for number, row in enumerate(rows) for part in _record(number, row)])


def _previews(reader: Reader, fields: list[Field], count: int, *, follow: bool) -> dict[str, list[Preview]]:
    """Read the rows at once, then look at each value alone, so that one that cannot be shown is one that is not."""
    cells = reader.cells(fields, [np.arange(count)])[0]
    return {
        field.name: [_value(reader, field, cells[field.name], row, follow=follow) for row in range(count)]
        for field in fields
    }


def _value(reader: Reader, field: Field, cells: Any, row: int, *, follow: bool) -> Preview:
    parts = {name: getattr(cells, name) for name in ("numbers", "array", "references")}
    cell = replace(cells, **{name: None if part is None else part[row : row + 1] for name, part in parts.items()})
    if cell.references is not None and (blob := cell.references[0].as_py()) is not None:
        return Preview({"bytes": blob["length"]}, f"{amount(blob['length'])}, an object of its own")
    place = field.kind.to_values(cell.array)[0] if isinstance(field.kind, Linked) else None
    if place is not None and not follow:
        return _place(reader, place)
    try:
        return preview(field.kind, reader.values(field, cell).item(0))
    except PenstockError as error:
        return Preview({"error": str(error)}, f"cannot be read: {error}")


def _place(reader: Reader, place: Place) -> Preview:
    uri = f"{reader.containers.declared[place.container]}/{place.path}"
    document = {"link": uri, "offset": place.offset, "length": place.length}
    return Preview(document, f"link to {uri} ({amount(place.length)}; --links reads it)")


def _record(number: int, row: dict[str, Preview]) -> list[Any]:
    listed = Table.grid(padding=(0, 2))
    listed.add_column(style="bold", no_wrap=True, min_width=min(max(map(len, row), default=0) + 2, 32))
    listed.add_column(no_wrap=True, overflow="ellipsis")
    for name, value in row.items():
        listed.add_row(f"  {name}", printable(value.line))
    return ["", f"row {number}", listed]
