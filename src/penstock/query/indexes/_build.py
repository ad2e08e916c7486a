"""Build the entries of an index in bounded memory: sorted runs, stored one by one, and one merge of them.

A finished run is recorded in the store, so that a build that was interrupted continues after the last one. The merge
reads all runs in the order of their keys, a few pages of each at a time.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import NotFoundError, PenstockError
from penstock.format import (
    Field,
    IndexObject,
    IndexSegment,
    PagedTableRef,
    building_key,
    decode_index_table,
    decode_sealed,
    encode_index_table,
    seal,
    search_index_key,
)
from penstock.query.indexes._kind import KEY, IndexKind, TableLayout
from penstock.query.indexes._pages import PagedTable, PageWriter
from penstock.storage import Prefetch, read_ahead
from penstock.table import ROW_ID, Int64Array, Reader
from penstock.types import cached_property

Progress = Callable[[int, int], None]
"""Called with the rows done and the rows in all."""

_READ_BYTES = 8 << 20
_PREFETCH = Prefetch(3, max_bytes=64 << 20)
_MERGE_BYTES = 64 << 20
_MERGE_PAGES = 4


@dataclass(frozen=True)
class BuildPlan:
    """What to build: the entries of some rows, in which index."""

    reader: Reader
    field: Field
    kind: IndexKind
    index_id: str
    positions: Int64Array
    """Ascending."""

    def key_of(self, object_id: str) -> str:
        return search_index_key(self.index_id, object_id, "arrow")

    def staged_key_of(self, object_id: str) -> str:
        return building_key(self.staging, f"{object_id}.arrow")

    @cached_property
    def staging(self) -> str:
        """The name of the folder of its runs: equal for builds of the same rows with the same options."""
        seen = hashlib.blake2b(digest_size=16)
        options = json.dumps(dict(self.kind.options), sort_keys=True)
        for part in (self.reader.commit.snapshot.id, f"{self.field.id:016x}", self.kind.name, options):
            seen.update(f"{part}\n".encode())
        seen.update(np.ascontiguousarray(self.positions).data)
        return seen.hexdigest()


@dataclass(frozen=True)
class _StoredRun:
    """A finished run, as recorded."""

    rows: int
    tables: Mapping[str, PagedTableRef]
    totals: Mapping[str, int]


@dataclass(frozen=True)
class _StoredObjects:
    """The objects of a build that was started, as recorded."""

    objects: Mapping[str, IndexObject]


def build_segment(plan: BuildPlan, objects: Mapping[str, pa.Table], progress: Progress) -> IndexSegment:
    """Store the entries of the planned rows as a segment."""
    runs: list[_StoredRun] = []
    done = 0
    chunk = max(1, plan.kind.run_bytes // _value_bytes(plan))
    for number, start in enumerate(range(0, len(plan.positions), chunk)):
        positions = plan.positions[start : start + chunk]
        only = len(positions) == len(plan.positions)
        runs.append(_run(plan, number, positions, objects, only=only))
        done += len(positions)
        progress(done, len(plan.positions))
    totals = add_totals([run.totals for run in runs])
    if len(runs) == 1:
        return IndexSegment(len(plan.positions), runs[0].tables, totals)
    tables = {}
    for name, layout in plan.kind.tables.items():
        writer = PageWriter(plan.reader.store, plan.key_of, layout)
        stored = [_staged_table(plan, run.tables[name], layout) for run in runs]
        for entries in merge_sorted(stored):
            writer.write(plan.kind.pack(name, entries))
        tables[name] = writer.finish()
    return IndexSegment(len(plan.positions), tables, totals)


def add_totals(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Sums of the totals of runs or segments."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0) for part in parts) for name in names}


def build_objects(plan: BuildPlan) -> dict[str, pa.Table]:
    """The objects that every search needs; those of an interrupted build of the same rows are taken again."""
    store, record = plan.reader.store, building_key(plan.staging, "objects.json")
    with suppress(PenstockError):
        stored = decode_sealed(_StoredObjects, store.get(record), record).objects
        keys = {name: plan.staged_key_of(ref.id) for name, ref in stored.items()}
        return {name: decode_index_table(ref, store.get(keys[name]), keys[name]) for name, ref in stored.items()}
    made = dict(plan.kind.objects(plan.reader, plan.field, plan.positions))
    refs = {}
    for name, table in made.items():
        refs[name], data = encode_index_table(table)
        store.put(plan.staged_key_of(refs[name].id), data)
    if made:
        store.put(record, seal(asdict(_StoredObjects(refs))))
    return made


def clear_staging(plan: BuildPlan) -> None:
    """Delete the runs of a build that is complete."""
    store = plan.reader.store
    with suppress(PenstockError):
        store.delete([item.key for item in store.list(building_key(plan.staging, ""))])


def _run(
    plan: BuildPlan,
    number: int,
    positions: Int64Array,
    objects: Mapping[str, pa.Table],
    *,
    only: bool,
) -> _StoredRun:
    """One run: taken from the store if an earlier build has finished it."""
    store, record = plan.reader.store, building_key(plan.staging, f"{number:08}.json")
    if not only:
        with suppress(NotFoundError):
            return decode_sealed(_StoredRun, store.get(record), f"{store.uri}/{record}")
    run = plan.kind.run(*_read_rows(plan, positions), objects)
    tables = {}
    for name, layout in plan.kind.tables.items():
        entries = run.tables[name]
        if only:
            writer = PageWriter(store, plan.key_of, layout)
            writer.write(plan.kind.pack(name, entries))
        else:
            writer = PageWriter(store, plan.staged_key_of, layout.for_runs())
            writer.write(entries)
        tables[name] = writer.finish()
    stored = _StoredRun(len(positions), tables, run.totals)
    if not only:
        store.put(record, seal(asdict(stored)))
    return stored


def _staged_table(plan: BuildPlan, ref: PagedTableRef, layout: TableLayout) -> PagedTable:
    return PagedTable(plan.reader.store, plan.staged_key_of, ref, layout.for_runs())


def _read_rows(plan: BuildPlan, positions: Int64Array) -> tuple[Int64Array, pa.Array]:
    """The row ids and values of some rows."""
    rows = max(1, _READ_BYTES // _value_bytes(plan))
    groups = [positions[start : start + rows] for start in range(0, len(positions), rows)]
    name = plan.field.name
    read = read_ahead(
        lambda group: plan.reader.arrow([name, "_row_id"], group),
        groups,
        prefetch=_PREFETCH,
        size=lambda _: _READ_BYTES,
    )
    tables = list(read) or [plan.reader.arrow([name, "_row_id"], positions)]
    table = pa.concat_tables(tables)
    values = table[name].combine_chunks()
    if isinstance(values, pa.ChunkedArray):  # no rows
        values = pa.array([], values.type)
    return np.asarray(table[ROW_ID], np.int64), values


def _value_bytes(plan: BuildPlan) -> int:
    """Approximate bytes of a value."""
    return max(8, plan.reader.row_bytes([plan.field]))


def merge_sorted(runs: Sequence[PagedTable]) -> Iterator[pa.Table]:
    """The entries of sorted runs in one order by key, equal keys in the order of the runs, some at a time.

    Memory is bounded by the pages that are read at a time, or by all entries of one key if they are more.
    """
    cursors = [_Cursor(run) for run in runs if len(run)]
    while cursors:
        for cursor in cursors:
            cursor.fill(_MERGE_BYTES // len(cursors))
        cursors = [cursor for cursor in cursors if cursor.bytes]  # without those whose entries are all left out
        open_ended = [cursor for cursor in cursors if cursor.has_more]
        horizon = min((cursor.last for cursor in open_ended), default=None)
        while horizon is not None and all(cursor.first >= horizon for cursor in cursors):
            for cursor in open_ended:  # all entries at hand have one key, which may go on
                if cursor.last == horizon:
                    cursor.fill(cursor.bytes + _MERGE_BYTES // len(cursors))
            open_ended = [cursor for cursor in cursors if cursor.has_more]
            horizon = min((cursor.last for cursor in open_ended), default=None)
        if cursors:
            table = pa.concat_tables([cursor.take(horizon) for cursor in cursors])
            yield table.take(pc.sort_indices(table[KEY]))
        cursors = [cursor for cursor in cursors if cursor.has_more or cursor.bytes]


class _Cursor:
    """The next entries of a run."""

    def __init__(self, run: PagedTable) -> None:
        self._run, self._next = run, 0
        self._buffered: pa.Table = pa.Table.from_batches([], run.schema)

    @property
    def has_more(self) -> bool:
        return self._next < len(self._run)

    @property
    def bytes(self) -> int:
        return int(self._buffered.nbytes)

    @property
    def first(self) -> Any:
        return self._buffered[KEY][0].as_py()

    @property
    def last(self) -> Any:
        return self._buffered[KEY][-1].as_py()

    def fill(self, size: int) -> None:
        """Read pages until `size` bytes are buffered."""
        while self.has_more and self.bytes < size:
            pages = range(self._next, min(self._next + _MERGE_PAGES, len(self._run)))
            batches = self._run.read(pages)
            self._next = pages.stop
            self._buffered = pa.concat_tables([self._buffered, pa.Table.from_batches(batches)])

    def take(self, horizon: Any) -> pa.Table:
        """Remove and return the entries before a key, or all of them."""
        count = len(self._buffered)
        if horizon is not None:
            count = int(pc.sum(pc.less(self._buffered[KEY], pa.scalar(horizon, self._buffered[KEY].type))).as_py() or 0)
        found, self._buffered = self._buffered.slice(0, count), self._buffered.slice(count)
        return found
