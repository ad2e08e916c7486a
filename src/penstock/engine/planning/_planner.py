"""Turn an epoch's order into spans and the blocks they need. A table is a mixture of one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from penstock.engine.planning._located import LocatedRows, flat_blocks
from penstock.engine.planning._locators import (
    SECTIONS_CACHED,
    BlockLocations,
    BlockLocator,
    PartBlocksOf,
    PartialBlocks,
    ResidentBlocks,
    ResidentTable,
    ScatteredLocator,
    WholeBlocks,
)
from penstock.engine.planning._parts import FirstParts
from penstock.engine.planning._selection import Selection
from penstock.engine.planning._spans import Planned, PlannedBlock, Span, TableRows
from penstock.engine.planning._split_blocks import SplitBlocks
from penstock.plan import Epoch, OrderSpec, Schedule, SourceRows, SpanSteps
from penstock.table import Int64Array

_NO_ROWS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What the plan of a table depends on besides its order."""

    page_bytes: int
    """If only some pages of blocks are read: about how many bytes of the heaviest column are read together."""
    by_blocks: bool
    """Whether blocks stay in the window over several spans; otherwise a span reads only the pages of its rows."""
    page_reads: float
    """How often the pages of a block are read, on average; 0 if whole blocks stay in the window."""
    resident: bool
    """Whether blocks stay in the window over all epochs."""
    trim: bool
    """Whether a block may leave out rows consumed before a resume."""
    pages_cached: bool
    """Whether pages of all columns but the heaviest are cached."""

    @property
    def reads_again(self) -> bool:
        """Whether pages are read repeatedly."""
        return not self.by_blocks or self.page_reads > 0


class PlannedSpans(NamedTuple):
    """Spans planned together, and the blocks that no later span needs."""

    spans: list[Span]
    closed: list[PlannedBlock]
    last: bool
    """Whether the epoch ends with them."""


class ReaderShare(NamedTuple):
    """The rows of a rank that one of its readers reads: those of some of its lanes."""

    reader: int
    readers: int

    def of(self, rows: SourceRows, order: OrderSpec, num_ranks: int) -> SourceRows:
        """Some of a table's rows."""
        if self.readers == 1:
            return rows
        lanes = order.lanes
        lane = rows.numbers % order.rows % lanes // (num_ranks if lanes % num_ranks == 0 else 1)
        return rows.take(np.flatnonzero(lane % self.readers == self.reader))


class Planner:
    """Plans the spans of one epoch after another."""

    def __init__(
        self, tables: Sequence["TablePlanner"], schedule: Schedule, plan_rows: int, share: ReaderShare
    ) -> None:
        """`plan_rows` are planned together, at least a span; of these, only a share of the rows."""
        self._tables, self._schedule, self._plan_rows, self._share = tables, schedule, plan_rows, share

    def planned_spans(self, epoch: int, consumed: int, number: int = 0, first: int = 0) -> Iterator[PlannedSpans]:
        """The spans from a position of an epoch on and of all later epochs, planned a few thousand rows at a time.

        Span `number` begins at the position; spans before `first` are skipped.
        """
        together: list[SpanSteps] = []
        size = limit = 0
        for steps in self._schedule.run(epoch, consumed, number):
            if steps.number < first:
                continue
            if together and (size + steps.rows > limit or not steps.complete):
                yield self._plan(together, last=False)
                together, size = [], 0
                limit *= 2  # little at first, so that the first batch comes early
            together.append(steps)
            size += steps.rows
            limit = min(max(limit, size), self._plan_rows)
            if steps.last or not steps.complete:
                yield self._plan(together, last=steps.last)
                together, size = [], 0

    def _plan(self, together: list[SpanSteps], *, last: bool) -> PlannedSpans:
        partitioner, share = self._schedule.partitioner, self._share
        sources = [partitioner.source_rows(steps) for steps in together]
        spans = [Span(steps, []) for steps in together]
        for number, table in enumerate(self._tables):
            mine = [share.of(each[number], table.order, partitioner.world.num_ranks) for each in sources]
            for span, rows in zip(spans, table.plan(together, mine), strict=True):
                if len(rows):
                    span.tables.append(rows)
        return PlannedSpans(spans, [block for table in self._tables for block in table.take_closed()], last)


