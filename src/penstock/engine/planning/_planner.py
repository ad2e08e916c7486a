"""Turn an epoch's order into spans and the blocks they need."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.engine.planning._blocks import Planned, PlannedBlock, PlannedSamples
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
from penstock.engine.planning._samples import Composition, flat_ranges
from penstock.engine.planning._selection import Selection
from penstock.engine.planning._spans import Span, SpanSamples
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
            self._resident.sort(key=lambda block: self._selection.first_index(block.source))
            return ResidentBlocks(self._selection, self._part_blocks, epoch, self._resident)
        if options.by_blocks and not by_pages:
            resident = self._resident if options.resident and not resumed else None
            trim = options.trim and first
            return WholeBlocks(selection, part_blocks, epoch, trim=trim, resident=resident)
        return PartialBlocks(selection, part_blocks, epoch, options.page_bytes)

    def _plan(self, locator: BlockLocator, together: list[SpanRows], *, last: bool) -> PlannedSpans:
        positions = np.concatenate([rows.positions for rows in together])
        found = locator.find(positions, duplicates=together[0].padding is not None)
        spans = []
        first = 0
        local_index = np.empty(len(found.blocks), np.int64)
        for rows in together:
            end = first + len(rows.positions)
            resident = isinstance(locator, ResidentBlocks)
            here = slice(first, end)
            spans.append(located_span(rows, found, here, None if resident else local_index, self.composition))
            first = end
        return PlannedSpans(spans, flat_blocks(locator.take_closed() + (locator.open_blocks() if last else [])), last)


def located_span(
    rows: SpanRows,
    found: BlockLocations,
    here: slice,
    local_index: Int64Array | None,
    composition: Composition | None,
) -> Span:
    """A span of some located rows; `local_index` is scratch memory to leave out blocks that it does not need."""
    block_index, blocks = found.block_index[here], found.blocks
    if local_index is not None:
        needed = np.flatnonzero(np.bincount(block_index))
        local_index[needed] = np.arange(len(needed))
        block_index, blocks = local_index[block_index], [found.blocks[number] for number in needed.tolist()]
    return Span(
        steps=rows.steps,
        places=rows.places,
        padding=rows.padding,
        blocks_drawn=_blocks_drawn(rows, block_index, len(blocks)),
        resident=local_index is None,
        **_located(blocks, block_index, found.rows[here], composition),
    )


def _located(
    blocks: Sequence[Planned], block_index: Int64Array, rows: Int64Array, composition: Composition | None
) -> dict[str, Any]:
    """The blocks of a span, and where in them its rows are; for composed samples, where all that they draw is."""
    if composition is None:
        return {"blocks": blocks, "block_index": block_index, "rows": rows, "samples": None}
    planned = [block for block in blocks if isinstance(block, PlannedSamples)]
    counts = np.empty(len(rows), np.int64)
    numbers = np.empty(len(rows), np.int64)
    held = [np.flatnonzero(block_index == index) for index in range(len(planned))]
    for block, here in zip(planned, held, strict=True):
        local = rows[here]
        counts[here] = block.offsets[local + 1] - block.offsets[local]
        numbers[here] = block.samples[local]
    ends = np.cumsum(counts)
    draw_block, draw_row = np.empty(counts.sum(), np.int64), np.empty(counts.sum(), np.int64)
    base = 0
    for block, here in zip(planned, held, strict=True):
        source, _ = flat_ranges(block.offsets[rows[here]], counts[here])
        target, _ = flat_ranges((ends - counts)[here], counts[here])
        draw_block[target], draw_row[target] = block.block_index[source] + base, block.rows[source]
        base += len(block.blocks)
    samples = SpanSamples(composition, numbers, np.append(0, ends))
    return {"blocks": flat_blocks(blocks), "block_index": draw_block, "rows": draw_row, "samples": samples}


def flat_blocks(blocks: Sequence[Planned]) -> list[PlannedBlock]:
    """The blocks of rows in some blocks of rows or samples."""
    return [part for block in blocks for part in (block.blocks if isinstance(block, PlannedSamples) else (block,))]


def _blocks_drawn(rows: SpanRows, block_index: Int64Array, blocks: int) -> int:
    """Sum over batches of the number of blocks that a batch draws from."""
    batch_rows = rows.steps.batch_rows
    batch = np.repeat(np.arange(len(batch_rows)), batch_rows)[rows.places]
    return int(np.count_nonzero(np.bincount(batch * blocks + block_index)))
