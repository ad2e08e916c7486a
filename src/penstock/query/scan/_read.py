"""Read the rows of a scan: the filter's columns first, the others of matching rows only, ahead of the consumer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.format import DataFile, Field, Fragment
from penstock.query.indexes import ScalarAnswer, answer_filter
from penstock.query.scan._arrow import column_array, is_stored_type
from penstock.query.scan._filter import filter_columns, matching_rows
from penstock.query.scan._relation import ROW, Derived, Relation
from penstock.query.scan._trace import RelationTrace
from penstock.storage import Prefetch, read_ahead, thread_map
from penstock.table import (
    ROW_ID,
    FragmentRows,
    Int64Array,
    PageRequest,
    PageRuns,
    Pages,
    candidate_rows,
    gather,
    page_requests,
    read_pages,
)
from penstock.types import cached_property

_R = TypeVar("_R")
_BATCH_ROWS = 1 << 16
_PART_ROWS = 1 << 18
_BATCH_BYTES = 8 << 20
_TASKS = 4
_REQUESTS = 8


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of a scan that are read together."""

    selection: tuple[FragmentRows, ...]
    positions: Int64Array
    """Ascending, one for each row of the selection."""
    indices: Int64Array | None = None
    """Indices into the relation's rows; None if they follow from the positions."""
    order: Int64Array | None = None
    """The row of the selection that each index is; None if they are the same."""
    known: Mapping[str, pa.Array] = field(default_factory=dict)
    """Columns that were read already."""
    pages: Pages | None = None
    """Pages that were read already, if they hold other columns too."""
    files: frozenset[str] = frozenset()
    """Ids of the files of those pages."""

    def take(self, rows: Int64Array | slice) -> "Part":
        """Some rows, ascending, of a part of one fragment that is in the order of its positions."""
        [selected] = self.selection
        return Part(
            (FragmentRows(selected.fragment, selected.rows[rows]),),
            self.positions[rows],
            known={name: _take(array, rows) for name, array in self.known.items()},
            pages=self.pages,
            files=self.files,
        )

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.positions if self.indices is None else self.indices)

    def holds(self, column: Field) -> bool:
        """Whether the pages that were read have a column."""
        files = [file.id for selected in self.selection for file in selected.fragment.files_of(column.id)]
        return bool(files) and self.files.issuperset(files)


