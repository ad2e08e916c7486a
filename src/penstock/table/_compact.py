"""Compaction: rewrite small fragments as larger ones and drop deleted rows; row ids and order stay."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidInputError
from penstock.format import ChangedRows, Fragment
from penstock.storage import Prefetch, read_ahead
from penstock.table._append import FRAGMENT_BYTES, FRAGMENT_ROWS, FileWriter, FragmentWriter
from penstock.table._gather import read_columns
from penstock.table._pages import FragmentRows, Int64Array
from penstock.table._read import Reader
from penstock.table._stage import Stage
from penstock.types import RowRange

_MAX_DELETED_FRACTION = 0.1
_READERS = 32
_READ_BYTES = 16 << 20
_MANY_FRAGMENTS, _TINY_FRAGMENT_BYTES = 100, 1 << 20


def compact(stage: Stage) -> int:
    """Stage the compacted fragments; returns the number of fragments that they replace.

    Raises `InvalidInputError` if there are other changes: a compaction is rebased by leaving out what others changed.
    """
    if stage.changes:
        raise InvalidInputError("there are uncommitted changes; commit them or roll them back before compacting")
    columns = len(stage.snapshot.schema)  # a table whose columns were all dropped keeps its rows, as they are
    groups = list(plan_compaction(stage.tree.fragments(stage.snapshot.nodes))) if columns else []
    compacted = []
    with FileWriter(stage.store) as files:
        for group in groups:
            stage.intent.renew()
            compacted.append((group, _rewrite(stage, files, group)))
    stage.changes.compacted += compacted
    stage.update_snapshot(stage.tree.splice(stage.snapshot.nodes, compacted), stage.snapshot.schema, {})
    if compacted:
        stage.changes.record("compact")
    return sum(len(group) for group, _ in compacted)


def compaction_advice(reader: Reader) -> list[str]:
    """A note for users of a table with many tiny fragments; none for others."""
    nodes = reader.snapshot.nodes
    fragments, size = sum(node.fragments for node in nodes), sum(node.bytes for node in nodes)
    if fragments < _MANY_FRAGMENTS or size >= fragments * _TINY_FRAGMENT_BYTES:
        return []
    return [
        f"the table has {fragments:,} fragments of {size / fragments / 1e3:,.0f} kB, each of which costs time and a "
        f"request: merge them with penstock.compact({reader.store.uri!r})"
    ]


def plan_compaction(fragments: Iterable[Fragment]) -> Iterator[tuple[Fragment, ...]]:
    """Groups of consecutive fragments to rewrite together; pure."""
    group: list[Fragment] = []
    rows, size = 0, 0
    for fragment in fragments:
        live, length = fragment.live, fragment.bytes
        small = live < FRAGMENT_ROWS // 2 and length < FRAGMENT_BYTES // 2
        sparse = live < fragment.rows * (1 - _MAX_DELETED_FRACTION)
        if group and (rows + live > FRAGMENT_ROWS or size + length > FRAGMENT_BYTES or not (small or sparse)):
            yield from _if_worthwhile(group)
            group, rows, size = [], 0, 0
        if small or sparse:
            group.append(fragment)
            rows, size = rows + live, size + length
    yield from _if_worthwhile(group)


def _if_worthwhile(group: Sequence[Fragment]) -> Iterator[tuple[Fragment, ...]]:
    if len(group) > 1 or any(fragment.live < fragment.rows for fragment in group):
        yield tuple(group)


class ExistingRowIds:
    """A row id source for rows that have ids already."""

    def __init__(self, ids: Int64Array) -> None:
        self._ids, self._next = ids, 0

    def allocate(self, count: int) -> tuple[RowRange, ...]:
        part = self._ids[self._next : self._next + count]
        self._next += count
        return as_ranges(part)


def as_ranges(ids: Int64Array) -> tuple[RowRange, ...]:
    """Ids, in order, as the fewest ranges."""
    if not len(ids):
        return ()
    starts = np.concatenate([[0], np.flatnonzero(np.diff(ids) != 1) + 1])
    ends = np.concatenate([starts[1:], [len(ids)]])
    return tuple(RowRange(int(ids[a]), int(ids[b - 1]) + 1) for a, b in zip(starts, ends, strict=True))


def _rewrite(stage: Stage, files: FileWriter, group: Sequence[Fragment]) -> tuple[Fragment, ...]:
    """The live rows of fragments as new fragments, whose files record the files they replace."""
    fields = list(stage.snapshot.schema)
    sources = [fragment for fragment in group if fragment.live]
    if not sources:
        return ()
    ids = np.concatenate([fragment.all_row_ids[fragment.live_rows] for fragment in sources])
    writer = FragmentWriter(files, fields, ExistingRowIds(ids))
    for arrays in _read_live_rows(stage, sources):
        writer.write(arrays)
    writer.close_fragment()
    return _with_bases(writer.fragments, sources)


def _read_live_rows(stage: Stage, fragments: Sequence[Fragment]) -> Iterator[dict[int, pa.Array]]:
    """The live rows of fragments in order: small fragments are read together, and the next ones prefetched."""
    schema = stage.snapshot.schema

    def read(group: Sequence[Fragment]) -> dict[int, pa.Array]:
        selection = [FragmentRows(fragment, fragment.live_rows) for fragment in group]
        return read_columns(stage.store, schema, list(schema), selection, max_workers=_READERS)

    return read_ahead(read, _group_by_bytes(fragments), prefetch=Prefetch(1))


def _group_by_bytes(fragments: Sequence[Fragment]) -> Iterator[list[Fragment]]:
    group: list[Fragment] = []
    size = 0
    for fragment in fragments:
        group.append(fragment)
        size += fragment.bytes
        if size >= _READ_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _with_bases(fragments: Sequence[Fragment], sources: Sequence[Fragment]) -> tuple[Fragment, ...]:
    """Fragments whose files record that they hold the same values as the source files."""
    ends = np.cumsum([source.live for source in sources])
    result, before = [], 0
    for fragment in fragments:
        files = []
        for file in fragment.files:
            first, last = np.searchsorted(ends, (before + file.row_start, before + file.row_end - 1), side="right")
            mine = sources[first : last + 1]
            bases = sorted({old.id for source in mine for old in source.files if set(old.fields) & set(file.fields)})
            files.append(replace(file, changed=tuple(ChangedRows(base, 0, b"") for base in bases)))
        result.append(replace(fragment, files=tuple(files)))
        before += fragment.rows
    return tuple(result)
