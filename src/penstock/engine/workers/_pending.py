"""A span on its way through worker processes: who has got what of it, what was built, what the loop gets."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.device import SharedMemory, SharedRegions, Slot
from penstock.engine._stats import BadSample, StatsCollector
from penstock.engine.assembly import BatchAssembler, BatchFormatter, Failure, GatheredRows, Placement
from penstock.engine.window import BuildTask
from penstock.engine.workers._messages import Built, Published, RowRange
from penstock.engine.workers._slots import SlotLayout, SlotMemory
from penstock.engine.workers._source import DeliveredSpan, LoaderSource
from penstock.plan import SpanSteps
from penstock.runners import RemoteError, Shipment, expand, unpack
from penstock.table import Int64Array

_MIN_ROWS = 8
"""Rows that are worth a task of their own."""


class WindowMemory(NamedTuple):
    """The memory of a window."""

    number: int
    regions: SharedRegions


@dataclass(slots=True, eq=False)
class PendingSpan:
    """A span that is not delivered yet."""

    steps: SpanSteps
    published: dict[int, Published] = field(default_factory=dict)
    """By the number of the reader."""
    memory: WindowMemory | None = None
    """Where its rows are; None until all readers have published it."""
    places: Sequence[tuple[int, int]] = ()
    """Start and size there of the task of each reader."""
    keys: Int64Array | None = None
    slot: Slot | None = None
    waiting: list[RowRange | None] = field(default_factory=list)
    """What no builder has got yet: the whole span, or some rows."""
    builders: dict[RowRange | None, int] = field(default_factory=dict)
    """Who has got what, and has not answered."""
    bad: dict[int, BadSample] = field(default_factory=dict)
    failure: tuple[int, Exception] | None = None
    """The first row that could not be used, and why."""
    error: Exception | None = None
    batches: tuple[Shipment, SharedMemory | None] | None = None
    """What a builder made, and memory that it has besides the slot."""
    delivered: DeliveredSpan | None = None

    @property
    def is_built(self) -> bool:
        return self.memory is not None and not self.waiting and not self.builders

    def split(self, parts: int) -> None:
        """Let several builders write its rows; nobody has begun."""
        rows = self.steps.rows
        parts = max(1, min(parts, rows // _MIN_ROWS))
        self.waiting = list(pairwise(number * rows // parts for number in range(parts + 1)))

    def take(self, built: Built, memory: SharedMemory | None) -> None:
        """Take over what a builder has made."""
        self.bad |= built.bad
        if isinstance(built.batches, RemoteError):
            self.error = self.error or built.batches.revive()
        elif built.batches is not None:
            self.batches = built.batches, memory
        if built.failure is not None and (self.failure is None or built.failure[0] < self.failure[0]):
            self.failure = built.failure[0], built.failure[1].revive()

    def give_back(self, builder: int) -> None:
        """Let others do what a builder has got and not answered."""
        lost = [rows for rows, other in self.builders.items() if other == builder]
        for rows in lost:
            del self.builders[rows]
        self.waiting += lost


class Delivery:
    """Makes what the loop gets of a span that is built."""

    def __init__(
        self,
        source: LoaderSource,
        layout: SlotLayout,
        formatter: BatchFormatter,
        placement: Placement | None,
        collector: StatsCollector,
    ) -> None:
        self._layout, self._formatter, self._placement, self._row_keys = layout, formatter, placement, source.row_keys
        self._assemble = BatchAssembler(formatter, placement, None, collector, row_keys=source.row_keys)

    def __call__(self, span: PendingSpan, slot: npt.NDArray[np.uint8]) -> DeliveredSpan:
        """The batches of a span, given the memory of its slot."""
        if span.batches is None:
            columns = self._layout.arrays(SlotMemory(slot), span.steps.rows)
            gathered = GatheredRows(dict(columns), span.bad, span.failure)
            batches = self._assemble(BuildTask(span.steps, [], span.keys), gathered).batches
        else:
            batches = self._placed(span, unpack(*span.batches, slot))
        readers = span.published.values()
        blocks_drawn, padding = sum(each.blocks_drawn for each in readers), sum(each.padding for each in readers)
        return DeliveredSpan(span.steps, batches, span.bad, blocks_drawn, padding)

    def _placed(self, span: PendingSpan, batches: Sequence[Any]) -> list[Any]:
        """The batches that a builder has made, converted and transferred."""
        made: list[Any] = []
        formatter, placement = self._formatter, self._placement
        keys = None if span.keys is None else self._row_keys(span.steps, span.keys)
        start = 0
        for packed, rows in zip(batches, span.steps.batch_rows, strict=False):
            if isinstance(packed, RemoteError):
                made.append(Failure(packed.revive()))
                break
            batch = formatter.from_worker(expand(packed))
            if placement is not None:
                batch = placement.place(batch, None if keys is None else keys.part(start, rows))
            made.append(batch)
            start += rows
        return made
