"""Blocks in the shuffle window, and spans: consecutive steps whose batches are built together."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.engine._selection import Block
from penstock.engine._stats import BadSample
from penstock.table import FragmentRows, Int64Array, PageRequest, Pages, RawColumn


class PreallocatedColumn(NamedTuple):
    """Memory for a column of a span's batches, allocated early so that rows are read directly into it."""

    values: npt.NDArray[Any]
    memory: memoryview
    """The same as bytes."""
    row_bytes: int

    def row(self, index: int) -> memoryview:
        """The bytes of one row."""
        return self.memory[index * self.row_bytes : (index + 1) * self.row_bytes]


class EncodedRows(NamedTuple):
    """The encoded values of a column as offsets into pages; a view of each value would be an object per row."""

    memory: list[Any]
    """None for a null."""
    starts: list[int]
    ends: list[int]

    def row(self, index: int) -> Any:
        """The bytes of one value, or None."""
        memory = self.memory[index]
        return None if memory is None else memory[self.starts[index] : self.ends[index]]


class WindowBlock:
    """A block in the window: requested, filled, read by spans, freed."""

    __slots__ = (
        "admitted", "bytes", "cached_columns", "can_read_into_batch", "closed", "destinations", "direct", "duplicated",
        "encoded", "error", "filled", "fragment_rows", "into_batch", "inverse", "pages", "pending_requests",
        "pending_spans", "raw_bytes", "raw_columns", "requests", "rows", "slab_range", "slab_start", "source",
        "sparse", "unread", "waiting_spans",
    )  # fmt: skip

    def __init__(self, source: Block, unread: int | None = None) -> None:
        """`unread` is the number of rows that were not consumed before a resume; by default all."""
        self.inverse: Int64Array | None = None
        """For each row of the source its row here, if some are selected more than once."""
        if not isinstance(source.selected, range) and not (source.selected[1:] > source.selected[:-1]).all():
            _, firsts, self.inverse = np.unique(source.selected, return_index=True, return_inverse=True)
            source = source.take(firsts)
        self.source, self.rows = source, len(source)
        self.unread = self.rows if unread is None else unread
        self.fragment_rows = FragmentRows(source.fragment, source.stored_rows)
        self.requests: list[PageRequest] = []
        self.direct: dict[int, range] = {}
        """Indices of requests that are read directly to their destination, and the rows that each fills."""
        self.slab_range = range(self.rows)
        """Its rows in the slab, relative to `slab_start`; more than `rows` if its first or last page is shared."""
        self.cached_columns: dict[int, npt.NDArray[Any]] = {}
        """Fixed-width columns from the page cache, by field id."""
        self.raw_bytes = self.bytes = 0
        """Bytes of pages until they are parsed, and bytes of rows in the window."""
        self.slab_start = 0
        """Index of its first row in the slab."""
        self.destinations: dict[int, tuple[Span, int]] = {}
        """For each row the span that reads it and its index in that span."""
        self.duplicated = False
        """Whether a row has two destinations."""
        self.can_read_into_batch = self.into_batch = False
        """Whether large rows can be read directly into batches, and whether they are, instead of into the slab."""
        self.sparse = False
        """Whether most rows of the pages are not wanted."""
        self.pages = Pages()
        self.pending_requests = 0
        self.raw_columns: dict[str, RawColumn] = {}
        """Variable-size columns, which are not in the slab."""
        self.encoded: dict[str, EncodedRows] = {}
        """Offsets of encoded values, computed on first use."""
        self.filled = False
        self.error: BaseException | None = None
        self.closed = False
        """Whether no span planned later needs it."""
        self.admitted = False
        self.pending_spans = 0
        """Spans that need it and are not built yet."""
        self.waiting_spans: list[Span] = []
        """Spans that cannot be built until it is filled."""

    @property
    def destinations_known(self) -> bool:
        """Whether each unread row has exactly one destination."""
        return not self.duplicated and len(self.destinations) == self.unread


@dataclass(slots=True, eq=False, kw_only=True)
class Span:
    """Consecutive steps of one rank whose batches are built together."""

    number: int
    epoch: int
    batch_rows: list[int]
    """Rows of each batch."""
    consumed: list[int]
    """Positions consumed by all ranks after each batch."""
    last: bool
    """Whether it ends the epoch."""
    blocks: list[WindowBlock]
    block_index: Int64Array
    """For each row the index of its block in `blocks`."""
    rows: Int64Array
    """For each row its index in that block."""
    padding: npt.NDArray[np.bool_] | None
    """Mask of the rows that only pad the epoch's last step."""
    blocks_drawn: int
    """Sum over batches of the number of blocks that a batch draws from."""
    pending_blocks: int = 0
    """Blocks that are not filled yet."""
    bad: list[tuple[int, BadSample]] = field(default_factory=list)
    """Rows that were replaced, by index."""
    preallocated: dict[str, PreallocatedColumn] = field(default_factory=dict)
    """Columns whose rows are read directly into the batches."""

    def assign_destinations(self) -> None:
        """Record in the blocks where their rows go."""
        for index, (block_index, row) in enumerate(zip(self.block_index.tolist(), self.rows.tolist(), strict=True)):
            block = self.blocks[block_index]
            if row in block.destinations:
                block.duplicated = True
            block.destinations[row] = self, index

    def position(self, index: int) -> int:
        """A row's position in the table."""
        return self.blocks[int(self.block_index[index])].source.position(int(self.rows[index]))

    @property
    def row_ids(self) -> Int64Array:
        """The row ids of all rows."""
        ids = np.empty(len(self.block_index), np.int64)
        for block_index, block in enumerate(self.blocks):
            mask = self.block_index == block_index
            ids[mask] = block.fragment_rows.fragment.row_ids_at(block.fragment_rows.rows[self.rows[mask]])
        return ids

    @property
    def slab_rows(self) -> Int64Array:
        """The slab index of each row."""
        starts = np.array([block.slab_start for block in self.blocks], np.int64)
        return starts[self.block_index] + self.rows
