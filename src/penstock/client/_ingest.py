"""Add rows to a managed table: from memory, from files, or from a source."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.dataset import Dataset, IngestResult, ManagedTable, create, ingest, load
from penstock.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from penstock.ingest import FileCounts, IngestOptions
from penstock.table import Appendable


def ingest_rows(data: Appendable, table: ManagedTable, message: str) -> IngestResult:
    """Append rows as one commit."""
    with _open_or_create(table) as dataset:
        before = dataset.summary().bytes
        rows = dataset.append(data)
        dataset.commit(message)
    return IngestResult(
        uri=dataset.uri, source="", kind="rows", schema=dataset.schema, version=dataset.version if rows else None,
        rows=rows, files=FileCounts(), source_bytes=0, written_bytes=dataset.summary().bytes - before, resumed_rows=0,
        damaged_parts=0, changed=(), rejects=(), notes=(), image_costs=(), options=IngestOptions(),
    )  # fmt: skip


def ingest_source(source: str | os.PathLike[str], table: ManagedTable, options: Mapping[str, Any]) -> IngestResult:
    """Ingest a folder, a bucket or a file as one commit."""
    return ingest(source, table, **options)


def ingest_files(
    files: Iterable[str | os.PathLike[str]], table: ManagedTable, options: Mapping[str, Any]
) -> IngestResult:
    """Ingest files one after the other, and return the sum of the results."""
    paths = [files] if isinstance(files, str | os.PathLike) else list(files)
    if not paths:
        raise InvalidInputError("files is empty; there is nothing to ingest")
    return _sum([ingest(path, table, **options) for path in paths])


def _sum(results: Sequence[IngestResult]) -> IngestResult:
    last = results[-1]
    return replace(
        last,
        source=", ".join(each.source for each in results),
        version=next((each.version for each in reversed(results) if each.version is not None), None),
        rows=sum(each.rows for each in results),
        files=sum((each.files for each in results), FileCounts()),
        source_bytes=sum(each.source_bytes for each in results),
        written_bytes=sum(each.written_bytes for each in results),
        resumed_rows=sum(each.resumed_rows for each in results),
        damaged_parts=sum(each.damaged_parts for each in results),
        changed=tuple(name for each in results for name in each.changed),
        rejects=tuple(reject for each in results for reject in each.rejects),
        notes=tuple(dict.fromkeys(note for each in results for note in each.notes)),
    )


def _open_or_create(table: ManagedTable) -> Dataset:
    try:
        return load(table)
    except NotFoundError:
        pass
    try:
        return create(table)
    except AlreadyExistsError:  # another process was first
        return load(table)
