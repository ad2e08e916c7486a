"""The shuffle window: blocks of the table in memory, within a budget of bytes."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.device import BufferPool, ByteAllocator
from penstock.engine._block_requests import BlockRequests
from penstock.engine._blocks import PreallocatedColumn, Span, WindowBlock
from penstock.engine._page_cache import PageCache
from penstock.engine._slab import FixedColumn, Layout, Slab, reads_into_batch
from penstock.engine._stats import StatsCollector
from penstock.errors import NotFoundError
from penstock.format import Field
from penstock.format.kinds import Linked
from penstock.table import (
    RawColumn,
    Reader,
    copy_dense,
    gather,
    read_direct,
    read_direct_scattered,
    read_pages,
)

_MAX_IDLE_BYTES, _IDLE_SHARE = 64 << 20, 8
"""Limits of idle page buffers: bytes, and fraction (1/n) of the budget."""


class Window:
    """Requests, accounts for and fills blocks; methods that change the accounting need the pipeline's lock."""

    def __init__(
        self,
        reader: Reader,
        layout: Layout,
        slab: Slab,
        *,
        budget_bytes: int,
        heaviest: Field | None,
        page_cache: PageCache | None,
        collector: StatsCollector,
        allocate: ByteAllocator | None,
        batch_buffers: BufferPool | None,
    ) -> None:
        """With `page_cache`, all columns but the heaviest come from it; `allocate` gives memory for pages.

        With `batch_buffers`, large rows are read directly into batches allocated there.
        """
        self._reader, self._layout, self._collector, self._budget_bytes = reader, layout, collector, budget_bytes
        self._batch_buffers, self._page_cache = batch_buffers, page_cache
        self._batch_columns = (
            {}
            if batch_buffers is None
            else {column.name: column for column in layout.fixed if reads_into_batch(column)}
        )
        self._batch_row_bytes = sum(column.row_bytes for column in self._batch_columns.values())
        self._block_requests = BlockRequests(
            layout,
            in_slab=[c for c in layout.fixed if slab.on_host(c.name) and c.name not in self._batch_columns],
            into_batch=list(self._batch_columns.values()),
            heaviest=heaviest,
            page_cache=page_cache,
            direct=reader.store.is_local,
        )
        self._names = {field.id: field.name for field in layout.fields}
        self.slab = slab
        self._held_bytes = 0
        # `allocate` gives pinned memory, and allocating that synchronises the device: keep all of it.
        spare = min(_MAX_IDLE_BYTES, budget_bytes // _IDLE_SHARE) if allocate is None else budget_bytes
        self._page_buffers = BufferPool(spare, allocate)

    @property
    def reads_into_batch(self) -> bool:
        """Whether some columns are read directly into batches; blocks must then know the destinations of their rows."""
        return bool(self._batch_columns)

    def plan_requests(self, block: WindowBlock) -> None:
        """Set the requests and the memory of a block."""
        request_plan = self._block_requests.for_block(block)
        block.requests, block.direct, block.cached_columns = (
            list(request_plan.requests),
            request_plan.direct,
            request_plan.cached_columns,
        )
        block.bytes, block.raw_bytes, block.can_read_into_batch, block.sparse = (
            request_plan.bytes,
            request_plan.raw_bytes,
            request_plan.can_read_into_batch,
            request_plan.sparse,
        )
        block.slab_range = request_plan.slab_range
        for group in request_plan.cacheable:
            assert self._page_cache is not None
            runs = self._page_cache.get(group)
            if runs is None:
                block.requests.append(group)
            else:
                block.pages.add_all(group.file, runs)
        block.pending_requests = len(block.requests)

    def read(self, block: WindowBlock, number: int) -> tuple[list[tuple[int, memoryview]], int]:
        """Read one request of a block: returns its pages, none for a direct read, and the bytes fetched."""
        request, rows = block.requests[number], block.direct.get(number)
        try:
            if rows is not None:
                name = self._names[request.file.fields[0]]
                if block.into_batch and name in self._batch_columns:
                    read_direct_scattered(self._reader.store, request, self._destinations(block, name, rows))
                    return [], request.bytes
                where = name, block.slab_start + rows.start, len(rows)
                values = self.slab.buffer(*where)
                read_direct(self._reader.store, request, values.reshape(-1).view(np.uint8).data)
                self.slab.flush(*where)
                return [], request.bytes
            if self._page_cache is not None and self._block_requests.is_cacheable(request):
                runs, fetched = self._page_cache.get_or_read(request)
                return runs, request.bytes if fetched else 0
            store = self._reader.store
            return read_pages(store, request, self._allocate_pages if store.is_local else None), request.bytes
        except NotFoundError:
            with self._reader.missing_as_corrupt():
                raise

    def _destinations(self, block: WindowBlock, name: str, rows: range) -> list[memoryview]:
        """The destination of each row, with scratch memory for unwanted rows."""
        destinations = [block.destinations.get(row) for row in rows]
        size = self._batch_columns[name].row_bytes
        spare = self._allocate_pages(destinations.count(None) * size)
        unwanted = (spare[first : first + size] for first in range(0, len(spare), size))
        return [
            next(unwanted) if target is None else target[0].preallocated[name].row(target[1]) for target in destinations
        ]

    def _allocate_pages(self, size: int) -> memoryview:
        """A buffer for pages; cheaper than mapping the file, which costs a page fault per 4 KiB and an unmap."""
        room: memoryview = self._page_buffers.allocate((size,), np.uint8).data
        return room

    def admit(self, block: WindowBlock, *, force: bool) -> bool:
        """Admit a block if there is room, or always with `force`, while no thread uses the window.

        Raises `MemoryError` if the window on a device is too small.
        """
        into_batch = self.reads_into_batch and block.can_read_into_batch and block.destinations_known
        spans = {span for span, _ in block.destinations.values() if not span.preallocated} if into_batch else set()
        own_bytes = block.bytes + (0 if into_batch else block.rows * self._batch_row_bytes)
        cost = own_bytes + block.raw_bytes + sum(len(span.block_index) for span in spans) * self._batch_row_bytes
        if self._held_bytes + cost > self._budget_bytes and not force:
            return False
        start = self.slab.allocate(len(block.slab_range)) if self._layout.fixed else 0
        if start is None:
            if not force:
                return False
            start = self.slab.grow(len(block.slab_range))
        for span in spans:
            span.preallocated = {
                name: self._preallocate(column, len(span.block_index)) for name, column in self._batch_columns.items()
            }
        block.slab_start, block.admitted, block.into_batch, block.bytes = (
            start - block.slab_range.start,
            True,
            into_batch,
            own_bytes,
        )
        self._charge(cost)
        return True

    def _preallocate(self, column: FixedColumn, rows: int) -> PreallocatedColumn:
        assert self._batch_buffers is not None
        values = self._batch_buffers.allocate((rows, *column.shape), column.dtype)
        return PreallocatedColumn(values, values.reshape(-1).view(np.uint8).data, values.nbytes // rows)

    def release(self, span: Span) -> None:
        """Release the preallocated memory of a span that has been built; its batches now belong to the consumer."""
        if span.preallocated:
            self._charge(-self._batch_row_bytes * len(span.block_index))
            span.preallocated = {}

    def release_pages(self, block: WindowBlock) -> None:
        """Release the raw pages of a filled block."""
        block.destinations = {}
        self._charge(-block.raw_bytes)

    def free(self, block: WindowBlock) -> None:
        """Free a block that no span needs."""
        if self._layout.fixed:
            self.slab.free(block.slab_start + block.slab_range.start, len(block.slab_range))
        block.raw_columns, block.encoded = {}, {}
        self._charge(-block.bytes)

    def fill(self, block: WindowBlock) -> None:
        """Parse a block's pages into the slab and into raw columns; safe in any thread."""
        self._fill_fixed(block)
        for field in self._layout.variable:
            cells = gather(self._reader.snapshot.schema, field, [block.fragment_rows], block.pages, as_arrow=True)
            if isinstance(field.kind, Linked):  # neighbouring links are read in one request
                cells = RawColumn(None, (self._reader.load_external(field, cells),))
            elif block.sparse:  # a slice would keep the whole page in memory
                copied = pa.concat_arrays([*cells.chunks, cells.chunks[0].slice(0, 0)])
                cells = RawColumn(None, (copied,), cells.references)
            block.raw_columns[field.name] = cells

    def _fill_fixed(self, block: WindowBlock) -> None:
        first, end = block.slab_start, block.slab_start + block.rows
        there = {block.requests[number].file.fields[0] for number in block.direct}
        for column in self._layout.fixed:
            mask = self.slab.masks.get(column.name)
            if column.field is None or column.field.id not in there:
                values = self.slab.buffer(column.name, first, block.rows)
                self._fill_column(column, block, values, None if mask is None else mask[first:end])
                self.slab.flush(column.name, first, block.rows)
            elif mask is not None:
                mask[first:end] = True

    def fill_nulls(self, block: WindowBlock) -> None:
        """Fill a damaged block with nulls; its rows are read one by one later."""
        for field in self._layout.variable:
            block.raw_columns[field.name] = RawColumn(None, (pa.nulls(block.rows, field.kind.arrow_type),))

    def _fill_column(
        self, column: FixedColumn, block: WindowBlock, values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None
    ) -> None:
        if column.field is None:
            values[:] = block.fragment_rows.fragment.row_ids_at(block.fragment_rows.rows)
            return
        light = self._cached_column(column.field, block)
        if light is not None:
            values[:] = light
        if light is not None or copy_dense(column.field, block.fragment_rows, block.pages, values):
            if mask is not None:
                mask[:] = True
            return
        cells = gather(self._reader.snapshot.schema, column.field, [block.fragment_rows], block.pages)
        filled = self._reader.decode(column.field, cells)
        values[:] = filled.values
        if mask is not None:
            mask[:] = True if filled.mask is None else filled.mask

    def _cached_column(self, field: Field, block: WindowBlock) -> npt.NDArray[Any] | None:
        """A fixed-width column from the page cache, if the rows are contiguous there."""
        found = block.cached_columns.get(field.id)
        if found is None and self._page_cache is not None:
            found = self._page_cache.column(field, block.fragment_rows)
            if found is not None:
                block.cached_columns[field.id] = found
        return found

    def _charge(self, cost: int) -> None:
        self._held_bytes += cost
        collector = self._collector  # shared by all runs of a loader
        collector.window_bytes = self._held_bytes
        collector.window_peak_bytes = max(collector.window_peak_bytes, self._held_bytes)
