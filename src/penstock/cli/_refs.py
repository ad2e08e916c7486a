"""`penstock branch` and `penstock tag`: the names of versions."""

from collections.abc import Callable
from typing import Annotated

import typer

import penstock
from penstock.cli._show import count, local_time, table
from penstock.cli._verb import Answer, Run, Uri
from penstock.cli._versions import Called, newest
from penstock.dataset import Names
from penstock.errors import InvalidInputError
from penstock.format import Commit
from penstock.storage import open_store, run_all

_READERS = 8
_HEADS = ("name", "version", "rows", "time", "message")

At = Annotated[
    str | None, typer.Option("--at", metavar="VERSION", help="7, main@7, a tag or a branch; else main's newest.")
]
Rename = Annotated[tuple[str, str] | None, typer.Option(metavar="OLD NEW", help="Give it another name.")]


def branch(
    run: Run,
    uri: Uri,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Begin a branch of this name.")] = None,
    at: At = None,
    delete: Annotated[
        str | None, typer.Option(metavar="NAME", help="Give the branch up; vacuum removes its rows later.")
    ] = None,
    rename: Rename = None,
) -> Answer:
    """List the branches of a table, or begin, rename or delete one."""
    if _asked(name, at, delete, rename):
        return _listed(run, uri, "branches", lambda place, name: penstock.load(place, branch=name))
    dataset = penstock.load(uri, options=run.options)
    if name is None:
        return _changed(dataset, dataset.branches, "branch", delete, rename)
    made = dataset.branch(name, at)
    called, commit = Called(made), newest(made)
    start = called(commit.parent) if commit.parent is not None else ""
    document = {"uri": made.uri, "branch": name, "at": start, **called.document(commit)}
    return Answer(document, [f"Branch {name} begins at {start}: {count(commit.rows, 'row')}."])


def tag(
    run: Run,
    uri: Uri,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Give a version this name.")] = None,
    at: At = None,
    delete: Annotated[str | None, typer.Option(metavar="NAME", help="Take the name away from its version.")] = None,
    rename: Rename = None,
) -> Answer:
    """List the tags of a table, or make, rename or delete one; a version with a tag is kept from vacuum."""
    if _asked(name, at, delete, rename):
        return _listed(run, uri, "tags", lambda place, name: penstock.load(place, tag=name))
    dataset = penstock.load(uri, options=run.options)
    if name is None:
        return _changed(dataset, dataset.tags, "tag", delete, rename)
    dataset.tag(name, at)
    version = dataset.tags[name]
    return Answer({"uri": dataset.uri, "tag": name, "version": version}, [f"Tag {name} names {version}."])


def _asked(name: str | None, at: str | None, delete: str | None, rename: tuple[str, str] | None) -> bool:
    """Whether only a list is asked for; refuses what makes no sense together."""
    given = sum(word is not None for word in (name, delete, rename))
    if given > 1:
        raise InvalidInputError("make, rename or delete a name, one at a time")
    if at is not None and name is None:
        raise InvalidInputError("--at says where a new name begins; say the name too")
    return given == 0


def _listed(run: Run, uri: str, family: str, load: Callable[..., penstock.Dataset]) -> Answer:
    store = open_store(uri, options=run.options)
    dataset = penstock.load(store)
    names = list(dataset.branches if family == "branches" else dataset.tags)
    called = Called(dataset)
    commits: list[Commit] = run_all(lambda name: newest(load(store, name)), names, max_workers=_READERS)
    pairs = list(zip(names, commits, strict=True))
    document = {"uri": dataset.uri, family: [{"name": name, **called.document(commit)} for name, commit in pairs]}
    rows = [
        (name, called(commit), f"{commit.rows:,}", local_time(commit.time), commit.message) for name, commit in pairs
    ]
    return Answer(document, [table(_HEADS, rows, fold="message", right="rows") if rows else f"no {family} yet"])


def _changed(
    dataset: penstock.Dataset, names: Names, noun: str, delete: str | None, rename: tuple[str, str] | None
) -> Answer:
    if rename is not None:
        names.rename(*rename)
        document = {"uri": dataset.uri, "renamed": {"old": rename[0], "new": rename[1]}}
        return Answer(document, [f"The {noun} {rename[0]} is now called {rename[1]}."])
    assert delete is not None
    version = names[delete]
    names.delete(delete)
    document = {"uri": dataset.uri, "deleted": delete, "version": version}
    return Answer(document, [f"The {noun} {delete} is deleted; it was {version}."])
