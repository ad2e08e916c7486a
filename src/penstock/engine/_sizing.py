"""How large everything is: workers, spans, the window and the budget of memory, given the table and the options."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import cloudpickle

from penstock.device import MAX_READERS, on_device
from penstock.engine._options import DecodeOptions, LoaderOptions
from penstock.engine._stats import StatsCollector
from penstock.engine.assembly import BatchFormatter, Placement
from penstock.engine.planning import Layout, Selection
from penstock.engine.sources import Order
from penstock.engine.workers import PipelineOptions, TableOptions, WorkerCounts, choose_workers
from penstock.format import Field, value_kind
from penstock.format.kinds import Image
from penstock.plan import (
    UNMEASURED,
    MemoryBudget,
    MemoryNeeds,
    Shuffle,
    ShuffleLayout,
    expected_blocks,
    fitting_budget,
    fitting_shuffle,
    page_reads,
    split_budget,
)
from penstock.runners import available_cores, available_memory
from penstock.table import reads_by_row
from penstock.types import cached_property

_PLAN_ROWS, _PLAN_BYTES, _PLAN_LANE_ROWS = 16 << 10, 1 << 30, 16
_MAX_CACHE_BYTES = 64 << 20
_MAX_FETCHERS, _MAX_THREADS = 96, 8
_BUILDERS_PER_READER = 4
_MIN_BUDGET = 1 << 30
_SKEW = 2.0
"""Largest bytes of a window, relative to average rows."""
_SLAB_SLACK = 4
"""Rows of the slab, which has memory only where it is written, relative to those expected: room for fragmentation."""
_BLOCKS_IN_FLIGHT = 4
_TASKS_PER_BUILDER, _SPAN_BYTES = 2, 16 << 20
_ROWS_PER_PAGE = 2
"""With worker processes, it costs less to read a page for each of so many rows than to pass it on."""
_PAGE_SHARE = 8
"""Fraction (1/n) of the window for pages that are read together, if blocks are not read as a whole."""
_DEVICE_WORKERS = 3  # one submits while the device executes for the others; more only contend


@dataclass(frozen=True, slots=True)
class SizedTable:
    """A table of a loader, as far as sizes depend on it."""

    selection: Selection
    layout: Layout
    shuffle: ShuffleLayout
    lanes_per_rank: int
    """The largest number of lanes that a rank reads from."""
    share: float
    """The largest share of the rows of a batch that come from it."""
    by_row: int
    """Builders read large local rows from files, if a page holds at most so many of them."""

    @property
    def by_row_bytes(self) -> int:
        """Bytes of a row's columns that builders can read from files."""
        if not self.selection.reader.store.is_local or self.selection.composition is not None:
            return 0
        return sum(known.fixed_row_bytes or 0 for known in self.layout.fields if reads_by_row(known, self.by_row))

    @property
    def held_rows(self) -> float:
        """Rows of a window that holds all blocks that rows are drawn from."""
        rows = self.lanes_per_rank * (1 + self.shuffle.spread) * self._block_rows
        return min(rows, max(1, len(self.selection)))

    @property
    def window_rows(self) -> float:
        """The same with some blocks in flight."""
        return min(self.held_rows + _BLOCKS_IN_FLIGHT * self._block_rows, max(1, len(self.selection)))

    @property
    def window_bytes(self) -> int:
        """Bytes of `window_rows`."""
        rows = self.window_rows
        # Blocks are permuted, so the largest rows come together only in part.
        size = min(self.selection.largest_rows_bytes(rows), _SKEW * rows * self.selection.row_bytes)
        return round(size * self.window_row_bytes / self.selection.row_bytes)

    @property
    def window_row_bytes(self) -> float:
        """Bytes of an average row in the window, without the columns that builders read from files."""
        return max(0.0, self.selection.row_bytes - self.by_row_bytes)

    @property
    def shuffles_whole_lanes(self) -> bool:
        """Whether rows are spread over their whole lane."""
        return self.shuffle.spread * self._block_rows * self.shuffle.lanes >= len(self.selection)

    @property
    def _block_rows(self) -> int:
        return self.selection.block_rows(self.shuffle.block_bytes)

    @property
    def light_bytes(self) -> int:
        """Bytes of all columns but the heaviest, in the whole table, because the cache holds whole pages."""
        selection = self.selection
        rows = selection.reader.snapshot.live / selection.rows_per_sample
        return round((selection.row_bytes - selection.heavy_row_bytes) * rows)

    @property
    def image_cache_bytes(self) -> int:
        """Bytes of decoded images that windows share, at a time."""
        shared = self.selection.shared_images
        return 0 if shared is None else shared.cache_bytes(self.lanes_per_rank)

    def blocks_drawn(self, batch_size: int) -> float:
        """Blocks that a batch of a uniform shuffle draws from."""
        rows, drawn = len(self.selection), max(1, round(self.share * batch_size))
        return expected_blocks(min(drawn, max(1, rows)), rows / self._block_rows)

    def batch_bytes(self, batch_size: int, decode: DecodeOptions, counts: Callable[[Field], bool]) -> float:
        """Bytes of its share of a batch, with the decoded images of those columns that count."""
        selection, composition = self.selection, self.selection.composition
        rows = min(batch_size, round(self.share * batch_size) + 1)
        values = dict.fromkeys(selection.fields, 1.0)
        size = selection.largest_rows_bytes(rows) / rows
        if composition is not None:
            values = {known: composition.values_per_sample(known.name) for known in selection.fields}
            size = sum(count * selection.average_bytes(known) for known, count in values.items())
            size *= max(1.0, len(self.layout.names) / max(1, len(selection.names)))  # derived columns
        for known, count in values.items():
            decoded = self.decoded_bytes(known, decode)
            if decoded and counts(known):
                size += count * (decoded - selection.average_bytes(known))  # encoded images stay in the window
        return rows * max(1.0, size)

    def decoded_bytes(self, known: Field, decode: DecodeOptions) -> float | None:
        """Bytes of a decoded image of a column; None if unknown, or if it has none."""
        shape = decode.image_shape(known)
        if shape is not None:
            return math.prod(shape)
        is_image = isinstance(value_kind(known.kind), Image) and decode.decoder(known) is True
        return self.selection.decoded_bytes(known) if is_image else None


