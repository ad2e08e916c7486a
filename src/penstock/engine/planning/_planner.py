"""Turn an epoch's order into spans and the blocks they need. A table is a mixture of one."""

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.engine.planning._lanes import SECTIONS_CACHED, EpochBlocks
from penstock.engine.planning._locators import BlockLocator, PartialBlocks, PlanOptions, ScatteredLocator
from penstock.engine.planning._selection import Selection
from penstock.engine.planning._spans import LocatedRows, Planned, PlannedBlock, PlannedSamples, Span, TableRows
from penstock.engine.planning._split_blocks import SplitBlocks
from penstock.engine.planning._whole_blocks import ResidentBlocks, WholeBlocks
from penstock.plan import Epoch, OrderSpec, Schedule, SourceRows, SpanSteps, groups
from penstock.table import Int64Array


class PlannedSpans(NamedTuple):
    """Spans planned together, and the blocks that no later span needs."""

    spans: list[Span]
    closed: list[PlannedBlock]
    last: bool
    """Whether the epoch ends with them."""


class Planner:
    """Plans the spans of one epoch after another."""

    def __init__(
        self, tables: Sequence["TablePlanner"], schedule: Schedule, plan_rows: int, *, reader: int, readers: int
    ) -> None:
        """`plan_rows` are planned together, at least a span; of these, the rows of one of some readers."""
        self._tables, self._schedule, self._plan_rows = tables, schedule, plan_rows
        self._reader, self._readers = reader, readers

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
        sources = [self._schedule.partitioner.source_rows(steps) for steps in together]
        spans = [Span(steps, []) for steps in together]
        for number, table in enumerate(self._tables):
            mine = [self._of_reader(each[number], table.order) for each in sources]
            for span, rows in zip(spans, table.plan(together, mine), strict=True):
                if len(rows):
                    span.tables.append(rows)
        return PlannedSpans(spans, [block for table in self._tables for block in table.take_closed()], last)

    def _of_reader(self, rows: SourceRows, order: OrderSpec) -> SourceRows:
        """Those of a table's rows that the reader reads: the rows of some lanes."""
        if self._readers == 1:
            return rows
        num_ranks = self._schedule.partitioner.world.num_ranks
        lane = rows.numbers % order.rows % order.lanes // (num_ranks if order.lanes % num_ranks == 0 else 1)
        return rows.take(np.flatnonzero(lane % self._readers == self._reader))


