"""Rows that may match a filter: subtrees, then fragments, then pages, are left out by their bounds."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.format import DataFile, Field, Fragment, Manifest, Node, Statistics
from penstock.storage import Prefetch, read_ahead
from penstock.table._gather import fill_values
from penstock.table._leaves import positions_between
from penstock.table._pages import FragmentRows, Int64Array
from penstock.table._read import ROW_ID, Reader, native_type
from penstock.table._statistics import compute_statistics, is_ordered
from penstock.table.filters import (
    ColumnBounds,
    Term,
    field_names,
    may_match,
    nulls_or_nat,
    parse_expression,
    typed_bounds,
)

Positions: TypeAlias = range | Int64Array
Mask: TypeAlias = npt.NDArray[np.bool_]
Part = TypeVar("Part", Node, Fragment)

_LOADERS = Prefetch(8)


@dataclass
class PruneCounts:
    """What a filter had to consider, and what was left after pruning."""

    fragments: int = 0
    fragments_kept: int = 0
    pages: int = 0
    """Pages of the filter's columns in all fragments but those of subtrees that were left out unread."""
    pages_kept: int = 0


@dataclass(frozen=True)
class CandidateRows:
    """Live rows of one fragment that may match, and their positions in the table."""

    selected: FragmentRows
    positions: Int64Array


def candidate_rows(
    reader: Reader, filter: pc.Expression | None, positions: Positions, counts: PruneCounts
) -> Iterator[CandidateRows]:
    """The rows at ascending `positions` that may match a filter, by fragment in row order; every match is among them.

    A filter refers to columns by the names and Arrow types of `Reader.arrow`. Manifests are read ahead, in parallel.
    """
    pruner = _Pruner(reader, None if filter is None else parse_expression(filter), counts)
    items = pruner.kept_nodes(reader.snapshot.nodes, 0, positions)
    for level in range(max((node.level for node in reader.snapshot.nodes), default=0), 0, -1):
        items = pruner.expand(items, level)
    for leaf, manifest in pruner.load(items, level=0):
        assert manifest is not None
        yield from pruner.kept_rows(manifest.fragments, leaf.start, leaf.positions)


class _Item(NamedTuple):
    """A node, the position of its first live row, and the selected positions inside."""

    node: Node
    start: int
    positions: Positions


class _Part(NamedTuple):
    """What is known of a column in a fragment or a subtree."""

    low: str | None = None
    high: str | None = None
    nulls: bool = True
    values: bool = True


class _Pruner:
    """Evaluates one filter on the bounds of a snapshot."""

    def __init__(self, reader: Reader, filter: Term | None, counts: PruneCounts) -> None:
        self._reader, self._filter, self._counts = reader, filter, counts
        names = set() if filter is None else field_names(filter)
        self._read = [field for field in reader.snapshot.schema if field.name in names]
        self._fields = [field for field in self._read if is_ordered(field.kind)]
        self._by_row_id = ROW_ID in names
        self._constants = {field.id: _constant(field) for field in self._fields}

    def kept_nodes(self, nodes: Sequence[Node], start: int, positions: Positions) -> Iterator[_Item]:
        """The nodes that hold positions and may hold a match."""
        mask = self._keeps(nodes, _node_bounds)
        for kept, (node, before, inside) in zip(mask, _split(nodes, start, positions), strict=True):
            if len(inside):
                if kept:
                    yield _Item(node, before, inside)
                else:
                    self._counts.fragments += node.fragments

    def expand(self, items: Iterable[_Item], level: int) -> Iterator[_Item]:
        """The items, with each node of a level replaced by its children that may hold a match."""
        for item, manifest in self.load(items, level):
            if manifest is None:
                yield item
            else:
                yield from self.kept_nodes(manifest.nodes, item.start, item.positions)

    def load(self, items: Iterable[_Item], level: int) -> Iterator[tuple[_Item, Manifest | None]]:
        """The items in order, with the manifests of those of a level."""

        def load(item: _Item) -> tuple[_Item, Manifest | None]:
            if item.node.level != level:
                return item, None
            with self._reader.missing_as_corrupt():
                return item, self._reader.tree.load(item.node)

        return map(load, items) if self._reader.store.is_local else read_ahead(load, items, prefetch=_LOADERS)

    def kept_rows(self, fragments: Sequence[Fragment], start: int, positions: Positions) -> Iterator[CandidateRows]:
        """The selected rows of the fragments of a leaf that may match."""
        mask = self._keeps(fragments, self._fragment_bounds)
        for kept, (fragment, before, inside) in zip(mask, _split(fragments, start, positions), strict=True):
            if not len(inside):
                continue
            files = {file.id: file for field in self._read for file in fragment.files_of(field.id)}
            self._counts.fragments += 1
            self._counts.pages += sum(len(file.page_rows) for file in files.values())
            found = self._select(fragment, before, inside) if kept else None
            if found is not None:
                self._counts.fragments_kept += 1
                self._counts.pages_kept += sum(_count_pages(file, found.selected.rows) for file in files.values())
                yield found

    def _select(self, fragment: Fragment, start: int, inside: Positions) -> CandidateRows | None:
        """The rows of the pages that may match; None if there are none."""
        edges, mask = self._segments(fragment)
        if mask.all():
            return _candidates(fragment, start, inside, [(0, len(inside))])
        if fragment.deleted is None and isinstance(inside, range) and inside.step == 1:
            cuts = np.clip(edges + start - inside.start, 0, len(inside))
        else:
            cuts = np.searchsorted(_stored_rows(fragment, start, inside), edges)
        runs = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
        slices = [(int(cuts[a]), int(cuts[b])) for a, b in runs.reshape(-1, 2) if cuts[a] < cuts[b]]
        return _candidates(fragment, start, inside, slices) if slices else None

    def _segments(self, fragment: Fragment) -> tuple[Int64Array, Mask]:
        """A fragment cut at the page boundaries of all columns: the edges, and whether each segment may match."""
        starts, columns = [np.zeros(1, np.int64)], {}
        for field in self._fields:
            files = fragment.files_of(field.id)
            if not any(file.page_bounds(field.id) for file in files):
                continue
            pages = np.concatenate([file.row_start + file.page_ends - file.page_rows for file in files])
            parts = [_page_bounds(file, field) for file in files]
            columns[field.name] = pages, parts[0] if len(parts) == 1 else _concat(parts)
            starts.append(pages)
        edges = np.unique(np.concatenate(starts))
        ends = np.append(edges, fragment.rows)
        if not columns or self._filter is None:
            return ends, np.ones(len(edges), bool)
        bounds = {
            name: found.take(np.searchsorted(pages, edges, side="right") - 1)
            for name, (pages, found) in columns.items()
        }
        absent = [field for field in self._fields if not fragment.files_of(field.id)]
        bounds |= {field.name: _typed(field, [self._constants[field.id]] * len(edges)) for field in absent}
        return ends, may_match(self._filter, bounds, len(edges))

    def _keeps(self, parts: Sequence[Part], bounds_of: Callable[[Part, Field], _Part]) -> Mask:
        """Whether each fragment or node may hold a match."""
        everything = np.ones(len(parts), bool)
        if self._filter is None or not parts:
            return everything
        known = {field.name: _typed(field, [bounds_of(part, field) for part in parts]) for field in self._fields}
        if self._by_row_id:
            low, high = zip(*map(_row_ids, parts), strict=True)
            known[ROW_ID] = ColumnBounds(pa.array(low), pa.array(high), ~everything, everything)
        return may_match(self._filter, known, len(parts))

    def _fragment_bounds(self, fragment: Fragment, field: Field) -> _Part:
        if not fragment.files_of(field.id):
            return self._constants[field.id]
        return next((_from_statistics(each) for each in fragment.statistics if each.field == field.id), _Part())


