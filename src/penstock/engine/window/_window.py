"""The shuffle window: blocks of tables in memory, within a budget of bytes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from penstock.device import Slab
from penstock.engine._stats import StatsCollector
from penstock.engine.planning import PlannedBlock, PlannedSpans, Span, TableRows
from penstock.engine.window._rows import IN_BLOCK, WindowRows
from penstock.engine.window._table_window import TableWindow, WaitingSpan, WindowBlock
from penstock.engine.window._tasks import BuildTask, TableTask
from penstock.format import Field
from penstock.plan import groups
from penstock.table import NULL_BOUNDS, Int64Array, PageRuns, RawColumns, RowPages

_NO_ROWS = np.zeros(0, np.int64)


@dataclass(slots=True)
class _ResidentTable:
    """All blocks of a table that stays in the window, once an epoch has read it."""

    blocks: list[WindowBlock]
    starts: Int64Array | None = None
    """The index in the slab of the first row of each block; None until all are filled."""
    damaged: list[int] = field(default_factory=list)


class Window:
    """Owns the blocks in memory and their accounting; `lock` guards both.

    A span draws from hundreds of blocks, and tens of spans from each block. So a block does not count the spans that
    need it: it is freed when the last of them, and all before that one, are released.
    """

    def __init__(self, tables: Sequence[TableWindow], limit_bytes: int, collector: StatsCollector) -> None:
        self.lock, self._tables = Lock(), tables
        self._limit_bytes, self._collector, self._held_bytes = limit_bytes, collector, 0
        self._blocks: dict[PlannedBlock, WindowBlock] = {}
        self._blocks_of: dict[TableRows, list[WindowBlock]] = {}
        """The blocks of spans that are not released."""
        self._closed: dict[int, list[WindowBlock]] = {}
        """Blocks that no later span will need, by the number of the last span that does."""
        self._released: set[int] = set()
        """The numbers of spans that are released before an earlier one."""
        self._unreleased: int | None = None
        """The number of the first span that is not released."""
        self._any_damaged = False
        self._resident: dict[int, _ResidentTable] = {}

    def slab(self, table: int) -> Slab:
        """The rows of a table's columns of a fixed shape."""
        return self._tables[table].slab

    def register(self, planned: PlannedSpans) -> None:
        """Take over newly planned spans and their blocks; called by one thread at a time, without the lock."""
        find = self._blocks.get
        for number, rows in ((span.number, rows) for span in planned.spans for rows in span.tables):
            if not rows.resident:
                blocks = [find(plan) or self._add_block(rows.table, plan) for plan in rows.blocks]
                self._blocks_of[rows] = blocks
                for block in blocks:
                    block.last_span = number
        with self.lock:
            if self._unreleased is None:
                self._unreleased = planned.spans[0].number
            for plan in planned.closed:
                known = self._blocks.get(plan)
                if known is None:  # only samples that were consumed before a resume draw from it
                    continue
                if known.last_span < self._unreleased:
                    self._free(known)
                else:
                    self._closed.setdefault(known.last_span, []).append(known)

    def _add_block(self, table: int, plan: PlannedBlock) -> WindowBlock:
        """Add a block, with all that is read with it."""
        new = self._tables[table].new_block(plan.whole or plan)
        self._blocks.update((each.plan, each) for each in new.parts or (new,))
        return self._blocks[plan]

    def blocks(self, rows: TableRows) -> list[WindowBlock]:
        """The blocks that hold some rows."""
        if not rows.resident:
            return self._blocks_of[rows]
        if rows.table not in self._resident:
            self._resident[rows.table] = _ResidentTable([self._blocks[plan] for plan in rows.blocks])
        return self._resident[rows.table].blocks

    def unadmitted(self, span: Span) -> Iterator[WindowBlock]:
        """The blocks of a span that are not in the window."""
        for rows in span.tables:
            if not rows.resident:
                yield from (block.whole or block for block in self.blocks(rows) if not block.admitted)

    def admit(self, block: WindowBlock, *, force: bool) -> bool:
        """Admit a block if there is room, or always with `force`, while no thread uses the window; with the lock.

        Raises `MemoryError` if the window on a device is too small.
        """
        cost = block.held_bytes + block.request.raw_bytes
        if self._held_bytes + cost > self._limit_bytes and not force:
            return False
        slab, rows = block.table.slab, block.request.slab_range
        start = slab.allocate(len(rows))
        if start is None:
            if not force:
                return False
            start = slab.grow(len(rows))
        block.slab_start, block.admitted = start - rows.start, True
        for part in block.parts:
            part.slab_start, part.admitted = start, True
            start += part.plan.rows
        self._charge(cost)
        return True

    def _charge(self, cost: int) -> None:
        """Add the bytes of what is held, or subtract them; with the lock."""
        self._held_bytes += cost
        collector = self._collector  # shared by all runs of a loader
        collector.window_bytes = self._held_bytes
        collector.window_peak_bytes = max(collector.window_peak_bytes, self._held_bytes)

    def await_blocks(self, span: Span) -> bool:
        """Record that a span waits for its blocks; returns whether it need not. With the lock."""
        waits: list[WindowBlock] = []
        for rows in span.tables:
            blocks = self.blocks(rows)
            table = self._resident[rows.table] if rows.resident else None
            if table is not None and table.starts is not None:
                continue
            unfilled = [block for block in blocks if not block.filled]
            waits += unfilled
            if table is not None and not unfilled:
                table.damaged = [number for number, block in enumerate(blocks) if block.error is not None]
                table.starts = _slab_starts(blocks)
        if waits:
            waiting = WaitingSpan(span, len(waits))
            for block in waits:
                if block.waiting is None:
                    block.waiting = []
                block.waiting.append(waiting)
        return not waits

    def add_pages(self, block: WindowBlock, number: int, pages: PageRuns | BaseException) -> bool:
        """Take over the pages of a request, or its error; returns whether the block has all its pages."""
        with self.lock:
            if isinstance(pages, BaseException):
                block.error = block.error or pages
            else:
                block.add_pages(block.requests[number].file, pages)
            block.pending_requests -= 1
            return not block.pending_requests

    def fill(self, block: WindowBlock) -> Sequence[Span]:
        """Parse the pages of a block and free them; returns the spans that waited only for it."""
        try:
            if block.error is None:
                block.table.fill(block)
        except BaseException as error:
            block.error = error
        with self.lock:
            block.pages = None
            self._charge(-block.request.raw_bytes)
            return [span for part in block.parts or (block,) for span in self._on_filled(part, block.error)]

    def _on_filled(self, block: WindowBlock, error: BaseException | None) -> Sequence[Span]:
        """Record that a block is filled, or could not be; returns the spans that waited only for it."""
        if written := block.written_bytes:  # compressed pages are larger now
            actual = block.request.slab_bytes + written
            self._charge(actual - block.held_bytes)
            block.held_bytes = actual
        block.error, block.filled = error, True
        self._any_damaged |= error is not None
        ready: list[Span] = []
        for waiting in block.waiting or ():
            waiting.blocks -= 1
            if not waiting.blocks:
                ready.append(waiting.span)
        block.waiting = None
        if not block.needed:
            self._free(block)
        return ready

    def damaged(self, rows: TableRows) -> list[int]:
        """The blocks of some rows that could not be read, by their index."""
        if not self._any_damaged:
            return []
        if rows.resident and (table := self._resident[rows.table]).starts is not None:
            return table.damaged
        return [number for number, block in enumerate(self.blocks(rows)) if block.error is not None]

    def errors(self, span: Span) -> list[BaseException]:
        """Why blocks of a span could not be read."""
        return [
            error
            for rows in span.tables
            for number in self.damaged(rows)
            if (error := self.blocks(rows)[number].error) is not None
        ]

    def task(
        self,
        span: Span,
        keys: Int64Array | None,
        *,
        positions: bool,
        columns: Callable[[WindowBlock], Any] | None = None,
    ) -> BuildTask:
        """What a builder needs of a span, all of whose blocks are filled.

        `columns` says where those of a block are that are not in the slab, if the builder is another process.
        """
        tables = [
            TableTask(
                table=rows.table,
                places=rows.places,
                located=self._locate(rows, columns or self._columns),
                samples=rows.samples,
                padding=rows.padding,
                epochs=rows.epochs,
                positions=rows.positions if positions else None,
                damaged=_samples_in(rows, damaged) if (damaged := self.damaged(rows)) else (),
                slab_capacity=self._tables[rows.table].slab.capacity,
            )
            for rows in span.tables
        ]
        return BuildTask(span.steps, tables, keys)

    def _locate(self, rows: TableRows, columns: Callable[[WindowBlock], Any]) -> WindowRows:
        table, blocks = self._tables[rows.table], self.blocks(rows)
        block_index = rows.block_index
        starts = self._resident[rows.table].starts if rows.resident else None
        slab_rows = (_slab_starts(blocks) if starts is None else starts)[block_index] + rows.rows
        located = WindowRows(slab_rows, (), _NO_ROWS, _NO_ROWS, {})
        if rows.resident and (table.layout.variable or table.reads_by_row):
            needed, block_index = np.unique(block_index, return_inverse=True)
            blocks = [blocks[number] for number in needed.tolist()]
        if table.reads_by_row:
            places = {name: _row_pages(name, blocks, block_index, rows.rows) for name in table.reads_by_row}
            located = located._replace(files={name: each for name, each in places.items() if each is not None})
        bounds = {field.name: _bounds(field, blocks, block_index, rows.rows) for field in table.encoded}
        if len(bounds) < len(table.layout.variable) or any((each == IN_BLOCK).any() for each in bounds.values()):
            held = [columns(block) for block in blocks]
            located = located._replace(blocks=held, block_index=block_index, rows=rows.rows)
        return located._replace(bounds=bounds)

    def _columns(self, block: WindowBlock) -> RawColumns:
        if block.error is None and block.columns is not None:
            return block.columns
        return RawColumns.nulls(block.table.layout.variable, block.plan.rows)

    def release(self, span: Span) -> None:
        """Release what a built span needed; its batches now belong to the consumer. With the lock."""
        for rows in span.tables:
            self._blocks_of.pop(rows, None)
        self._released.add(span.number)
        while self._unreleased in self._released:
            self._released.remove(self._unreleased)
            for block in self._closed.pop(self._unreleased, ()):
                self._free(block)
            self._unreleased += 1

    def _free(self, block: WindowBlock) -> None:
        """Free a block that no span needs; a part only once it is filled, because it is read with others."""
        block.needed = False
        if block.whole is not None and not block.filled:
            return
        del self._blocks[block.plan]
        block.columns = None
        if not block.admitted:
            return
        table, rows = block.table, block.request.slab_range
        table.slab.free(block.slab_start + rows.start, len(rows))
        for place in block.places:
            assert table.arena is not None
            table.arena.free(*place)
        self._charge(-block.held_bytes)


