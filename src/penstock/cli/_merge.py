"""`penstock merge`."""

from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import RenderableType

import penstock
from penstock.cli._diff import column_changes, row_changes
from penstock.cli._show import Preview, count, preview, table
from penstock.cli._verb import Answer, Run, Uri
from penstock.cli._versions import Called, Message, newest
from penstock.errors import MergeConflict
from penstock.history import MAIN


class OnConflict(StrEnum):
    """How conflicts are settled."""

    stop = "raise"
    ours = "ours"
    theirs = "theirs"


def merge(
    run: Run,
    uri: Uri,
    other: Annotated[str, typer.Argument(metavar="FROM", help="A branch, a tag, or a version such as x@7.")],
    into: Annotated[str, typer.Option(metavar="BRANCH", help="The branch that takes it in.")] = MAIN,
    on_conflict: Annotated[
        OnConflict, typer.Option(help="Where both changed a value: stop, keep what is there, or take what comes.")
    ] = OnConflict.stop,
    message: Message = "",
    n: Annotated[int, typer.Option("-n", min=1, metavar="CONFLICTS", help="How many to show at most.")] = 20,
) -> Answer:
    """Take in what another branch changed since it parted from this one; on a conflict nothing is changed.

    Rows and columns of both are kept, by row id; --on-conflict says what happens where both changed the same value.
    """
    dataset = penstock.load(uri, branch=into, options=run.options)
    start = dataset.version
    run.doing = lambda: f"merging {other} into {start}"
    try:
        dataset.merge(other, on_conflict=on_conflict.value, message=message)
    except MergeConflict as error:
        return _conflicts(dataset, error, other, n)
    called, commit = Called(dataset), newest(dataset)
    document: dict[str, Any] = {"uri": dataset.uri, **called.document(commit), "merged": None, "came_in": None}
    if dataset.version == start:
        return Answer(document, [f"{start} has all of {other} already."])
    assert commit.merged is not None
    assert commit.parent is not None
    document["merged"] = called(commit.merged)
    found = dataset.diff(called(commit.parent))
    document["came_in"] = found.to_json()
    lines = [f"{called(commit)} took in {called(commit.merged)}: rows {row_changes(found)}."]
    if columns := column_changes(found):
        lines.append(f"Columns: {columns}.")
    return Answer(document, lines)


def _conflicts(dataset: penstock.Dataset, error: MergeConflict, other: str, n: int) -> Answer:
    whole: list[penstock.Conflict] = [one for one in error.conflicts if isinstance(one, penstock.Conflict)]
    listed = [(one, *_sides(dataset, one)) for one in whole[:n]]
    document = {
        "error": {"type": type(error).__name__, "message": str(error)},
        "uri": dataset.uri,
        "version": dataset.version,
        "from": other,
        "count": len(whole),
        "conflicts": [
            {
                "what": one.what,
                "row_id": one.row_id,
                "column": one.column,
                "ours": ours.document,
                "theirs": theirs.document,
            }
            for one, ours, theirs in listed
        ],
    }
    rows = [
        ("" if one.row_id is None else str(one.row_id), one.column or "", ours.line, theirs.line)
        for one, ours, theirs in listed
    ]
    lines: list[RenderableType] = [
        f"{count(len(whole), 'conflict')} of {other} with {dataset.version}; nothing was changed.",
        table(("row id", "column", "ours", "theirs"), rows, right="row id", shrink=("ours", "theirs")),
    ]
    if len(whole) > n:
        lines.append(f"and {len(whole) - n:,} more")
    lines.append("Settle them with --on-conflict ours or theirs, or change one side first.")
    return Answer(document, lines, ok=False)


def _sides(dataset: penstock.Dataset, one: penstock.Conflict) -> tuple[Preview, Preview]:
    if one.what != "value" or one.column is None:
        return Preview(one.ours, str(one.ours)), Preview(one.theirs, str(one.theirs))
    kind = dataset.schema[one.column].kind
    return preview(kind, one.ours), preview(kind, one.theirs)