def _node_bounds(node: Node, field: Field) -> _Part:
    found = None if node.statistics is None else node.statistics.by_field.get(field.id)
    return _Part() if found is None else _from_statistics(found)


def _from_statistics(found: Statistics) -> _Part:
    return _Part(found.low, found.high, nulls=found.nulls > 0)


def _constant(field: Field) -> _Part:
    """The bounds of a fragment that does not store a field: all its rows have the fill value, or null."""
    value = fill_values(field, 1)
    if value.null_count:
        return _Part(values=False)
    return _from_statistics(compute_statistics([field], {field.id: value})[field.id])


def _row_ids(part: Node | Fragment) -> tuple[int, int]:
    """The smallest and the largest row id."""
    if isinstance(part, Node):
        return part.first_id, part.end_id - 1
    return min(run.start for run in part.row_ids), max(run.end for run in part.row_ids) - 1


def _typed(field: Field, parts: Sequence[_Part]) -> ColumnBounds:
    lows, highs, nulls, values = zip(*parts, strict=True)
    kind = native_type(field)
    low = typed_bounds(kind, lows, low=True)
    return ColumnBounds(
        low,
        typed_bounds(kind, highs, low=False),
        nulls_or_nat(low, np.array(nulls, bool)),
        np.array(values, bool),
    )


def _page_bounds(file: DataFile, field: Field) -> ColumnBounds:
    """The bounds of each page of a file; decoded once for all filters."""
    found, pages = file.page_bounds(field.id), len(file.page_rows)
    if found is None:
        return _typed(field, [_Part()] * pages)
    if found.typed is None:
        kind = native_type(field)
        low = typed_bounds(kind, found.low, low=True)
        found.typed = ColumnBounds(
            low,
            typed_bounds(kind, found.high, low=False),
            nulls_or_nat(low, found.nulls > 0),
            found.nulls != file.page_rows,
        )
    assert isinstance(found.typed, ColumnBounds)
    return found.typed


def _concat(parts: Sequence[ColumnBounds]) -> ColumnBounds:
    return ColumnBounds(
        pa.concat_arrays([part.low for part in parts]),
        pa.concat_arrays([part.high for part in parts]),
        np.concatenate([part.nulls for part in parts]),
        np.concatenate([part.values for part in parts]),
    )


def _split(parts: Sequence[Part], start: int, positions: Positions) -> Iterator[tuple[Part, int, Positions]]:
    """Each part with the position of its first live row, and the positions inside."""
    for part in parts:
        yield part, start, positions_between(positions, start, start + part.live)
        start += part.live


def _stored_rows(fragment: Fragment, start: int, positions: Positions) -> Int64Array:
    """The rows of a fragment at positions of the table."""
    if isinstance(positions, range):
        positions = np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
    return fragment.stored_rows(positions - start if start else positions)  # to subtract nothing would copy megabytes


def _candidates(fragment: Fragment, start: int, inside: Positions, slices: Sequence[tuple[int, int]]) -> CandidateRows:
    if isinstance(inside, range):
        parts = [np.arange(part.start, part.stop, part.step) for part in (inside[a:b] for a, b in slices)]
    else:
        parts = [inside[a:b] for a, b in slices]
    positions = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return CandidateRows(FragmentRows(fragment, _stored_rows(fragment, start, positions)), positions)


def _count_pages(file: DataFile, rows: Int64Array) -> int:
    """The number of pages of a file that hold any of some ascending rows."""
    edges = file.row_start + np.concatenate([[0], file.page_ends])
    return int((np.diff(np.searchsorted(rows, edges)) > 0).sum())
