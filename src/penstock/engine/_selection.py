"""The rows and columns that are read, as sections (manifests) and blocks (runs of pages in them)."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.engine._slab import fixed_column
from penstock.format import DataFile, Field, Fragment, Manifest, Node, decode_fragments, encode_snapshot
from penstock.format.kinds import Linked
from penstock.plan import Epoch, Shuffle, cut_blocks
from penstock.storage import run_all
from penstock.table import ROW_ID, Reader, Rows, Wanted, page_requests, rows_at
from penstock.types import cached_property

_MANIFEST_READERS = 64
_MANY_LEAVES = 64
_FIRST_BYTES = 1 << 20
"""A block from which the first batch draws is read in parts of this size, if that batch needs not all of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Rows of one fragment that are read together; the same one in every epoch, so what is known of it stays."""

    fragment: Fragment
    start: int
    """The position of the fragment's first live row in the table."""
    chosen: range | Rows
    """Which of its live rows; rising."""

    def __len__(self) -> int:
        return len(self.chosen)

    def part(self, first: int, end: int) -> "Block":
        if first == 0 and end == len(self.chosen):
            return self
        return Block(self.fragment, self.start, self.chosen[first:end])

    def pick(self, rows: Rows) -> "Block":
        """Only some of the rows."""
        if isinstance(self.chosen, range):
            return Block(self.fragment, self.start, self.chosen.start + rows)
        return Block(self.fragment, self.start, self.chosen[rows])

    def position(self, row: int) -> int:
        """Where in the table a row is."""
        return self.start + int(self.chosen[row])

    @property
    def stored_rows(self) -> Rows:
        """The rows, counted with the deleted ones."""
        chosen = self.chosen
        live = np.arange(chosen.start, chosen.stop) if isinstance(chosen, range) else chosen
        return live if self.fragment.deleted is None else self.fragment.live_rows[live]


class Parts(NamedTuple):
    """The parts of a section in the order of an epoch: each is read to its end before the next."""

    order: Rows
    ends: Rows
    """Rows of the section up to the end of each."""


