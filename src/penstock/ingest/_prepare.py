"""Look at a source and decide what to do with it: what it is, what is new in it, and what the columns are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.errors import InvalidInputError, NotFoundError
from penstock.format import TABLE_KEY, Field, Schema, new_id
from penstock.format.kinds import Kind, Label, Tensor
from penstock.ingest._bucket import Bucket
from penstock.ingest._ledger import Plan, Waiting, identity, taken_files
from penstock.ingest._settings import Settings
from penstock.ingest._shape import Sample, look
from penstock.ingest._source import Listing, Reading, Source, is_hidden
from penstock.storage import ObjectInfo, Store
from penstock.table import Session, split_uri


@dataclass(frozen=True)
class Prepared:
    """What an ingest will do, as far as a look at the source tells."""

    bucket: Bucket
    reading: Reading
    plan: Plan
    sample: Sample | None
    """None where an earlier run has settled the columns."""
    new: tuple[ObjectInfo, ...]
    """Files that are not in the table."""
    changed: tuple[str, ...]
    """Files that are in the table and have other content now; they are left alone."""


def prepare(
    session: Session, source_store: Store, sources: Mapping[str, Source], kind: str | None, settings: Settings
) -> Prepared:
    """Look at a source, and decide what to do with it."""
    bucket = Bucket(source_store, link=settings.link)
    objects = _objects(source_store)
    if not objects:
        raise NotFoundError(f"there is nothing in {source_store.uri}; check the address and what lies under it")
    source = _source(objects, sources, kind, source_store.uri)
    if settings.link and not source.links:
        able = ", ".join(sorted(known.name for known in sources.values() if known.links))
        raise InvalidInputError(
            f"{source.name} cannot be linked, because its values are not in its files as such; {able} can"
        )
    reading = source.open(bucket, objects)
    known = taken_files(session.store, session.snapshot.sources.get(source_store.uri, ()))
    new = tuple(file for file in reading.files if file.key not in known)
    changed = tuple(file.key for file in reading.files if file.key in known and known[file.key] != identity(file))
    waiting = Waiting.of(session.store, session.branch, source_store.uri, source.name, settings)
    plan, sample = waiting.plan(), None
    if plan is None or not _fits(plan.schema, session.snapshot.schema):
        plan, sample = _plan(session, bucket, source, reading, settings)
    if settings.shuffle is not None:
        order = np.random.default_rng(settings.shuffle).permutation(len(new)).tolist()
        new = tuple(new[index] for index in order)
    return Prepared(bucket, reading, plan, sample, new, changed)


def _objects(store: Store) -> list[ObjectInfo]:
    """What may be data: objects that have content, and are not hidden, and not part of a table of ours."""
    found = [item for item in store.list() if item.size and not is_hidden(item.key)]
    ours = [item.key for item in found if item.key.endswith(TABLE_KEY)]
    tables = tuple(key.removesuffix(TABLE_KEY) for key in ours if f"/{key}".endswith(f"/{TABLE_KEY}"))
    if "" in tables:
        raise InvalidInputError(f"{store.uri} is a table of Penstock already; copy it, or load it as it is")
    return [item for item in found if not item.key.startswith(tables)] if tables else found


def _source(objects: Sequence[ObjectInfo], sources: Mapping[str, Source], kind: str | None, uri: str) -> Source:
    if kind is not None:
        if kind not in sources:
            raise InvalidInputError(f"there is no kind of source called {kind!r}; there are {', '.join(sources)}")
        return sources[kind]
    listing = Listing(objects)
    for source in sources.values():
        if source.recognise(listing):
            return source
    endings = sorted({item.key.rpartition(".")[2] for item in objects[:1000]})[:8]
    raise InvalidInputError(
        f"{uri} holds nothing that is recognised (its files end in {', '.join(endings)});"
        f" say what it is with --as: {', '.join(sources)}"
    )


def _plan(
    session: Session, bucket: Bucket, source: Source, reading: Reading, settings: Settings
) -> tuple[Plan, Sample]:
    sample = look(bucket, reading, settings)
    schema = sample.schema
    if len(session.snapshot.schema):
        schema = _known_columns(session.snapshot.schema, schema)
    containers: dict[str, str] = {}
    if settings.link:
        container = split_uri(bucket.uri("object"))[0]
        name = next((n for n, uri in session.snapshot.containers.items() if uri == container), new_id()[:16])
        containers = {name: container}
    return Plan(bucket.store.uri, source.name, settings, schema, tuple(sample.pictures), containers), sample


def _known_columns(there: Schema, found: Schema) -> Schema:
    """The table's columns, of which the source must have all that cannot be empty, and no others."""
    if extra := [name for name in found.names if name not in there]:
        raise InvalidInputError(
            f"the source has a column {extra[0]!r} and the table has not; add it there first, or name the columns"
            f" to take: {', '.join(name for name in found.names if name in there) or 'none'}"
        )
    for known in there:
        if known.name not in found and not known.nullable and known.fill is None:
            raise InvalidInputError(
                f"the table's column {known.name!r} needs a value in every row, and the source has none"
            )
        if known.name in found and not _same_numbers(known.kind, found[known.name].kind):
            raise InvalidInputError(
                f"column {known.name!r} is {known.kind} in the table and {found[known.name].kind} in the source, which"
                " cannot be made of each other here; convert it with a transform, or take it into another table"
            )
    return Schema(tuple(_with_classes(known, found) for known in there.fields))


def _with_classes(known: Field, found: Schema) -> Field:
    """A column with the classes that are new in the source behind those it has."""
    if known.dropped or known.name not in found or not isinstance(known.kind, Label) or not known.kind.names:
        return known
    theirs = found[known.name].kind
    names = (*known.kind.names, *theirs.names) if isinstance(theirs, Label) else known.kind.names
    return replace(known, kind=Label(tuple(dict.fromkeys(names))))


def _same_numbers(there: Kind, found: Kind) -> bool:
    """Whether one kind's stored numbers mean what the other's do; those of bfloat16 are bits to everybody else."""
    tensors = [kind for kind in (there, found) if isinstance(kind, Tensor)]
    return len({kind.element for kind in tensors if kind.element.stored != kind.element.logical}) == 0 or (
        len(tensors) == 2 and tensors[0].element == tensors[1].element
    )


def _fits(planned: Schema, there: Schema) -> bool:
    """Whether what an earlier run settled still is what the table has."""
    return not len(there) or {(field.id, field.name) for field in planned} == {(f.id, f.name) for f in there}
