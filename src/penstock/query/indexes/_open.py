"""Open the indexes of a version: what they consist of is read once, what they answer is known for each version."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from penstock.errors import CorruptError
from penstock.format import (
    Field,
    IndexEntry,
    IndexHeader,
    IndexObject,
    IndexSegment,
    Node,
    decode_covered,
    decode_index_header,
    decode_index_table,
    search_index_key,
)
from penstock.history import Tree
from penstock.query.indexes._coverage import Coverage, Covered, coverage_of
from penstock.query.indexes._kind import IndexKind
from penstock.query.indexes._kinds import kind_from_options
from penstock.query.indexes._pages import PagedTable
from penstock.storage import Store
from penstock.table import Int64Array, Reader

_MAX_VERSIONS = 4
_MAX_INDEXES = 16


def index_entries(reader: Reader) -> list[IndexEntry]:
    """The indexes of a version, whose columns exist."""
    fields = {field.id for field in reader.snapshot.schema}
    return [entry for entry in IndexEntry.of_snapshot(reader.snapshot.indexes) if entry.field_id in fields]


def open_index(reader: Reader, field: Field, kind: str) -> "OpenIndex | None":
    """The index of a column at a version; None if there is none."""
    for entry in index_entries(reader):
        if entry.field_id == field.id and entry.kind == kind:
            return OpenIndex(reader, field, contents_of(reader, entry))
    return None


class IndexContents:
    """The header of an index and what it refers to, read when it is needed; the same for all versions."""

    def __init__(self, store: Store, entry: IndexEntry, header: IndexHeader) -> None:
        self._store, self.entry, self.header = store, entry, header
        self._objects: dict[str, Any] = {}
        self._coverages: OrderedDict[tuple[Node, ...], Coverage] = OrderedDict()
        self._lock = Lock()

    def key_of(self, object_id: str) -> str:
        return search_index_key(self.entry.id, object_id, "arrow")

    def get(self, ref: IndexObject) -> tuple[memoryview, str]:
        """The bytes of an object, and its address for errors."""
        key = self.key_of(ref.id)
        return self._store.get(key), f"{self._store.uri}/{key}"

    def table(self, ref: IndexObject) -> pa.Table:
        """An object as a table; read once."""
        if ref.id not in self._objects:
            data, where = self.get(ref)
            self._objects[ref.id] = decode_index_table(ref, data, where)
        return self._objects[ref.id]

    @cached_property
    def files(self) -> Covered:
        """The covered row ids of data files."""
        data, where = self.get(self.header.files)
        return decode_covered(self.header.files, data, where)

    def segments(self, kind: IndexKind) -> "list[Segment]":
        """The segments, whose tables keep what they have read."""
        with self._lock:
            if "segments" not in self._objects:
                self._objects["segments"] = [
                    Segment(self, self._store, kind, described) for described in self.header.segments
                ]
            return self._objects["segments"]  # type: ignore[no-any-return]

    def coverage(self, reader: Reader) -> Coverage:
        """What the index answers at a version; computed once for the last few of them."""
        version = reader.snapshot.nodes
        with self._lock:
            found = self._coverages.get(version)
        if found is None:
            found = coverage_of(
                reader,
                self.entry.field_id,
                nodes=frozenset(self.header.nodes),
                rows=self.header.rows,
                load_files=lambda: self.files,
            )
        with self._lock:
            self._coverages[version] = found
            self._coverages.move_to_end(version)
            if len(self._coverages) > _MAX_VERSIONS:
                self._coverages.popitem(last=False)
        return found


class Segment:
    """The entries of some rows."""

    def __init__(self, contents: IndexContents, store: Store, kind: IndexKind, described: IndexSegment) -> None:
        self._contents, self._described = contents, described
        missing = kind.tables.keys() - described.tables.keys()
        if missing:
            raise CorruptError(f"index {contents.entry.name!r} has no table {min(missing)!r}; create it again")
        self.tables: Mapping[str, PagedTable] = {
            name: PagedTable(store, contents.key_of, described.tables[name], layout)
            for name, layout in kind.tables.items()
        }

    @property
    def rows(self) -> int:
        return self._described.rows

    @property
    def totals(self) -> Mapping[str, int]:
        return self._described.totals

    @cached_property
    def superseded(self) -> Int64Array:
        """Ascending ids of rows whose entries later segments replace."""
        ref = self._described.superseded
        if ref is None:
            return np.zeros(0, np.int64)
        return np.asarray(self._contents.table(ref)["row_id"], np.int64)


class OpenIndex:
    """An index of a column at one version."""

    def __init__(self, reader: Reader, field: Field, contents: IndexContents) -> None:
        self.reader, self.field, self._contents = reader, field, contents
        self.kind: IndexKind = kind_from_options(contents.entry.kind, field, contents.header.options)

    @property
    def name(self) -> str:
        return self._contents.entry.name

    @property
    def options(self) -> Mapping[str, Any]:
        return self._contents.header.options

    @property
    def rows(self) -> int:
        """Rows that it covered when it was built or extended."""
        return self._contents.header.rows

    @property
    def segments(self) -> "Sequence[Segment]":
        return self._contents.segments(self.kind)

    def object(self, name: str) -> pa.Table:
        """A table that every search needs; read once."""
        return self._contents.table(self._contents.header.objects[name])

    @cached_property
    def _coverage(self) -> Coverage:
        return self._contents.coverage(self.reader)

    @property
    def uncovered(self) -> Int64Array:
        """Ascending positions of live rows that it does not answer: search them exactly."""
        return self._coverage.uncovered

    def stale(self, segment: int) -> Int64Array:
        """Ascending ids of rows whose entries in a segment are not valid at this version; mostly none."""
        replaced = self.segments[segment].superseded
        known = self._coverage.dead
        if not len(self._coverage.uncovered_ids) and not len(replaced):
            return known
        return np.unique(np.concatenate([known, replaced, self._coverage.uncovered_ids]))

    def positions(self, segment: int, row_ids: Int64Array) -> Int64Array:
        """Positions of rows found in a segment, in their order; -1 for a row that is deleted or changed since."""
        found = self.reader.positions_of(row_ids)
        stale = self.stale(segment)
        if len(stale):
            found[np.isin(row_ids, stale)] = -1
        return found


_contents: "WeakKeyDictionary[Tree, OrderedDict[str, IndexContents]]" = WeakKeyDictionary()
"""By tree, which contents do not refer to: they go with the last reader."""
_contents_lock = Lock()


def contents_of(reader: Reader, entry: IndexEntry) -> IndexContents:
    """The contents of an index; the header is read once for all versions of a session."""
    store = reader.store
    with _contents_lock:
        known = _contents.setdefault(reader.tree, OrderedDict())
        if entry.header.id in known:
            known.move_to_end(entry.header.id)
            return known[entry.header.id]
    with reader.missing_as_corrupt():
        header = decode_index_header(entry, store.get(entry.key), f"{store.uri}/{entry.key}")
    with _contents_lock:
        found = known.setdefault(entry.header.id, IndexContents(store, entry, header))
        if len(known) > _MAX_INDEXES:
            known.popitem(last=False)
        return found