class Selection:
    """Some rows and columns of a snapshot."""

    def __init__(self, reader: Reader, names: Sequence[str], rows: range | Rows, *, shuffled: bool) -> None:
        self.reader, self.names = reader, tuple(names)
        self.fields = [reader.snapshot.schema[name] for name in names if name != ROW_ID]
        self._asked = rows
        self.rows = rows if isinstance(rows, range) and rows.step == 1 else _rising(rows, shuffled)

    def __len__(self) -> int:
        return len(self._asked)

    @property
    def scattered(self) -> bool:
        """Whether the rows come in an order of their own, so that they are read one by one and not by blocks."""
        return self.rows is None

    def positions(self, places: Rows) -> Rows:
        """Positions in the table of rows that come in an order of their own."""
        return rows_at(self._asked, places)

    @cached_property
    def digest(self) -> str:
        """The same for the same rows and columns."""
        rows = repr(self._asked) if isinstance(self._asked, range) else np.ascontiguousarray(self._asked).tobytes()
        seen = hashlib.blake2b(repr(self.names).encode(), digest_size=16)
        seen.update(rows.encode() if isinstance(rows, str) else rows)
        return seen.hexdigest()

    @cached_property
    def snapshot_digest(self) -> str:
        """The same for the same content; changes that are not committed have one of their own."""
        return hashlib.blake2b(encode_snapshot("", self.reader.snapshot)[1], digest_size=16).hexdigest()

    @cached_property
    def leaves(self) -> list[Node]:
        """The leaves of the tree of manifests, in row order."""
        nodes: list[Node] = list(self.reader.snapshot.nodes)
        with self.reader.explained():
            while any(node.level for node in nodes):
                inner = [node for node in nodes if node.level]
                loaded = iter(run_all(self.reader.tree.load, inner, max_workers=_MANIFEST_READERS))
                nodes = [leaf for node in nodes for leaf in (next(loaded).nodes if node.level else (node,))]
            if len(nodes) <= _MANY_LEAVES:  # all of them will be needed soon
                run_all(self.reader.tree.leaf, nodes, max_workers=_MANIFEST_READERS)
        return nodes

    @cached_property
    def leaf_starts(self) -> Rows:
        """The position of each leaf's first row, and the number of all rows."""
        return np.cumsum([0, *(leaf.live for leaf in self.leaves)])

    @cached_property
    def section_rows(self) -> Rows:
        """How many of the rows each section, which is a leaf, has."""
        if self.scattered:
            return np.array([len(self)])
        if isinstance(self.rows, range):
            bounds = np.clip(self.leaf_starts, self.rows.start, self.rows.stop)
        else:
            assert self.rows is not None
            bounds = np.searchsorted(self.rows, self.leaf_starts)
        return np.diff(bounds)

    @cached_property
    def heaviest(self) -> Field | None:
        """The column that blocks are cut for: the one with most bytes, judged by the first fragment."""
        sizes = self._sizes
        return max(self.fields, key=lambda field: sizes[field.id], default=None)

    @cached_property
    def row_bytes(self) -> float:
        """About how many bytes a row takes in memory, in all columns chosen."""
        size = 0.0
        for name in self.names:
            field = None if name == ROW_ID else self.reader.snapshot.schema[name]
            column = fixed_column(name, field)
            size += max(0.0 if field is None else self._sizes[field.id], 0 if column is None else column.row_bytes)
        return max(1.0, size)

    @property
    def heavy_row_bytes(self) -> float:
        return max(1.0, self._sizes[self.heaviest.id] if self.heaviest else 1.0)

    def block_rows(self, shuffle: Shuffle) -> int:
        """About how many rows a block has."""
        return self._rows_of(shuffle.block_bytes)

    def _rows_of(self, block_bytes: int) -> int:
        return max(1, round(block_bytes / self.heavy_row_bytes))

    @property
    def coarse(self) -> bool:
        """Whether the table is so large that a section's fragments are its parts, so that a lane holds one of them.

        Elsewhere a section is one part, and blocks of all its fragments are mixed.
        """
        return len(self.leaves) > _MANY_LEAVES

    def parts(self, epoch: Epoch, section: int) -> Parts:
        """The parts of a section."""
        if not self.coarse:
            return Parts(np.zeros(1, np.int64), self.section_rows[section : section + 1])
        _, starts = self._leaf(section)
        rows = np.array([len(self._chosen(start, end - start)) for start, end in pairwise(starts)])
        order = epoch.part_order(section, len(rows))
        return Parts(order, np.cumsum(rows[order]))

    def blocks(self, shuffle: Shuffle, section: int, part: int) -> list[Block]:
        """The blocks of a part of a section, in the table's order."""
        leaf, starts = self._leaf(section)
        if isinstance(leaf, Manifest):
            fragments = leaf.fragments[part : part + 1] if self.coarse else leaf.fragments
        else:
            fragments = decode_fragments(leaf.slice(part, 1) if self.coarse else leaf)
        if self.coarse:
            fragments, starts = tuple(map(self._alone, fragments)), starts[part : part + 2]
        return [
            block
            for fragment, start in zip(fragments, starts, strict=False)
            for block in self._cut(Block(fragment, start, self._chosen(start, fragment.live)), shuffle.block_bytes)
        ]

    def cuts(self, block: Block, left: Rows, soon: Rows) -> list[int]:
        """Where to cut a block of which only some rows are left, and some of those are needed before the others.

        What is needed soon is read by itself, if that is much less; and what lies apart is read apart.
        """
        ends = np.cumsum([len(part) for part in self._cut(block, _FIRST_BYTES)])
        needed = np.bincount(np.searchsorted(ends, soon, side="right"), minlength=len(ends)) > 0
        found = set(ends[:-1][needed[1:] != needed[:-1]].tolist())
        if self.heaviest is not None and len(left) < len(block):
            found.update(left[self._gaps(block.pick(left))].tolist())
        return sorted(found)

    def _gaps(self, block: Block) -> npt.NDArray[np.int64]:
        """Which of the rows chosen are not read together with the one before."""
        assert self.heaviest is not None
        rows = block.stored_rows
        if isinstance(self.heaviest.kind, Linked):  # each is an object, or a part of one
            return np.flatnonzero(np.diff(rows) > 1) + 1
        requests = page_requests([Wanted(block.fragment, rows)], [self.heaviest.id])
        return np.searchsorted(rows, [file.row_start + file.row_ends[pages[-1]] for file, pages in requests[:-1]])

    def _leaf(self, section: int) -> tuple[Manifest | pa.RecordBatch, list[int]]:
        """A section's leaf, and the position of the first row of each of its fragments, and of the last's end."""
        with self.reader.explained():
            leaf = self.reader.tree.leaf(self.leaves[section])
        if isinstance(leaf, Manifest):
            live = [fragment.live for fragment in leaf.fragments]
        else:
            live = leaf.column("live").to_pylist()
        return leaf, list(accumulate(live, initial=int(self.leaf_starts[section])))

    def _alone(self, fragment: Fragment) -> Fragment:
        """The same with copies of what is needed of its manifest, which can then be forgotten."""
        ids = {field.id for field in self.fields}
        files = tuple(_copied(file) for file in fragment.files if ids.intersection(file.fields))
        return replace(fragment, files=files, statistics=())

    def scatter(self, positions: Rows) -> Iterator[tuple[Block, Rows]]:
        """Blocks of just some rows of the table, rising, and which of them each holds."""
        done = 0
        with self.reader.explained():
            for fragment, start, inside in self.reader.tree.at(self.reader.snapshot.nodes, positions):
                yield Block(fragment, start, inside - start), np.arange(done, done + len(inside))
                done += len(inside)

    def _chosen(self, start: int, live: int) -> range | Rows:
        if isinstance(self.rows, range):
            return range(max(self.rows.start - start, 0), max(min(self.rows.stop - start, live), 0))
        assert self.rows is not None
        first, end = np.searchsorted(self.rows, (start, start + live))
        return self.rows[first:end] - start

    def _cut(self, block: Block, block_bytes: int) -> Iterator[Block]:
        if not len(block):
            return
        rows = block.stored_rows
        between = int(rows[0]), int(rows[-1]) + 1
        files = block.fragment.files_between(self.heaviest.id, *between) if self.heaviest else ()
        if files:
            ends = np.concatenate([file.page_ends + file.row_start for file in files])
            linked = _linked_bytes(self.heaviest)
            sizes = np.concatenate([np.diff(file.page_offsets) + linked * file.page_rows for file in files])
            numbers = np.repeat(np.arange(len(files)), [len(file.page_rows) for file in files])
        else:  # nothing is read, so any cut will do
            step = self._rows_of(block_bytes)
            ends = np.append(np.arange(step, block.fragment.rows, step), block.fragment.rows)
            sizes, numbers = np.full(len(ends), block_bytes), np.zeros(len(ends), np.int64)
        if len(rows) == between[1] - between[0]:
            upto = np.clip(ends, *between) - between[0]
        else:
            upto = np.searchsorted(rows, ends)
        first = 0
        for end in cut_blocks(upto, sizes, numbers, block_bytes=block_bytes).tolist():
            yield block.part(first, end)
            first = end

    @cached_property
    def _sizes(self) -> dict[int, float]:
        """About how many bytes a row of each field takes."""
        sizes = {field.id: float(field.stored_bytes or 0) for field in self.fields}
        if all(sizes.values()) or not self.reader.snapshot.nodes:
            return sizes
        with self.reader.explained():
            first = next(iter(self.reader.tree.fragments(self.reader.snapshot.nodes)), None)
        for field in self.fields:
            if first is not None and not field.stored_bytes:
                stored = sum(file.length / len(file.fields) for file in first.files_of(field.id))
                blobs = sum(blob.length for file in first.files_of(field.id) for blob in file.blobs)
                sizes[field.id] = (stored + blobs) / max(1, first.rows) + _linked_bytes(field)
        return sizes


def _linked_bytes(field: Field | None) -> int:
    """About how many bytes lie behind each link of a column."""
    return field.kind.typical_bytes if field is not None and isinstance(field.kind, Linked) else 0


def _copied(file: DataFile) -> DataFile:
    """A file whose page table is not a view of a manifest."""
    return replace(
        file,
        page_rows=file.page_rows.copy(),
        page_offsets=file.page_offsets.copy(),
        page_crcs=file.page_crcs.copy(),
        value_starts=file.value_starts.copy(),
        changed=(),
    )


def _rising(rows: range | Rows, shuffled: bool) -> Rows | None:
    """Rows of the table in rising order; None where their own order counts and is another."""
    asked: npt.NDArray[np.int64] = np.asarray(rows, np.int64)
    if len(asked) < 2 or (np.diff(asked) >= 0).all():
        return asked
    return np.sort(asked) if shuffled else None
