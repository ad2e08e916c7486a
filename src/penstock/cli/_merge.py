"""`penstock merge`."""

from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import RenderableType

import penstock
from penstock.cli._command import CommandContext, CommandResult, Uri
from penstock.cli._diff import format_column_changes, format_row_changes
from penstock.cli._preview import Preview, preview
from penstock.cli._render import pluralize, render_table
from penstock.cli._versions import Message, VersionNamer, newest_commit
from penstock.errors import MergeConflictError


class OnConflict(StrEnum):
    """How conflicts are resolved."""

    stop = "raise"
    ours = "ours"
    theirs = "theirs"


def merge(
    context: CommandContext,
    uri: Uri,
    other: Annotated[str, typer.Argument(metavar="FROM", help="A branch, a tag, or a version such as x@7.")],
    into: Annotated[str, typer.Option(metavar="BRANCH", help="The branch to merge into.")] = "main",
    on_conflict: Annotated[
        OnConflict, typer.Option(help="If both changed a value: stop, keep ours, or take theirs.")
    ] = OnConflict.stop,
    message: Message = "",
    n: Annotated[int, typer.Option("-n", min=1, metavar="CONFLICTS", help="Maximum of conflicts to show.")] = 20,
) -> CommandResult:
    """Merge the changes of another branch since the common ancestor; a conflict changes nothing.

    Rows are matched by row id, and rows and columns of both branches are kept; --on-conflict resolves values that both
    changed.
    """
    dataset = penstock.load(uri, branch=into, storage_options=context.storage_options)
    start = dataset.version
    context.status = lambda: f"merging {other} into {start}"
    try:
        dataset.merge(other, on_conflict=on_conflict.value, message=message)
    except MergeConflictError as error:
        return _conflicts(dataset, error, other, n)
    namer, commit = VersionNamer(dataset), newest_commit(dataset)
    document: dict[str, Any] = {"uri": dataset.uri, **namer.document(commit), "merged": None, "came_in": None}
    if dataset.version == start:
        return CommandResult(document, [f"{start} already includes {other}."])
    assert commit.merged is not None
    assert commit.parent is not None
    document["merged"] = namer(commit.merged)
    changes = dataset.diff(namer(commit.parent))
    document["came_in"] = changes.to_json()
    lines = [f"{namer(commit)} merges {namer(commit.merged)}: rows {format_row_changes(changes)}."]
    if columns := format_column_changes(changes):
        lines.append(f"Columns: {columns}.")
    return CommandResult(document, lines)


def _conflicts(dataset: penstock.Dataset, error: MergeConflictError, other: str, n: int) -> CommandResult:
    conflicts: list[penstock.Conflict] = [one for one in error.conflicts if isinstance(one, penstock.Conflict)]
    shown = [(one, *_preview_sides(dataset, one)) for one in conflicts[:n]]
    document = {
        "error": {"type": type(error).__name__, "message": str(error)},
        "uri": dataset.uri,
        "version": dataset.version,
        "from": other,
        "count": len(conflicts),
        "conflicts": [
            {
                "what": one.type,
                "row_id": one.row_id,
                "column": one.column,
                "ours": ours.document,
                "theirs": theirs.document,
            }
            for one, ours, theirs in shown
        ],
    }
    rows = [
        ("" if one.row_id is None else str(one.row_id), one.column or "", ours.line, theirs.line)
        for one, ours, theirs in shown
    ]
    lines: list[RenderableType] = [
        f"{pluralize(len(conflicts), 'conflict')} between {dataset.version} and {other}; nothing was changed.",
        render_table(("row id", "column", "ours", "theirs"), rows, right="row id", truncate=("ours", "theirs")),
    ]
    if len(conflicts) > n:
        lines.append(f"and {len(conflicts) - n:,} more")
    lines.append("Resolve them with --on-conflict ours or theirs, or change one of the branches first.")
    return CommandResult(document, lines, ok=False)


def _preview_sides(dataset: penstock.Dataset, one: penstock.Conflict) -> tuple[Preview, Preview]:
    if one.type != "value" or one.column is None:
        return Preview(one.ours, str(one.ours)), Preview(one.theirs, str(one.theirs))
    kind = dataset.schema[one.column].kind
    return preview(kind, one.ours), preview(kind, one.theirs)
