"""The selected rows, in sections that are read as blocks."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from penstock.engine.planning._shared_images import SharedImages
from penstock.engine.planning._spans import Block, Planned, PlannedBlock
from penstock.format import DataFile, Field, encode_snapshot
from penstock.format.kinds import Linked
from penstock.plan import Composition, ShuffleLayout, WeightedDraw, split_blocks, take_positions
from penstock.table import (
    FragmentRows,
    Int64Array,
    Leaves,
    Reader,
    RowSizes,
    SortedRows,
    linked_bytes,
    page_requests,
    rows_between,
)
from penstock.types import cached_property

_EPOCHS_CACHED = 2
"""Later epochs that are held: the one being read, and the next one, which is prefetched."""


@dataclass(frozen=True, eq=False)
class EpochRows:
    """The rows of each epoch, or the numbers of its samples: all of them, or in each epoch those that weights draw."""

    population: range | Int64Array
    draw: WeightedDraw | None = None
    seed: int = 0

    def at(self, epoch: int) -> range | Int64Array:
        """The rows of an epoch; drawn ones are in increasing order, with repeats."""
        if self.draw is None:
            return self.population
        return np.sort(take_positions(self.population, self.draw.rows(self.seed, epoch)))


class SampleSizes:
    """Approximate sizes of the samples of a selection, each of which is a row or is composed of rows."""

    row_sizes: RowSizes
    rows_per_sample: float
    """Rows that are read for each sample."""

    @property
    def heaviest(self) -> Field | None:
        """The column with most bytes; blocks are split at its pages."""
        return self.row_sizes.heaviest

    @property
    def row_bytes(self) -> float:
        """Bytes of a sample in memory, over all selected columns."""
        return max(1.0, self.row_sizes.in_memory.row_bytes * self.rows_per_sample)

    @property
    def stored_row_bytes(self) -> float:
        """Bytes of a sample in files."""
        return max(1.0, self.row_sizes.stored.row_bytes * self.rows_per_sample)

    @property
    def heavy_row_bytes(self) -> float:
        """Bytes of a sample in files, of the heaviest column."""
        row_bytes = 1.0 if self.heaviest is None else max(1.0, self.row_sizes.stored.average(self.heaviest.id))
        return max(1.0, row_bytes * self.rows_per_sample)

    def average_bytes(self, field: Field) -> float:
        """Bytes of a value of one column in memory."""
        return self.row_sizes.in_memory.average(field.id)

    def decoded_bytes(self, field: Field) -> float | None:
        """Bytes of a decoded image of a column, where images are largest; None if unknown."""
        return self.row_sizes.stored.largest_decoded(field.id)

    def largest_rows_bytes(self, count: float) -> float:
        """Bytes in memory of the `count` largest samples, over all selected columns."""
        return self.row_sizes.in_memory.largest(count)

    def block_rows(self, block_bytes: int) -> int:
        """Samples of a block."""
        return max(1, round(block_bytes / self.heavy_row_bytes))


class Selection(SampleSizes):
    """Columns of a snapshot and the rows of an epoch: sections are leaves of its manifest tree, blocks runs of pages.

    Rows of a subclass may be samples that are composed of rows, and it has blocks of its own.
    """

    composition: Composition | None = None
    """How samples are composed of rows; None if a row is a sample."""
    shared_images: SharedImages | None = None
    rows_per_sample = 1.0

    def __init__(
        self, leaves: Leaves, epoch_rows: EpochRows, *, shuffled: bool, epoch: int = 0, sizes: RowSizes | None = None
    ) -> None:
        """The rows of an epoch; `sizes` are by default those of its rows."""
        self.leaves, self.epoch_rows = leaves, epoch_rows
        self.reader, self.names, self.fields = leaves.reader, leaves.names, leaves.fields
        self.requested = epoch_rows.at(epoch)
        """The rows of this epoch, or the numbers of its samples."""
        self.rows = sorted_rows(self.requested, shuffled=shuffled)
        """The same in increasing order; None if they have an order of their own that must be preserved."""
        self.row_sizes = sizes or RowSizes(leaves, self.rows, len(self.requested))

    def __len__(self) -> int:
        return len(self.requested)

    def at(self, epoch: int) -> "Selection":
        """The selection of an epoch; only weights draw other rows in later epochs."""
        return self if self.epoch_rows.draw is None or not epoch else self._later_epochs(epoch)

    @cached_property
    def _later_epochs(self) -> Callable[[int], "Selection"]:
        return lru_cache(_EPOCHS_CACHED)(self._later_epoch)

    def _later_epoch(self, epoch: int) -> "Selection":
        """A selection of the rows of a later epoch, with the sizes of this one.

        The order must not depend on where a run starts.
        """
        return Selection(self.leaves, self.epoch_rows, shuffled=True, epoch=epoch, sizes=self.row_sizes)

    @property
    def scattered(self) -> bool:
        """Whether the rows have an order of their own that must be preserved; they are read by span, not by block."""
        return self.rows is None

    @property
    def repeats_rows(self) -> bool:
        """Whether some rows may be read more than once in an epoch."""
        if isinstance(self.rows, range):
            return False
        return self.epoch_rows.draw is not None or self.rows is None or not (np.diff(self.rows) > 0).all()

    @property
    def coarse(self) -> bool:
        """Whether the table is so large that each fragment of a section is a part, so that a lane holds one fragment.

        In smaller tables a section is one part, and blocks of all its fragments are mixed.
        """
        return self.leaves.many

    def positions(self, places: Int64Array) -> Int64Array:
        """Table positions of rows, or numbers of samples, given by their index in the selection."""
        return take_positions(self.requested, places)

    def index_of(self, position: int) -> int:
        """The index of a row among the selected rows in table order."""
        assert self.rows is not None
        return position - self.rows.start if isinstance(self.rows, range) else int(np.searchsorted(self.rows, position))

    @cached_property
    def snapshot_digest(self) -> str:
        """A digest of the snapshot's content, uncommitted changes included."""
        return hashlib.blake2b(encode_snapshot("", self.reader.snapshot)[1], digest_size=16).hexdigest()

    @cached_property
    def digest(self) -> str:
        """A digest of the columns, of the rows of all epochs, and of their weights."""
        rows, draw = self.epoch_rows.population, self.epoch_rows.draw
        seen = hashlib.blake2b(repr(self.names).encode(), digest_size=16)
        seen.update(repr(rows).encode() if isinstance(rows, range) else np.ascontiguousarray(rows).data)
        if draw is not None:
            seen = hashlib.blake2b(seen.hexdigest().encode(), digest_size=16)
            seen.update(np.ascontiguousarray(draw.ends, "<f8").data)
        return seen.hexdigest()

    @cached_property
    def section_rows(self) -> Int64Array:
        """Number of selected rows in each section."""
        return np.array([len(self)]) if self.scattered else self.leaves.count(self.rows)

    def part_rows(self, section: int) -> Int64Array:
        """Number of selected rows in each part of a section; parts are read one after the other."""
        if not self.coarse:
            return self.section_rows[section : section + 1]
        _, starts = self.leaves.load(section)
        return np.array([len(rows_between(self.rows, start, end)) for start, end in pairwise(starts)])

    def blocks(self, shuffle: ShuffleLayout, section: int, part: int) -> list[Any]:
        """The blocks of a part of a section, in table order.

        Where drawn rows do not move across their whole lane, blocks have no more rows than without repeats: all draws
        of a row in one block would come one soon after the other. Those blocks fetch no more bytes than they deliver.
        """
        blocks = [
            block
            for fragment, start in self.leaves.fragments(section, part)
            for block in self.split(
                Block(fragment, start, rows_between(self.rows, start, start + fragment.live)), shuffle.block_bytes
            )
        ]
        if self.epoch_rows.draw is None:
            return blocks
        most = self.block_rows(shuffle.block_bytes)
        if not 0 < shuffle.spread * most * shuffle.lanes < len(self):
            return blocks
        return [
            block.part(start, min(start + most, len(block))) for block in blocks for start in range(0, len(block), most)
        ]

    def split(self, block: Any, block_bytes: int) -> Iterator[Any]:
        """Split a block at pages of the heaviest column into blocks whose pages have about `block_bytes` of it."""
        if not len(block):
            return
        rows, heaviest = block.stored_rows, self.heaviest
        between, linked = (int(rows[0]), int(rows[-1]) + 1), linked_bytes(heaviest)
        files: Sequence[DataFile] = block.fragment.files_between(heaviest.id, *between) if heaviest else ()
        if len(files) == 1 and not linked and files[0].length < 1.5 * block_bytes:
            yield block  # as `split_blocks` would, whose calls to numpy take longer than reading a tiny fragment
            return
        if files:
            ends = np.concatenate([file.page_ends + file.row_start for file in files])
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
        for first, end in pairwise([0, *split_blocks(upto, sizes, numbers, block_bytes=block_bytes).tolist()]):
            yield block.part(first, end)

    def part_ends(self, block: Any, part_bytes: int, *, pages_cached: bool) -> Int64Array:
        """Where a block can be split into parts of about `part_bytes` of the heaviest column.

        Parts share no pages, unless those of all other columns are cached.
        """
        rows, heaviest = block.stored_rows, self.heaviest
        fields = [heaviest] if pages_cached and heaviest else self.fields
        ends = None
        for field in fields:
            files = block.fragment.files_between(field.id, int(rows[0]), int(rows[-1]) + 1)
            if files:
                pages = np.searchsorted(rows, np.concatenate([file.page_ends + file.row_start for file in files]))
                ends = pages if ends is None else np.intersect1d(ends, pages)
        if ends is None:
            return np.array([len(rows)])
        ends = ends[(ends > 0) & (ends < len(rows))]
        number = ends // self.block_rows(part_bytes)
        return np.append(ends[np.diff(number, prepend=0) > 0], len(rows))

    def split_points(self, block: Any, left: Int64Array) -> list[int]:
        """Where to split a block of which only the rows `left` are unread: between rows of different requests."""
        heaviest = self.heaviest
        if heaviest is None or len(left) == len(block):
            return []
        rows = block.take(left).stored_rows
        if isinstance(heaviest.kind, Linked):  # each link is an object or a range of one
            starts = np.flatnonzero(np.diff(rows) > 1) + 1
        else:
            requests = page_requests([FragmentRows(block.fragment, rows)], [heaviest.id])
            starts = np.searchsorted(rows, [file.row_start + file.row_ends[pages[-1]] for file, pages in requests[:-1]])
        points: list[int] = left[starts].tolist()
        return points

    def blocks_at(self, positions: Int64Array) -> Iterable[Any]:
        """Blocks of some increasing positions."""
        return row_blocks(self.reader, positions)

    def planned(self, block: Any) -> Planned:
        """A block to read."""
        return PlannedBlock(block)


def sorted_rows(rows: range | Int64Array, *, shuffled: bool) -> SortedRows:
    """The rows in increasing order; None if they have another order that must be preserved."""
    if isinstance(rows, range) and rows.step == 1:
        return rows
    requested = np.asarray(rows, np.int64)
    if len(requested) < 2 or (np.diff(requested) >= 0).all():
        return requested
    return np.sort(requested) if shuffled else None


def row_blocks(reader: Reader, positions: Int64Array, fields: frozenset[int] | None = None) -> Iterator[Block]:
    """A block for each fragment that holds some of the increasing positions, to read all or some fields."""
    with reader.missing_as_corrupt():
        for fragment, start, inside in reader.tree.fragments_at(reader.snapshot.nodes, positions):
            first, end = int(inside[0]) - start, int(inside[-1]) + 1 - start
            rows = range(first, end) if end - first == len(inside) else inside - start
            yield Block(fragment, start, rows, fields)
