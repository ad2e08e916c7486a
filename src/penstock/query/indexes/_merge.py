"""Merge segments of an index from their entries, without reading the table."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.format import IndexSegment
from penstock.query.indexes._build import BuildPlan, add_totals, merge_sorted
from penstock.query.indexes._open import OpenIndex
from penstock.query.indexes._pages import PagedTable, PageWriter
from penstock.table import Int64Array

_RATIO = 4


def segments_to_merge(rows: Sequence[int], added: int) -> int:
    """The first of the segments to merge before one of `added` rows follows: it, and all later ones.

    A segment stays as it is if it is much larger than all that follow: then each entry is written a few times in all,
    and there are few segments. The first one is left to `_MAX_DELTA_SHARE`.
    """
    first, total = len(rows), added
    while first > 1 and rows[first - 1] <= _RATIO * total:
        first -= 1
        total += rows[first]
    return first


def can_merge(opened: OpenIndex, first: int) -> bool:
    """Whether the entries of segments from `first` on can be in one segment.

    An entry of several rows cannot be left out for one of them, so no row may be in two of the segments, or be void in
    one and valid in another.
    """
    kind, segments = opened.kind, opened.segments[first:]
    if kind.rows_table is None:
        return True
    tables = [segment.tables[kind.rows_table] for segment in segments]
    rows = [
        kind.entry_rows(kind.rows_table, page) for table in tables for pages in table.scan(group=64) for page in pages
    ]
    known = np.concatenate([np.zeros(0, np.int64), *rows])
    void = _void(opened, first)
    valid = void[opened.reader.positions_of(void) >= 0]
    uncovered = opened.reader.row_ids(opened.uncovered)
    return len(np.unique(known)) == len(known) and bool(np.isin(valid, uncovered).all())


def merge_segments(
    plan: BuildPlan, opened: OpenIndex, described: Sequence[IndexSegment], first: int
) -> tuple[IndexSegment, Int64Array]:
    """Store segments from `first` on as one, and return it with the ids of rows whose entries in it are void."""
    tables = {}
    for name, layout in plan.kind.tables.items():
        writer = PageWriter(plan.reader.store, plan.key_of, layout)
        runs = [_ValidEntries(opened, number, name) for number in range(first, len(opened.segments))]
        for entries in merge_sorted(runs):
            writer.write(plan.kind.pack(name, entries))
        tables[name] = writer.finish()
    merged = described[first:]
    segment = IndexSegment(sum(one.rows for one in merged), tables, add_totals([one.totals for one in merged]))
    return segment, _void(opened, first) if plan.kind.rows_table is not None else np.zeros(0, np.int64)


def _void(opened: OpenIndex, first: int) -> Int64Array:
    """Row ids that are void in any of the segments from `first` on."""
    return np.unique(np.concatenate([opened.stale(number) for number in range(first, len(opened.segments))]))


class _ValidEntries(PagedTable):
    """A table of a segment, without the entries of void rows if each entry is of one row."""

    def __init__(self, opened: OpenIndex, number: int, name: str) -> None:
        table = opened.segments[number].tables[name]
        super().__init__(table._store, table._key_of, table.ref, table._layout)
        self._kind, self._name, self._void = opened.kind, name, opened.stale(number)

    def read(self, pages: Sequence[int]) -> list[pa.RecordBatch]:
        found = super().read(pages)
        if self._kind.rows_table is not None or not len(self._void):
            return found
        return [page.filter(pa.array(~np.isin(self._kind.entry_rows(self._name, page), self._void))) for page in found]
