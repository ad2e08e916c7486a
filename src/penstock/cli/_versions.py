"""Versions: how commands ask for them, and how answers name them."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

import penstock
from penstock.cli._show import local_time
from penstock.cli._verb import Run
from penstock.errors import InvalidInputError
from penstock.format import Commit, Parent

Version = Annotated[
    str | None, typer.Option("--version", metavar="VERSION", help="An older one: 7, main@7, a tag or a branch.")
]
Branch = Annotated[str | None, typer.Option("--branch", metavar="NAME", help="A branch other than main.")]
Tag = Annotated[str | None, typer.Option("--tag", metavar="NAME", help="The version that a tag names.")]
AsOf = Annotated[
    str | None,
    typer.Option("--as-of", metavar="TIME", help="What was newest then: 2026-01-31 or 2026-01-31T12:00+00:00."),
]
Message = Annotated[str, typer.Option("--message", "-m", help="What the log says about it.")]


def load_at(
    run: Run,
    uri: str,
    *,
    version: str | None = None,
    tag: str | None = None,
    branch: str | None = None,
    as_of: str | None = None,
    links: bool = False,
) -> penstock.Dataset:
    """The version that the options ask for."""
    if sum(given is not None for given in (version, tag, as_of)) > 1:
        raise InvalidInputError("ask for a version, a tag or a time, and for one of them only")
    if tag is not None and branch is not None:
        raise InvalidInputError("a tag names a version of whichever branch; leave --branch out")
    return penstock.load(uri, version=version, tag=tag, branch=branch, as_of=as_of, options=run.options, links=links)


class Called:
    """What versions are called, by the names that the branches have now; by its id where a branch has none."""

    def __init__(self, dataset: penstock.Dataset) -> None:
        self._names = {id: name for name, id in dataset._session.refs.branches().items()}

    def __call__(self, at: Commit | Parent) -> str:
        return f"{self._names.get(at.branch, at.branch[:8])}@{at.version}"

    def operation(self, commit: Commit) -> str:
        """What a commit did, with the version that it took in or came from."""
        if commit.merged is not None:
            return f"merge {self(commit.merged)}"
        if commit.operation == "branch" and commit.parent is not None:
            return f"branch off {self(commit.parent)}"
        return commit.operation.replace("+", " + ").replace("_", " ")

    def document(self, commit: Commit) -> dict[str, Any]:
        """A commit for programs."""
        return {
            "version": self(commit),
            "time": commit.time.isoformat(),
            "author": commit.author,
            "operation": commit.operation,
            "parent": None if commit.parent is None else self(commit.parent),
            "merged": None if commit.merged is None else self(commit.merged),
            "rows": commit.rows,
            "changes": dict(commit.changes),
            "message": commit.message,
        }


def newest(dataset: penstock.Dataset) -> Commit:
    """The commit that a dataset stands at."""
    return next(dataset.log())


def commit_facts(commit: Commit, called: Called) -> list[tuple[str, str]]:
    """A commit for people, fact by fact."""
    pairs = [
        ("version", called(commit)),
        ("time", local_time(commit.time)),
        ("author", commit.author),
        ("operation", called.operation(commit)),
        ("message", commit.message),
        ("rows", f"{commit.rows:,}"),
    ]
    return [(name, said) for name, said in pairs if said]


def runs(versions: Iterable[Parent], called: Callable[[Parent], str]) -> list[str]:
    """Versions as people count them: `main@0 to 41`; pure."""
    found: list[str] = []
    first = last = None
    for at in [*sorted(versions, key=lambda at: (at.branch, at.version)), None]:
        if first is not None and last is not None and at != Parent(last.branch, last.version + 1):
            found.append(called(first) if first == last else f"{called(first)} to {last.version}")
            first = None
        first, last = first or at, at
    return sorted(found)