def _samples_in(rows: TableRows, blocks: Sequence[int]) -> tuple[int, ...]:
    """The rows, or composed samples, that need one of some blocks."""
    indices = np.flatnonzero(np.isin(rows.block_index, blocks))
    if rows.samples is not None:
        indices = np.unique(np.searchsorted(rows.samples.offsets, indices, side="right") - 1)
    return tuple(indices.tolist())


def _slab_starts(blocks: Sequence[WindowBlock]) -> Int64Array:
    return np.array([block.slab_start for block in blocks], np.int64)


def _bounds(field: Field, blocks: Sequence[WindowBlock], block_index: Int64Array, rows: Int64Array) -> Int64Array:
    """Where the encoded values of rows are in shared memory; see `ArenaValues`."""
    bounds = np.empty((len(rows), 2), np.int64)
    for number, here in groups(block_index):
        block = blocks[number]
        values = None if block.values is None else block.values.get(field.name)
        if values is not None:
            bounds[here] = values.bounds[rows[here]]
        else:
            bounds[here] = IN_BLOCK if block.error is None and block.plan.source.reads(field.id) else NULL_BOUNDS
    return bounds


def _row_pages(name: str, blocks: Sequence[WindowBlock], block_index: Int64Array, rows: Int64Array) -> RowPages | None:
    """Where the rows of a column are that builders read from files; None if all are in the slab."""
    known = [block.request.row_pages.get(name) for block in blocks]
    if not any(known):
        return None
    pages = [each or RowPages.none(block.plan.rows) for each, block in zip(known, blocks, strict=True)]
    firsts = np.cumsum([0, *(len(each.pages) for each in pages)])[:-1]
    return RowPages.joined(pages).take(firsts[block_index] + rows)
