"""The shuffle window: blocks of the table in memory, within a budget of bytes."""

from collections.abc import Sequence
from threading import Lock

import numpy as np

from penstock.device import BufferPool, ByteAllocator
from penstock.engine._stats import StatsCollector
from penstock.engine.planning import Layout, PlannedBlock, PlannedSpans, Span
from penstock.engine.window._block_io import BlockIO
from penstock.engine.window._block_requests import BlockRequests
from penstock.engine.window._blocks import BatchMemory, PreallocatedColumn, WindowBlock
from penstock.engine.window._page_cache import PageCache, PageRuns
from penstock.engine.window._slab import Slab, reads_into_batch
from penstock.format import Field
from penstock.table import Int64Array, Reader

_MAX_IDLE_BYTES, _IDLE_SHARE = 64 << 20, 8
"""Limits of idle page buffers: bytes, and fraction (1/n) of the budget."""


class WindowBudget:
    """The bytes that the windows of a run hold together; `lock` guards them and all their blocks."""

    def __init__(self, limit_bytes: int, collector: StatsCollector) -> None:
        self.lock, self.limit_bytes = Lock(), limit_bytes
        self._collector, self._held_bytes = collector, 0

    def has_room(self, cost: int) -> bool:
        return self._held_bytes + cost <= self.limit_bytes

    def charge(self, cost: int) -> None:
        """Add the bytes of what is held, or subtract them."""
        self._held_bytes += cost
        collector = self._collector  # shared by all runs of a loader
        collector.window_bytes = self._held_bytes
        collector.window_peak_bytes = max(collector.window_peak_bytes, self._held_bytes)


