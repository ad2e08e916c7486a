"""Share memory out between the window and the batches that wait, here and on a device; pure."""

from dataclasses import dataclass

_LEAST_SPAN_BYTES, _SPAN_BYTES, _SPAN_SHARE, _MAX_SPAN_BATCHES = 4 << 20, 16 << 20, 32, 64
_DEVICE_SPAN_BYTES = 512 << 20
_DEVICE_SPAN_SHARE, _DEVICE_BATCHES_SHARE, _DEVICE_WINDOW_SHARE = 128, 8, 4
"""At most these parts of a device's free memory are for a span, for batches that wait, and for the window."""
_DEVICE_SLACK = 1.5
"""Of a device's window: how much more than the shuffle needs, to read ahead, and because runs of rows leave gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a loader has to find room for."""

    budget_bytes: int
    """For everything in this process's memory."""
    batch_size: int
    batch_bytes: int
    """Bytes of a batch in this process's memory, and …"""
    device_batch_bytes: int
    """… on a device."""
    by_rows: bool
    """Whether batches are made one at a time."""
    workers: int
    prefetch_factor: int
    window_rows: float
    """Rows that the window holds when it holds all blocks that rows are drawn from, with some on the way."""
    row_bytes: float
    device_row_bytes: int
    """Bytes of those columns of a row whose window may be on the device."""
    kept_bytes: int
    """Light columns that are kept."""
    device_free_bytes: int | None
    """None where batches are made in this process's memory."""
    device_memory: int | None
    """Bytes that the user wants to give to the window on the device."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Who gets how much."""

    per_span: int
    """Batches that are put together at once."""
    depth: int
    """Spans that are ready ahead of the loop."""
    window_bytes: int
    device_rows: int
    """Rows of the window on the device; 0 where it is in this process's memory."""
    fits: bool
    """Whether the window holds all blocks that rows are drawn from; if not, they are read again and again."""
    notes: tuple[str, ...]

    @property
    def on_device(self) -> bool:
        return self.device_rows > 0


def share_out(needs: Needs) -> Shares:
    """Batches get what they need, the window gets the rest; the device's window is all there or not at all."""
    free = needs.device_free_bytes
    span_bytes = min(_SPAN_BYTES, max(_LEAST_SPAN_BYTES, needs.budget_bytes // _SPAN_SHARE))
    batch_bytes = max(1, needs.batch_bytes)
    if free is not None:
        span_bytes = min(_DEVICE_SPAN_BYTES, free // _DEVICE_SPAN_SHARE)
        batch_bytes = max(1, needs.device_batch_bytes)
    per_span = 1 if needs.by_rows else min(max(1, span_bytes // batch_bytes), _MAX_SPAN_BATCHES)
    device_rows, notes = _device_rows(needs, per_span * needs.batch_size)
    need = round(needs.window_rows * (needs.row_bytes - (needs.device_row_bytes if device_rows else 0)))
    left, quarter = needs.budget_bytes - needs.kept_bytes, needs.budget_bytes // 4  # the least for either
    room = max(quarter, left - max(quarter, need)) if free is None else free // _DEVICE_BATCHES_SHARE
    wanted = needs.workers + -(-needs.workers * needs.prefetch_factor // per_span)
    depth = max(2, min(wanted, room // (per_span * batch_bytes)))
    waiting = depth if free is None else 1  # batches that are made on a device wait there
    window_bytes = max(quarter, left - waiting * per_span * needs.batch_bytes)
    fits = need <= window_bytes
    if free is None and depth < needs.workers:
        notes = (
            *notes,
            f"memory_budget ({needs.budget_bytes / 1e6:,.0f} MB) leaves room to make {depth} batches of "
            f"{needs.batch_bytes / 1e6:,.0f} MB at a time, so {depth} of {needs.workers} workers are busy; raise it",
        )
    if not fits:
        notes = (
            *notes,
            f"memory_budget ({needs.budget_bytes / 1e6:,.0f} MB) leaves {window_bytes / 1e6:,.0f} MB for the window of "
            f"the shuffle, which needs {need / 1e6:,.0f} MB, so blocks are read many times; raise it, or lower "
            "shuffle_spread",
        )
    return Shares(per_span, depth, window_bytes, device_rows if fits else 0, fits, notes)


def _device_rows(needs: Needs, span_rows: int) -> tuple[int, tuple[str, ...]]:
    """Rows of a window on the device, with those of the span that is put together; and what there is to say."""
    free, row_bytes = needs.device_free_bytes, needs.device_row_bytes
    if free is None or not row_bytes:
        return 0, ()
    need = round(_DEVICE_SLACK * (needs.window_rows + span_rows) * row_bytes)
    most = free // _DEVICE_WINDOW_SHARE if needs.device_memory is None else min(needs.device_memory, free)
    if most < need:
        return 0, (
            f"the window stays in host memory: it needs {need / 1e6:,.0f} MB on the device, and has "
            f"{most / 1e6:,.0f} MB there; raise device_memory, or lower shuffle_spread or shuffle_block",
        )
    return (need if needs.device_memory is None else most) // row_bytes, ()
