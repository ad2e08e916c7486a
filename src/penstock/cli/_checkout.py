"""`penstock checkout`."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

import penstock
from penstock.cli._command import CommandContext, CommandResult, Uri, printable
from penstock.cli._export import check_target, export, temporary_path
from penstock.cli._render import format_bytes, key_value_table
from penstock.cli._versions import AsOf, Branch, VersionNamer, load_version, newest_commit
from penstock.errors import InvalidInputError


def checkout(
    context: CommandContext,
    uri: Uri,
    version: Annotated[
        str | None, typer.Argument(metavar="VERSION", help="7, main@7, a tag or a branch; or use --as-of.")
    ] = None,
    as_of: AsOf = None,
    branch: Branch = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Export the rows as one file: FILE.arrow or FILE.parquet.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    links: Annotated[bool, typer.Option("--links", help="Follow links, and export the linked values.")] = False,
) -> CommandResult:
    """Show the version that a number, a name or a time resolves to, and export its rows as a file.

    The command line has no working copy: later commands do not see a checkout. Pass --version, --tag, --branch or
    --as-of to them, and restore an old version with `penstock reset`.
    """
    if (version is None) == (as_of is None):
        raise InvalidInputError("give either a version or --as-of")
    if to is not None:
        check_target(to, force=force)
    dataset = load_version(context, uri, version=version, branch=branch, as_of=as_of, links=links)
    namer, commit = VersionNamer(dataset), newest_commit(dataset)
    document: dict[str, Any] = {
        "uri": dataset.uri,
        **namer.document(commit),
        "columns": dataset.schema.names,
        "file": None,
    }
    pairs = [*namer.fields(commit), ("columns", ", ".join(dataset.schema.names) or "none yet")]
    if to is not None:
        _export(context, dataset, to)
        size = to.stat().st_size
        document["file"] = {"path": str(to), "rows": len(dataset), "bytes": size}
        pairs.append(("exported", f"{to}, {format_bytes(size)}"))
    return CommandResult(document, [Text(printable(dataset.uri), "bold"), key_value_table(pairs)])


def _export(context: CommandContext, dataset: penstock.Dataset, to: Path) -> None:
    start, temporary = time.monotonic(), temporary_path(to)

    def progress(rows: int) -> None:
        context.status = lambda: f"{rows:,} of {len(dataset):,} rows, {rows / (time.monotonic() - start):,.0f} rows/s"

    context.on_interrupt = lambda: temporary.unlink(missing_ok=True)
    progress(0)
    with dataset.lease():
        export(dataset, to, temporary, progress)
