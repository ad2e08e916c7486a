"""`penstock verify`."""

import time
from typing import Annotated

import typer

import penstock
from penstock.cli._show import amount
from penstock.cli._verb import Answer, Run, Uri, printable
from penstock.errors import NotFoundError
from penstock.table import Report


def verify(
    run: Run,
    uri: Uri,
    links: Annotated[bool, typer.Option("--links", help="Read linked objects too.")] = False,
) -> Answer:
    """Read everything back, every version of it, and name what is damaged."""
    start = time.monotonic()

    def progress(report: Report) -> None:
        run.doing = lambda: _progress(report, time.monotonic() - start)

    report = penstock.verify(uri, options=run.options, links=True if links else None, progress=progress)
    if report.objects == 0:
        raise NotFoundError(f"{uri} is not a table: there is nothing in it to verify")
    document = {"uri": uri, "objects": report.objects, "bytes": report.bytes, "damaged": report.damaged}
    read = f"read {report.objects:,} objects, {amount(report.bytes)}"
    if not report.damaged:
        return Answer(document, [f"All is well: {read}."])
    head = f"{len(report.damaged):,} damaged or missing: {read}."
    return Answer(document, [head, *(f"  {printable(sentence)}" for sentence in report.damaged)], ok=False)


def _progress(report: Report, seconds: float) -> str:
    found = f", {len(report.damaged):,} damaged" if report.damaged else ""
    return f"{report.objects:,} objects, {amount(report.bytes)}, {amount(report.bytes / seconds)}/s{found}"
