"""Plan the spans of a mixture: the rows of each table, found by the planner of that table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.engine.planning._located import LocatedRows, SpanRows, flat_blocks
from penstock.engine.planning._locators import BlockLocations, BlockLocator, ResidentBlocks
from penstock.engine.planning._planner import PlannedSpans, Planner
from penstock.engine.planning._spans import Planned, RowIdentity, Span
from penstock.plan import MixtureShare, Places, Schedule, SourceRows, SpanSteps, derive_key, random_u64
from penstock.table import Int64Array
from penstock.types import cached_property


@dataclass(frozen=True, eq=False, kw_only=True)
class MixedSpan:
    """The rows of some steps that this process builds, of all tables."""

    steps: SpanSteps
    parts: Sequence[Span]
    """The rows of each table; their `places` are those in the steps."""
    seeds: Sequence[int]
    """Of each table."""

    epoch = 0  # tables have epochs of their own, which are part of `row_ids`

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def number(self) -> int:
        return self.steps.number

    @property
    def resident(self) -> bool:
        """Whether all blocks stay in the window."""
        return all(part.resident for part in self.parts)

    @property
    def blocks_drawn(self) -> int:
        return sum(part.blocks_drawn for part in self.parts)

    @cached_property
    def places(self) -> Places:
        """Which rows of the steps these are."""
        return slice(None) if len(self) == self.steps.rows else np.sort(self._concatenated)

    @cached_property
    def indices(self) -> list[Int64Array]:
        """For each part the indices of its rows among all rows here."""
        places = self.places
        if isinstance(places, slice):
            return [np.asarray(part.places) for part in self.parts]
        return [np.searchsorted(places, np.asarray(part.places)) for part in self.parts]

    @property
    def _concatenated(self) -> Int64Array:
        return np.concatenate([np.asarray(part.places) for part in self.parts])

    @cached_property
    def padding(self) -> npt.NDArray[np.bool_] | None:
        """Mask of the rows that only pad the epoch's last step."""
        if all(part.padding is None for part in self.parts):
            return None
        found = np.zeros(len(self), bool)
        for part, indices in zip(self.parts, self.indices, strict=True):
            if part.padding is not None:
                found[indices] = part.padding
        return found

    @cached_property
    def row_ids(self) -> Int64Array:
        """Keys of the rows: they depend on the seed of the table, its epoch and the row id."""
        found = np.empty(len(self), np.int64)
        for part, indices, seed in zip(self.parts, self.indices, self.seeds, strict=True):
            assert part.epochs is not None
            for epoch in np.unique(part.epochs).tolist():
                here = part.epochs == epoch
                found[indices[here]] = random_u64(derive_key(seed, epoch), part.row_ids[here]).view(np.int64)
        return found

    @cached_property
    def positions(self) -> Int64Array:
        """The positions of all rows in their tables."""
        return self.joined([part.positions for part in self.parts])

    @property
    def table_row_ids(self) -> Int64Array:
        """The row ids of all rows in their tables."""
        return self.joined([part.row_ids for part in self.parts])

    @cached_property
    def tables(self) -> Int64Array:
        """The table of each row."""
        return self.joined([np.full(len(part), part.table) for part in self.parts])

    @cached_property
    def epochs(self) -> Int64Array:
        """The epoch of each row in its table."""
        return self.joined([np.zeros(0, np.int64) if part.epochs is None else part.epochs for part in self.parts])

    def joined(self, values: Sequence[Int64Array]) -> Int64Array:
        """Values of the rows of each part, in the order of all rows."""
        found = np.empty(len(self), np.int64)
        for indices, value in zip(self.indices, values, strict=True):
            found[indices] = value
        return found

    def identity(self, index: int) -> RowIdentity:
        """Which row of which table a row is."""
        table = int(self.tables[index])
        return self.parts[table].identity(int(np.searchsorted(self.indices[table], index)))


class MixedPlannedSpans(NamedTuple):
    """Spans of a mixture that were planned together."""

    spans: list[MixedSpan]
    tables: list[PlannedSpans]
    """The same for each table, with the blocks that no later span needs."""
    last: bool
    """Whether the epoch ends with them."""


