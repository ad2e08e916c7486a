"""`penstock info`."""

from rich.text import Text

import penstock
from penstock.cli._show import amount, local_time, table
from penstock.cli._verb import Answer, Run, Uri, Version, printable
from penstock.format.kinds import kind_to_json


def info(run: Run, uri: Uri, version: Version = None) -> Answer:
    """Show what a table is: rows, bytes, version and columns."""
    return describe(penstock.load(uri, version=version, options=run.options))


def describe(dataset: penstock.Dataset, title: str = "") -> Answer:
    """A table in short."""
    summary, commit = dataset.summary(), next(iter(dataset.log()))
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
        "version": summary.version,
        "time": commit.time.isoformat(),
        "rows": summary.rows,
        "bytes": summary.bytes,
        "fragments": summary.fragments,
        "columns": columns,
    }
    facts = f"{summary.version} of {local_time(commit.time)}: {summary.rows:,} rows, {amount(summary.bytes)}, "
    facts += f"{summary.fragments:,} fragment{'' if summary.fragments == 1 else 's'}"
    rows = [
        (field.name, str(field.kind), "yes" if field.nullable else "", "" if field.codec == "none" else field.codec)
        for field in dataset.schema
    ]
    listed = table(["column", "kind", "nullable", "codec"], rows, fold="kind") if rows else "no columns yet"
    return Answer(document, [Text(title) + Text(printable(summary.uri), "bold"), facts, "", listed])
