"""Take other people's data in: into a new table, or into one that is there."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.dataset._dataset import Dataset
from penstock.dataset._open import Place, create, exists, load, open_place
from penstock.engine import available_cores
from penstock.errors import InvalidInputError, NotFoundError
from penstock.format import Schema
from penstock.ingest import (
    SOURCES,
    OnBad,
    Outcome,
    Prepared,
    Progress,
    Reject,
    Runner,
    Settings,
    Weighed,
    prepare,
    read_list,
    run,
)
from penstock.storage import Store

_MAX_BAD = 1000


@dataclass(frozen=True)
class Ingested:
    """What an ingest did, or would do."""

    uri: str
    source: str
    kind: str
    schema: Schema
    version: str | None
    """The version that has the rows; None where nothing was written."""
    rows: int
    files: int
    """Files that were new in the source."""
    source_bytes: int
    written_bytes: int
    continued_rows: int
    """Rows that an interrupted run had stored already."""
    changed: tuple[str, ...]
    """Files that are in the table, and have other content by now; they were left alone."""
    rejects: tuple[Reject, ...]
    """What was left out, each with its name and the reason."""
    weighed: tuple[Weighed, ...]
    """What pictures cost as they came, and as tensors."""
    settings: Settings


def ingest(
    source: str | os.PathLike[str],
    dest: Place,
    *,
    kind: str | None = None,
    columns: Sequence[str] | None = None,
    codecs: Mapping[str, str] | None = None,
    decode: bool = False,
    resize: tuple[int, int] | None = None,
    nullable: Sequence[str] = (),
    transform: str | Callable[[dict[str, Any]], dict[str, Any] | None] | None = None,
    shuffle: bool | int = False,
    link: bool = False,
    on_bad: OnBad = "skip",
    max_bad: int = _MAX_BAD,
    dry_run: bool = False,
    message: str = "",
    options: Mapping[str, str] | None = None,
    source_options: Mapping[str, str] | None = None,
    workers: int | None = None,
    runner: Runner | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Ingested:
    """Take a folder or a bucket of files into a table, which is made if it is not there; as one commit.

    What the files are is recognised, or said by `kind` (images, webdataset, parquet, …). What was taken in before is
    not taken again, so an interrupted call is simply made once more. `columns`, `codecs`, `decode`, `resize`,
    `nullable`, `transform` and `shuffle` change rows on their way (see `Settings`); with `link` nothing is copied. A
    file or a row that cannot be read is left out and listed in the answer, or with `on_bad="raise"` ends the call;
    after `max_bad` of them it ends in any case. With `dry_run` the source is looked at and nothing is written.
    """
    settings = Settings(
        columns=None if columns is None else tuple(columns),
        codecs=dict(codecs or {}),
        decode=decode,
        resize=resize,
        nullable=tuple(nullable),
        transform=_name(transform),
        shuffle=None if shuffle is False else int(shuffle),
        link=link,
    )
    if on_bad not in ("skip", "raise"):
        raise InvalidInputError(f"on_bad is 'skip' or 'raise', not {on_bad!r}")
    place = open_place(source, source_options if source_options is not None else options)
    ds = _target(dest, options, dry_run=dry_run)
    prepared = prepare(ds._session, place, SOURCES, kind, settings)
    if dry_run:
        return replace(_told(ds, prepared, None), uri=dest.uri if isinstance(dest, Store) else os.fspath(dest))
    return _run(ds, prepared, on_bad, max_bad, message, workers, runner, progress)


def sync(
    table: Place,
    source: str | os.PathLike[str] | None = None,
    *,
    on_bad: OnBad = "skip",
    max_bad: int = _MAX_BAD,
    dry_run: bool = False,
    message: str = "",
    options: Mapping[str, str] | None = None,
    source_options: Mapping[str, str] | None = None,
    workers: int | None = None,
    runner: Runner | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[Ingested]:
    """Take in what is new in the sources that a table was made from, or in one of them, as it was done before."""
    ds = load(table, options=options)
    known = ds._session.snapshot.sources
    if not known:
        raise NotFoundError(f"{ds.uri} was not made from a source; take one in with penstock.ingest(source, table)")
    wanted = list(known) if source is None else [open_place(source, source_options or options).uri]
    if missing := [uri for uri in wanted if uri not in known]:
        raise NotFoundError(f"{ds.uri} was not made from {missing[0]}; it was made from {', '.join(known)}")
    told = []
    for uri in wanted:
        _, plan = read_list(ds._session.store, known[uri][-1])
        place = open_place(uri, source_options if source_options is not None else options)
        prepared = prepare(ds._session, place, SOURCES, plan.kind, plan.settings)
        if dry_run or not prepared.new:
            told.append(_told(ds, prepared, None))
        else:
            told.append(_run(ds, prepared, on_bad, max_bad, message, workers, runner, progress))
    return told


def _run(
    ds: Dataset,
    prepared: Prepared,
    on_bad: OnBad,
    max_bad: int,
    message: str,
    workers: int | None,
    runner: Runner | None,
    progress: Callable[[Progress], None] | None,
) -> Ingested:
    outcome = run(
        ds._session,
        prepared,
        on_bad=on_bad,
        max_bad=max_bad,
        message=message,
        workers=workers or available_cores(),
        runner=runner,
        progress=progress or (lambda _: None),
    )
    return _told(ds, prepared, outcome)


def _told(ds: Dataset, prepared: Prepared, outcome: Outcome | None) -> Ingested:
    sample = prepared.sample
    return Ingested(
        uri=ds.uri,
        source=prepared.plan.source,
        kind=prepared.plan.kind,
        schema=prepared.plan.schema,
        version=ds.version if outcome is not None and outcome.rows else None,
        rows=0 if outcome is None else outcome.rows,
        files=len(prepared.new),
        source_bytes=sum(file.size for file in prepared.new),
        written_bytes=0 if outcome is None else outcome.bytes_written,
        continued_rows=0 if outcome is None else outcome.continued,
        changed=prepared.changed,
        rejects=() if outcome is None else outcome.rejects,
        weighed=() if sample is None else sample.weighed,
        settings=prepared.plan.settings,
    )


def _target(dest: Place, options: Mapping[str, str] | None, *, dry_run: bool) -> Dataset:
    if exists(dest, options=options):
        return load(dest, options=options)
    return create("memory://" if dry_run else dest, options=options, message="for an ingest")


def _name(transform: str | Callable[..., Any] | None) -> str | None:
    """A function by its name, because the table keeps what was done for the next sync."""
    if transform is None or isinstance(transform, str):
        return transform
    name = f"{transform.__module__}:{transform.__qualname__}"
    if "<" in name or "." in transform.__qualname__:
        raise InvalidInputError(
            f"a transform is kept by its name, and {name} cannot be found by it; define it at the top of a module"
        )
    return name
