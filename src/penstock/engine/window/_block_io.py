"""Read the pages of blocks, and parse them into the slab and into Arrow arrays."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.device import BufferPool
from penstock.engine.planning import FixedColumn, Layout
from penstock.engine.window._block_requests import BlockRequests
from penstock.engine.window._blocks import PreallocatedColumn, WindowBlock
from penstock.engine.window._page_cache import PageCache, PageRuns
from penstock.engine.window._slab import Slab
from penstock.errors import NotFoundError
from penstock.format import Field
from penstock.format.kinds import Linked
from penstock.table import RawColumn, Reader, copy_dense, gather, read_direct, read_direct_scattered, read_pages

Preallocated = Mapping[int, Mapping[str, PreallocatedColumn]]
"""Memory for batches, by the number of the span and the name of the column."""


class BlockIO:
    """Reads and fills blocks; its methods change no accounting, so any thread may call them."""

    def __init__(
        self,
        reader: Reader,
        layout: Layout,
        slab: Slab,
        requests: BlockRequests,
        *,
        page_cache: PageCache | None,
        page_buffers: BufferPool,
        preallocated: Preallocated,
    ) -> None:
        self._reader, self._layout, self._slab, self._requests = reader, layout, slab, requests
        self._page_cache, self._page_buffers, self._preallocated = page_cache, page_buffers, preallocated
        self._names = {field.id: field.name for field in layout.fields}

    def read(self, block: WindowBlock, number: int) -> tuple[PageRuns, int]:
        """Read one request of a block: returns its pages, none for a direct read, and the bytes fetched."""
        request, rows = block.requests[number], block.request.direct.get(number)
        try:
            if rows is not None:
                self._read_direct(block, number, rows)
                return [], request.bytes
            if self._page_cache is not None and self._requests.is_cacheable(request):
                runs, fetched = self._page_cache.get_or_read(request)
                return runs, request.bytes if fetched else 0
            store = self._reader.store
            return read_pages(store, request, self._allocate_pages if store.is_local else None), request.bytes
        except NotFoundError:
            with self._reader.missing_as_corrupt():
                raise

    def _read_direct(self, block: WindowBlock, number: int, rows: range) -> None:
        request = block.requests[number]
        name = self._names[request.file.fields[0]]
        if block.into_batch and self._requests.goes_into_batch(name):
            read_direct_scattered(self._reader.store, request, self._destinations(block, name, rows))
            return
        where = name, block.slab_start + rows.start, len(rows)
        values = self._slab.buffer(*where)
        read_direct(self._reader.store, request, values.reshape(-1).view(np.uint8).data)
        self._slab.flush(*where)

    def _destinations(self, block: WindowBlock, name: str, rows: range) -> list[memoryview]:
        """The destination of each row, with scratch memory for unwanted rows."""
        found = [block.destinations.get(row) for row in rows]
        columns = {span.number: self._preallocated[span.number][name] for span, _ in block.destinations.values()}
        size = next(iter(columns.values())).row_bytes
        spare = self._allocate_pages(found.count(None) * size)
        unwanted = (spare[first : first + size] for first in range(0, len(spare), size))
        return [next(unwanted) if where is None else columns[where[0].number].row(where[1]) for where in found]

    def _allocate_pages(self, size: int) -> memoryview:
        """A buffer for pages; cheaper than mapping the file, which costs a page fault per 4 KiB and an unmap."""
        room: memoryview = self._page_buffers.allocate((size,), np.uint8).data
        return room

    def fill(self, block: WindowBlock) -> dict[str, RawColumn]:
        """Parse a block's pages into the slab; returns the columns of variable size."""
        self._fill_fixed(block)
        found: dict[str, RawColumn] = {}
        for field in self._layout.variable:
            if not block.plan.source.reads(field.id):
                continue
            cells = gather(self._reader.snapshot.schema, field, [block.plan.fragment_rows], block.pages, as_arrow=True)
            if isinstance(field.kind, Linked):  # neighbouring links are read in one request
                cells = RawColumn(None, (self._reader.load_external(field, cells),))
            elif block.request.sparse:  # a slice would keep the whole page in memory
                copied = pa.concat_arrays([*cells.chunks, cells.chunks[0].slice(0, 0)])
                cells = RawColumn(None, (copied,), cells.references)
            found[field.name] = cells
        return found

    def nulls(self, block: WindowBlock) -> dict[str, RawColumn]:
        """Columns of nulls, for a damaged block; its rows are read one by one later."""
        return {
            field.name: RawColumn(None, (pa.nulls(block.plan.rows, field.kind.arrow_type),))
            for field in self._layout.variable
        }

    def _fill_fixed(self, block: WindowBlock) -> None:
        first, end = block.slab_start, block.slab_start + block.plan.rows
        there = {block.requests[number].file.fields[0] for number in block.request.direct}
        for column in self._layout.fixed:
            mask = self._slab.masks.get(column.name)
            if column.field is not None and not block.plan.source.reads(column.field.id):
                continue
            if column.field is None or column.field.id not in there:
                values = self._slab.buffer(column.name, first, block.plan.rows)
                self._fill_column(column, block, values, None if mask is None else mask[first:end])
                self._slab.flush(column.name, first, block.plan.rows)
            elif mask is not None:
                mask[first:end] = True

    def _fill_column(
        self, column: FixedColumn, block: WindowBlock, values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None
    ) -> None:
        fragment_rows = block.plan.fragment_rows
        if column.field is None:
            values[:] = fragment_rows.fragment.row_ids_at(fragment_rows.rows)
            return
        light = self._cached_column(column.field, block)
        if light is not None:
            values[:] = light
        if light is not None or copy_dense(column.field, fragment_rows, block.pages, values):
            if mask is not None:
                mask[:] = True
            return
        cells = gather(self._reader.snapshot.schema, column.field, [fragment_rows], block.pages)
        filled = self._reader.decode(column.field, cells)
        values[:] = filled.values
        if mask is not None:
            mask[:] = True if filled.mask is None else filled.mask

    def _cached_column(self, field: Field, block: WindowBlock) -> npt.NDArray[Any] | None:
        """A fixed-width column from the page cache, if the rows are contiguous there."""
        cached = block.request.cached_columns
        found = cached.get(field.id)
        if found is None and self._page_cache is not None:
            found = self._page_cache.column(field, block.plan.fragment_rows)
            if found is not None:
                cached[field.id] = found
        return found