class LoaderSizing:
    """The sizes of one loader; notes for the user go to the collector."""

    def __init__(
        self,
        order: Order,
        *,
        options: LoaderOptions,
        formatter: BatchFormatter,
        placement: Placement | None,
        collector: StatsCollector,
    ) -> None:
        self._order, self._options, self._formatter, self._collector = order, options, formatter, collector
        self._mixed = order.tables[0].name is not None
        self._has_functions = formatter.on_host or options.decode.has_functions
        self.accelerator = None if placement is None or formatter.on_host else placement.accelerator
        """The device that builds batches; None if a formatter needs them in host memory."""

    @cached_property
    def workers(self) -> WorkerCounts:
        """How many processes and threads build batches."""
        counts = choose_workers(
            self._options.workers,
            functions=self._has_functions,
            table_bytes=round(sum(each.stored_row_bytes * len(each) for each in self._order.selections)),
            threads_because=self._threads_because,
            send_error=self._send_error,
        )
        self._collector.note(*counts.notes)
        return counts

    def _send_error(self) -> Exception | None:
        """Why another process cannot get the table and the functions; None if it can."""
        readers = [each.reader for each in self._order.tables]
        try:
            cloudpickle.dumps((readers, self._options.decode, self._formatter.for_worker()))
        except Exception as error:  # what a user's object raises
            return error
        return None

    @property
    def _threads_because(self) -> str | None:
        """Why batches must be built in this process; None if others can build them."""
        for table in self._order.tables:
            if table.reader.store.is_process_local:
                return f"other processes cannot open {table.reader.store.uri}"
        fixed = [column for table in self._order.tables for column in table.layout.fixed]
        if self.accelerator is not None and not self._mixed and (self.decodes_on_device or any(map(on_device, fixed))):
            return "batches are built on the device"
        return None

    @cached_property
    def tables(self) -> list[SizedTable]:
        order, by_row = self._order, 0
        if self.accelerator is None:
            by_row = _ROWS_PER_PAGE if self.workers.processes else 1
        each = zip(order.tables, order.selections, order.lanes_per_rank, order.shares, strict=True)
        return [
            SizedTable(selection, table.layout, table.order.shuffle, lanes, share, by_row)
            for table, selection, lanes, share in each
        ]

    def _page_cache_bytes(self, budget_bytes: float) -> int:
        """Bytes of all pages of light columns; 0 if a budget has no room for them."""
        size = sum(table.light_bytes for table in self.tables)
        return size if size <= min(_MAX_CACHE_BYTES, budget_bytes // 8) else 0

    def _batch_bytes(self, counts: Callable[[Field], bool]) -> int:
        """See `SizedTable.batch_bytes`."""
        size, decode = self._options.batch_size, self._options.decode
        return round(sum(table.batch_bytes(size, decode, counts) for table in self.tables))

    @cached_property
    def batch_bytes(self) -> int:
        """Bytes of a batch in host memory."""
        return self._batch_bytes(lambda known: not self._decodes_on_device(known))

    @property
    def decodes_on_device(self) -> bool:
        """Whether a device decodes encoded images from the window."""
        return any(self._decodes_on_device(known) for each in self._order.selections for known in each.fields)

    def _decodes_on_device(self, known: Field) -> bool:
        device, shape = None if self._mixed else self.accelerator, self._options.decode.image_shape(known)
        return device is not None and shape is not None and device.can_decode(shape)

    @property
    def _copies(self) -> int:
        """Copies of a span that making its batches takes: see `MemoryNeeds`."""
        if self._formatter.on_host:  # what functions get, and their results before they are sent
            return 2 if self.workers.processes else 1 + self._formatter.by_rows
        decode = self._options.decode
        varies = any(not decode.image_shape(known) for table in self.tables for known in table.layout.variable)
        return int(varies and self.workers.processes > 0)  # values as they are decoded

    @cached_property
    def budget_bytes(self) -> int:
        if self._options.memory_budget is not None:
            return self._options.memory_budget
        larger = 3 if self._formatter.on_host else 1  # than what functions get
        batches = 8 + self._options.workers.count * self._copies * larger
        built = self.batch_bytes if self._formatter.by_rows else max(_SPAN_BYTES, self.batch_bytes)
        wanted = round(1.5 * sum(table.window_bytes for table in self.tables)) + batches * self.batch_bytes
        row_bytes = sum(table.share * table.window_row_bytes for table in self.tables)
        read = max(_SPAN_BYTES, self._options.batch_size * row_bytes)
        wanted += round(self.workers.processes * (_TASKS_PER_BUILDER * read + (2 + self._copies) * built))
        wanted += sum(table.image_cache_bytes for table in self.tables)
        return min(max(_MIN_BUDGET, wanted), available_memory() // 2)

    @cached_property
    def memory_needs(self) -> MemoryNeeds:
        options, decode, accelerator = self._options, self._options.decode, self.accelerator
        there = accelerator is not None and (accelerator.is_cuda or options.device_memory is not None)
        blocks = [] if self._mixed else [table for table in self.tables if not table.selection.scattered]
        images = sum(table.image_cache_bytes for table in self.tables)
        decoded = [(table, known) for table in self.tables for known in table.selection.fields if decode.decodes(known)]
        sizes_known = all(table.decoded_bytes(known, decode) is not None for table, known in decoded)
        return MemoryNeeds(
            budget_bytes=self.budget_bytes,
            batch_size=options.batch_size,
            batch_bytes=self.batch_bytes,
            device_batch_bytes=2 * self._batch_bytes(lambda _: True),  # transforms may widen values
            by_rows=self._formatter.by_rows,
            workers=max(1, options.workers.count),
            prefetch_factor=options.prefetch_factor,
            copies=self._copies,
            shares_spans=self.workers.processes > 0 and not self._formatter.on_host and not self._copies,
            growth=(UNMEASURED if self._has_functions else 1) if sizes_known else math.inf,
            **_window_needs(self.tables),
            window_row_bytes=sum(table.share * table.window_row_bytes for table in self.tables),
            spans_read=_TASKS_PER_BUILDER * self.workers.processes,
            device_row_bytes=sum(c.row_bytes for table in blocks for c in table.layout.fixed if on_device(c)),
            cache_bytes=min(images, self.budget_bytes // 4) + self._page_cache_bytes(self.budget_bytes),
            device_free_bytes=accelerator.free_bytes() if accelerator is not None and there else None,
            device_memory=options.device_memory,
        )

    def pipeline_options(self) -> PipelineOptions:
        budget = split_budget(self.memory_needs)
        self._collector.note(*budget.notes)
        span_rows = budget.batches_per_span * self._options.batch_size
        tables = tuple(self._table_options(table, budget, span_rows) for table in self.tables)
        by_blocks = all(table.by_blocks for table in tables)
        readers, threads = self._num_readers(tables), self.workers.threads
        threads_that_read = max(threads, min(available_cores(), _MAX_THREADS // readers))
        all_local = all(table.reader.store.is_local for table in self._order.tables)
        reads = max(table.page_reads for table in tables)
        if reads > 1 and (given := self._options.shuffle) is not None:
            self._collector.note(self._small_window_note(given, budget, reads if by_blocks else math.inf))
        # Few rows are planned together for a short wait, and enough per lane to amortise the overhead.
        few = round(_PLAN_BYTES / sum(table.share * table.selection.row_bytes for table in self.tables))
        plan_rows = min(_PLAN_ROWS, max(few, _PLAN_LANE_ROWS * sum(table.lanes_per_rank for table in self.tables)))
        return PipelineOptions(
            tables=tables,
            plan_rows=plan_rows if by_blocks else span_rows,
            batches_per_span=budget.batches_per_span,
            spans=budget.spans,
            window_bytes=budget.window_bytes,
            on_device=by_blocks and budget.device_rows > 0,
            threads=threads_that_read if all_local else threads + 1,
            builders=threads if self.memory_needs.device_free_bytes is None else min(threads, _DEVICE_WORKERS),
            fetch_threads=_MAX_FETCHERS // readers,
            readers=readers,
        )

    def _table_options(self, table: SizedTable, budget: MemoryBudget, span_rows: int) -> TableOptions:
        selection = table.selection
        reads = 0.0 if budget.window_fits else page_reads(budget.held_share, whole_lanes=table.shuffles_whole_lanes)
        held_long = reads * table.share * span_rows <= table.window_rows and selection.composition is None
        by_lanes = (self._order.partitioner.owns_lanes or table.shuffle.spread > 0) and not selection.scattered
        by_blocks = (budget.window_fits or held_long) and by_lanes
        resident = by_blocks and not reads and self._fits(budget)
        by_row = table.by_row if table.by_row_bytes and not resident else 0
        rows = len(selection) * selection.rows_per_sample
        slab_row_bytes = sum(column.row_bytes for column in table.layout.fixed) - (table.by_row_bytes if by_row else 0)
        slab_rows = round(_SLAB_SLACK * (min(budget.window_bytes / max(1, slab_row_bytes), rows) + span_rows))
        page_bytes = budget.window_bytes / len(self.tables) / _PAGE_SHARE
        page_bytes *= selection.heavy_row_bytes / selection.row_bytes
        return TableOptions(
            page_bytes=max(1, round(page_bytes)),
            by_blocks=by_blocks,
            page_reads=reads,
            resident=resident,
            trim=not self._options.bad_samples.tolerant,
            pages_cached=table.light_bytes > 0 and self._page_cache_bytes(self.budget_bytes) > 0,
            by_row=by_row,
            slab_rows=budget.device_rows if by_blocks and budget.device_rows else slab_rows,
            image_cache_bytes=min(table.image_cache_bytes, self.budget_bytes // 4 // len(self.tables)),
        )

    def _fits(self, budget: MemoryBudget) -> bool:
        """Whether all rows fit the window, so that they can stay there."""
        selections = self._order.selections
        if any(each.coarse or each.repeats_rows for each in selections):
            return False
        if 0 < budget.device_rows < self._order.partitioner.rows:
            return False
        return sum(each.largest_rows_bytes(len(each)) for each in selections) <= budget.window_bytes

    def _num_readers(self, tables: Sequence[TableOptions]) -> int:
        """Processes that read: several if builders only copy rows, because they take more than one can plan and read.

        Each has as many lanes of every table as the others.
        """
        most = min(MAX_READERS, self.workers.processes // _BUILDERS_PER_READER)
        decode, lanes = self._options.decode, math.gcd(*(table.lanes_per_rank for table in self.tables))
        copied = not self._formatter.on_host and not any(
            selection.composition or any(map(decode.decodes, selection.fields)) for selection in self._order.selections
        )
        if not copied or any(table.resident or table.reads_again for table in tables):
            return 1
        return max((count for count in range(1, most + 1) if lanes % count == 0), default=1)

    def _small_window_note(self, given: Shuffle, budget: MemoryBudget, reads: float) -> str:
        """What to do if pages are read so many times; of mixed tables, only the spread can be changed together."""
        tables, needs = self.tables, self.memory_needs

        def fits(new: ShuffleLayout) -> bool:
            layouts = [replace(table.shuffle, spread=new.spread) if self._mixed else new for table in tables]
            changed = [replace(table, shuffle=layout) for table, layout in zip(tables, layouts, strict=True)]
            return split_budget(replace(needs, **_window_needs(changed))).window_fits

        larger = fitting_budget(replace(needs, cache_bytes=needs.cache_bytes + self._page_cache_bytes(math.inf)))
        times = "repeatedly" if math.isinf(reads) else f"about {reads:.1f} times"
        room, need = f"{budget.window_bytes / 1e6:,.0f} MB", f"{budget.window_need / 1e6:,.0f} MB"
        note = (
            f"memory_budget ({needs.budget_bytes / 1e6:,.0f} MB) leaves {room} for the window of the shuffle, which "
            f'needs {need}, so pages are read {times}; memory_budget="{larger // 10**6}MB" reads them once, in the '
            "same order"
        )
        shuffle = max((table.shuffle for table in tables), key=lambda layout: layout.spread)
        heaviest = tables[0].selection.heaviest
        least = shuffle.block_bytes if self._mixed or heaviest is None else heaviest.page_bytes
        fitting = fitting_shuffle(shuffle, fits, block_bytes=least)
        if fitting is None:
            return note
        changes = {name: value for name, value in asdict(replace(given, window=None)).items() if value}
        changes |= {"spread": fitting.spread} if self._mixed else asdict(fitting)
        call = ", ".join(f"{name}={value}" for name, value in changes.items())
        fewer = f"so does shuffle=penstock.Shuffle({call}), in another order that mixes only {room} of rows at a time"
        return f"{note}; {fewer}"


def _window_needs(tables: Sequence[SizedTable]) -> dict[str, Any]:
    """Those of `MemoryNeeds`."""
    blocks = [table for table in tables if not table.selection.scattered]
    return {
        "window_rows": sum(table.window_rows for table in blocks),
        "window_bytes": sum(table.window_bytes for table in blocks),
        "flight_bytes": round(sum((table.window_rows - table.held_rows) * table.window_row_bytes for table in blocks)),
    }
