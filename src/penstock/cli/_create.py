"""`penstock create`."""

from pathlib import Path
from typing import Annotated

import typer

import penstock
from penstock.cli._columns import GRAMMAR, parse_columns, read_columns
from penstock.cli._info import describe
from penstock.cli._verb import Answer, Run, Uri
from penstock.errors import InvalidInputError


def create(
    run: Run,
    uri: Uri,
    source: Annotated[str | None, typer.Argument(metavar="from-URI", help="Not in this release yet.")] = None,
    column: Annotated[
        list[str], typer.Option(metavar="NAME:TYPE", help="A column, such as photo:image:jpeg:90; repeat it.")
    ] = [],  # noqa: B006
    schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Columns from a JSON file: names and TYPEs, or what `info --json` prints."),
    ] = None,
    message: Annotated[str, typer.Option("--message", "-m", help="What the log says about it.")] = "",
) -> Answer:
    """Make a table; without columns they are found from the first rows appended."""
    if source is not None and source.startswith("from-"):
        raise InvalidInputError(
            "ingest (from-…) is not in this release yet; create the table and append to it in Python"
        )
    if source is not None:
        raise InvalidInputError("what follows the URI begins with from-; settings of the store go after --option")
    if column and schema is not None:
        raise InvalidInputError("give the columns with --column or with --schema, and not with both")
    columns = read_columns(schema) if schema is not None else parse_columns(column)
    return describe(penstock.create(uri, columns, options=run.options, message=message), "Created ")


create.__doc__ = f"{create.__doc__}\n\n{GRAMMAR}"
