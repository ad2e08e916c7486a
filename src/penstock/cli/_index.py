"""`penstock index create`, `list` and `drop`."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

import penstock
from penstock.cli._command import CommandContext, CommandResult, Uri, command
from penstock.cli._render import format_bytes, pluralize, render_table
from penstock.cli._versions import AsOf, Branch, Message, Tag, Version, VersionNamer, load_version, newest_commit
from penstock.query import IndexInfo

_HEADERS = ("name", "column", "kind", "options", "rows", "uncovered", "size")
_BAR_CELLS = 24


def create_index(
    context: CommandContext,
    uri: Uri,
    column: Annotated[str, typer.Argument(metavar="COLUMN", help="The column to index.")],
    kind: Annotated[str, typer.Option(help="vector, text or scalar.")],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="By default COLUMN_KIND.")] = None,
    metric: Annotated[str | None, typer.Option(help="Of vectors: cosine (the default), l2 or dot.")] = None,
    lists: Annotated[int | None, typer.Option(help="Of vectors: the number of lists.")] = None,
    stem: Annotated[
        str | None, typer.Option(metavar="LANGUAGE", help="Of text: find word stems, of english, …")
    ] = None,
    branch: Branch = None,
    message: Message = "",
) -> CommandResult:
    """Build an index of a column, as a new commit; run it again to add the rows that an index lacks.

    It can be interrupted: the same command continues.
    """
    options = {key: value for key, value in (("metric", metric), ("lists", lists), ("stem", stem)) if value is not None}
    dataset = penstock.load(uri, branch=branch, storage_options=context.storage_options)

    def progress(done: int, rows: int) -> None:
        context.status = lambda: progress_line(done, rows)
        context.emit_event({"event": "progress", "done": done, "rows": rows})

    context.status = lambda: f"reading column {column}"
    before = dataset.version
    dataset.create_index(column, kind, name=name, message=message, progress=progress, **options)
    [info] = [each for each in dataset.indexes() if each.name == (name or f"{column}_{kind}")]
    changed = dataset.version != before
    document = {"uri": dataset.uri, "version": dataset.version, "changed": changed, "index": _document(info)}
    what = f"{info.name} covers {pluralize(info.rows, 'row')}, {format_bytes(info.bytes)}"
    return CommandResult(document, [f"{dataset.version}: {what}." if changed else f"{what}; there is nothing to add."])


def list_indexes(
    context: CommandContext,
    uri: Uri,
    version: Version = None,
    tag: Tag = None,
    branch: Branch = None,
    as_of: AsOf = None,
) -> CommandResult:
    """List the indexes of a table; uncovered rows were added or changed since, and are searched exactly."""
    dataset = load_version(context, uri, version=version, tag=tag, branch=branch, as_of=as_of)
    found = dataset.indexes()
    name = VersionNamer(dataset)(newest_commit(dataset))
    document = {"uri": dataset.uri, "version": name, "indexes": [_document(each) for each in found]}
    rows = [
        (each.name, each.column, each.kind, _options(each.options), f"{each.rows:,}", f"{each.uncovered:,}",
         format_bytes(each.bytes))
        for each in found
    ]  # fmt: skip
    return CommandResult(document, [render_table(_HEADERS, rows, fold="options") if rows else "no indexes yet"])


def drop_index(
    context: CommandContext,
    uri: Uri,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The index to drop.")],
    branch: Branch = None,
    message: Message = "",
) -> CommandResult:
    """Drop an index, as a new commit; older versions keep it until `penstock vacuum`."""
    dataset = penstock.load(uri, branch=branch, storage_options=context.storage_options)
    dataset.drop_index(name, message=message)
    document = {"uri": dataset.uri, "version": dataset.version, "dropped": name}
    return CommandResult(document, [f"{dataset.version}: dropped index {name}."])


def progress_line(done: int, rows: int) -> str:
    """A bar, and the rows done."""
    filled = _BAR_CELLS * done // max(1, rows)
    return f"{'━' * filled}{'╌' * (_BAR_CELLS - filled)} {done:,} of {rows:,} rows"


def _document(info: IndexInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "column": info.column,
        "kind": info.kind,
        "options": dict(info.options),
        "rows": info.rows,
        "uncovered": info.uncovered,
        "bytes": info.bytes,
    }


def _options(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in options.items())


index = typer.Typer(help="Create, list and drop search indexes.", rich_markup_mode=None)
index.command("create")(command(create_index))
index.command("list")(command(list_indexes))
index.command("drop")(command(drop_index))
