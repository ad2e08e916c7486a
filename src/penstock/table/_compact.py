"""Join small fragments and leave deleted rows out; row ids and their order stay, and readers are not disturbed."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.format import Changed, Fragment
from penstock.table._append import FRAGMENT_BYTES, FRAGMENT_ROWS, FileWriter, FragmentWriter
from penstock.table._pages import Wanted, stored_columns
from penstock.table._read import read_ahead
from penstock.table._stage import Stage
from penstock.types import RowRange

_MOST_DELETED = 0.1
_READERS = 32
_LOT_BYTES = 16 << 20


def compact(stage: Stage) -> int:
    """Stage the fragments as they should be; says how many of the old ones go."""
    groups = list(plan_compaction(stage.tree.fragments(stage.snapshot.nodes)))
    moved = []
    with FileWriter(stage.store) as files:
        for group in groups:
            stage.notice.at_work()
            moved.append((group, _rewritten(stage, files, group)))
    stage.changes.moved += moved
    stage.put(stage.tree.splice(stage.snapshot.nodes, moved), stage.snapshot.schema, {})
    if moved:
        stage.changes.note("compact")
    return sum(len(group) for group, _ in moved)


def plan_compaction(fragments: Iterable[Fragment]) -> Iterator[tuple[Fragment, ...]]:
    """Neighbours that are better off as one, or alone but without their deleted rows; pure."""
    group: list[Fragment] = []
    rows, size = 0, 0
    for fragment in fragments:
        live, length = fragment.live, fragment.bytes
        small = live < FRAGMENT_ROWS // 2 and length < FRAGMENT_BYTES // 2
        holey = live < fragment.rows * (1 - _MOST_DELETED)
        if group and (rows + live > FRAGMENT_ROWS or size + length > FRAGMENT_BYTES or not (small or holey)):
            yield from _worthwhile(group)
            group, rows, size = [], 0, 0
        if small or holey:
            group.append(fragment)
            rows, size = rows + live, size + length
    yield from _worthwhile(group)


def _worthwhile(group: Sequence[Fragment]) -> Iterator[tuple[Fragment, ...]]:
    if len(group) > 1 or any(fragment.live < fragment.rows for fragment in group):
        yield tuple(group)


class KnownIds:
    """Gives out ids that rows have already."""

    def __init__(self, ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        self._ids, self._next = ids, 0

    def take(self, count: int) -> tuple[RowRange, ...]:
        part = self._ids[self._next : self._next + count]
        self._next += count
        return as_ranges(part)


def as_ranges(ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[RowRange, ...]:
    """Ids in order as the fewest ranges."""
    if not len(ids):
        return ()
    starts = np.concatenate([[0], np.flatnonzero(np.diff(ids) != 1) + 1])
    ends = np.concatenate([starts[1:], [len(ids)]])
    return tuple(RowRange(int(ids[a]), int(ids[b - 1]) + 1) for a, b in zip(starts, ends, strict=True))


def _rewritten(stage: Stage, files: FileWriter, group: Sequence[Fragment]) -> tuple[Fragment, ...]:
    """The live rows of fragments as new ones, whose files know which files they stand for."""
    fields = list(stage.snapshot.schema)
    alive = [fragment for fragment in group if fragment.live]
    if not alive:
        return ()
    ids = np.concatenate([fragment.all_row_ids[fragment.live_rows] for fragment in alive])
    writer = FragmentWriter(files, fields, KnownIds(ids))
    for arrays in _columns_of(stage, alive):
        writer.write(arrays)
    writer.close_fragment()
    return _noted(writer.fragments, alive)


def _columns_of(stage: Stage, fragments: Sequence[Fragment]) -> Iterator[dict[int, pa.Array]]:
    """The live rows of fragments, in order: many small ones at once, and the next such lots read ahead."""
    schema = stage.snapshot.schema

    def read(lot: Sequence[Fragment]) -> list[dict[int, pa.Array]]:
        wanted = [Wanted(fragment, fragment.live_rows) for fragment in lot]
        return [stored_columns(stage.store, schema, list(schema), wanted, max_workers=_READERS)]

    return read_ahead(read, _lots(fragments), threads=1)


def _lots(fragments: Sequence[Fragment]) -> Iterator[list[Fragment]]:
    lot: list[Fragment] = []
    size = 0
    for fragment in fragments:
        lot.append(fragment)
        size += fragment.bytes
        if size >= _LOT_BYTES:
            yield lot
            lot, size = [], 0
    if lot:
        yield lot


def _noted(fragments: Sequence[Fragment], sources: Sequence[Fragment]) -> tuple[Fragment, ...]:
    """Fragments whose files say that they hold the same values as the files they were made of."""
    ends = np.cumsum([source.live for source in sources])
    noted, before = [], 0
    for fragment in fragments:
        files = []
        for file in fragment.files:
            first, last = np.searchsorted(ends, (before + file.row_start, before + file.row_end - 1), side="right")
            mine = sources[first : last + 1]
            bases = sorted({old.id for source in mine for old in source.files if set(old.fields) & set(file.fields)})
            files.append(replace(file, changed=tuple(Changed(base, 0, b"") for base in bases)))
        noted.append(replace(fragment, files=tuple(files)))
        before += fragment.rows
    return tuple(noted)
