"""`penstock info`."""

from rich.text import Text

import penstock
from penstock.cli._command import CommandContext, CommandResult, Uri, printable
from penstock.cli._render import format_bytes, local_time, pluralize, schema_table
from penstock.cli._versions import AsOf, Branch, Tag, Version, VersionNamer, load_version, newest_commit
from penstock.format.kinds import kind_to_json


def info(
    context: CommandContext,
    uri: Uri,
    version: Version = None,
    tag: Tag = None,
    branch: Branch = None,
    as_of: AsOf = None,
) -> CommandResult:
    """Show a summary of a table: rows, bytes, version and columns."""
    return describe(load_version(context, uri, version=version, tag=tag, branch=branch, as_of=as_of))


def describe(dataset: penstock.Dataset, title: str = "") -> CommandResult:
    """The summary of a table."""
    summary, commit = dataset.summary(), newest_commit(dataset)
    version = VersionNamer(dataset)(commit)
    columns = [
        {
            "name": field.name,
            "kind": str(field.kind),
            "nullable": field.nullable,
            "codec": field.codec,
            "file_bytes": field.file_bytes,
            "page_bytes": field.page_bytes,
            "type": kind_to_json(field.kind),
        }
        for field in dataset.schema
    ]
    document = {
        "uri": summary.uri,
        "version": version,
        "time": commit.time.isoformat(),
        "rows": summary.rows,
        "bytes": summary.bytes,
        "fragments": summary.fragments,
        "columns": columns,
    }
    line = f"{version} of {local_time(commit.time)}: {pluralize(summary.rows, 'row')}, {format_bytes(summary.bytes)}, "
    line += pluralize(summary.fragments, "fragment")
    listed = schema_table(dataset.schema) if columns else "no columns yet"
    return CommandResult(document, [Text(title) + Text(printable(summary.uri), "bold"), line, "", listed])
