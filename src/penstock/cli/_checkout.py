"""`penstock checkout`."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

import penstock
from penstock.cli._export import check_target, export, part_of
from penstock.cli._show import amount, facts
from penstock.cli._verb import Answer, Run, Uri, printable
from penstock.cli._versions import AsOf, Branch, Called, commit_facts, load_at, newest
from penstock.errors import InvalidInputError


def checkout(
    run: Run,
    uri: Uri,
    version: Annotated[
        str | None, typer.Argument(metavar="VERSION", help="7, main@7, a tag or a branch; or else --as-of.")
    ] = None,
    as_of: AsOf = None,
    branch: Branch = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write its rows as one file: FILE.arrow or FILE.parquet.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    links: Annotated[bool, typer.Option("--links", help="Follow links, and write what they lead to.")] = False,
) -> Answer:
    """Show which version a number, a name or a time stands for, and write its rows out as a file.

    The command line has no working copy: nothing is checked out that a later command would see. Give the others
    --version, --tag, --branch or --as-of, and change a table back with `penstock reset`.
    """
    if (version is None) == (as_of is None):
        raise InvalidInputError("name a version, or a time with --as-of, and one of them only")
    if to is not None:
        check_target(to, force=force)
    dataset = load_at(run, uri, version=version, branch=branch, as_of=as_of, links=links)
    called, commit = Called(dataset), newest(dataset)
    document: dict[str, Any] = {
        "uri": dataset.uri,
        **called.document(commit),
        "columns": dataset.columns,
        "file": None,
    }
    said = [*commit_facts(commit, called), ("columns", ", ".join(dataset.columns) or "none yet")]
    if to is not None:
        _write(run, dataset, to)
        size = to.stat().st_size
        document["file"] = {"path": str(to), "rows": len(dataset), "bytes": size}
        said.append(("written", f"{to}, {amount(size)}"))
    return Answer(document, [Text(printable(dataset.uri), "bold"), facts(said)])


def _write(run: Run, dataset: penstock.Dataset, to: Path) -> None:
    start, part = time.monotonic(), part_of(to)

    def progress(rows: int) -> None:
        run.doing = lambda: f"{rows:,} of {len(dataset):,} rows, {rows / (time.monotonic() - start):,.0f} rows/s"

    run.abandon = lambda: part.unlink(missing_ok=True)
    progress(0)
    with dataset.lease():
        export(dataset, to, part, progress)