@dataclass(frozen=True, eq=False)
class ScanRun:
    """One scan of a relation: some columns of the rows that match a filter."""

    relation: Relation
    schema: pa.Schema
    """All columns of the relation, the virtual ones included."""
    derived: Mapping[str, Derived]
    handles: Mapping[str, str]
    """Columns of handles, and the columns they refer to."""
    columns: Sequence[str]
    filter: pc.Expression | None
    budget_bytes: int
    trace: RelationTrace

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The batches, in the order of the relation's rows."""
        for part in self._projected(self._matching()):
            yield from self._batch(part)

    def plan(self) -> None:
        """Add to the trace what `batches` would read at most, without reading it."""
        needed = list(dict.fromkeys([*self.filter_columns, *self.columns]))
        rows = self.relation.distinct
        columns: list[tuple[Int64Array, Sequence[str]]] = [(rows, needed)]
        if (answer := self._index_answer) is not None:
            matches, unchecked = (_within(self.relation, found) for found in (answer.matches, answer.unchecked))
            columns = [(matches, self.columns), (unchecked, needed)]
        for chosen, names in columns:
            for part in self._candidates(replace(self.relation, rows=chosen), names):
                requests = page_requests(part.selection, [found.id for found in self._fields(names)])
                self.trace.add_bytes(sum(request.bytes for request in requests))

    @cached_property
    def filter_columns(self) -> list[str]:
        """The columns that the filter compares."""
        return [] if self.filter is None else filter_columns(self.schema, self.filter)

    def _matching(self) -> Iterator[Part]:
        """Rows that match, with the filter's columns that are wanted; in the order of the relation."""
        names = self.filter_columns
        if self.relation.ascending:
            yield from self._filtered(self.relation, names)
            return
        rows = self.relation.positions
        if self.filter is not None:
            distinct = replace(self.relation, rows=self.relation.distinct)
            found = [part.positions for part in self._filtered(distinct, names)]
            matching = np.concatenate(found) if found else np.zeros(0, np.int64)
            at = np.searchsorted(matching, rows)
            hit = at < len(matching)
            hit[hit] = matching[at[hit]] == rows[hit]
            indices = np.flatnonzero(hit)
        else:
            indices = np.arange(len(rows))
        count = self._rows_per_batch(self.columns)
        for start in range(0, len(indices), count):
            chosen = indices[start : start + count]
            positions, order = np.unique(rows[chosen], return_inverse=True)
            yield Part(tuple(self.relation.reader.locate(positions)), positions, chosen, order)

    @cached_property
    def _index_answer(self) -> ScalarAnswer | None:
        """What indexes know about the filter; None if they do not help."""
        filter = self._prunable()
        answer = None if filter is None else answer_filter(self.relation.reader, filter)
        if answer is not None:
            self.trace.add_bytes(sum(read.table.bytes_of(read.pages) for read in answer.pages))
            self.trace.add_indexes(answer.indexes)
        return answer

    def _filtered(self, relation: Relation, names: Sequence[str]) -> Iterator[Part]:
        """Rows of an ascending relation that match, by fragment; without known columns if an index found them."""
        if self._index_answer is None:
            yield from self._scanned(relation, names)
            return
        matches, unchecked = (_within(relation, found) for found in self._index_answer[:2])
        checked = self._scanned(replace(relation, rows=unchecked), names) if len(unchecked) else iter(())
        positions = np.sort(np.concatenate([matches, *(part.positions for part in checked)]))
        for selected in relation.reader.locate(positions):
            mine, positions = positions[: len(selected.rows)], positions[len(selected.rows) :]
            yield Part((selected,), mine, relation.indices_of(mine))

    def _scanned(self, relation: Relation, names: Sequence[str]) -> Iterator[Part]:
        """The same by reading the columns of the filter."""
        candidates = self._candidates(relation, names or self.columns)
        if self.filter is None:
            yield from candidates
            return
        fields = self._fields(names)
        wanted = [name for name in names if name in self.columns]

        others = self._fields([name for name in self.columns if name not in names])

        def read(part: Part) -> Part | None:
            pages = self._fetch(part, fields)
            table = pa.table(self._read(part, names, pages))
            rows = matching_rows(table, self.filter)
            if not len(rows):
                return None
            found = replace(part, known={name: table[name].combine_chunks() for name in wanted})
            if others:
                files = frozenset(
                    file.id for own in part.selection for each in fields for file in own.fragment.files_of(each.id)
                )
                found = replace(found, pages=pages, files=files)
                found = found if any(map(found.holds, others)) else replace(found, pages=None, files=frozenset())
            return found if len(rows) == table.num_rows else found.take(rows)

        for part in self._ahead(read, candidates, fields):
            if part is not None:
                yield part

    def _candidates(self, relation: Relation, names: Sequence[str]) -> Iterator[Part]:
        """The rows that may match, cut at the pages of the columns that are read first."""
        fields, reader = self._fields(names), relation.reader
        limit = self._rows_per_batch(names)
        for candidate in candidate_rows(reader, self._prunable(), relation.rows, self.trace.counts):
            rows, positions = candidate.selected.rows, candidate.positions
            fragment = candidate.selected.fragment
            for part in _cut(fragment, fields, rows, limit):
                yield Part((FragmentRows(fragment, rows[part]),), positions[part])

    def _prunable(self) -> pc.Expression | None:
        """The filter, if its columns are stored as they are compared; a computed one prunes nothing."""
        fields = self._fields(self.filter_columns)
        return self.filter if all(map(is_stored_type, fields)) else None

    def _projected(self, parts: Iterator[Part]) -> Iterator[Part]:
        """Parts with all columns, in pieces that fit into memory."""
        known = set(self.filter_columns) if self.relation.ascending and self._index_answer is None else set()
        names = [name for name in self.columns if name not in known]
        fields = self._fields(names)
        if not fields and not any(name in self.derived for name in names):
            for part in parts:
                yield replace(part, known=self._read(part, names, Pages()))
            return

        def read(part: Part) -> Part:
            pages = self._fetch(part, [each for each in fields if not part.holds(each)])
            return replace(part, known=self._read(part, names, pages), pages=None)

        yield from self._ahead(read, self._pieces(parts, names), fields)

    def _pieces(self, parts: Iterator[Part], names: Sequence[str]) -> Iterator[Part]:
        count = self._rows_per_batch(names)
        for part in parts:
            if part.order is not None or part.rows <= count:
                yield part
                continue
            for start in range(0, part.rows, count):
                yield part.take(slice(start, start + count))

    def _ahead(self, read: Callable[[Part], _R], parts: Iterator[Part], fields: Sequence[Field]) -> Iterator[_R]:
        row_bytes = self._row_bytes(fields)
        prefetch = Prefetch(_TASKS, max(1, self.budget_bytes // 2))
        return read_ahead(read, parts, prefetch=prefetch, size=lambda part: int(part.rows * row_bytes))

    def _read(self, part: Part, names: Sequence[str], pages: Pages) -> dict[str, pa.Array]:
        """Columns of a part, those known included, in the order of its selection."""
        reader = self.relation.reader
        found = dict(part.known)
        for name in names:
            if name in found:
                continue
            if name == ROW:
                found[name] = pa.array(self._indices(part))
            elif name in self.handles:
                found[name] = pa.StructArray.from_arrays(
                    [pa.array(self._indices(part))], fields=list(self.schema.field(name).type)
                )
            elif name == ROW_ID:
                ids = [selected.fragment.row_ids_at(selected.rows) for selected in part.selection]
                found[name] = pa.array(np.concatenate(ids))
            elif name in self.derived:
                found[name] = self.derived[name].compute(part.positions)
            else:
                column = reader.snapshot.schema[name]
                source = part.pages if part.pages is not None and part.holds(column) else pages
                raw = gather(reader.snapshot.schema, column, part.selection, source)
                found[name] = column_array(reader, column, raw)
        return found

    def _indices(self, part: Part) -> Int64Array:
        return self.relation.indices_of(part.positions) if part.indices is None else part.indices

    def _fetch(self, part: Part, fields: Sequence[Field]) -> Pages:
        reader, pages = self.relation.reader, Pages()
        requests = page_requests(part.selection, [found.id for found in fields])
        self.trace.add_bytes(sum(request.bytes for request in requests))

        def read(request: PageRequest) -> PageRuns:
            return read_pages(reader.store, request)

        with reader.missing_as_corrupt():
            fetched = thread_map(read, requests, max_workers=1 if reader.store.is_local else _REQUESTS)
        for request, runs in zip(requests, fetched, strict=True):
            pages.add_all(request.file, runs)
        return pages

    def _batch(self, part: Part) -> Iterator[pa.RecordBatch]:
        """The columns of a part as batches of bounded length."""
        if not self.columns:
            yield pa.RecordBatch.from_arrays([pa.nulls(part.rows)], [ROW]).select([])
            return
        virtual = (ROW, *self.handles)  # by index already, and so in order
        columns = [
            part.known[name] if part.order is None or name in virtual else _take(part.known[name], part.order)
            for name in self.columns
        ]
        batch = pa.RecordBatch.from_arrays(
            columns, schema=pa.schema([self.schema.field(name) for name in self.columns])
        )
        for start in range(0, part.rows, _BATCH_ROWS):
            yield batch.slice(start, _BATCH_ROWS)

    def _fields(self, names: Sequence[str]) -> list[Field]:
        schema = self.relation.reader.snapshot.schema
        return [
            schema[name] for name in names if name in schema and name not in self.derived and name not in self.handles
        ]

    def _rows_per_batch(self, names: Sequence[str]) -> int:
        row_bytes = self._row_bytes(self._fields(names))
        return max(1, min(_PART_ROWS, int(_BATCH_BYTES // max(row_bytes, 1))))

    def _row_bytes(self, fields: Sequence[Field]) -> float:
        """Approximate bytes of a row of some columns, estimated from the first fragment."""
        reader = self.relation.reader
        first = next(iter(reader.tree.fragments(reader.snapshot.nodes)), None)
        return sum(_column_bytes(first, each) for each in fields)


def _within(relation: Relation, found: Int64Array) -> Int64Array:
    """Those of some ascending positions that are among the rows of a relation."""
    if isinstance(relation.rows, range) and relation.rows.step == 1:
        return found[slice(*np.searchsorted(found, (relation.rows.start, relation.rows.stop)))]
    return np.intersect1d(found, relation.distinct, assume_unique=True)


def _column_bytes(fragment: Fragment | None, column: Field) -> float:
    if column.fixed_row_bytes is not None or fragment is None:
        return column.fixed_row_bytes or 1
    files = fragment.files_of(column.id)
    stored = sum(file.length / len(file.fields) + sum(blob.length for blob in file.blobs) for file in files)
    return stored / max(1, fragment.rows)


def _cut(fragment: Fragment, fields: Sequence[Field], rows: Int64Array, limit: int) -> Iterator[slice]:
    """Parts of about `limit` rows each, and at least a page, cut at pages so that none is read twice."""
    files = max((fragment.files_of(column.id) for column in fields), key=_stored_bytes, default=())
    ends = [file.row_start + file.page_ends for file in files]
    if not ends:
        yield from (slice(start, start + limit) for start in range(0, len(rows), limit))
        return
    cuts = np.unique(np.searchsorted(rows, np.concatenate(ends)))
    cuts = cuts[cuts > 0]
    start = 0
    while start < len(rows):
        fitting = int(np.searchsorted(cuts, start + limit, side="right"))
        following = int(np.searchsorted(cuts, start, side="right"))
        end = int(cuts[max(fitting - 1, following)]) if following < len(cuts) else len(rows)
        yield slice(start, end)
        start = end


def _stored_bytes(files: Sequence[DataFile]) -> int:
    return sum(file.length for file in files)


def _take(array: pa.Array, rows: Int64Array | slice) -> pa.Array:
    if isinstance(rows, slice):
        return array[rows]
    return array.take(pa.array(rows))
