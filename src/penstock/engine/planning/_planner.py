"""Turn an epoch's order into spans and the blocks they need."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.engine.planning._locators import (
    SECTIONS_CACHED,
    BlockLocations,
    BlockLocator,
    PartBlocksOf,
    PartialBlocks,
    ResidentBlocks,
    ScatteredLocator,
    WholeBlocks,
)
from penstock.engine.planning._selection import Selection
from penstock.engine.planning._spans import PlannedBlock, Span
from penstock.plan import Epoch, LaneShare, OrderSpec, Places, Schedule, SpanSteps
from penstock.table import Int64Array


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a plan depends on besides the order."""

    plan_rows: int
    """Rows planned together, at least a span."""
    page_bytes: int
    """If only some pages of blocks are read: about how many bytes of the heaviest column are read together."""
    by_blocks: bool
    """Whether whole blocks stay in the window; otherwise a span reads only the pages of its rows."""
    resident: bool
    """Whether blocks stay in the window over all epochs."""
    trim: bool
    """Whether a block may leave out rows consumed before a resume."""


class PlannedSpans(NamedTuple):
    """Spans planned together, and the blocks that no later span needs."""

    spans: list[Span]
    closed: list[PlannedBlock]
    last: bool
    """Whether the epoch ends with them."""


class SpanRows(NamedTuple):
    """The rows of a span that this process builds."""

    steps: SpanSteps
    places: Places
    positions: Int64Array
    padding: npt.NDArray[np.bool_] | None


class Planner:
    """Plans the spans of one epoch after another."""

    def __init__(
        self, selection: Selection, order: OrderSpec, schedule: Schedule, share: LaneShare, options: PlanOptions
    ) -> None:
        self._selection, self._order, self._options = selection, order, options
        self._schedule, self._share = schedule, share
        self._part_blocks: PartBlocksOf = lru_cache(SECTIONS_CACHED)(partial(selection.blocks, order.shuffle))
        """Cached, because the split into blocks is the same in every epoch."""
        self._resident: list[PlannedBlock] = []
        """The blocks of the first epoch that was read as a whole, if they stay in the window."""

    def planned_spans(self, epoch: int, consumed: int, number: int = 0, first: int = 0) -> Iterator[PlannedSpans]:
        """The spans from a position of an epoch on and of all later epochs, planned a few thousand rows at a time.

        Span `number` begins at the position; spans before `first` are skipped.
        """
        spans = (span for span in self._schedule.run(epoch, consumed, number) if span.number >= first)
        is_first = True
        for index, steps in groupby(spans, attrgetter("epoch")):
            resumed = is_first and (consumed > 0 or first > number)
            yield from self._plan_epoch(self.locator(index, resumed=resumed, first=is_first), steps)
            is_first = False

    def _plan_epoch(self, locator: BlockLocator, steps: Iterator[SpanSteps]) -> Iterator[PlannedSpans]:
        together: list[SpanRows] = []
        size = limit = 0
        last = False
        for span in steps:
            last = span.last
            if not self._share.owns(span):
                continue
            rows = self._rows(span)
            if together and (size + len(rows.positions) > limit or not span.complete):
                yield self._plan(locator, together, last=False)
                together, size = [], 0
                limit *= 2  # little at first, so that the first batch comes early
            together.append(rows)
            size += len(rows.positions)
            limit = min(max(limit, size), self._options.plan_rows)
        if together:
            yield self._plan(locator, together, last=last)
        elif last:
            yield PlannedSpans([], locator.open_blocks(), True)

    def _rows(self, span: SpanSteps) -> SpanRows:
        positions, padding = self._schedule.positions(span)
        places = self._share.places(span, positions)
        return SpanRows(span, places, positions[places], None if padding is None else padding[places])

    def _epoch(self, number: int) -> Epoch:
        shuffle = self._order.shuffle
        reach = round(shuffle.spread * self._selection.block_rows(shuffle.block_bytes)) if self._order.shuffled else 0
        lanes = min(shuffle.lanes, max(1, self._order.rows))
        return Epoch(self._selection.section_rows, lanes, reach, self._order.seed, number, self._order.shuffled)

    def locator(
        self, index: int, *, resumed: bool = False, first: bool = False, by_pages: bool = False
    ) -> BlockLocator:
        """Finds the blocks of an epoch's rows, of which it may read only the pages that hold the rows.

        An epoch may be `resumed`, so that it is read from the middle on, and the first one of a run.
        """
        options, epoch = self._options, self._epoch(index)
        if self._selection.scattered:
            return ScatteredLocator(self._selection, options.page_bytes)
        if self._resident:
            self._resident.sort(key=lambda block: self._selection.first_index(block.source))
            return ResidentBlocks(self._selection, self._part_blocks, epoch, self._resident)
        if options.by_blocks and not by_pages:
            resident = self._resident if options.resident and not resumed else None
            trim = options.trim and first
            return WholeBlocks(self._selection, self._part_blocks, epoch, trim=trim, resident=resident)
        return PartialBlocks(self._selection, self._part_blocks, epoch, options.page_bytes)

    def _plan(self, locator: BlockLocator, together: list[SpanRows], *, last: bool) -> PlannedSpans:
        positions = np.concatenate([rows.positions for rows in together])
        found = locator.find(positions, duplicates=together[0].padding is not None)
        spans = []
        first = 0
        local_index = np.empty(len(found.blocks), np.int64)
        for rows in together:
            end = first + len(rows.positions)
            resident = isinstance(locator, ResidentBlocks)
            spans.append(located_span(rows, found, slice(first, end), None if resident else local_index))
            first = end
        return PlannedSpans(spans, locator.take_closed() + (locator.open_blocks() if last else []), last)


def located_span(rows: SpanRows, found: BlockLocations, here: slice, local_index: Int64Array | None) -> Span:
    """A span of some located rows; `local_index` is scratch memory to leave out blocks that it does not need."""
    block_index, blocks = found.block_index[here], found.blocks
    if local_index is not None:
        needed = np.flatnonzero(np.bincount(block_index))
        local_index[needed] = np.arange(len(needed))
        block_index, blocks = local_index[block_index], [found.blocks[number] for number in needed.tolist()]
    return Span(
        steps=rows.steps,
        places=rows.places,
        blocks=blocks,
        block_index=block_index,
        rows=found.rows[here],
        padding=rows.padding,
        blocks_drawn=_blocks_drawn(rows, block_index, len(blocks)),
        resident=local_index is None,
    )


def _blocks_drawn(rows: SpanRows, block_index: Int64Array, blocks: int) -> int:
    """Sum over batches of the number of blocks that a batch draws from."""
    batch_rows = rows.steps.batch_rows
    batch = np.repeat(np.arange(len(batch_rows)), batch_rows)[rows.places]
    return int(np.count_nonzero(np.bincount(batch * blocks + block_index)))
