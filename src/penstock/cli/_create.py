"""`penstock create`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

import penstock
from penstock.cli._columns import GRAMMAR, parse_columns, read_columns
from penstock.cli._info import describe
from penstock.cli._ingest import (
    KINDS,
    DryRun,
    MaxBad,
    Message,
    OnBadOption,
    SourceOption,
    Watch,
    Workers,
    checked_on_bad,
    document,
    parse_codecs,
    parse_size,
    source_of,
    told,
)
from penstock.cli._verb import Answer, Run, Uri
from penstock.errors import AlreadyExistsError, InvalidInputError
from penstock.storage import open_store


def create(
    run: Run,
    uri: Uri,
    source: Annotated[str | None, typer.Argument(metavar="[from-SOURCE]", help="Data to fill it with.")] = None,
    column: Annotated[
        list[str], typer.Option(metavar="NAME:TYPE", help="A column, such as photo:image:jpeg:90; repeat it.")
    ] = [],  # noqa: B006
    schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Columns from a JSON file: names and TYPEs, or what `info --json` prints."),
    ] = None,
    message: Message = "",
    kind: Annotated[str | None, typer.Option("--as", metavar="KIND", help="What the source is.")] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B,…", help="Take only these columns.")] = None,
    codec: Annotated[
        list[str], typer.Option(metavar="COLUMN=CODEC", help="Store it so, such as image=jpeg:90; repeat it.")
    ] = [],  # noqa: B006
    decode: Annotated[bool, typer.Option("--decode", help="Store pictures as tensors, ready to be read.")] = False,
    resize: Annotated[str | None, typer.Option(metavar="HxW", help="Give every picture this size.")] = None,
    nullable: Annotated[str, typer.Option(metavar="A,B,…", help="Columns that later rows may lack.")] = "",
    transform: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="Called with each row; returns the row, or None.")
    ] = None,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Write files in random order, and mix their rows.")
    ] = False,
    link: Annotated[bool, typer.Option("--link", help="Copy nothing: point at the bytes in the source.")] = False,
    on_bad: OnBadOption = "skip",
    max_bad: MaxBad = 1000,
    dry_run: DryRun = False,
    workers: Workers = None,
    source_option: SourceOption = [],  # noqa: B006
) -> Answer:
    """Make a table, and fill it from a folder or a bucket; interrupted, the same command goes on where it stopped.

    Without a source it is empty; without columns they are found from the first rows appended.
    """
    if source is None:
        if column and schema is not None:
            raise InvalidInputError("give the columns with --column or with --schema, and not with both")
        fields = read_columns(schema) if schema is not None else parse_columns(column)
        return describe(penstock.create(uri, fields, options=run.options, message=message), "Created ")
    if column or schema is not None:
        raise InvalidInputError("columns of a source are found in it; choose among them with --columns and --codec")
    place = source_of(source)
    _check_new(uri, place, run, run.parsed(source_option))
    watch = Watch(run)
    done = penstock.ingest(
        place,
        uri,
        kind=kind,
        columns=None if columns is None else _names(columns),
        codecs=parse_codecs(codec),
        decode=decode,
        resize=parse_size(resize),
        nullable=_names(nullable),
        transform=transform,
        shuffle=shuffle,
        link=link,
        on_bad=checked_on_bad(on_bad),
        max_bad=max_bad,
        dry_run=dry_run,
        message=message,
        options=run.options,
        source_options=run.parsed(source_option),
        workers=workers,
        on_plan=watch.planned,
        progress=watch,
    )
    return Answer(document(done), told(done, watch, dry_run=dry_run))


def _check_new(uri: str, source: str, run: Run, source_options: Mapping[str, str] | None) -> None:
    """Refuse a table that has other things in it; one that an interrupted `create` left is gone on with."""
    if not penstock.exists(uri, options=run.options):
        return
    there = penstock.load(uri, options=run.options)
    options = run.options if source_options is None else source_options
    if len(there) and open_store(source, options=options).uri not in there.sources:
        raise AlreadyExistsError(
            f"{uri} is a table already, and was not made from {source}; choose another place,"
            " or take the source into it with penstock.ingest"
        )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


create.__doc__ = f"{create.__doc__}\n\n{KINDS}\n\n{GRAMMAR}"
