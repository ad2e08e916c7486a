"""`penstock create`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

import penstock
from penstock.cli._columns import parse_columns, read_columns
from penstock.cli._command import CommandContext, CommandResult, Uri
from penstock.cli._info import describe
from penstock.cli._ingest import (
    KINDS,
    BadSampleLimit,
    BadSamplesAction,
    DryRun,
    Message,
    NumWorkers,
    ProgressRenderer,
    SourceOption,
    import_transform,
    ingest_document,
    parse_bad_samples,
    parse_codecs,
    parse_image_size,
    parse_source,
    render_result,
)
from penstock.dataset import open_source
from penstock.errors import AlreadyExistsError, InvalidInputError
from penstock.format.kinds import TYPE_GRAMMAR


def create(
    context: CommandContext,
    uri: Uri,
    source: Annotated[str | None, typer.Argument(metavar="[from-SOURCE]", help="Data to ingest.")] = None,
    column: Annotated[
        list[str], typer.Option(metavar="NAME:TYPE", help="A column, such as photo:image:jpeg:90; can be repeated.")
    ] = [],  # noqa: B006
    schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Columns from a JSON file: names and TYPEs, or output of `info --json`."),
    ] = None,
    message: Message = "",
    kind: Annotated[str | None, typer.Option("--as", metavar="KIND", help="The kind of the source.")] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B,…", help="Ingest only these columns.")] = None,
    codec: Annotated[
        list[str], typer.Option(metavar="COLUMN=CODEC", help="A codec, such as image=jpeg:90; can be repeated.")
    ] = [],  # noqa: B006
    decode: Annotated[bool, typer.Option("--decode", help="Store images as tensors, ready to read.")] = False,
    image_size: Annotated[
        str | None, typer.Option("--image-size", metavar="HxW", help="Resize images to this height and width.")
    ] = None,
    nullable: Annotated[str, typer.Option(metavar="A,B,…", help="Columns that may be null in later rows.")] = "",
    transform: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Called with each row; returns the row, or None to skip it."),
    ] = None,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Write files in random order, and shuffle their rows.")
    ] = False,
    link: Annotated[bool, typer.Option("--link", help="Store links to the source instead of copies.")] = False,
    follow_links: Annotated[
        bool, typer.Option("--follow-links", help="Follow symbolic links to folders and out of the source folder.")
    ] = False,
    bad_samples: BadSamplesAction = "skip",
    bad_sample_limit: BadSampleLimit = None,
    dry_run: DryRun = False,
    num_workers: NumWorkers = None,
    source_option: SourceOption = [],  # noqa: B006
) -> CommandResult:
    """Create a table, and ingest a folder, a bucket or a file into it; after an interruption, the same command resumes.

    Without a source the table is empty. Columns that are not given are inferred from the first rows.
    """
    if column and schema is not None:
        raise InvalidInputError("give the columns with --column or with --schema, and not with both")
    fields = read_columns(schema) if schema is not None else parse_columns(column)
    if source is None:
        dataset = penstock.create(uri, fields, storage_options=context.storage_options, message=message)
        return describe(dataset, "Created ")
    source_uri, source_options = parse_source(source), context.parse_source_options(source_option)
    import_transform(transform)
    _check_destination(uri, source_uri, context, source_options)
    renderer = ProgressRenderer(context)
    result = penstock.ingest(
        source_uri,
        uri,
        kind=kind,
        columns=None if columns is None else _split_names(columns),
        schema=fields,
        codecs=parse_codecs(codec),
        decode=decode,
        image_size=parse_image_size(image_size),
        nullable=_split_names(nullable),
        transform=transform,
        shuffle=shuffle,
        link=link,
        follow_links=follow_links,
        bad_samples=parse_bad_samples(bad_samples, bad_sample_limit),
        dry_run=dry_run,
        message=message,
        storage_options=context.storage_options,
        source_storage_options=source_options,
        num_workers=num_workers,
        on_plan=renderer.show_plan,
        progress=renderer,
    )
    notes = [f"{note}." for note in result.notes if note not in renderer.shown_notes]
    return CommandResult(ingest_document(result), [*notes, *render_result(result, renderer.seconds, dry_run=dry_run)])


def _check_destination(
    uri: str, source: str, context: CommandContext, source_options: Mapping[str, str] | None
) -> None:
    """Raise `AlreadyExistsError` for a table with other rows; one that an interrupted `create` left is resumed."""
    if not penstock.exists(uri, storage_options=context.storage_options):
        return
    dataset = penstock.load(uri, storage_options=context.storage_options)
    options = context.storage_options if source_options is None else source_options
    if len(dataset) and open_source(source, options).uri not in dataset.summary().sources:
        raise AlreadyExistsError(
            f"{uri} is a table already, and {source} is not its source; choose another URI,"
            " or ingest the source into it with penstock.ingest"
        )


def _split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


create.__doc__ = f"{create.__doc__}\n\n{KINDS}\n\n{TYPE_GRAMMAR}"
