"""`penstock branch` and `penstock tag`: names of versions."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

import penstock
from penstock.cli._command import CommandContext, CommandResult, Uri
from penstock.cli._render import local_time, pluralize, render_table
from penstock.cli._versions import VersionNamer, newest_commit
from penstock.dataset import RefMapping, open_location
from penstock.errors import InvalidInputError
from penstock.format import Commit
from penstock.storage import thread_map

_MAX_CONCURRENCY = 8
_HEADERS = ("name", "version", "rows", "time", "message")

At = Annotated[
    str | None, typer.Option("--at", metavar="VERSION", help="7, main@7, a tag or a branch; by default main's newest.")
]
Rename = Annotated[tuple[str, str] | None, typer.Option(metavar="OLD NEW", help="Rename it.")]


def branch(
    context: CommandContext,
    uri: Uri,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Create a branch of this name.")] = None,
    at: At = None,
    delete: Annotated[
        str | None, typer.Option(metavar="NAME", help="Delete the branch; vacuum removes its rows later.")
    ] = None,
    rename: Rename = None,
) -> CommandResult:
    """List the branches of a table, or create, rename or delete one."""
    if _lists(name, at, delete, rename):
        return _list(context, uri, "branches", lambda store, name: penstock.load(store, branch=name))
    dataset = penstock.load(uri, storage_options=context.storage_options)
    if name is None:
        return _change(dataset, dataset.branches, "branch", delete, rename)
    created = dataset.branches.create(name, at)
    namer, commit = VersionNamer(created), newest_commit(created)
    start = namer(commit.parent) if commit.parent is not None else ""
    document = {"uri": created.uri, "branch": name, "at": start, **namer.document(commit)}
    return CommandResult(document, [f"Created branch {name} at {start}: {pluralize(commit.rows, 'row')}."])


def tag(
    context: CommandContext,
    uri: Uri,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Create a tag of this name.")] = None,
    at: At = None,
    delete: Annotated[str | None, typer.Option(metavar="NAME", help="Delete the tag.")] = None,
    rename: Rename = None,
) -> CommandResult:
    """List the tags of a table, or create, rename or delete one; vacuum does not remove a tagged version."""
    if _lists(name, at, delete, rename):
        return _list(context, uri, "tags", lambda store, name: penstock.load(store, tag=name))
    dataset = penstock.load(uri, storage_options=context.storage_options)
    if name is None:
        return _change(dataset, dataset.tags, "tag", delete, rename)
    dataset.tags.create(name, at)
    version = dataset.tags[name]
    return CommandResult({"uri": dataset.uri, "tag": name, "version": version}, [f"Created tag {name} at {version}."])


def _lists(name: str | None, at: str | None, delete: str | None, rename: tuple[str, str] | None) -> bool:
    """Whether to list names; raises `InvalidInputError` for options that exclude each other."""
    given = sum(word is not None for word in (name, delete, rename))
    if given > 1:
        raise InvalidInputError("create, rename or delete one name at a time")
    if at is not None and name is None:
        raise InvalidInputError("--at needs the name to create")
    return given == 0


def _list(context: CommandContext, uri: str, family: str, load: Callable[..., penstock.Dataset]) -> CommandResult:
    store = open_location(uri, context.storage_options)
    dataset = penstock.load(store)
    names = list(dataset.branches if family == "branches" else dataset.tags)
    namer = VersionNamer(dataset)
    commits: list[Commit] = thread_map(
        lambda name: newest_commit(load(store, name)), names, max_workers=_MAX_CONCURRENCY
    )
    pairs = list(zip(names, commits, strict=True))
    document = {"uri": dataset.uri, family: [{"name": name, **namer.document(commit)} for name, commit in pairs]}
    rows = [
        (name, namer(commit), f"{commit.rows:,}", local_time(commit.time), commit.message) for name, commit in pairs
    ]
    table = render_table(_HEADERS, rows, fold="message", right="rows") if rows else f"no {family} yet"
    return CommandResult(document, [table])


def _change(
    dataset: penstock.Dataset, names: RefMapping[Any], noun: str, delete: str | None, rename: tuple[str, str] | None
) -> CommandResult:
    if rename is not None:
        names.rename(*rename)
        document = {"uri": dataset.uri, "renamed": {"old": rename[0], "new": rename[1]}}
        return CommandResult(document, [f"Renamed {noun} {rename[0]} to {rename[1]}."])
    assert delete is not None
    version = names[delete]
    names.delete(delete)
    document = {"uri": dataset.uri, "deleted": delete, "version": version}
    return CommandResult(document, [f"Deleted {noun} {delete}, which was at {version}."])
