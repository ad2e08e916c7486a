"""Which rows of a version an index answers.

The header of an index has the manifests and, by data file, the row ids that it covers. Both are immutable, so that any
version can tell by itself: a manifest that the index knows is covered as a whole and need not be read; in the others, a
row is covered if its value is in a data file that the index knows, or in one that says that the row did not change
since such a file. Every other live row is searched exactly.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.format import Fragment, Node, unpack_bitmap
from penstock.table import Int64Array, Reader, as_ranges
from penstock.types import RowRange

_EMPTY = np.zeros(0, np.int64)

Covered = Mapping[str, Sequence[RowRange]]
"""The covered row ids of data files, as ascending ranges."""


@dataclass(frozen=True)
class Coverage:
    """What an index answers at one version."""

    uncovered: Int64Array
    """Ascending positions of live rows that it does not answer."""
    uncovered_ids: Int64Array
    """Their row ids, ascending."""
    dead: Int64Array
    """Ascending ids of rows that it knows and that are deleted or changed since."""


def covered_rows(reader: Reader, field_id: int) -> tuple[tuple[str, ...], dict[str, tuple[RowRange, ...]]]:
    """What an index of all rows of a version covers: manifests, and row ids by data file."""
    nodes: list[str] = []
    files: dict[str, tuple[RowRange, ...]] = {}

    def walk(top: Sequence[Node]) -> bool:
        """Whether all rows below are covered: a fragment without a file of the field is not."""
        complete = True
        for node in top:
            manifest = reader.tree.load(node)
            below = walk(manifest.nodes)
            for fragment in manifest.fragments:
                found = fragment.files_of(field_id)
                below &= bool(found) or not fragment.live
                for file in found:
                    rows = fragment.live_rows
                    inside = rows[slice(*np.searchsorted(rows, (file.row_start, file.row_end)))]
                    files[file.id] = as_ranges(np.sort(fragment.row_ids_at(inside)))
            if below:
                nodes.append(node.id)
            complete &= below
        return complete

    walk(reader.snapshot.nodes)
    return tuple(nodes), files


def coverage_of(
    reader: Reader, field_id: int, *, nodes: frozenset[str], rows: int, load_files: Callable[[], Covered]
) -> Coverage:
    """What an index answers at the reader's version, given what its header says that it covers."""
    top = reader.snapshot.nodes
    if all(node.id in nodes for node in top) and sum(node.live for node in top) == rows:
        return Coverage(_EMPTY, _EMPTY, _EMPTY)
    walk = _Walk(reader, field_id, nodes, load_files())
    walk.visit(top, 0)
    return walk.result()


class _Walk:
    """A walk over the manifests of a version that the index does not cover as a whole."""

    def __init__(self, reader: Reader, field_id: int, nodes: frozenset[str], files: Covered) -> None:
        self._reader, self._field_id, self._nodes, self._files = reader, field_id, nodes, files
        self._positions: list[Int64Array] = []
        self._ids: list[Int64Array] = []
        self._answered: list[RowRange] = []

    def visit(self, top: Sequence[Node], position: int) -> None:
        for node in top:
            if node.id in self._nodes and node.live == node.end_id - node.first_id:
                self._answered.append(RowRange(node.first_id, node.end_id))  # no gap, so all its rows are live
            else:
                manifest = self._reader.tree.load(node)
                self.visit(manifest.nodes, position)
                first = position
                for fragment in manifest.fragments:
                    self._add(fragment, first, whole=node.id in self._nodes)
                    first += fragment.live
            position += node.live

    def _add(self, fragment: Fragment, position: int, *, whole: bool) -> None:
        ids = fragment.row_ids_at(fragment.live_rows)
        answered = np.ones(len(ids), bool) if whole else _answered(fragment, self._field_id, ids, self._files)
        missing = np.flatnonzero(~answered)
        self._positions.append(missing + position)
        self._ids.append(ids[missing])
        self._answered += as_ranges(np.sort(ids[answered]))

    def result(self) -> Coverage:
        ids = np.sort(np.concatenate([_EMPTY, *self._ids]))
        known = [run for runs in self._files.values() for run in runs]
        return Coverage(np.concatenate([_EMPTY, *self._positions]), ids, _without(known, self._answered))


def _answered(fragment: Fragment, field_id: int, ids: Int64Array, files: Covered) -> npt.NDArray[np.bool_]:
    """Which live rows of a fragment have a value that the index has seen."""
    rows, found = fragment.live_rows, np.zeros(len(ids), bool)
    for file in fragment.files_of(field_id):
        inside = slice(*np.searchsorted(rows, (file.row_start, file.row_end)))
        if file.id in files:
            found[inside] |= _in_ranges(ids[inside], files[file.id])
            continue
        for base, changes in file.changes_since.items():
            if base not in files:
                continue
            same = _in_ranges(ids[inside], files[base])
            if field_id in changes:
                same &= ~unpack_bitmap(changes[field_id].rows, file.rows)[rows[inside] - file.row_start]
            found[inside] |= same
    return found


def _in_ranges(ids: Int64Array, runs: Sequence[RowRange]) -> npt.NDArray[np.bool_]:
    """Which ids lie in ascending ranges."""
    if not runs:
        return np.zeros(len(ids), bool)
    starts, ends = (np.array([getattr(run, name) for run in runs], np.int64) for name in ("start", "end"))
    before = np.searchsorted(starts, ids, side="right") - 1
    return (before >= 0) & (ids < ends[before])


def _without(known: Sequence[RowRange], answered: Sequence[RowRange]) -> Int64Array:
    """The ids in some ranges that are in none of the others, ascending."""
    merged: list[RowRange] = []
    for run in sorted(answered, key=lambda run: run.start):
        if merged and run.start <= merged[-1].end:
            merged[-1] = RowRange(merged[-1].start, max(merged[-1].end, run.end))
        else:
            merged.append(run)
    starts = np.array([run.start for run in merged], np.int64)
    left = []
    for run in known:
        index = int(np.searchsorted(starts, run.start, side="right")) - 1
        if index >= 0 and merged[index].end >= run.end:
            continue  # the common case: nothing of this file has changed
        ids = np.arange(run.start, run.end, dtype=np.int64)
        left.append(ids[~_in_ranges(ids, merged)])
    return np.unique(np.concatenate([_EMPTY, *left]))
