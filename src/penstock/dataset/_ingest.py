"""Take other people's data in: into a new table, or into one that is there."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.dataset._dataset import Dataset
from penstock.dataset._open import Place, create, exists, load, open_place
from penstock.engine import available_cores
from penstock.errors import ConflictError, InvalidInputError, NotFoundError
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
    find_transform,
    prepare,
    read_list,
    run,
)
from penstock.storage import Store

_MAX_BAD = 1000
_ATTEMPTS = 3


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
    on_plan: Callable[[Ingested], None] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Ingested:
    """Take a folder or a bucket of files into a table, which is made if it is not there; as one commit.

    What the files are is recognised, or said by `kind` (images, webdataset, parquet, …). What was taken in before is
    not taken again, so an interrupted call is simply made once more. `columns`, `codecs`, `decode`, `resize`,
    `nullable`, `transform` and `shuffle` change rows on their way (see `Settings`); with `link` nothing is copied. A
    file or a row that cannot be read is left out and listed in the answer, or with `on_bad="raise"` ends the call;
    after `max_bad` of them it ends in any case. With `dry_run` the source is looked at and nothing is written.
    `on_plan` is told what was found before the work starts, `progress` how far it is.
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
    if settings.transform is not None:
        find_transform(settings.transform)
    place = open_place(source, source_options if source_options is not None else options)
    there = exists(dest, options=options)
    ds = load(dest, options=options) if there else create("memory://")
    prepared = prepare(ds._session, place, SOURCES, kind, settings)
    planned = replace(_told(ds, prepared, None), uri=dest.uri if isinstance(dest, Store) else os.fspath(dest))
    if on_plan is not None:
        on_plan(planned)
    if dry_run:
        return planned
    if not there:
        ds = create(dest, options=options, message="for an ingest")
    work = _Work(on_bad, max_bad, message, workers or available_cores(), runner, progress or (lambda _: None))
    return _run(ds, place, prepared, work)


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
    transform: str | Callable[[dict[str, Any]], dict[str, Any] | None] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[Ingested]:
    """Take in what is new in the sources that a table was made from, or in one of them, as it was done before.

    A table that was made with a transform names a function, and is not believed: say it again to have it called.
    """
    ds = load(table, options=options)
    known = ds._session.snapshot.sources
    if not known:
        raise NotFoundError(f"{ds.uri} was not made from a source; take one in with penstock.ingest(source, table)")
    source_options = source_options if source_options is not None else options
    wanted = list(known) if source is None else [open_place(source, source_options).uri]
    if missing := [uri for uri in wanted if uri not in known]:
        raise NotFoundError(f"{ds.uri} was not made from {missing[0]}; it was made from {', '.join(known)}")
    work = _Work(on_bad, max_bad, message, workers or available_cores(), runner, progress or (lambda _: None))
    told = []
    for uri in wanted:
        _, plan = read_list(ds._session.store, known[uri][-1])
        if plan.settings.transform is not None and plan.settings.transform != _name(transform):
            raise InvalidInputError(
                f"{ds.uri} was made with the transform {plan.settings.transform}, which is somebody's code; to have it"
                f" called, say transform={plan.settings.transform!r}"
            )
        place = open_place(uri, source_options)
        prepared = prepare(ds._session, place, SOURCES, plan.kind, plan.settings)
        told.append(_told(ds, prepared, None) if dry_run or not prepared.new else _run(ds, place, prepared, work))
    return told


@dataclass(frozen=True)
class _Work:
    """How an ingest is run."""

    on_bad: OnBad
    max_bad: int
    message: str
    workers: int
    runner: Runner | None
    progress: Callable[[Progress], None]


def _run(ds: Dataset, place: Store, prepared: Prepared, work: _Work) -> Ingested:
    """Run it; where somebody else was faster with some of the files, once more with those that are left."""
    for attempt in range(_ATTEMPTS):
        try:
            return _told(ds, prepared, run(ds._session, prepared, **vars(work)))
        except ConflictError:
            if attempt == _ATTEMPTS - 1:
                raise
        ds.rollback()
        ds.refresh()
        prepared = prepare(ds._session, place, SOURCES, prepared.plan.kind, prepared.plan.settings)
    raise AssertionError


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
