"""A span on its way through worker processes: who has got what of it, and what was built."""

import os
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from penstock.device import SharedRegions, Slot
from penstock.engine._stats import BadSample
from penstock.engine.workers._messages import Built, Published
from penstock.engine.workers._source import DeliveredSpan
from penstock.plan import SpanSteps
from penstock.runners import RemoteError, Shipment
from penstock.table import Int64Array

_MIN_ROWS = 8
"""Rows that are worth a task of their own."""

RowRange = tuple[int, int]


class WindowMemory(NamedTuple):
    """The memory of a window."""

    number: int
    regions: SharedRegions


@dataclass(slots=True, eq=False)
class PendingSpan:
    """A span that is published and not delivered."""

    steps: SpanSteps
    published: list[Published]
    """By each reader."""
    memory: WindowMemory
    keys: Int64Array | None
    slot: Slot | None = None
    waiting: list[RowRange | None] = field(default_factory=lambda: [None])
    """What no builder has got yet: the whole span, or some rows."""
    builders: dict[RowRange | None, int] = field(default_factory=dict)
    """Who has got what, and has not answered."""
    bad: dict[int, BadSample] = field(default_factory=dict)
    failure: tuple[int, RemoteError] | None = None
    error: BaseException | None = None
    batches: tuple[Shipment, int | None] | None = None
    """What a builder made, with a descriptor of its memory."""
    delivered: DeliveredSpan | None = None

    @property
    def is_built(self) -> bool:
        return not self.waiting and not self.builders

    def split(self, parts: int) -> None:
        """Let several builders write its rows, if nobody has begun."""
        rows = self.steps.rows
        if self.waiting == [None]:
            parts = max(1, min(parts, rows // _MIN_ROWS))
            self.waiting = list(pairwise(number * rows // parts for number in range(parts + 1)))

    def take(self, built: Built, descriptor: int | None) -> None:
        """Take over what a builder has made, with a descriptor of its memory."""
        self.bad |= built.bad
        if isinstance(built.batches, RemoteError):
            self.error = self.error or built.batches.revive()
        elif built.batches is not None:
            self.batches = built.batches, descriptor
        if built.failure is not None and (self.failure is None or built.failure[0] < self.failure[0]):
            self.failure = built.failure

    def give_back(self, builder: int) -> None:
        """Let others do what a builder has got and not answered."""
        lost = [rows for rows, other in self.builders.items() if other == builder]
        for rows in lost:
            del self.builders[rows]
        self.waiting += lost

    def close(self) -> None:
        """Close the descriptor of what was not delivered."""
        if self.batches is not None and self.batches[1] is not None:
            os.close(self.batches[1])
            self.batches = None
