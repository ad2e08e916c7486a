"""Inspect a source and plan its ingest: detect its kind, find the new files, and derive the columns."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from penstock.errors import CorruptError, InvalidInputError, NotFoundError
from penstock.format import Field, Schema, new_id, value_kind
from penstock.format.kinds import Image, Kind, Label, Tensor
from penstock.ingest._detect import detect_source
from penstock.ingest._file_counts import LABELS, FileCounts, ListedFiles, used_files
from penstock.ingest._options import IngestOptions
from penstock.ingest._path_columns import with_path_columns
from penstock.ingest._reader import SourceReader
from penstock.ingest._source import Reject, Source, SourceScan
from penstock.ingest._staging import Plan, StagedParts, file_id, ingested_files
from penstock.ingest._transform import Sample, sample_source
from penstock.storage import ObjectInfo, Store, list_source
from penstock.table import Session, split_uri


@dataclass(frozen=True)
class PreparedIngest:
    """What an ingest will do."""

    reader: SourceReader
    scan: SourceScan
    plan: Plan
    sample: Sample
    new: tuple[ObjectInfo, ...]
    """Files that are not in the table."""
    changed: tuple[str, ...]
    """Keys of files that changed since they were ingested; they are not ingested again."""

    rejects: tuple[Reject, ...]
    """Files that cannot be read: empty ones, odd names, and links that are not followed."""
    ignored: Mapping[str, int]
    """How many files are ignored for each reason."""
    notes: tuple[str, ...]
    """What the rows differ in from the source, and why the parts of an earlier run are not used, a sentence each."""

    def count_files(self, rejects: Iterable[Reject] = ()) -> FileCounts:
        """What becomes of the files of the source, given the rejects of the new ones."""
        names = {reject.name for reject in rejects}
        taken = used_files(self.scan, [file.key for file in self.new if file.key not in names])
        rejected = used_files(self.scan, [file.key for file in self.new]) - taken
        counts = FileCounts(len(taken), len(self.rejects) + len(rejected), self.ignored)
        labels = len(self.scan.described_by)
        return counts + (FileCounts(labels) if taken or not labels else FileCounts(0, 0, {LABELS: labels}))


def prepare(
    session: Session,
    source_store: Store,
    sources: Mapping[str, Source],
    kind: str | None,
    options: IngestOptions,
    *,
    only: str | None = None,
) -> PreparedIngest:
    """Plan the ingest of a source: all objects of a store, or only one.

    Raises `NotFoundError` if the source is empty, and `InvalidInputError` if its kind is not detected or its columns
    do not fit the table.
    """
    reader = SourceReader(
        source_store,
        link=options.link,
        columns=None if options.columns is None or options.transform is not None else frozenset(options.columns),
        declared={name: column.kind for name, column in options.declared.items()} if options.transform is None else {},
    )
    uri = source_uri(source_store, only)
    if only is None:
        listed = ListedFiles.of(list_source(source_store, follow_links=options.follow_links), uri)
    else:
        file = source_store.head(only)
        listed = ListedFiles([file]) if file.size else ListedFiles(empty=[file])
    if not listed.objects:
        raise NotFoundError(
            f"there are no files in {uri}{_unreadable(listed)}; check the address and the files under it"
        )
    source = detect_source(listed.objects, sources, kind, source_store.uri)
    if options.link and not source.links:
        linkable = ", ".join(sorted(known.name for known in sources.values() if known.links))
        raise InvalidInputError(
            f"{source.name} cannot be linked, because its files do not store values as plain bytes; {linkable} can"
        )
    listed.settle_empty(source)
    reader = replace(reader, empty=frozenset(file.key for file in listed.empty))
    scan = with_path_columns(reader, listed.objects, source.open(reader, listed.objects))
    known = ingested_files(session.store, session.snapshot.sources.get(uri, ()))
    new = tuple(file for file in scan.files if file.key not in known)
    changed = tuple(file.key for file in scan.files if file.key in known and known[file.key] != file_id(file))
    staged = StagedParts.of(session.store, session.branch, uri, source.name, options)
    sample = sample_source(reader, scan, options)
    plan, note = _resume_plan(
        staged, _make_plan(session, reader, uri, source, sample, options), session.snapshot.schema
    )
    ignored = listed.ignored_by(scan, {file.key for file in new}, changed)
    if options.shuffle_seed is not None:
        order = np.random.default_rng(options.shuffle_seed).permutation(len(new)).tolist()
        new = tuple(new[index] for index in order)
    notes = (*scan.notes, *sample.notes, *_shape_notes(plan.schema, session.snapshot.schema), *note)
    return PreparedIngest(reader, scan, plan, sample, new, changed, tuple(listed.rejects), ignored, notes)


def _shape_notes(planned: Schema, table: Schema) -> Iterator[str]:
    """What is inferred about the shapes of images in columns that are new to the table."""
    for field in planned:
        if isinstance(field.kind, Image) and field.kind.inferred and field.name not in table:
            yield (
                f"column {field.name!r}: all sampled images have shape {field.kind.shape}; loaders stack them until an"
                " image of another shape is added"
            )


def source_uri(store: Store, only: str | None) -> str:
    """The URI under which a table records a source: that of a store, or of one object in it."""
    return store.uri if only is None else f"{store.uri.rstrip('/')}/{only}"


def _unreadable(listed: ListedFiles) -> str:
    """Why none of the listed files can be read; empty if there are none."""
    found = Counter(listed.ignored)
    found["empty"] += len(listed.empty)
    reasons = [f"{reject.name} {reject.reason}" for reject in listed.rejects[:1]]
    reasons += [f"{count:,} {reason}" for reason, count in found.items() if count]
    return f" that can be read ({'; '.join(reasons)})" if reasons else ""


def _resume_plan(staged: StagedParts, plan: Plan, table: Schema) -> tuple[Plan, tuple[str, ...]]:
    """The plan of an interrupted run if the source and the table still fit it, else the new plan, with a note."""
    try:
        earlier = staged.read_plan()
    except CorruptError:
        return plan, ("the plan of an interrupted run is damaged, so its parts are ingested again",)
    if earlier is None:
        return plan, ()
    if _is_current(earlier, plan) and _matches(earlier.schema, table):
        return earlier, ()
    return plan, ("the columns changed since an interrupted run, so its parts are ingested again",)


def _is_current(earlier: Plan, plan: Plan) -> bool:
    """Whether the columns that the source has now can be stored by an earlier plan."""
    if earlier.images != plan.images or set(earlier.containers.values()) != set(plan.containers.values()):
        return False
    missing = [known for known in earlier.schema if known.name not in plan.schema]
    return all(known.nullable or known.fill is not None for known in missing) and all(
        found.name in earlier.schema
        and _stores(value_kind(earlier.schema[found.name].kind), value_kind(found.kind))
        and earlier.schema[found.name].nullable >= found.nullable
        for found in plan.schema
    )


def _stores(planned: Kind, found: Kind) -> bool:
    """Whether a planned column stores values of another kind, such as images of any format and ragged tensors."""
    if isinstance(planned, Image) and type(planned) is type(found):
        return planned.inferred or planned.shape in (None, found.shape)
    if isinstance(planned, Tensor) and type(planned) is type(found) and len(planned.shape) == len(found.shape):
        fits = all(length in (None, other) for length, other in zip(planned.shape, found.shape, strict=True))
        return fits and planned.dtype == found.dtype
    return planned == found


def _make_plan(
    session: Session, reader: SourceReader, uri: str, source: Source, sample: Sample, options: IngestOptions
) -> Plan:
    schema = sample.schema
    if len(session.snapshot.schema):
        schema = _merge_schema(session.snapshot.schema, schema)
    containers: dict[str, str] = {}
    if options.link:
        container = split_uri(reader.uri("object"))[0]
        name = next((n for n, uri in session.snapshot.containers.items() if uri == container), new_id()[:16])
        containers = {name: container}
    return Plan(uri, source.name, options, schema, tuple(sample.images), containers)


def _merge_schema(table: Schema, source: Schema) -> Schema:
    """The columns of the table, with new classes of the source; raises `InvalidInputError` if they do not fit."""
    if extra := [name for name in source.names if name not in table]:
        raise InvalidInputError(
            f"the source has a column {extra[0]!r} and the table has not; add it to the table first, or select columns"
            f" of the source: {', '.join(name for name in source.names if name in table) or 'none'}"
        )
    for known in table:
        if known.name not in source and not known.nullable and known.fill is None:
            raise InvalidInputError(
                f"the table's column {known.name!r} needs a value in every row, and the source has none"
            )
        if known.name in source and not _compatible(known.kind, source[known.name].kind):
            raise InvalidInputError(
                f"column {known.name!r} is {known.kind} in the table and {source[known.name].kind} in the source, and"
                " an ingest does not convert between them; convert it with a transform, or ingest into another table"
            )
    return Schema(tuple(_with_new_classes(known, source) for known in table.fields))


def _with_new_classes(known: Field, source: Schema) -> Field:
    """A label column with the new classes of the source appended."""
    if known.dropped or known.name not in source or not isinstance(known.kind, Label) or not known.kind.names:
        return known
    other = source[known.name].kind
    names = (*known.kind.names, *other.names) if isinstance(other, Label) else known.kind.names
    return replace(known, kind=Label(tuple(dict.fromkeys(names))))


def _compatible(table: Kind, source: Kind) -> bool:
    """Whether both kinds store the same bits for a value; bfloat16 is stored as integers."""
    tensors = [kind for kind in (table, source) if isinstance(kind, Tensor)]
    return len({kind.element for kind in tensors if kind.element.stored != kind.element.logical}) == 0 or (
        len(tensors) == 2 and tensors[0].element == tensors[1].element
    )


def _matches(planned: Schema, table: Schema) -> bool:
    """Whether the columns of an earlier plan are still those of the table."""
    return not len(table) or {(field.id, field.name) for field in planned} == {(f.id, f.name) for f in table}