class Window:
    """Owns the blocks of a table in memory and their accounting; `lock` guards both."""

    def __init__(
        self,
        reader: Reader,
        layout: Layout,
        slab: Slab,
        *,
        budget: WindowBudget,
        heaviest: Field | None,
        page_cache: PageCache | None,
        allocate: ByteAllocator | None,
        batches: BatchMemory | None,
    ) -> None:
        """With `page_cache`, all columns but the heaviest come from it; `allocate` gives memory for pages.

        With `batches`, large rows are read directly into batches.
        """
        self.lock, self.slab = budget.lock, slab
        self._layout, self._budget, self._batches = layout, budget, batches
        self._page_cache = page_cache
        self._batch_columns = [] if batches is None else [c for c in layout.fixed if reads_into_batch(c)]
        self._batch_row_bytes = sum(column.row_bytes for column in self._batch_columns)
        self._charged_row_bytes = self._batch_row_bytes if batches is not None and batches.in_budget else 0
        names = {column.name for column in self._batch_columns}
        self._block_requests = BlockRequests(
            layout,
            in_slab=[c for c in layout.fixed if slab.on_host(c.name) and c.name not in names],
            into_batch=self._batch_columns,
            heaviest=heaviest,
            page_cache=page_cache,
            direct=reader.store.is_local,
        )
        self._blocks: dict[PlannedBlock, WindowBlock] = {}
        self._pending: dict[int, int] = {}
        """Blocks that are not filled yet, by the number of a span that waits for them."""
        self._preallocated: dict[int, dict[str, PreallocatedColumn]] = {}
        self._resident: list[WindowBlock] = []
        """All blocks of a table that stays in the window, once an epoch has read it; what follows is about them."""
        self._resident_starts: Int64Array | None = None
        self._resident_filled = self._resident_errors = False
        # `allocate` gives pinned memory, and allocating that synchronises the device: keep all of it.
        spare = min(_MAX_IDLE_BYTES, budget.limit_bytes // _IDLE_SHARE) if allocate is None else budget.limit_bytes
        self._io = BlockIO(
            reader, layout, slab, self._block_requests,
            page_cache=page_cache, page_buffers=BufferPool(spare, allocate), preallocated=self._preallocated,
        )  # fmt: skip

    @property
    def reads_into_batch(self) -> bool:
        """Whether some columns are read directly into batches; blocks must then know the destinations of their rows."""
        return bool(self._batch_columns)

    def blocks(self, span: Span) -> list[WindowBlock]:
        """The blocks of a span."""
        if not span.resident:
            return [self._blocks[block] for block in span.blocks]
        if not self._resident:
            self._resident = [self._blocks[block] for block in span.blocks]
        return self._resident

    def slab_starts(self, span: Span) -> Int64Array:
        """The index in the slab of the first row of each block of a span."""
        if span.resident and self._resident_starts is not None:
            return self._resident_starts
        starts = np.array([block.slab_start for block in self.blocks(span)], np.int64)
        if span.resident and self._resident_filled:
            self._resident_starts = starts
        return starts

    def damaged(self, span: Span) -> list[int]:
        """The blocks of a span that could not be read, by their index in the span."""
        if span.resident and self._resident_filled and not self._resident_errors:
            return []
        return [number for number, block in enumerate(self.blocks(span)) if block.error is not None]

    def preallocated(self, span: Span, name: str) -> PreallocatedColumn | None:
        """The batches of a span that a column is read into; None if it is in the slab."""
        return self._preallocated.get(span.number, {}).get(name)

    def register(self, planned: PlannedSpans) -> None:
        """Take over newly planned spans and their blocks; called by one thread at a time, without the lock."""
        fresh: dict[PlannedBlock, WindowBlock] = {}
        spans = [span for span in planned.spans if not span.resident]
        for span in spans:
            states: list[WindowBlock] = []
            for block in span.blocks:
                state = self._blocks.get(block) or fresh.get(block)
                if state is None:
                    state = fresh[block] = self._new_block(block)
                states.append(state)
            if self.reads_into_batch:
                for index, (number, row) in enumerate(zip(span.block_index.tolist(), span.rows.tolist(), strict=True)):
                    states[number].add_destination(row, span, index)
        with self.lock:
            self._blocks |= fresh
            for span in spans:
                for block in span.blocks:
                    self._blocks[block].pending_spans += 1
            for block in planned.closed:
                state = self._blocks.get(block)
                if state is None:  # only samples that were consumed before a resume draw from it
                    continue
                state.closed = True
                if not state.pending_spans:
                    self._free(state)

    def _new_block(self, block: PlannedBlock) -> WindowBlock:
        state = WindowBlock(self, block, self._block_requests.for_block(block))
        for group in state.request.cacheable:
            assert self._page_cache is not None
            runs = self._page_cache.get(group)
            if runs is None:
                state.requests.append(group)
            else:
                state.pages.add_all(group.file, runs)
        state.pending_requests = len(state.requests)
        return state

    def has_open_blocks(self, planned: PlannedSpans) -> bool:
        """Whether spans that are not planned yet may need some of the blocks."""
        return not all(self._blocks[block].closed for span in planned.spans for block in span.blocks)

    def admit(self, block: WindowBlock, *, force: bool) -> bool:
        """Admit a block if there is room, or always with `force`, while no thread uses the window; with the lock.

        Raises `MemoryError` if the window on a device is too small.
        """
        into_batch = self.reads_into_batch and block.request.can_read_into_batch and block.destinations_known
        spans: set[Span] = set()
        if into_batch:
            assert self._batches is not None
            wanted = {span for span, _ in block.destinations.values()}
            into_batch = all(map(self._batches.accepts, wanted))
            spans = {span for span in wanted if into_batch and span.number not in self._preallocated}
            if not all(map(self._batches.is_available, spans)):
                if not force:
                    return False
                into_batch, spans = False, set()
        own_bytes = block.bytes + (0 if into_batch else block.plan.rows * self._batch_row_bytes)
        cost = own_bytes + block.request.raw_bytes + sum(map(len, spans)) * self._charged_row_bytes
        if not self._budget.has_room(cost) and not force:
            return False
        rows = block.request.slab_range
        start = self.slab.allocate(len(rows)) if self._layout.fixed else 0
        if start is None:
            if not force:
                return False
            start = self.slab.grow(len(rows))
        for span in spans:
            assert self._batches is not None
            self._preallocated[span.number] = {c.name: self._batches.column(span, c) for c in self._batch_columns}
        block.slab_start, block.admitted = start - rows.start, True
        block.into_batch, block.bytes = into_batch, own_bytes
        self._budget.charge(cost)
        return True

    def await_blocks(self, span: Span) -> bool:
        """Record that a span waits for its blocks; returns whether it need not. With the lock."""
        if span.resident and self._resident_filled:
            return True
        waits = [block for block in self.blocks(span) if not block.filled]
        for block in waits:
            block.waiting_spans.append(span)
        if waits:
            self._pending[span.number] = len(waits)
        elif span.resident:
            self._resident_filled = True
            self._resident_errors = any(block.error is not None for block in self._resident)
        return not waits

    def read(self, block: WindowBlock, number: int) -> tuple[PageRuns, int]:
        """Read one request of a block: returns its pages, none for a direct read, and the bytes fetched."""
        return self._io.read(block, number)

    def add_pages(self, block: WindowBlock, number: int, found: PageRuns | BaseException) -> bool:
        """Take over the pages of a request, or its error; returns whether the block has all its pages."""
        with self.lock:
            if isinstance(found, BaseException):
                block.error = block.error or found
            else:
                block.pages.add_all(block.requests[number].file, found)
            block.pending_requests -= 1
            return not block.pending_requests

    def fill(self, block: WindowBlock) -> Sequence[Span]:
        """Parse the pages of a block and free them; returns the spans that waited only for it."""
        try:
            block.raw_columns = self._io.fill(block) if block.error is None else self._io.nulls(block)
        except BaseException as error:
            block.error = error
        with self.lock:
            block.pages, block.destinations = type(block.pages)(), {}
            self._budget.charge(-block.request.raw_bytes)
            block.filled = True
            ready = [span for span in block.waiting_spans if self._is_last(span)]
            block.waiting_spans = []
        return ready

    def _is_last(self, span: Span) -> bool:
        """Count a filled block of a span; returns whether it was the last one."""
        self._pending[span.number] -= 1
        if self._pending[span.number]:
            return False
        del self._pending[span.number]
        return True

    def release(self, span: Span) -> None:
        """Release what a built span needed; its batches now belong to the consumer. With the lock."""
        for block in () if span.resident else self.blocks(span):
            block.pending_spans -= 1
            if not block.pending_spans and block.closed:
                self._free(block)
        if self._preallocated.pop(span.number, None) is not None:
            self._budget.charge(-self._charged_row_bytes * len(span))

    def _free(self, block: WindowBlock) -> None:
        """Free a block that no span needs."""
        del self._blocks[block.plan]
        block.drop_rows()
        if not block.admitted:
            return
        rows = block.request.slab_range
        if self._layout.fixed:
            self.slab.free(block.slab_start + rows.start, len(rows))
        self._budget.charge(-block.bytes)
