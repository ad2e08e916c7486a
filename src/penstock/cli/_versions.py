"""Versions: the options that select one, and the names that output gives them."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

import penstock
from penstock.cli._command import CommandContext
from penstock.cli._render import local_time
from penstock.errors import InvalidInputError
from penstock.format import Commit, CommitRef
from penstock.history import branch_name, format_version

Version = Annotated[
    str | None, typer.Option("--version", metavar="VERSION", help="An older version: 7, main@7, a tag or a branch.")
]
Branch = Annotated[str | None, typer.Option("--branch", metavar="NAME", help="A branch other than main.")]
Tag = Annotated[str | None, typer.Option("--tag", metavar="NAME", help="The version that a tag names.")]
AsOf = Annotated[
    str | None,
    typer.Option("--as-of", metavar="TIME", help="The newest version at a time: 2026-01-31 or 2026-01-31T12:00+00:00."),
]
Message = Annotated[str, typer.Option("--message", "-m", help="The message of the commit.")]


def load_version(
    context: CommandContext,
    uri: str,
    *,
    version: str | None = None,
    tag: str | None = None,
    branch: str | None = None,
    as_of: str | None = None,
    links: bool = False,
) -> penstock.Dataset:
    """Load the version that the options select; raises `InvalidInputError` for options that exclude each other."""
    if sum(given is not None for given in (version, tag, as_of)) > 1:
        raise InvalidInputError("give only one of --version, --tag and --as-of")
    if tag is not None and branch is not None:
        raise InvalidInputError("a tag names a version of any branch; leave out --branch")
    return penstock.load(
        uri,
        version=version,
        tag=tag,
        branch=branch,
        as_of=as_of,
        storage_options=context.storage_options,
        links=links,
    )


class VersionNamer:
    """Names versions by the current names of their branches; a deleted branch by the start of its id."""

    def __init__(self, dataset: penstock.Dataset) -> None:
        self._branches = dataset.branches.ids

    def __call__(self, at: Commit | CommitRef) -> str:
        return format_version(branch_name(self._branches, at.branch), at.version)

    def operation(self, commit: Commit) -> str:
        """The operation of a commit, with the version that it merged or branched from."""
        if commit.merged is not None:
            return f"merge {self(commit.merged)}"
        if commit.operation == "branch" and commit.parent is not None:
            return f"branch off {self(commit.parent)}"
        return commit.operation.replace("+", " + ").replace("_", " ")

    def document(self, commit: Commit) -> dict[str, Any]:
        """A commit as a JSON document."""
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

    def fields(self, commit: Commit) -> list[tuple[str, str]]:
        """A commit as pairs of keys and values, without empty ones."""
        pairs = [
            ("version", self(commit)),
            ("time", local_time(commit.time)),
            ("author", commit.author),
            ("operation", self.operation(commit)),
            ("message", commit.message),
            ("rows", f"{commit.rows:,}"),
        ]
        return [(key, value) for key, value in pairs if value]


def newest_commit(dataset: penstock.Dataset) -> Commit:
    """The commit of a dataset's version."""
    return next(dataset.log())


def version_ranges(versions: Iterable[CommitRef], namer: Callable[[CommitRef], str]) -> list[str]:
    """Consecutive versions as ranges: `main@0 to 41`; pure."""
    ranges: list[str] = []
    first = last = None
    for at in [*sorted(versions, key=lambda at: (at.branch, at.version)), None]:
        if first is not None and last is not None and at != CommitRef(last.branch, last.version + 1):
            ranges.append(namer(first) if first == last else f"{namer(first)} to {last.version}")
            first = None
        first, last = first or at, at
    return sorted(ranges)
