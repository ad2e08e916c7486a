"""`penstock verify`."""

import time
from typing import Annotated

import typer

import penstock
from penstock.cli._command import CommandContext, CommandResult, Uri, printable
from penstock.cli._render import format_bytes
from penstock.errors import NotFoundError
from penstock.table import VerifyReport


def verify(
    context: CommandContext,
    uri: Uri,
    links: Annotated[bool, typer.Option("--links", help="Read linked objects too.")] = False,
) -> CommandResult:
    """Read every object of every version, and list what is damaged or missing."""
    start = time.monotonic()

    def progress(report: VerifyReport) -> None:
        context.status = lambda: format_progress(report, time.monotonic() - start)

    report = penstock.verify(
        uri, storage_options=context.storage_options, links=True if links else None, progress=progress
    )
    if report.objects == 0:
        raise NotFoundError(f"{uri} is not a table: it has no objects to verify")
    document = {"uri": uri, "objects": report.objects, "bytes": report.bytes, "damaged": report.damaged}
    read = f"read {report.objects:,} objects, {format_bytes(report.bytes)}"
    if not report.damaged:
        return CommandResult(document, [f"No damage: {read}."])
    title = f"{len(report.damaged):,} damaged or missing: {read}."
    return CommandResult(document, [title, *(f"  {printable(message)}" for message in report.damaged)], ok=False)


def format_progress(report: VerifyReport, seconds: float) -> str:
    """The status of a running verification in one line."""
    damaged = f", {len(report.damaged):,} damaged" if report.damaged else ""
    rate = format_bytes(report.bytes / seconds)
    return f"{report.objects:,} objects, {format_bytes(report.bytes)}, {rate}/s{damaged}"
