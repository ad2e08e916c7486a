"""`penstock vacuum`."""

import re
from datetime import timedelta
from typing import Annotated

import typer

import penstock
from penstock.cli._show import amount, count
from penstock.cli._verb import Answer, Run, Uri
from penstock.cli._versions import Called, runs
from penstock.errors import InvalidInputError

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DURATION = re.compile(r"(?:\d+[smhdw])+")


def vacuum(
    run: Run,
    uri: Uri,
    older_than: Annotated[
        str,
        typer.Option(metavar="DURATION", help="Keep versions that were the newest less than this ago: 30d, 12h, 0s."),
    ] = "30d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> Answer:
    """Remove what no version needs that is kept.

    Kept are the newest version of every branch, versions that were the newest less than DURATION ago, and those that
    have a tag or are in use. The log keeps every commit.
    """
    duration = parse_duration(older_than)
    dataset = penstock.load(uri, options=run.options)
    called = Called(dataset)

    def progress(sentence: str) -> None:
        run.doing = lambda: sentence

    found = dataset.vacuum(duration, dry_run=dry_run, progress=progress)
    document = {
        "uri": dataset.uri,
        "older_than_s": duration.total_seconds(),
        "dry_run": dry_run,
        "objects": found.objects,
        "bytes": found.bytes,
        "versions": [called(at) for at in found.versions],
    }
    what = f"{count(found.objects, 'object')}, {amount(found.bytes)}"
    lines = [f"Would remove {what}." if dry_run else f"Removed {what}."]
    if found.versions:
        said = "would no longer be readable" if dry_run else "no longer readable"
        lines.append(f"{count(len(found.versions), 'version')} {said}: {', '.join(runs(found.versions, called))}")
    return Answer(document, lines)


def parse_duration(text: str) -> timedelta:
    """Understand `30d`, `12h` or `1d12h`; a number alone is refused, because nobody can know what it counts."""
    if not _DURATION.fullmatch(text):
        raise InvalidInputError(f"{text!r} is not a duration; write 30d, 12h, 45m or 0s")
    parts = re.findall(r"(\d+)([smhdw])", text)
    try:
        return sum((timedelta(**{_UNITS[unit]: int(number)}) for number, unit in parts), timedelta())
    except OverflowError:
        raise InvalidInputError(f"{text!r} is too long a duration") from None
