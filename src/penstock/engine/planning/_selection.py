"""The selected rows and columns, as sections (manifest leaves) and blocks (runs of pages)."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.engine.planning._columns import fixed_column
from penstock.engine.planning._row_sizes import Floats, RowSizes, leaf_sizes
from penstock.engine.planning._samples import Composition, SharedImages
from penstock.engine.planning._spans import Block, Planned, PlannedBlock
from penstock.format import DataFile, Field, Fragment, Manifest, Node, decode_fragments, encode_snapshot
from penstock.format.kinds import Linked
from penstock.plan import Epoch, ShuffleLayout, split_blocks
from penstock.storage import thread_map
from penstock.table import ROW_ID, FragmentRows, Int64Array, Reader, page_requests, take_positions
from penstock.types import cached_property

_MANIFEST_READERS = 64
_MANY_LEAVES = 64
_SAMPLED_LEAVES = 8
_LEAVES_CACHED, _SMALL_LEAF_BYTES = 32, 64 << 10
"""Leaves held in memory; small ones are decoded as a whole, because each call to decode fragments has a cost."""
_FIRST_READ_BYTES = 1 << 20
"""Blocks that the first batch draws from are split into reads of this size, if it needs only some of them."""


class Parts(NamedTuple):
    """The parts of a section in the order of an epoch; each is read to its end before the next."""

    order: Int64Array
    ends: Int64Array
    """Cumulative rows of the section at the end of each part."""


class Selection:
    """Some rows and columns of a snapshot."""

    def __init__(self, reader: Reader, names: Sequence[str], rows: range | Int64Array, *, shuffled: bool) -> None:
        self.reader, self.names = reader, tuple(names)
        self.composition: Composition | None = None
        self.rows_per_sample = 1.0
        """Rows that are read for each row of a batch."""
        self.shared_images: SharedImages | None = None
        self.fields = [reader.snapshot.schema[name] for name in names if name != ROW_ID]
        self._requested = rows
        self.rows = rows if isinstance(rows, range) and rows.step == 1 else sorted_rows(rows, shuffled)
        self._small_leaves = lru_cache(_LEAVES_CACHED)(partial(_decode_leaf, reader))

    def __len__(self) -> int:
        return len(self._requested)

    def at(self, epoch: int) -> "Selection":  # noqa: ARG002
        """The rows of an epoch."""
        return self

    @property
    def scattered(self) -> bool:
        """Whether the rows have an order of their own that must be preserved; they are read by span, not by block."""
        return self.rows is None

    @property
    def repeats_rows(self) -> bool:
        """Whether some rows are selected more than once."""
        return not isinstance(self.rows, range) and (self.rows is None or not (np.diff(self.rows) > 0).all())

    def first_index(self, block: Block) -> int:
        """The index of a block's first row among the selected rows in table order."""
        position = block.position(0)
        assert self.rows is not None
        return position - self.rows.start if isinstance(self.rows, range) else int(np.searchsorted(self.rows, position))

    def positions(self, places: Int64Array) -> Int64Array:
        """Table positions of rows given by their index in the selection."""
        return take_positions(self._requested, places)

    @cached_property
    def digest(self) -> str:
        """A digest of the selected rows and columns."""
        rows = (
            repr(self._requested)
            if isinstance(self._requested, range)
            else np.ascontiguousarray(self._requested).tobytes()
        )
        seen = hashlib.blake2b(repr(self.names).encode(), digest_size=16)
        seen.update(rows.encode() if isinstance(rows, str) else rows)
        return seen.hexdigest()

    @cached_property
    def snapshot_digest(self) -> str:
        """A digest of the snapshot's content, uncommitted changes included."""
        return hashlib.blake2b(encode_snapshot("", self.reader.snapshot)[1], digest_size=16).hexdigest()

    @cached_property
    def leaves(self) -> list[Node]:
        """The leaves of the manifest tree, in row order."""
        nodes: list[Node] = list(self.reader.snapshot.nodes)
        with self.reader.missing_as_corrupt():
            while any(node.level for node in nodes):
                inner = [node for node in nodes if node.level]
                loaded = iter(thread_map(self.reader.tree.load, inner, max_workers=_MANIFEST_READERS))
                nodes = [leaf for node in nodes for leaf in (next(loaded).nodes if node.level else (node,))]
            if len(nodes) <= _MANY_LEAVES:  # all will be needed soon: prefetch
                thread_map(self.reader.tree.leaf, nodes, max_workers=_MANIFEST_READERS)
        return nodes

    @cached_property
    def leaf_starts(self) -> Int64Array:
        """The position of each leaf's first row, and the total number of rows."""
        return np.cumsum([0, *(leaf.live for leaf in self.leaves)])

    @property
    def section_rows(self) -> Int64Array:
        """Number of selected rows in each section (leaf)."""
        return np.array([len(self)]) if self.scattered else self._leaf_rows

    @cached_property
    def _leaf_rows(self) -> Int64Array:
        if isinstance(self.rows, range):
            bounds = np.clip(self.leaf_starts, self.rows.start, self.rows.stop)
        else:
            assert self.rows is not None
            bounds = np.searchsorted(self.rows, self.leaf_starts)
        return np.diff(bounds)

    @cached_property
    def heaviest(self) -> Field | None:
        """The column with most bytes; blocks are split at its pages."""
        return max(self.fields, key=lambda field: self._sizes.average(field.id), default=None)

    @cached_property
    def row_bytes(self) -> float:
        """Approximate bytes of a row in memory, over all selected columns."""
        return max(1.0, sum(map(self._memory_sizes.average, self._memory_sizes.bytes)))

    def average_bytes(self, field: Field) -> float:
        """Approximate bytes of a value of one column in memory."""
        return self._memory_sizes.average(field.id)

    def decoded_bytes(self, field: Field) -> float | None:
        """Approximate bytes of a decoded image of a column, where images are largest; None if unknown."""
        return self._sizes.largest_decoded(field.id)

    def largest_rows_bytes(self, count: float) -> float:
        """Approximate bytes in memory of the `count` largest rows, over all selected columns."""
        return max(count, self._memory_sizes.largest(count))

    @property
    def stored_row_bytes(self) -> float:
        """Approximate bytes of a row in files."""
        return max(1.0, sum(map(self._sizes.average, self._sizes.bytes)))

    @property
    def heavy_row_bytes(self) -> float:
        return max(1.0, self._sizes.average(self.heaviest.id) if self.heaviest else 1.0)

    def block_rows(self, block_bytes: int) -> int:
        """Approximate rows of a block."""
        return max(1, round(block_bytes / self.heavy_row_bytes))

    @property
    def coarse(self) -> bool:
        """Whether the table is so large that each fragment of a section is a part, so that a lane holds one fragment.

        In smaller tables a section is one part, and blocks of all its fragments are mixed.
        """
        return len(self.leaves) > _MANY_LEAVES

    def parts(self, epoch: Epoch, section: int) -> Parts:
        """The parts of a section."""
        if not self.coarse:
            return Parts(np.zeros(1, np.int64), self.section_rows[section : section + 1])
        _, starts = self._leaf(section)
        rows = np.array([len(self._select(start, end - start)) for start, end in pairwise(starts)])
        order = epoch.part_order(section, len(rows))
        return Parts(order, np.cumsum(rows[order]))

    def blocks(self, shuffle: ShuffleLayout, section: int, part: int) -> list[Block]:
        """The blocks of a part of a section, in table order."""
        leaf, starts = self._leaf(section)
        if isinstance(leaf, Manifest):
            fragments = leaf.fragments[part : part + 1] if self.coarse else leaf.fragments
        elif self.coarse and self.leaves[section].length <= _SMALL_LEAF_BYTES:
            fragments = self._small_leaves(self.leaves[section])[part : part + 1]
        else:
            fragments = decode_fragments(leaf.slice(part, 1) if self.coarse else leaf)
        if self.coarse:
            fragments, starts = tuple(map(self._detached, fragments)), starts[part : part + 2]
        return [
            block
            for fragment, start in zip(fragments, starts, strict=False)
            for block in self.split(Block(fragment, start, self._select(start, fragment.live)), shuffle.block_bytes)
        ]

    def split_points(self, block: Block, left: Int64Array, soon: Int64Array) -> list[int]:
        """Where to split a block of which only the rows `left` are unread and the rows `soon` are needed first.

        Rows needed soon are read by themselves if that is much less; rows in different requests are split.
        """
        ends = np.cumsum([len(part) for part in self.split(block, _FIRST_READ_BYTES)])
        needed = np.bincount(np.searchsorted(ends, soon, side="right"), minlength=len(ends)) > 0
        found = set(ends[:-1][needed[1:] != needed[:-1]].tolist())
        if self.heaviest is not None and len(left) < len(block):
            found.update(left[self._gaps(block.take(left))].tolist())
        return sorted(found)

    def _gaps(self, block: Block) -> npt.NDArray[np.int64]:
        """Indices of rows that are not in the same request as the row before."""
        assert self.heaviest is not None
        rows = block.stored_rows
        if isinstance(self.heaviest.kind, Linked):  # each link is an object or a range of one
            return np.flatnonzero(np.diff(rows) > 1) + 1
        requests = page_requests([FragmentRows(block.fragment, rows)], [self.heaviest.id])
        return np.searchsorted(rows, [file.row_start + file.row_ends[pages[-1]] for file, pages in requests[:-1]])

    def planned(self, block: Block, unread: int | None = None) -> Planned:
        """A block to read, of which `unread` rows were not consumed before a resume; by default all."""
        return PlannedBlock(block, unread)

    def _leaf(self, section: int) -> tuple[Manifest | pa.RecordBatch, list[int]]:
        """A section's leaf, and the positions at which its fragments start and the last one ends."""
        with self.reader.missing_as_corrupt():
            leaf = self.reader.tree.leaf(self.leaves[section])
        if isinstance(leaf, Manifest):
            live = [fragment.live for fragment in leaf.fragments]
        else:
            live = leaf.column("live").to_pylist()
        return leaf, list(accumulate(live, initial=int(self.leaf_starts[section])))

    def _detached(self, fragment: Fragment) -> Fragment:
        """A fragment that holds copies of the needed files, so that its manifest can be freed."""
        ids = {field.id for field in self.fields}
        files = tuple(_copied(file) for file in fragment.files if ids.intersection(file.fields))
        return replace(fragment, files=files, statistics=())

    def scatter(self, positions: Int64Array, block_bytes: int) -> Iterator[tuple[Block, Int64Array]]:
        """Blocks of some increasing positions, each with the indices of the positions it holds."""
        done = 0
        with self.reader.missing_as_corrupt():
            for fragment, start, inside in self.reader.tree.fragments_at(self.reader.snapshot.nodes, positions):
                for block in self.split(Block(fragment, start, inside - start), block_bytes):
                    yield block, np.arange(done, done + len(block))
                    done += len(block)

    def _select(self, start: int, live: int) -> range | Int64Array:
        if self.rows is None:  # all of them stand for the scattered ones
            return range(live)
        if isinstance(self.rows, range):
            return range(max(self.rows.start - start, 0), max(min(self.rows.stop - start, live), 0))
        first, end = np.searchsorted(self.rows, (start, start + live))
        return self.rows[first:end] - start

    def split(self, block: Block, block_bytes: int) -> Iterator[Block]:
        """Split a block at pages of the heaviest column into blocks whose pages have about `block_bytes` of it."""
        if not len(block):
            return
        rows = block.stored_rows
        between = int(rows[0]), int(rows[-1]) + 1
        files = block.fragment.files_between(self.heaviest.id, *between) if self.heaviest else ()
        if len(files) == 1 and not _linked_bytes(self.heaviest) and files[0].length < 1.5 * block_bytes:
            yield block  # as `split_blocks` would, whose calls to numpy take longer than reading a tiny fragment
            return
        if files:
            ends = np.concatenate([file.page_ends + file.row_start for file in files])
            linked = _linked_bytes(self.heaviest)
            sizes = np.concatenate([np.diff(file.page_offsets) + linked * file.page_rows for file in files])
            numbers = np.repeat(np.arange(len(files)), [len(file.page_rows) for file in files])
        else:  # no column is stored, so any split will do
            step = self.block_rows(block_bytes)
            ends = np.append(np.arange(step, block.fragment.rows, step), block.fragment.rows)
            sizes, numbers = np.full(len(ends), block_bytes), np.zeros(len(ends), np.int64)
        if isinstance(block.selected, range) and len(rows) == between[1] - between[0]:
            upto = np.clip(ends, *between) - between[0]
        else:
            upto = np.searchsorted(rows, ends)
        first = 0
        for end in split_blocks(upto, sizes, numbers, block_bytes=block_bytes).tolist():
            yield block.part(first, end)
            first = end

    @cached_property
    def _sizes(self) -> RowSizes:
        """Stored bytes of the selected rows, by fragment; of a large table, those of a few leaves."""
        schema = self.reader.snapshot.schema
        known = {field.id: field.fixed_row_bytes for field in schema.fields if field.fixed_row_bytes}
        variable = [field for field in self.fields if field.id not in known]
        sections: list[int] = []
        if variable:
            used = np.flatnonzero([leaf.live for leaf in self.leaves] if self.rows is None else self._leaf_rows)
            sections = used[:: max(1, len(used) // _SAMPLED_LEAVES) if self.coarse else 1].tolist()
        rows: list[float] = []
        groups: list[tuple[dict[int, Floats], dict[int, Floats]]] = []
        for leaf, starts in thread_map(self._leaf, sections, max_workers=_MANIFEST_READERS):
            groups.append(leaf_sizes(leaf, [field.id for field in variable], known))
            rows += [float(len(self._select(start, end - start))) for start, end in pairwise(starts)]
        if not any(rows):
            nothing = {field.id: np.zeros(1) for field in variable}
            rows, groups = [float(len(self._requested))], [(nothing, nothing)]
        sizes = {
            field.id: np.full(len(rows), float(known[field.id]))
            if field.id in known
            else np.concatenate([stored[field.id] for stored, _ in groups]) + _linked_bytes(field)
            for field in self.fields
        }
        decoded = {field.id: np.concatenate([group[field.id] for _, group in groups]) for field in variable}
        return RowSizes(np.array(rows), sizes, decoded)

    @cached_property
    def _memory_sizes(self) -> RowSizes:
        """The same in memory, where compressed columns of a fixed shape have their full size."""
        sizes: dict[int, Floats] = {}
        for name in self.names:
            field = None if name == ROW_ID else self.reader.snapshot.schema[name]
            column = fixed_column(name, field)
            stored = np.zeros(len(self._sizes.rows)) if field is None else self._sizes.bytes[field.id]
            sizes[0 if field is None else field.id] = np.maximum(stored, 0 if column is None else column.row_bytes)
        return RowSizes(self._sizes.rows, sizes)


def _decode_leaf(reader: Reader, node: Node) -> tuple[Fragment, ...]:
    leaf = reader.tree.leaf(node)
    return leaf.fragments if isinstance(leaf, Manifest) else decode_fragments(leaf)


def _linked_bytes(field: Field | None) -> int:
    """Approximate bytes of the target of a link."""
    return field.kind.typical_bytes if field is not None and isinstance(field.kind, Linked) else 0


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


def sorted_rows(rows: range | Int64Array, shuffled: bool) -> Int64Array | None:
    """The rows in increasing order; None if they have another order that must be preserved."""
    requested: npt.NDArray[np.int64] = np.asarray(rows, np.int64)
    if len(requested) < 2 or (np.diff(requested) >= 0).all():
        return requested
    return np.sort(requested) if shuffled else None
