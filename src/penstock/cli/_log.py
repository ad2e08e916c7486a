"""`penstock log`."""

from itertools import islice
from typing import Annotated

import typer

from penstock.cli._show import local_time, table
from penstock.cli._verb import Answer, Run, Uri
from penstock.cli._versions import AsOf, Branch, Called, Tag, Version, load_at

_HEADS = ("version", "time", "author", "operation", "rows", "changes", "message")
_SIGNS = {"added": "+", "updated": "~", "deleted": "-"}


def log(
    run: Run,
    uri: Uri,
    n: Annotated[int, typer.Option("-n", min=1, metavar="COMMITS", help="How many at most.")] = 20,
    version: Version = None,
    tag: Tag = None,
    branch: Branch = None,
    as_of: AsOf = None,
) -> Answer:
    """Show the commits that led to a version, newest first; a branch's go on with those it came from."""
    dataset = load_at(run, uri, version=version, tag=tag, branch=branch, as_of=as_of)
    called = Called(dataset)
    commits = list(islice(dataset.log(), n))
    rows = [
        (
            called(commit),
            local_time(commit.time),
            commit.author,
            called.operation(commit),
            f"{commit.rows:,}",
            " ".join(f"{_SIGNS.get(what, what + ' ')}{count:,}" for what, count in commit.changes.items() if count),
            commit.message,
        )
        for commit in commits
    ]
    document = {"uri": dataset.uri, "commits": [called.document(commit) for commit in commits]}
    return Answer(document, [table(_HEADS, rows, fold="message", right="rows")])
