"""Create, extend and drop the indexes of a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidInputError, NotFoundError
from penstock.format import (
    Field,
    IndexEntry,
    IndexHeader,
    IndexObject,
    IndexSegment,
    encode_covered,
    encode_index_header,
    encode_index_table,
    new_id,
    search_index_key,
)
from penstock.query.indexes._build import BuildPlan, Progress, build_objects, build_segment, clear_staging
from penstock.query.indexes._coverage import covered_rows
from penstock.query.indexes._kind import IndexKind
from penstock.query.indexes._kinds import KINDS, make_kind
from penstock.query.indexes._merge import can_merge, merge_segments, segments_to_merge
from penstock.query.indexes._open import OpenIndex, contents_of, index_entries
from penstock.table import Int64Array, Reader, Session, as_ranges
from penstock.types import RowRange

_MAX_DELTA_SHARE = 0.5
"""An index whose later segments have more rows than this share of the first is built again."""
_MAX_SEGMENTS = 16
"""An index whose segments cannot be merged is built again when it has as many."""


@dataclass(frozen=True)
class IndexInfo:
    """An index of a version."""

    name: str
    column: str
    kind: str
    options: Mapping[str, Any]
    rows: int
    """Rows that it covers; the others are searched exactly."""
    uncovered: int
    """Rows that were added or changed since; `create_index` extends it."""
    bytes: int


def list_indexes(reader: Reader) -> list[IndexInfo]:
    """The indexes of a version."""
    found = []
    for entry in index_entries(reader):
        contents, field = contents_of(reader, entry), reader.snapshot.schema.by_id(entry.field_id)
        header = contents.header
        missing = len(contents.coverage(reader).uncovered)
        found.append(
            IndexInfo(
                entry.name, field.name, entry.kind, header.options, reader.snapshot.live - missing, missing,
                _total_bytes(header),
            )
        )  # fmt: skip
    return found


def create_index(
    session: Session, column: str, kind: str, name: str | None, options: Mapping[str, Any], progress: Progress
) -> bool:
    """Stage an index of all rows, or of those that an index with the same options lacks. Returns whether it changes.

    Raises `InvalidInputError` for options that do not fit the column, or if another index has the name.
    """
    reader = session.reader
    field = reader.snapshot.schema[column]
    made = make_kind(kind, field, options)
    name = name or f"{column}_{kind}"
    known = {entry.name: entry for entry in index_entries(reader)}
    entry = known.get(name)
    if entry is None:
        rival = next((one for one in known.values() if (one.field_id, one.kind) == (field.id, kind)), None)
        if rival is not None:
            raise InvalidInputError(f"column {column!r} has a {kind} index already, {rival.name!r}; drop it first")
        _stage(session, _build(reader, field, made, name, progress))
    else:
        opened = OpenIndex(reader, field, contents_of(reader, entry)) if entry.field_id == field.id else None
        if opened is None or entry.kind != kind or dict(opened.kind.options) != dict(made.options):
            raise InvalidInputError(
                f"there is an index {name!r} with another column, kind or options; drop it first, or give another name"
            )
        if not len(opened.uncovered):
            return False
        _stage(session, _extend(opened, entry, progress))
    session.changes.record("create_index")
    return True


def carry_indexes(before: Reader, session: Session) -> None:
    """Stage that indexes cover the files that a compaction wrote as they covered those that it replaced."""
    for entry in _known_entries(before):
        field = before.snapshot.schema.by_id(entry.field_id)
        opened = OpenIndex(before, field, contents_of(before, entry))
        header = contents_of(before, entry).header
        plan = BuildPlan(session.reader, field, opened.kind, entry.id, np.zeros(0, np.int64))
        segments = _with_superseded(plan, opened, header.segments)
        missing = before.row_ids(opened.uncovered)
        _stage(session, _store_header(plan, entry.name, header.objects, segments, uncovered=missing))


def extend_indexes(session: Session, progress: Progress) -> bool:
    """Stage the rows that indexes lack; returns whether anything changes."""
    changed = False
    for entry in _known_entries(session.reader):
        field = session.reader.snapshot.schema.by_id(entry.field_id)
        opened = OpenIndex(session.reader, field, contents_of(session.reader, entry))
        if len(opened.uncovered):
            _stage(session, _extend(opened, entry, progress))
            session.changes.record("create_index")
            changed = True
    return changed


def _known_entries(reader: Reader) -> list[IndexEntry]:
    """The indexes of kinds that this version knows; others stay as they are, and know by themselves what they cover."""
    return [entry for entry in index_entries(reader) if entry.kind in KINDS]


def drop_index(session: Session, name: str) -> None:
    """Stage the removal of an index; raises `NotFoundError`."""
    names = [entry.name for entry in index_entries(session.reader)]
    if name not in names:
        known = f"; there are {', '.join(names)}" if names else "; there is none"
        raise NotFoundError(f"there is no index {name!r}{known}")
    kept = tuple(entry for entry in session.snapshot.indexes if entry.get("name") != name)
    session.snapshot = replace(session.snapshot, indexes=kept)
    session.changes.record("drop_index")


def _stage(session: Session, entry: IndexEntry) -> None:
    others = tuple(one for one in session.snapshot.indexes if one.get("name") != entry.name)
    session.snapshot = replace(session.snapshot, indexes=(*others, entry.to_json()))


def _build(reader: Reader, field: Field, kind: IndexKind, name: str, progress: Progress) -> IndexEntry:
    """Store a new index of all rows."""
    plan = BuildPlan(reader, field, kind, new_id(), np.arange(reader.snapshot.live))
    objects = build_objects(plan)
    segment = build_segment(plan, objects, progress)
    refs = {}
    for part, table in objects.items():
        refs[part] = _put(plan, table)
    entry = _store_header(plan, name, refs, (segment,))
    clear_staging(plan)
    return entry


def _extend(opened: OpenIndex, entry: IndexEntry, progress: Progress) -> IndexEntry:
    """Store a further segment with the rows that the index lacks; or all anew if there are many.

    Earlier segments that are not much larger are merged into one, so that there are always few.
    """
    header, missing = contents_of(opened.reader, entry).header, opened.uncovered
    rows = [segment.rows for segment in header.segments]
    first = segments_to_merge(rows, len(missing))
    mergeable = len(rows) - first > 1 and can_merge(opened, first)
    if sum(rows[1:]) + len(missing) > _MAX_DELTA_SHARE * rows[0] or (len(rows) >= _MAX_SEGMENTS and not mergeable):
        return _build(opened.reader, opened.field, opened.kind, entry.name, progress)
    plan = BuildPlan(opened.reader, opened.field, opened.kind, entry.id, missing)
    objects = {name: opened.object(name) for name in header.objects}
    added = build_segment(plan, objects, progress)
    segments = _with_superseded(plan, opened, header.segments)
    if mergeable:
        merged, void = merge_segments(plan, opened, segments, first)
        segments = (*segments[:first], replace(merged, superseded=_put_ids(plan, void)))
    segments = (*segments, added)
    found = _store_header(plan, entry.name, header.objects, segments)
    clear_staging(plan)
    return found


def _with_superseded(
    plan: BuildPlan, opened: OpenIndex, segments: tuple[IndexSegment, ...]
) -> tuple[IndexSegment, ...]:
    """Segments with the ids of the rows whose entries are not valid any more."""
    found = []
    for number, segment in enumerate(segments):
        found.append(replace(segment, superseded=_put_ids(plan, opened.stale(number))))
    return tuple(found)


def _store_header(
    plan: BuildPlan,
    name: str,
    objects: Mapping[str, IndexObject],
    segments: tuple[IndexSegment, ...],
    uncovered: Int64Array | None = None,
) -> IndexEntry:
    """Store a header that covers all rows of the version but the `uncovered` row ids."""
    store = plan.reader.store
    nodes, files = covered_rows(plan.reader, plan.field.id)
    if uncovered is not None and len(uncovered):
        nodes, files = (), {id: _without_ids(runs, uncovered) for id, runs in files.items()}
    covered, data = encode_covered(files)
    store.put(plan.key_of(covered.id), data)
    rows = sum(run.count for runs in files.values() for run in runs)
    header = IndexHeader(dict(plan.kind.options), dict(objects), segments, nodes, covered, rows)
    ref, body = encode_index_header(header)
    store.put(search_index_key(plan.index_id, ref.id, "json"), body)
    return IndexEntry(plan.index_id, name, plan.kind.name, f"{plan.field.id:016x}", ref)


def _put(plan: BuildPlan, table: pa.Table) -> IndexObject:
    ref, data = encode_index_table(table)
    plan.reader.store.put(plan.key_of(ref.id), data)
    return ref


def _put_ids(plan: BuildPlan, row_ids: Int64Array) -> IndexObject | None:
    return _put(plan, pa.table({"row_id": row_ids})) if len(row_ids) else None


def _without_ids(runs: Sequence[RowRange], ids: Int64Array) -> tuple[RowRange, ...]:
    known = np.concatenate([np.zeros(0, np.int64), *(np.arange(run.start, run.end) for run in runs)])
    return as_ranges(np.setdiff1d(known, ids, assume_unique=True))


def _total_bytes(header: IndexHeader) -> int:
    return sum(ref.length for ref in header.all_objects)