class TablePlanner:
    """Finds the rows of one table, in one of its epochs after another."""

    def __init__(self, number: int, selection: Selection, order: OrderSpec, options: PlanOptions) -> None:
        self._number, self._selection, self.order, self._options = number, selection, order, options
        self._blocks_of_part = lru_cache(SECTIONS_CACHED)(partial(selection.blocks, order.shuffle))
        """Cached, because the split into blocks is the same in every epoch that reads the same rows."""
        self._resident: list[PlannedBlock] = []
        """Those that have been read, if they stay in the window."""
        self._epoch = -1
        self._locators: dict[bool, BlockLocator] = {}
        """Of the epoch, and of rows in it that another rank owns, whose blocks would stay open."""
        self._closed: list[Planned] = []

    def take_closed(self) -> list[PlannedBlock]:
        """The blocks that are no longer needed after the last `plan`."""
        closed = [
            part for block in self._closed for part in (block.blocks if isinstance(block, PlannedSamples) else (block,))
        ]
        self._closed.clear()
        return closed

    def plan(self, together: Sequence[SpanSteps], sources: Sequence[SourceRows]) -> list[TableRows]:
        """The rows of this table in each of some spans."""
        numbers = np.concatenate([rows.numbers for rows in sources])
        each_epoch = numbers // self.order.rows
        moved = [np.zeros(len(rows.numbers), bool) if rows.moved is None else rows.moved for rows in sources]
        located = self._locate(numbers, each_epoch, np.concatenate(moved))
        if self._selection.composition is not None:
            located = located.drawn()
        one = int(each_epoch[0]) if len(numbers) and (each_epoch == each_epoch[0]).all() else None
        bounds = pairwise(accumulate((len(rows.numbers) for rows in sources), initial=0))
        return [
            self._table_rows(steps, rows, each_epoch[first:end] if one is None else one, located.part(first, end))
            for steps, rows, (first, end) in zip(together, sources, bounds, strict=True)
        ]

    def _table_rows(
        self, steps: SpanSteps, rows: SourceRows, epochs: int | Int64Array, located: LocatedRows
    ) -> TableRows:
        """The rows of a span."""
        composition, drawn_from = self._selection.composition, located.block_index
        if located.samples is not None:
            drawn_from = drawn_from[located.samples.offsets[:-1]]
        batch = np.repeat(np.arange(len(steps.batch_rows)), steps.batch_rows)[rows.places]
        return TableRows(
            **vars(located),
            table=self._number,
            places=rows.places,
            anchor=None if composition is None else composition.anchor,
            padding=rows.padding,
            epochs=epochs,
            blocks_drawn=int(np.count_nonzero(np.bincount(batch * len(located.blocks) + drawn_from))),
        )

    def _locate(self, numbers: Int64Array, epochs: Int64Array, moved: npt.NDArray[np.bool_]) -> LocatedRows:
        """The blocks of some rows; those that another rank owns are `moved`."""
        block_index, rows = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64)
        blocks: dict[Planned, int] = {}
        for key, here in groups(2 * epochs + moved):
            positions = numbers[here] - key // 2 * self.order.rows
            located = self._locator(key // 2, by_pages=bool(key % 2)).find(positions)
            if len(here) == len(numbers):
                return located
            known = np.array([blocks.setdefault(block, len(blocks)) for block in located.blocks], np.int64)
            block_index[here], rows[here] = known[located.block_index], located.rows
        return LocatedRows(list(blocks), block_index, rows)

    def _locator(self, index: int, *, by_pages: bool) -> BlockLocator:
        """The locator of an epoch of the table."""
        if index != self._epoch:
            first, self._epoch = self._epoch < 0, index
            for locator in self._locators.values():
                locator.close()
            self._blocks = self._epoch_blocks(index)
            self._locators = {False: self._new_locator(first=first)}
        if by_pages and True not in self._locators:
            self._locators[True] = self._new_locator(by_pages=True)
        return self._locators[by_pages]

    def _epoch_blocks(self, index: int) -> EpochBlocks:
        order, selection = self.order, self._selection.at(index)
        reach = round(order.shuffle.spread * self._selection.block_rows(order.shuffle.block_bytes))
        shared = selection.shared_images
        run, jitter = (1, 0) if shared is None else (shared.run, shared.jitter(order.lanes))
        epoch = Epoch(
            selection.section_rows, order.lanes, reach if order.shuffled else 0, order.seed, index, order.shuffled,
            run, jitter,
        )  # fmt: skip
        if selection is self._selection:
            return EpochBlocks(selection, epoch, self._blocks_of_part)
        return EpochBlocks(selection, epoch, partial(selection.blocks, order.shuffle))

    def _new_locator(self, *, first: bool = False, by_pages: bool = False) -> BlockLocator:
        """Finds the blocks of rows of the epoch, of which it may read only the pages that hold the rows.

        The epoch may be the `first` one of a run.
        """
        options, blocks, closed = self._options, self._blocks, self._closed
        if blocks.selection.scattered:
            return ScatteredLocator(blocks, options, closed)
        if by_pages or not options.by_blocks:
            return PartialBlocks(blocks, options, closed)
        if self._resident:
            return ResidentBlocks(blocks, options, closed, self._resident)
        if options.page_reads:
            return SplitBlocks(blocks, options, closed)
        block_bytes = self.order.shuffle.block_bytes
        return WholeBlocks(blocks, options, closed, self._resident, first=first, block_bytes=block_bytes)
