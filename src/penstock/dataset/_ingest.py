"""Ingest external data into a new or an existing table."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Unpack

from penstock.dataset._dataset import Dataset
from penstock.dataset._locations import UriLike, address_of, open_location
from penstock.dataset._open import create, exists, load
from penstock.dataset._options import check_keywords
from penstock.engine import BadSamples
from penstock.errors import ConflictError, InvalidInputError, NotFoundError
from penstock.format import Schema
from penstock.ingest import (
    SOURCES,
    FileCounts,
    ImageCost,
    IngestKeywords,
    IngestOptions,
    IngestOutcome,
    IngestProgress,
    PreparedIngest,
    Reject,
    Transform,
    find_transform,
    prepare,
    read_manifest,
    run,
    source_uri,
    transform_name,
)
from penstock.runners import available_cores
from penstock.storage import FolderStore, Store

BadSamplesLike = Literal["skip", "raise"] | BadSamples

_MAX_ATTEMPTS = 3


@dataclass(frozen=True)
class IngestResult:
    """What an ingest did, or would do."""

    uri: str
    source: str
    kind: str
    schema: Schema
    version: str | None
    """The version that has the rows; None if nothing was written."""
    rows: int
    files: FileCounts
    """How many files the source has, and how many were taken, rejected and ignored."""
    source_bytes: int
    written_bytes: int
    resumed_rows: int
    """Rows that an interrupted run had stored."""
    damaged_parts: int
    """Parts of an interrupted run that were damaged, and were ingested again."""
    changed: tuple[str, ...]
    """Files that changed since they were ingested; they were not ingested again."""
    rejects: tuple[Reject, ...]
    """Rows and files that were skipped, each with its name and the reason."""
    notes: tuple[str, ...]
    """What the rows differ in from the source, and what is inferred, a sentence each: converted types, shapes, …"""
    image_costs: tuple[ImageCost, ...]
    """Average cost of images, encoded and decoded."""
    options: IngestOptions


@dataclass(frozen=True)
class SourceLocation:
    """Where a source is: all objects of a store, or only one."""

    store: Store
    only: str | None = None
    """The key of the object, if the source is a single file."""

    @property
    def uri(self) -> str:
        """The URI under which a table records the source."""
        return source_uri(self.store, self.only)

    def prepare(self, ds: Dataset, kind: str | None, options: IngestOptions) -> PreparedIngest:
        """Plan the ingest of the source."""
        return prepare(ds._session, self.store, SOURCES, kind, options, only=self.only)


def open_source(source: str | os.PathLike[str], storage_options: Mapping[str, str] | None) -> SourceLocation:
    """The folder, bucket or single file at a location."""
    store = open_location(source, storage_options)
    if address_of(source) is not None:
        return SourceLocation(store)
    parent, _, name = store.uri.rstrip("/").rpartition("/")
    if isinstance(store, FolderStore):
        is_file = os.path.isfile(store.uri)
    else:
        is_file = parent.count("/") >= 2 and next(iter(store.list()), None) is None  # not the bucket itself
    if not is_file:
        return SourceLocation(store)
    folder = open_location(parent or "/", storage_options)
    try:
        folder.head(name)
    except NotFoundError:
        return SourceLocation(store)
    return SourceLocation(folder, name)


@dataclass(frozen=True)
class _RunOptions:
    """How an ingest runs: the keyword arguments of `penstock.ingest.run`."""

    bad_samples: BadSamples
    message: str
    num_workers: int
    progress: Callable[[IngestProgress], None]


def ingest(
    source: str | os.PathLike[str],
    dest: UriLike,
    *,
    kind: str | None = None,
    bad_samples: BadSamplesLike = "skip",
    dry_run: bool = False,
    message: str = "",
    storage_options: Mapping[str, str] | None = None,
    source_storage_options: Mapping[str, str] | None = None,
    num_workers: int | None = None,
    on_plan: Callable[[IngestResult], None] | None = None,
    progress: Callable[[IngestProgress], None] | None = None,
    **options: Unpack[IngestKeywords],
) -> IngestResult:
    """Ingest a folder, a bucket or a single file into a table, as one commit; creates the table if there is none.

    `kind` (images, webdataset, parquet, …) is detected by default. Files that are already in the table are skipped, so
    calling it again resumes an interrupted ingest. Other options are those of `IngestKeywords`. A file or a row that
    cannot be read is skipped and listed in the result, up to the limit of `bad_samples` (1,000 by default; a float is a
    share of the rows seen). With `dry_run` nothing is written. `on_plan` is called before rows are written, `progress`
    after each part. `source_storage_options` default to `storage_options`. Raises `NotFoundError` for an empty source,
    `InvalidInputError` for options or columns that do not fit, and `SampleError` for bad samples over the limit.
    """
    check_keywords(options, "ingest", known=IngestKeywords.__annotations__, moved={})
    row_options = IngestOptions.from_keywords(options)
    run_options = _run_options(bad_samples, message, num_workers, progress)
    if row_options.transform is not None:
        find_transform(row_options.transform)
    location = open_source(source, source_storage_options if source_storage_options is not None else storage_options)
    is_table = exists(dest, storage_options=storage_options)
    ds = load(dest, storage_options=storage_options) if is_table else create("memory://")
    prepared = location.prepare(ds, kind, row_options)
    planned = replace(_result(ds, prepared, None), uri=dest.uri if isinstance(dest, Store) else os.fspath(dest))
    if on_plan is not None:
        on_plan(planned)
    if dry_run:
        return planned
    if not is_table:
        ds = create(dest, storage_options=storage_options, message="for an ingest")
    return _run(ds, location, prepared, run_options)


def sync(
    table: UriLike,
    source: str | os.PathLike[str] | None = None,
    *,
    bad_samples: BadSamplesLike = "skip",
    dry_run: bool = False,
    message: str = "",
    storage_options: Mapping[str, str] | None = None,
    source_storage_options: Mapping[str, str] | None = None,
    num_workers: int | None = None,
    transform: str | Transform | None = None,
    progress: Callable[[IngestProgress], None] | None = None,
) -> list[IngestResult]:
    """Ingest the new files of all sources of a table, or of one, with the row options of the first ingest.

    A table that was ingested with a transform stores only its name; the function runs only if `transform` names it
    again. Raises `NotFoundError` for a source that is not one of the table's, and otherwise what `ingest` raises.
    """
    run_options = _run_options(bad_samples, message, num_workers, progress)
    ds = load(table, storage_options=storage_options)
    known = ds._session.snapshot.sources
    if not known:
        raise NotFoundError(f"{ds.uri} has no source; ingest one with penstock.ingest(source, table)")
    source_storage_options = source_storage_options if source_storage_options is not None else storage_options
    uris = list(known) if source is None else [open_source(source, source_storage_options).uri]
    if missing := [uri for uri in uris if uri not in known]:
        raise NotFoundError(f"{missing[0]} is not a source of {ds.uri}; its sources are {', '.join(known)}")
    results = []
    for uri in uris:
        _, plan = read_manifest(ds._session.store, known[uri][-1])
        if plan.options.transform is not None and plan.options.transform != transform_name(transform):
            raise InvalidInputError(
                f"{ds.uri} was ingested with the transform {plan.options.transform}, and code named by a table does not"
                f" run by default; to run it, pass transform={plan.options.transform!r}"
            )
        location = open_source(uri, source_storage_options)
        prepared = location.prepare(ds, plan.kind, plan.options)
        skip = dry_run or not prepared.new
        results.append(_result(ds, prepared, None) if skip else _run(ds, location, prepared, run_options))
    return results


def _run_options(
    bad_samples: BadSamplesLike,
    message: str,
    num_workers: int | None,
    progress: Callable[[IngestProgress], None] | None,
) -> _RunOptions:
    bad = bad_samples if isinstance(bad_samples, BadSamples) else BadSamples(action=bad_samples)
    if bad.callback is not None:
        raise InvalidInputError(
            "BadSamples(callback=…) is for loaders; an ingest lists bad samples in IngestResult.rejects: leave it out"
        )
    return _RunOptions(bad, message, num_workers or available_cores(), progress or (lambda _: None))


def _run(ds: Dataset, location: SourceLocation, prepared: PreparedIngest, options: _RunOptions) -> IngestResult:
    """Run an ingest; after a concurrent commit, prepare it again for the remaining files."""
    for attempt in range(_MAX_ATTEMPTS):
        try:
            return _result(ds, prepared, run(ds._session, prepared, **vars(options)))
        except BaseException as error:
            ds._session.drop_changes()  # a later run finds what this one staged or committed
            if not isinstance(error, ConflictError) or attempt == _MAX_ATTEMPTS - 1:
                raise
        ds.checkout()
        prepared = location.prepare(ds, prepared.plan.kind, prepared.plan.options)
    raise AssertionError


def _result(ds: Dataset, prepared: PreparedIngest, outcome: IngestOutcome | None) -> IngestResult:
    outcome = outcome or IngestOutcome(0, 0, 0, 0, prepared.count_files(), prepared.rejects)
    return IngestResult(
        uri=ds.uri,
        source=prepared.plan.source,
        kind=prepared.plan.kind,
        schema=ds.schema if outcome.rows else prepared.plan.schema,
        version=ds.version if outcome.rows else None,
        rows=outcome.rows,
        files=outcome.files,
        source_bytes=sum(file.size for file in prepared.new),
        written_bytes=outcome.bytes_written,
        resumed_rows=outcome.resumed_rows,
        damaged_parts=outcome.damaged_parts,
        changed=prepared.changed,
        rejects=outcome.rejects,
        notes=(*prepared.notes, *outcome.notes),
        image_costs=prepared.sample.image_costs,
        options=prepared.plan.options,
    )
