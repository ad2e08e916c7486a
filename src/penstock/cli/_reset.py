"""`penstock reset`."""

from typing import Annotated

import typer

import penstock
from penstock.cli._show import count
from penstock.cli._verb import Answer, Run, Uri
from penstock.cli._versions import Branch, Called, Message, newest


def reset(
    run: Run,
    uri: Uri,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="7, main@7, a tag or a branch.")],
    branch: Branch = None,
    message: Message = "",
) -> Answer:
    """Make a branch what it was at a version, as a new commit; nothing is lost, and reset can be undone by reset."""
    dataset = penstock.load(uri, branch=branch, options=run.options)
    dataset.reset(version, message)
    called, commit = Called(dataset), newest(dataset)
    document = {"uri": dataset.uri, "to": version, **called.document(commit)}
    return Answer(document, [f"{called(commit)} is what {version} was: {count(commit.rows, 'row')}."])