class MixedPlanner:
    """Plans the spans of a mixture."""

    def __init__(
        self,
        planners: Sequence[Planner],
        schedule: Schedule,
        share: MixtureShare,
        *,
        rows: Sequence[int],
        seeds: Sequence[int],
        plan_rows: int,
    ) -> None:
        """`rows` and `seeds` are those of each table; `plan_rows` are planned together, at least a span."""
        self._tables = [_Table(number, planner, rows[number]) for number, planner in enumerate(planners)]
        self._schedule, self._share, self._seeds, self._plan_rows = schedule, share, seeds, plan_rows

    def planned_spans(self, epoch: int, consumed: int, number: int = 0, first: int = 0) -> Iterator[MixedPlannedSpans]:
        """See `Planner`."""
        together: list[tuple[SpanSteps, list[SourceRows]]] = []
        size = limit = 0
        for steps in self._schedule.run(epoch, consumed, number):
            mine = steps.number >= first and self._share.owns(steps)
            if mine:
                rows = self._share.rows(steps)
                count = sum(len(part.numbers) for part in rows)
                if together and (size + count > limit or not steps.complete):
                    yield self._plan(together, last=False)
                    together, size = [], 0
                    limit *= 2  # little at first, so that the first batch comes early
                together.append((steps, rows))
                size += count
                limit = min(max(limit, size), self._plan_rows)
            if steps.last or (together and not steps.complete):
                yield self._plan(together, last=steps.last)
                together, size = [], 0

    def _plan(self, together: list[tuple[SpanSteps, list[SourceRows]]], *, last: bool) -> MixedPlannedSpans:
        tables = [table.plan([(steps, rows[table.number]) for steps, rows in together]) for table in self._tables]
        spans = [
            MixedSpan(steps=steps, parts=[table.spans[number] for table in tables], seeds=self._seeds)
            for number, (steps, _) in enumerate(together)
        ]
        return MixedPlannedSpans(spans, tables, last)


class _Table:
    """Finds the rows of one table of a mixture, in one of its epochs after another."""

    def __init__(self, number: int, planner: Planner, rows: int) -> None:
        self.number, self._planner, self._rows = number, planner, rows
        self._epoch = -1
        self._locator: BlockLocator | None = None
        self._page_locator: BlockLocator | None = None
        """Of rows that another rank owns, whose blocks would stay open."""
        self._closed: list[Planned] = []

    def plan(self, together: Sequence[tuple[SpanSteps, SourceRows]]) -> PlannedSpans:
        """The rows of some spans that come from this table."""
        nothing = np.zeros(0, np.int64)
        numbers = np.concatenate([nothing, *(rows.numbers for _, rows in together)])
        moved = np.concatenate([nothing, *(rows.moved for _, rows in together)]).astype(bool)
        epochs = numbers // max(1, self._rows)
        duplicates = any(rows.padding is not None for _, rows in together)
        found, resident = self._locate(numbers, epochs, moved, duplicates=duplicates)
        located = LocatedRows(found, self._planner.composition, resident=resident)
        spans: list[Span] = []
        bounds = list(accumulate((len(rows.numbers) for _, rows in together), initial=0))
        for number, (steps, rows) in enumerate(together):
            here = slice(bounds[number], bounds[number + 1])
            span_rows = SpanRows(steps, rows.places, numbers[here], rows.padding)
            spans.append(replace(located.span(span_rows, here), table=self.number, epochs=epochs[here]))
        closed, self._closed = self._closed, []
        return PlannedSpans(spans, flat_blocks(closed), False)

    def _locate(
        self, numbers: Int64Array, epochs: Int64Array, moved: npt.NDArray[np.bool_], *, duplicates: bool
    ) -> tuple[BlockLocations, bool]:
        """The blocks of some rows, and whether they are all blocks of the table, which stay in the window."""
        block_index, rows = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64)
        blocks: dict[Planned, int] = {}
        every = np.unique(epochs).tolist()
        for epoch in every:
            in_epoch = epochs == epoch
            for by_pages, here in enumerate((np.flatnonzero(in_epoch & ~moved), np.flatnonzero(in_epoch & moved))):
                if not len(here):
                    continue
                positions = numbers[here] % self._rows
                locator = self._open(epoch, int(positions[0]), by_pages=bool(by_pages))
                found = locator.find(positions, duplicates=duplicates)
                self._closed += locator.take_closed()
                if len(here) == len(numbers):
                    return found, isinstance(locator, ResidentBlocks)
                known = np.array([blocks.setdefault(block, len(blocks)) for block in found.blocks], np.int64)
                block_index[here], rows[here] = known[found.block_index], found.rows
        return BlockLocations(list(blocks), block_index, rows), False

    def _open(self, epoch: int, start: int, *, by_pages: bool) -> BlockLocator:
        """The locator of an epoch of the table, which is read from position `start` on."""
        if epoch != self._epoch:
            is_first = self._epoch < 0
            if self._locator is not None:
                self._closed += self._locator.open_blocks()
            self._epoch, self._page_locator = epoch, None
            self._locator = self._planner.locator(epoch, resumed=is_first and start > 0, first=is_first)
        assert self._locator is not None
        if not by_pages:
            return self._locator
        self._page_locator = self._page_locator or self._planner.locator(epoch, by_pages=True)
        return self._page_locator
