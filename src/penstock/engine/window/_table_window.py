"""The blocks of one table: what they read, and how their pages are parsed into the slab and into Arrow arrays."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.device import Arena, BufferPool, Slab
from penstock.engine.planning import Layout, PlannedBlock, Selection, Span
from penstock.engine.window._block_requests import BlockRequest, BlockRequests
from penstock.errors import NotFoundError
from penstock.format import DataFile, Field
from penstock.format.kinds import Linked
from penstock.table import (
    ArenaValues,
    FixedColumn,
    PageCache,
    PageRequest,
    PageRuns,
    Pages,
    RawColumn,
    RawColumns,
    copy_dense,
    gather,
    read_direct,
    read_pages,
)


@dataclass(slots=True, eq=False)
class WaitingSpan:
    """A span, and how many of its blocks are not filled yet."""

    span: Span
    blocks: int


@dataclass(slots=True, eq=False, repr=False)
class WindowBlock:
    """A block in the window: requested, filled, read by spans, freed. Only the window changes it.

    Thousands are in the window, and each object that they refer to is one more for the garbage collector to visit.
    """

    table: "TableWindow"
    plan: PlannedBlock
    request: BlockRequest
    whole: "WindowBlock | None" = None
    """What it is read with, if it is a part."""
    parts: Sequence["WindowBlock"] = ()
    """Blocks that hold its rows instead of it, once it is read."""
    number: int = field(default_factory=count().__next__)
    requests: Sequence[PageRequest] = field(init=False)
    pages: Pages | None = None
    """What was read of it, until it is filled."""
    pending_requests: int = 0
    held_bytes: int = field(init=False)
    """Bytes of its rows in the window."""
    slab_start: int = 0
    """Index of its first row in the slab."""
    columns: RawColumns | None = None
    """Columns that are not in the slab, unless they are in shared memory."""
    place: tuple[int, int] | None = None
    """Start and size of the same in shared memory."""
    values: dict[str, ArenaValues] | None = None
    """There, columns of which builders need the encoded bytes alone."""
    filled: bool = False
    admitted: bool = False
    last_span: int = -1
    """The number of the last span that needs it, as far as is planned."""
    needed: bool = True
    """Whether a span that is not built yet, or not planned yet, may need it."""
    error: BaseException | None = None
    waiting: list["WaitingSpan"] | None = None
    """Spans that cannot be built until it is filled."""

    def __post_init__(self) -> None:
        self.requests = self.request.requests
        self.held_bytes = self.request.slab_bytes + self.request.variable_bytes

    @property
    def places(self) -> list[tuple[int, int]]:
        """Starts and sizes of all that it has in an arena."""
        places = [each.place for each in (self.values or {}).values()]
        return places if self.place is None else [*places, self.place]

    @property
    def written_bytes(self) -> int:
        """Bytes of `places`, and of the bounds of values."""
        return sum(size for _, size in self.places) + sum(each.bounds.nbytes for each in (self.values or {}).values())

    def add_pages(self, file: DataFile, runs: PageRuns) -> None:
        """Take over pages of a file."""
        if runs:
            self.pages = self.pages or Pages()
            self.pages.add_all(file, runs)


class TableWindow:
    """Reads and fills blocks; its methods change no accounting, so any thread may call them."""

    def __init__(
        self,
        selection: Selection,
        layout: Layout,
        slab: Slab,
        *,
        page_cache: PageCache | None,
        by_row: int,
        page_buffers: BufferPool,
        arena: Arena | None,
        encoded: Container[str],
    ) -> None:
        """All columns but the heaviest come from a page cache, if there is one.

        Builders read large local rows themselves, if a page holds at most `by_row` of them. Columns of variable size
        are copied to the `arena`, if there is one; of some, the `encoded` values are all that is needed.
        """
        self._reader, self.layout, self.slab = selection.reader, layout, slab
        self._page_cache, self._page_buffers, self.arena = page_cache, page_buffers, arena
        self.encoded = [field for field in layout.variable if arena is not None and field.name in encoded]
        self._names = {field.id: field.name for field in layout.fields}
        is_local = selection.reader.store.is_local
        self._requests = BlockRequests(
            layout,
            in_slab=[column for column in layout.fixed if slab.on_host(column.name)],
            heaviest=selection.heaviest,
            page_cache=page_cache,
            is_local=is_local,
            by_row=by_row if is_local else 0,
        )
        self.reads_by_row = [field.name for field in self._requests.by_row]
        """Columns that builders may read."""

    def new_block(self, plan: PlannedBlock) -> WindowBlock:
        """A block that is not admitted yet."""
        block = WindowBlock(self, plan, self._requests.for_block(plan))
        if plan.parts:
            block.parts = [
                WindowBlock(self, part, self._requests.for_part(part, block.request), block) for part in plan.parts
            ]
            block.request = replace(block.request, slab_range=range(sum(part.rows for part in plan.parts)))
            block.held_bytes = sum(part.held_bytes for part in block.parts)
        for group in block.request.cacheable:
            assert self._page_cache is not None
            runs = self._page_cache.get(group)
            if runs is None:
                block.requests = (*block.requests, group)
            else:
                block.add_pages(group.file, runs)
        block.pending_requests = len(block.requests)
        return block

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
        where = self._names[request.file.fields[0]], block.slab_start + rows.start, len(rows)
        values = self.slab.buffer(*where)
        read_direct(self._reader.store, request, values.reshape(-1).view(np.uint8).data)
        self.slab.flush(*where)

    def _allocate_pages(self, size: int) -> memoryview:
        """A buffer for pages; cheaper than mapping the file, which costs a page fault per 4 KiB and an unmap."""
        room: memoryview = self._page_buffers.allocate((size,), np.uint8).data
        return room

    def fill(self, block: WindowBlock) -> None:
        """Parse a block's pages into the slab, and into columns of variable size."""
        for part in block.parts or (block,):
            self._fill(part, block.pages or Pages())

    def _fill(self, block: WindowBlock, pages: Pages) -> None:
        self._fill_fixed(block, pages)
        raw: dict[str, RawColumn] = {}
        for known in self.layout.variable:
            if not block.plan.source.reads(known.id):
                continue
            cells = gather(self._reader.snapshot.schema, known, [block.plan.fragment_rows], pages, as_arrow=True)
            if isinstance(known.kind, Linked):  # neighbouring links are read in one request
                cells = RawColumn(None, (self._reader.load_external(known, cells),))
            elif block.request.sparse and self.arena is None:  # a slice would keep the whole page in memory
                copied = pa.concat_arrays([*cells.chunks, cells.chunks[0].slice(0, 0)])
                cells = RawColumn(None, (copied,), cells.references)
            values = None
            if self.arena is not None and known in self.encoded:
                values = ArenaValues.write(cells, self.arena)
            if values is None:
                raw[known.name] = cells
            else:
                block.values = {**(block.values or {}), known.name: values}
        if self.arena is not None and raw:
            block.place = RawColumns(raw).write(self.arena)
        elif self.arena is None and self.layout.variable:
            block.columns = RawColumns(raw)

    def _fill_fixed(self, block: WindowBlock, pages: Pages) -> None:
        first, end = block.slab_start, block.slab_start + block.plan.rows
        there = {block.requests[number].file.fields[0] for number in block.request.direct}
        for column in self.layout.fixed:
            mask = self.slab.masks.get(column.name)
            if column.field is not None and not block.plan.source.reads(column.field.id):
                continue
            if (column.field is None or column.field.id not in there) and column.name not in block.request.row_pages:
                values = self.slab.buffer(column.name, first, block.plan.rows)
                self._fill_column(column, block, pages, values, None if mask is None else mask[first:end])
                self.slab.flush(column.name, first, block.plan.rows)
            elif mask is not None:
                mask[first:end] = True

    def _fill_column(
        self,
        column: FixedColumn,
        block: WindowBlock,
        pages: Pages,
        values: npt.NDArray[Any],
        mask: npt.NDArray[np.bool_] | None,
    ) -> None:
        fragment_rows = block.plan.fragment_rows
        if column.field is None:
            values[:] = fragment_rows.fragment.row_ids_at(fragment_rows.rows)
            return
        light = self._cached_column(column.field, block)
        if light is not None:
            values[:] = light
        if light is not None or copy_dense(column.field, fragment_rows, pages, values):
            if mask is not None:
                mask[:] = True
            return
        cells = gather(self._reader.snapshot.schema, column.field, [fragment_rows], pages)
        filled = self._reader.decode(column.field, cells)
        values[:] = filled.values
        if mask is not None:
            mask[:] = True if filled.mask is None else filled.mask

    def _cached_column(self, field: Field, block: WindowBlock) -> npt.NDArray[Any] | None:
        """A fixed-width column from the page cache, if the rows are contiguous there."""
        cached = block.request.cached_columns
        values = cached.get(field.id)
        if values is None and self._page_cache is not None:
            values = self._page_cache.column(field, block.plan.fragment_rows)
            if values is not None:
                cached[field.id] = values
        return values
