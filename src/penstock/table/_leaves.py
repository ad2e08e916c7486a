"""The leaves of a snapshot's manifest tree: each is a section of rows, with the fragments that hold them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate

import numpy as np
import pyarrow as pa

from penstock.format import DataFile, Fragment, Manifest, Node, decode_fragments
from penstock.storage import thread_map
from penstock.table._pages import Int64Array
from penstock.table._read import ROW_ID, Reader
from penstock.types import cached_property

MANIFEST_READERS = 64
_MANY_LEAVES = 64
_LEAVES_CACHED, _SMALL_LEAF_BYTES = 32, 64 << 10
"""Leaves held in memory; small ones are decoded as a whole, because each call to decode fragments has a cost."""

SortedRows = range | Int64Array | None
"""Rows in increasing order; None if they have another order that must be preserved."""


class Leaves:
    """The leaves, in row order, and the columns that are read."""

    def __init__(self, reader: Reader, names: Sequence[str]) -> None:
        self.reader, self.names = reader, tuple(names)
        self.fields = [reader.snapshot.schema[name] for name in names if name != ROW_ID]
        self._decoded = lru_cache(_LEAVES_CACHED)(self._decode)

    @cached_property
    def nodes(self) -> list[Node]:
        """The nodes of the tree that describe the leaves."""
        with self.reader.missing_as_corrupt():
            nodes = self.reader.tree.leaves(self.reader.snapshot.nodes)
            if len(nodes) <= _MANY_LEAVES:  # all will be needed soon: prefetch
                thread_map(self.reader.tree.leaf, nodes, max_workers=MANIFEST_READERS)
        return nodes

    @cached_property
    def _starts(self) -> Int64Array:
        """The position of each leaf's first row, and the total number of rows."""
        return np.cumsum([0, *(leaf.live for leaf in self.nodes)])

    @property
    def many(self) -> bool:
        """Whether the table is so large that its leaves are not all held in memory."""
        return len(self.nodes) > _MANY_LEAVES

    def count(self, rows: SortedRows) -> Int64Array:
        """How many of some rows are in each leaf; None for all rows of the table."""
        bounds = self._starts
        if isinstance(rows, range):
            bounds = np.clip(bounds, rows.start, rows.stop)
        elif rows is not None:
            bounds = np.searchsorted(rows, bounds)
        return np.diff(bounds)

    def load(self, section: int) -> tuple[Manifest | pa.RecordBatch, list[int]]:
        """A leaf, and the positions at which its fragments start and the last one ends."""
        with self.reader.missing_as_corrupt():
            leaf = self.reader.tree.leaf(self.nodes[section])
        if isinstance(leaf, Manifest):
            live = [fragment.live for fragment in leaf.fragments]
        else:
            live = leaf.column("live").to_pylist()
        return leaf, list(accumulate(live, initial=int(self._starts[section])))

    def fragments(self, section: int, part: int) -> list[tuple[Fragment, int]]:
        """The fragments of a part of a section, each with its start.

        If there are many leaves, a part is one fragment, with copies of its files, so that its leaf can be freed.
        """
        leaf, starts = self.load(section)
        if not self.many:
            return list(zip(_fragments(leaf), starts, strict=False))
        if isinstance(leaf, Manifest) or self.nodes[section].length <= _SMALL_LEAF_BYTES:
            fragment = self._decoded(section)[part]
        else:
            [fragment] = decode_fragments(leaf.slice(part, 1))
        ids = {field.id for field in self.fields}
        files = tuple(_copied(file) for file in fragment.files if ids.intersection(file.fields))
        return [(replace(fragment, files=files, statistics=()), starts[part])]

    def _decode(self, section: int) -> Sequence[Fragment]:
        return _fragments(self.reader.tree.leaf(self.nodes[section]))


def _fragments(leaf: Manifest | pa.RecordBatch) -> Sequence[Fragment]:
    return leaf.fragments if isinstance(leaf, Manifest) else decode_fragments(leaf)


def _copied(file: DataFile) -> DataFile:
    """A file whose page table does not reference a manifest's memory."""
    return replace(
        file,
        page_rows=file.page_rows.copy(),
        page_offsets=file.page_offsets.copy(),
        page_crcs=file.page_crcs.copy(),
        value_starts=file.value_starts.copy(),
        changed=(),
        bounds=None,
    )


def rows_between(rows: SortedRows, start: int, end: int) -> range | Int64Array:
    """Those of some rows that are between two positions, relative to the first one; None for all rows of the table."""
    if rows is None:
        return range(end - start)
    inside = positions_between(rows, start, end)
    return range(inside.start - start, inside.stop - start) if isinstance(inside, range) else inside - start


def positions_between(positions: range | Int64Array, start: int, end: int) -> range | Int64Array:
    """Those of some ascending positions that are in [start, end)."""
    if isinstance(positions, range):
        first, last = (max(0, -(-(edge - positions.start) // positions.step)) for edge in (start, end))
        return positions[first:last]
    first, last = np.searchsorted(positions, (start, end)).tolist()
    return positions[first:last]
