"""`penstock log`."""

from itertools import islice
from typing import Annotated

import typer

import penstock
from penstock.cli._show import local_time, table
from penstock.cli._verb import Answer, Run, Uri, printable

_HEADS = ("version", "time", "author", "operation", "rows", "changes", "message")
_SIGNS = {"added": "+", "updated": "~", "deleted": "-"}


def log(
    run: Run,
    uri: Uri,
    n: Annotated[int, typer.Option("-n", min=1, metavar="COMMITS", help="How many at most.")] = 20,
) -> Answer:
    """Show the commits of a table, newest first."""
    dataset = penstock.load(uri, options=run.options)
    commits = list(islice(dataset.log(), n))
    document = {
        "uri": dataset.uri,
        "commits": [
            {
                "version": f"main@{commit.version}",
                "time": commit.time.isoformat(),
                "author": commit.author,
                "operation": commit.operation,
                "rows": commit.rows,
                "changes": dict(commit.changes),
                "message": commit.message,
            }
            for commit in commits
        ],
    }
    rows = [
        (
            f"main@{commit.version}",
            local_time(commit.time),
            commit.author,
            commit.operation,
            f"{commit.rows:,}",
            " ".join(f"{_SIGNS.get(what, what + ' ')}{count:,}" for what, count in commit.changes.items()),
            printable(commit.message),
        )
        for commit in commits
    ]
    return Answer(document, [table(_HEADS, rows, fold="message", right="rows")])
