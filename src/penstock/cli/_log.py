"""`penstock log`."""

from itertools import islice
from typing import Annotated

import typer

from penstock.cli._command import CommandContext, CommandResult, Uri
from penstock.cli._render import local_time, render_table
from penstock.cli._versions import AsOf, Branch, Tag, Version, VersionNamer, load_version

_HEADERS = ("version", "time", "author", "operation", "rows", "changes", "message")
_SIGNS = {"added": "+", "updated": "~", "deleted": "-"}


def log(
    context: CommandContext,
    uri: Uri,
    n: Annotated[int, typer.Option("-n", min=1, metavar="COMMITS", help="Maximum number of commits.")] = 20,
    version: Version = None,
    tag: Tag = None,
    branch: Branch = None,
    as_of: AsOf = None,
) -> CommandResult:
    """Show the commits that led to a version, newest first, including those before a branch began."""
    dataset = load_version(context, uri, version=version, tag=tag, branch=branch, as_of=as_of)
    namer = VersionNamer(dataset)
    commits = list(islice(dataset.log(), n))
    rows = [
        (
            namer(commit),
            local_time(commit.time),
            commit.author,
            namer.operation(commit),
            f"{commit.rows:,}",
            " ".join(f"{_SIGNS.get(what, what + ' ')}{count:,}" for what, count in commit.changes.items() if count),
            commit.message,
        )
        for commit in commits
    ]
    document = {"uri": dataset.uri, "commits": [namer.document(commit) for commit in commits]}
    return CommandResult(document, [render_table(_HEADERS, rows, fold="message", right="rows")])
