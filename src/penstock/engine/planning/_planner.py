"""Turn an epoch's order into spans and the blocks they need."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, groupby, pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from penstock.engine.planning._located import LocatedRows, SpanRows, flat_blocks
from penstock.engine.planning._locators import (
    SECTIONS_CACHED,
    BlockLocator,
    PartBlocksOf,
    PartialBlocks,
    ResidentBlocks,
    ScatteredLocator,
    WholeBlocks,
)
from penstock.engine.planning._samples import Composition
from penstock.engine.planning._selection import Selection
from penstock.engine.planning._spans import PlannedBlock, Span
from penstock.plan import Epoch, LaneShare, OrderSpec, Schedule, SpanSteps


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


class Planner:
    """Plans the spans of one epoch after another."""

    def __init__(
        self, selection: Selection, order: OrderSpec, schedule: Schedule, share: LaneShare, options: PlanOptions
    ) -> None:
        self._selection, self._order, self._options = selection, order, options
        self._schedule, self._share = schedule, share
        self._part_blocks: PartBlocksOf = lru_cache(SECTIONS_CACHED)(partial(selection.blocks, order.shuffle))
        """Cached, because the split into blocks is the same in every epoch that reads the same rows."""
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
            yield PlannedSpans([], flat_blocks(locator.open_blocks()), True)

    def _rows(self, span: SpanSteps) -> SpanRows:
        positions, padding = self._schedule.positions(span)
        places = self._share.places(span, positions)
        return SpanRows(span, places, positions[places], None if padding is None else padding[places])

    def _epoch(self, number: int) -> Epoch:
        shuffle = self._order.shuffle
        reach = round(shuffle.spread * self._selection.block_rows(shuffle.block_bytes)) if self._order.shuffled else 0
        lanes = min(shuffle.lanes, max(1, self._order.rows))
        shared = self._selection.shared_images
        run, jitter = (1, 0) if shared is None else (shared.run, shared.jitter(lanes))
        rows = self._selection.at(number).section_rows
        return Epoch(rows, lanes, reach, self._order.seed, number, self._order.shuffled, run, jitter)

    @property
    def composition(self) -> Composition | None:
        """How samples are composed of rows; None if rows are samples."""
        return self._selection.composition

    def locator(
        self, index: int, *, resumed: bool = False, first: bool = False, by_pages: bool = False
    ) -> BlockLocator:
        """Finds the blocks of an epoch's rows, of which it may read only the pages that hold the rows.

        An epoch may be `resumed`, so that it is read from the middle on, and the first one of a run.
        """
        options, epoch = self._options, self._epoch(index)
        selection, part_blocks = self._selection.at(index), self._part_blocks
        if selection is not self._selection:
            part_blocks = lru_cache(SECTIONS_CACHED)(partial(selection.blocks, self._order.shuffle))
        if selection.scattered:
            return ScatteredLocator(selection, options.page_bytes)
        if self._resident:
            self._resident.sort(key=lambda block: block.source.position(0))
            return ResidentBlocks(self._selection, self._part_blocks, epoch, self._resident)
        if options.by_blocks and not by_pages:
            resident = self._resident if options.resident and not resumed else None
            trim = options.trim and first
            return WholeBlocks(selection, part_blocks, epoch, trim=trim, resident=resident)
        return PartialBlocks(selection, part_blocks, epoch, options.page_bytes)

    def _plan(self, locator: BlockLocator, together: list[SpanRows], *, last: bool) -> PlannedSpans:
        positions = np.concatenate([rows.positions for rows in together])
        found = locator.find(positions, duplicates=together[0].padding is not None)
        located = LocatedRows(found, self.composition, resident=isinstance(locator, ResidentBlocks))
        bounds = accumulate((len(rows.positions) for rows in together), initial=0)
        spans = [located.span(rows, slice(*here)) for rows, here in zip(together, pairwise(bounds), strict=True)]
        return PlannedSpans(spans, flat_blocks(locator.take_closed() + (locator.open_blocks() if last else [])), last)
