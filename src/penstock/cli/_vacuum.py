"""`penstock vacuum`."""

import re
from datetime import timedelta
from typing import Annotated

import typer

import penstock
from penstock.cli._command import CommandContext, CommandResult, Uri
from penstock.cli._render import format_bytes, pluralize
from penstock.cli._versions import VersionNamer, version_ranges
from penstock.errors import InvalidInputError

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DURATION = re.compile(r"(?:\d+[smhdw])+")


def vacuum(
    context: CommandContext,
    uri: Uri,
    older_than: Annotated[
        str,
        typer.Option(metavar="DURATION", help="Retain versions that were the newest within this time: 30d, 12h, 0s."),
    ] = "30d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")] = False,
) -> CommandResult:
    """Remove objects that no retained version needs.

    Retained are the newest version of every branch, versions that were the newest within DURATION, and versions with a
    tag or a lease. The log retains every commit.
    """
    duration = parse_duration(older_than)
    dataset = penstock.load(uri, storage_options=context.storage_options)
    namer = VersionNamer(dataset)

    def progress(message: str) -> None:
        context.status = lambda: message

    result = penstock.vacuum(
        uri, older_than=duration, dry_run=dry_run, storage_options=context.storage_options, progress=progress
    )
    document = {
        "uri": dataset.uri,
        "older_than_s": duration.total_seconds(),
        "dry_run": dry_run,
        "objects": result.objects,
        "bytes": result.bytes,
        "versions": [namer(at) for at in result.versions],
    }
    removed = f"{pluralize(result.objects, 'object')}, {format_bytes(result.bytes)}"
    lines = [f"Would remove {removed}." if dry_run else f"Removed {removed}."]
    if result.versions:
        verb = "would become unreadable" if dry_run else "became unreadable"
        ranges = ", ".join(version_ranges(result.versions, namer))
        lines.append(f"{pluralize(len(result.versions), 'version')} {verb}: {ranges}")
    return CommandResult(document, lines)


def parse_duration(text: str) -> timedelta:
    """Parse `30d`, `12h` or `1d12h`; raises `InvalidInputError` for a number without a unit."""
    if not _DURATION.fullmatch(text):
        raise InvalidInputError(f"{text!r} is not a duration; write 30d, 12h, 45m or 0s")
    parts = re.findall(r"(\d+)([smhdw])", text)
    try:
        return sum((timedelta(**{_UNITS[unit]: int(number)}) for number, unit in parts), timedelta())
    except OverflowError:
        raise InvalidInputError(f"{text!r} is too long a duration") from None
