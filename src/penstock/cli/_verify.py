"""`penstock verify`."""

import time
from typing import Annotated

import typer

import penstock
from penstock.cli._command import CommandContext, CommandResult, Uri, printable
from penstock.cli._render import format_bytes, pluralize
from penstock.errors import NotFoundError
from penstock.table import VerifyReport

_MAX_SHOWN = 100


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
    document = {
        "uri": uri,
        "objects": report.objects,
        "bytes": report.bytes,
        "damaged": report.damaged,
        "quarantined": [
            {"branch": branch, "row_id": id, "reason": reason}
            for branch, rows in report.quarantined.items()
            for id, reason in rows.items()
        ],
    }
    read = f"read {report.objects:,} objects, {format_bytes(report.bytes)}"
    if not report.damaged:
        return CommandResult(document, [f"No damage: {read}.", *_list_quarantined(report)])
    title = f"{len(report.damaged):,} damaged or missing: {read}."
    damaged = [f"  {printable(message)}" for message in report.damaged]
    return CommandResult(document, [title, *damaged, *_list_quarantined(report)], ok=False)


def _list_quarantined(report: VerifyReport) -> list[str]:
    """The rows that loaders leave out, by branch."""
    lines = []
    for branch, rows in report.quarantined.items():
        lines.append(f"{pluralize(len(rows), 'row')} quarantined on {printable(branch)}:")
        lines += [f"  row {id}: {printable(reason)}" for id, reason in list(rows.items())[:_MAX_SHOWN]]
        if len(rows) > _MAX_SHOWN:
            lines.append(f"  and {len(rows) - _MAX_SHOWN:,} more; --json lists all")
    return lines


def format_progress(report: VerifyReport, seconds: float) -> str:
    """The status of a running verification in one line."""
    damaged = f", {len(report.damaged):,} damaged" if report.damaged else ""
    rate = format_bytes(report.bytes / seconds)
    return f"{report.objects:,} objects, {format_bytes(report.bytes)}, {rate}/s{damaged}"
