"""Split memory between the window and prefetched batches, on the host and on a device."""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.plan._options import ShuffleLayout

_MIN_SPAN_BYTES, _SPAN_BYTES, _MAX_SPAN_BATCHES = 4 << 20, 16 << 20, 64
_SPAN_SHARE, _SMALL_SPAN_SHARE = 32, 8
"""Fractions (1/n) of the budget for a span, and at most of a small budget."""
_MIN_FLIGHT_SHARE, _MAX_FLIGHT_SHARE = 8, 4
"""Fractions (1/n) of a window that is too small for blocks in flight."""
_LEAST_BYTES = 1_000_000
"""Budgets are recommended in multiples of this."""
_DEVICE_SPAN_BYTES = 512 << 20
_DEVICE_SPAN_SHARE, _DEVICE_BATCHES_SHARE, _DEVICE_WINDOW_SHARE = 128, 8, 4
"""Largest fractions (1/n) of free device memory for a span, for prefetched batches, and for the window."""
UNMEASURED = 4
"""Size of the first results of functions, relative to what they get: 8 bits often become 32."""
_TOLERANCE = 1.25
"""Spans may be larger by this factor than planned before fewer are built ahead."""
_DEVICE_SLACK = 1.5
"""Device window relative to what the shuffle needs: room to read ahead, and for fragmentation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeeds:
    """What a loader needs memory for."""

    budget_bytes: int
    """Host memory for everything."""
    batch_size: int
    batch_bytes: int
    """Bytes of a batch in host memory."""
    device_batch_bytes: int
    by_rows: bool
    """Whether batches are built one at a time."""
    workers: int
    prefetch_factor: int
    copies: int
    """Copies of a span that a worker needs besides it to make its batches: what functions get and return."""
    shares_spans: bool
    """Whether several workers can build a span together."""
    growth: float
    """How much larger than `batch_bytes` the first batches may be: those of functions `UNMEASURED` times, and without
    limit if the decoded size of some values is unknown."""
    window_rows: float
    """Rows in a window that holds all blocks that rows are drawn from, with some in flight."""
    window_bytes: int
    """Bytes of that window."""
    flight_bytes: int
    """Of them, those of blocks in flight."""
    window_row_bytes: float
    spans_read: int
    """Spans that builders read at a time, or are to read next, while the window moves on: their rows stay in it."""
    device_row_bytes: int
    """Bytes of a row's columns whose window may be on the device."""
    cache_bytes: int
    device_free_bytes: int | None
    """None if batches are built in host memory."""
    device_memory: int | None
    """Device memory that the user allows for the window."""


@dataclass(slots=True, kw_only=True)
class BuildAhead:
    """How many spans may be built ahead of the loop; each run has a copy, and records the spans that it builds."""

    max_depth: int
    """Spans built ahead, if they have the expected size."""
    room_bytes: int
    span_bytes: int
    """Expected bytes of a span."""
    growth: float
    """See `MemoryNeeds`."""
    at_once: int
    """Workers that make batches."""
    copies: int
    """Copies of a span that a worker needs besides it."""
    measured_bytes: float = 0.0

    def record(self, span_bytes: int) -> None:
        """Count a span that was built; larger ones count at once, smaller ones by and by."""
        self.measured_bytes = max(span_bytes, 0.9 * self.measured_bytes + 0.1 * span_bytes)

    @property
    def depth(self) -> int:
        """Spans that have room, given the sizes of those that were built; the next one is always built."""
        size = self.measured_bytes  # another thread may record a span meanwhile
        if not size:
            size = self.growth * self.span_bytes
        elif size <= _TOLERANCE * self.span_bytes:
            size = self.span_bytes
        return self.depth_for(size)

    def depth_for(self, span_bytes: float) -> int:
        """The same for spans of one size."""
        few = self.room_bytes // (max(1, span_bytes) * (1 + self.copies))
        many = self.room_bytes // max(1, span_bytes) - self.at_once * self.copies
        return max(1, min(self.max_depth, int(max(many, min(few, self.at_once)))))


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """How memory is split."""

    batches_per_span: int
    """Batches built together."""
    spans: BuildAhead
    window_need: int
    """Bytes of a window that holds all blocks that rows are drawn from."""
    window_bytes: int
    held_share: float
    """The share of these blocks' rows that it has room for, besides what is in flight."""
    device_rows: int
    """Rows of the window on the device; 0 if it is in host memory."""
    notes: tuple[str, ...]

    @property
    def window_fits(self) -> bool:
        """Whether the window holds all blocks that rows are drawn from."""
        return self.window_need <= self.window_bytes


