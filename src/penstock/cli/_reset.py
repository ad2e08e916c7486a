"""`penstock reset`."""

from typing import Annotated

import typer

import penstock
from penstock.cli._command import CommandContext, CommandResult, Uri
from penstock.cli._render import pluralize
from penstock.cli._versions import Branch, Message, VersionNamer, newest_commit


def reset(
    context: CommandContext,
    uri: Uri,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="7, main@7, a tag or a branch.")],
    branch: Branch = None,
    message: Message = "",
) -> CommandResult:
    """Restore a branch to an older version, as a new commit; no version is lost, and another reset reverts it."""
    dataset = penstock.load(uri, branch=branch, storage_options=context.storage_options)
    dataset.reset(version, message)
    namer, commit = VersionNamer(dataset), newest_commit(dataset)
    document = {"uri": dataset.uri, "to": version, **namer.document(commit)}
    return CommandResult(document, [f"{namer(commit)} restores {version}: {pluralize(commit.rows, 'row')}."])
