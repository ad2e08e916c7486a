"""`penstock info`."""

from rich.text import Text

import penstock
from penstock.cli._show import amount, count, local_time, table
from penstock.cli._verb import Answer, Run, Uri, printable
from penstock.cli._versions import AsOf, Branch, Called, Tag, Version, load_at, newest
from penstock.format.kinds import kind_to_json


def info(
    run: Run, uri: Uri, version: Version = None, tag: Tag = None, branch: Branch = None, as_of: AsOf = None
) -> Answer:
    """Show what a table is: rows, bytes, version and columns."""
    return describe(load_at(run, uri, version=version, tag=tag, branch=branch, as_of=as_of))


def describe(dataset: penstock.Dataset, title: str = "") -> Answer:
    """A table in short."""
    summary, commit = dataset.summary(), newest(dataset)
    version = Called(dataset)(commit)
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
    facts = f"{version} of {local_time(commit.time)}: {count(summary.rows, 'row')}, {amount(summary.bytes)}, "
    facts += count(summary.fragments, "fragment")
    rows = [
        (field.name, str(field.kind), "yes" if field.nullable else "", "" if field.codec == "none" else field.codec)
        for field in dataset.schema
    ]
    listed = table(["column", "kind", "nullable", "codec"], rows, fold="kind") if rows else "no columns yet"
    return Answer(document, [Text(title) + Text(printable(summary.uri), "bold"), facts, "", listed])