def split_budget(needs: MemoryNeeds) -> MemoryBudget:
    """Split memory: batches get what they need, the window the rest; a device window is complete or absent."""
    free = needs.device_free_bytes
    least = min(_MIN_SPAN_BYTES, needs.budget_bytes // _SMALL_SPAN_SHARE)
    span_bytes = min(_SPAN_BYTES, max(least, needs.budget_bytes // _SPAN_SHARE))
    batch_bytes, copies, at_once = max(1, needs.batch_bytes), needs.copies, needs.workers
    if free is not None:
        span_bytes = min(_DEVICE_SPAN_BYTES, free // _DEVICE_SPAN_SHARE)
        batch_bytes, copies, at_once = max(1, needs.device_batch_bytes), 0, 0
    elif copies:  # every worker has its copies at the same time
        span_bytes = min(span_bytes, needs.budget_bytes // (2 * at_once * (1 + copies)))
    alone = needs.by_rows or math.isinf(needs.growth)
    batches_per_span = 1 if alone else min(max(1, span_bytes // batch_bytes), _MAX_SPAN_BATCHES)
    device_rows, notes = _device_rows(needs, batches_per_span * needs.batch_size)
    need = needs.window_bytes - (round(needs.window_rows * needs.device_row_bytes) if device_rows else 0)
    left, quarter = needs.budget_bytes - needs.cache_bytes, needs.budget_bytes // 4  # minimum for either
    size, rows_bytes = batches_per_span * batch_bytes, batches_per_span * needs.batch_size * needs.window_row_bytes
    spans_read = needs.spans_read
    if needs.shares_spans:  # no more of them than are built
        spans_read = min(spans_read, max(1, int((left - need) // (size + rows_bytes))))
    spare = left - max(quarter, need + round(spans_read * rows_bytes))
    room = max(quarter, spare) if free is None else free // _DEVICE_BATCHES_SHARE
    wanted = needs.workers + -(-needs.workers * needs.prefetch_factor // batches_per_span)
    spans = BuildAhead(
        max_depth=wanted, room_bytes=room, span_bytes=size, growth=needs.growth, at_once=at_once, copies=copies
    )
    prefetch_spans = spans.depth_for(size)
    if not math.isinf(needs.growth):
        spans.max_depth = prefetch_spans
    if free is None:
        waiting = size * (prefetch_spans + min(prefetch_spans, at_once) * copies)
        if needs.growth > 1:  # they may turn out larger
            waiting = max(waiting, min(max(quarter, 2 * waiting), spare))
        spans.room_bytes = waiting
    else:  # batches on a device are queued there
        waiting = batches_per_span * needs.batch_bytes
    window_bytes = max(quarter, left - min(waiting, max(room, quarter)))  # the next span is built even over budget
    if free is None and prefetch_spans < needs.workers and not needs.shares_spans:
        notes = (
            *notes,
            f"memory_budget ({needs.budget_bytes / 1e6:,.0f} MB) leaves room to make {prefetch_spans} batches of "
            f"{needs.batch_bytes / 1e6:,.0f} MB at a time, so {prefetch_spans} of {needs.workers} workers are "
            "busy; raise it",
        )
    held = 1.0
    if need > window_bytes:
        held, device_rows = _held_share(need, window_bytes, needs.flight_bytes, round(rows_bytes)), 0
    return MemoryBudget(batches_per_span, spans, need, window_bytes, held, device_rows, notes)


def _held_share(need: int, room: int, flight: int, span: int) -> float:
    """The share of a window that fits less room, besides what is in flight and the span that is being built."""
    reserve = max(room / _MIN_FLIGHT_SHARE, min(flight + span, room / _MAX_FLIGHT_SHARE))
    reserve = min(reserve, flight + span + (need - room) / 2)  # little, if the window almost fits
    return (room - reserve) / max(1, need - flight)


def fitting_budget(needs: MemoryNeeds) -> int:
    """The least budget, about, whose window fits."""
    size = needs.budget_bytes
    while not split_budget(replace(needs, budget_bytes=size)).window_fits:
        size += max(_LEAST_BYTES, size // 20)
    return -(-size // _LEAST_BYTES) * _LEAST_BYTES


def fitting_shuffle(
    shuffle: ShuffleLayout, fits: Callable[[ShuffleLayout], bool], *, block_bytes: int
) -> ShuffleLayout | None:
    """The settings nearest to some whose window `fits`; None if there are none.

    They have less spread, and blocks of `block_bytes` at least, which are smaller only if a spread of 1 does not fit.
    """

    def is_too_large(hundredths: int) -> bool:
        return not fits(replace(shuffle, spread=hundredths / 100))

    most = int(100 * shuffle.spread)
    while is_too_large(least := min(100, most)):
        if shuffle.block_bytes <= block_bytes:
            return None
        shuffle, most = replace(shuffle, block_bytes=max(block_bytes, shuffle.block_bytes // 2)), min(2 * most, 99_999)
    more = range(least + 1, most + 1)
    return replace(shuffle, spread=(least + bisect_left(more, True, key=is_too_large)) / 100)


def _device_rows(needs: MemoryNeeds, span_rows: int) -> tuple[int, tuple[str, ...]]:
    """Rows of a window on the device, with those of the span being built; and notes for the user."""
    free, row_bytes = needs.device_free_bytes, needs.device_row_bytes
    if free is None or not row_bytes:
        return 0, ()
    need = round(_DEVICE_SLACK * (needs.window_rows + span_rows) * row_bytes)
    most = free // _DEVICE_WINDOW_SHARE if needs.device_memory is None else min(needs.device_memory, free)
    if most < need:
        return 0, (
            f"the window stays in host memory: it needs {need / 1e6:,.0f} MB on the device, and has "
            f"{most / 1e6:,.0f} MB there; raise DeviceOptions(memory=…), or lower spread or block_bytes in "
            "Shuffle(…)",
        )
    return (need if needs.device_memory is None else most) // row_bytes, ()