class TablePlanner:
    """Finds the rows of one table, in one of its epochs after another."""

    def __init__(self, number: int, selection: Selection, order: OrderSpec, options: PlanOptions) -> None:
        self._number, self._selection, self.order, self._options = number, selection, order, options
        self._part_blocks: PartBlocksOf = lru_cache(SECTIONS_CACHED)(partial(selection.blocks, order.shuffle))
        """Cached, because the split into blocks is the same in every epoch that reads the same rows."""
        self._resident: list[PlannedBlock] = []
        """The blocks of the first epoch that was read as a whole, if they stay in the window."""
        self._table: ResidentTable | None = None
        self._epoch = -1
        self._locator: BlockLocator | None = None
        self._page_locator: BlockLocator | None = None
        """Of rows that another rank owns, whose blocks would stay open."""
        self._closed: list[Planned] = []

    def take_closed(self) -> list[PlannedBlock]:
        """The blocks that are no longer needed after the last `plan`."""
        closed, self._closed = flat_blocks(self._closed), []
        return closed

    def plan(self, together: Sequence[SpanSteps], sources: Sequence[SourceRows]) -> list[TableRows]:
        """The rows of this table in each of some spans."""
        numbers = np.concatenate([rows.numbers for rows in sources])
        epochs: int | Int64Array = numbers
        moved = numbers
        if len(numbers):
            moved = np.concatenate([_NO_ROWS if rows.moved is None else rows.moved for rows in sources])
            first, last = int(numbers.min()) // self.order.rows, int(numbers.max()) // self.order.rows
            epochs = first if first == last else numbers // self.order.rows
        duplicates = any(rows.padding is not None for rows in sources)
        locations, resident = self._locate(numbers, epochs, moved, duplicates=duplicates)
        located = LocatedRows(locations, self._selection.composition, resident=resident)
        bounds = accumulate((len(rows.numbers) for rows in sources), initial=0)
        return [
            located.rows(
                self._number, steps, rows, slice(*here), epochs if isinstance(epochs, int) else epochs[slice(*here)]
            )
            for steps, rows, here in zip(together, sources, pairwise(bounds), strict=True)
        ]

    def _locate(
        self, numbers: Int64Array, epochs: int | Int64Array, moved: Int64Array, *, duplicates: bool
    ) -> tuple[BlockLocations, bool]:
        """The blocks of some rows, and whether they are all blocks of the table, which stay in the window."""
        rows_per_epoch = self.order.rows
        if isinstance(epochs, int) and not moved.any():
            locator = self._open(epochs, int(numbers[0]) - epochs * rows_per_epoch, by_pages=False)
            locations = locator.find(numbers - epochs * rows_per_epoch, duplicates=duplicates)
            self._closed += locator.take_closed()
            return locations, isinstance(locator, ResidentBlocks)
        each_epoch = np.broadcast_to(epochs, numbers.shape)
        by_pages = moved.astype(bool) if len(moved) else np.zeros(len(numbers), bool)
        block_index, rows = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64)
        blocks: dict[Planned, int] = {}
        for epoch in np.unique(each_epoch).tolist():
            for pages in (False, True):
                here = np.flatnonzero((each_epoch == epoch) & (by_pages == pages))
                if not len(here):
                    continue
                positions = numbers[here] % rows_per_epoch
                locator = self._open(epoch, int(positions[0]), by_pages=pages)
                part = locator.find(positions, duplicates=duplicates)
                self._closed += locator.take_closed()
                known = np.array([blocks.setdefault(block, len(blocks)) for block in part.blocks], np.int64)
                block_index[here], rows[here] = known[part.block_index], part.rows
        return BlockLocations(list(blocks), block_index, rows), False

    def _open(self, epoch: int, start: int, *, by_pages: bool) -> BlockLocator:
        """The locator of an epoch of the table, which is read from position `start` on."""
        if epoch != self._epoch:
            is_first = self._epoch < 0
            if self._locator is not None:
                self._closed += self._locator.open_blocks()
            self._epoch, self._page_locator = epoch, None
            self._locator = self._new_locator(epoch, resumed=is_first and start > 0, first=is_first)
        assert self._locator is not None
        if not by_pages:
            return self._locator
        self._page_locator = self._page_locator or self._new_locator(epoch, by_pages=True)
        return self._page_locator

    def _new_locator(
        self, index: int, *, resumed: bool = False, first: bool = False, by_pages: bool = False
    ) -> BlockLocator:
        """Finds the blocks of an epoch's rows, of which it may read only the pages that hold the rows.

        An epoch may be `resumed`, so that it is read from the middle on, and the first one of a run.
        """
        options, epoch = self._options, self._new_epoch(index)
        selection, part_blocks = self._selection.at(index), self._part_blocks
        if selection is not self._selection:
            part_blocks = lru_cache(SECTIONS_CACHED)(partial(selection.blocks, self.order.shuffle))
        if selection.scattered:
            return ScatteredLocator(selection, options.page_bytes)
        if self._resident:
            self._table = self._table or ResidentTable(self._selection, self._resident)
            return ResidentBlocks(self._selection, self._part_blocks, epoch, self._table)
        if options.by_blocks and not by_pages:
            resident = self._resident if options.resident and not resumed else None
            if options.page_reads:
                return SplitBlocks(
                    selection, part_blocks, epoch, page_reads=options.page_reads, page_bytes=options.page_bytes
                )
            parts = self._first_parts(selection) if first else None
            return WholeBlocks(selection, part_blocks, epoch, parts=parts, resident=resident)
        return PartialBlocks(selection, part_blocks, epoch, options.page_bytes)

    def _first_parts(self, selection: Selection) -> FirstParts:
        trim, pages_cached = self._options.trim, self._options.pages_cached
        return FirstParts(selection, self.order.shuffle.block_bytes, trim=trim, pages_cached=pages_cached)

    def _new_epoch(self, number: int) -> Epoch:
        shuffle = self.order.shuffle
        reach = round(shuffle.spread * self._selection.block_rows(shuffle.block_bytes)) if self.order.shuffled else 0
        shared = self._selection.shared_images
        run, jitter = (1, 0) if shared is None else (shared.run, shared.jitter(self.order.lanes))
        rows = self._selection.at(number).section_rows
        return Epoch(rows, self.order.lanes, reach, self.order.seed, number, self.order.shuffled, run, jitter)
