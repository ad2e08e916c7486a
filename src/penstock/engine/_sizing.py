"""How large everything is: workers, spans, the window and the budget of memory, given the table and the options."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import cloudpickle

from penstock.device import MAX_READERS, Accelerator, on_device
from penstock.engine._memory_budget import MemoryBudget, MemoryNeeds, fitting_shuffle, small_window_note, split_budget
from penstock.engine._options import DecodeOptions, LoaderOptions
from penstock.engine._stats import StatsCollector
from penstock.engine.assembly import BatchFormatter, Placement
from penstock.engine.planning import Layout, PlanOptions, Selection, page_reads
from penstock.engine.workers import PipelineOptions, TableOptions, WorkerCounts, choose_workers, worker_formatter
from penstock.format import Field, value_kind
from penstock.format.kinds import Image
from penstock.plan import MixturePartitioner, RankPartitioner, Shuffle, ShuffleLayout
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
    owns_lanes: bool
    """Whether each lane is read by a single rank."""
    share: float
    """The largest share of the rows of a batch that come from it."""
    by_row: int = 0
    """Builders read large local rows from files, if a page holds at most so many of them."""

    @property
    def by_row_bytes(self) -> int:
        """Bytes of a row's columns that builders can read from files."""
        if not self.selection.reader.store.is_local or self.selection.composition is not None:
            return 0
        return sum(known.fixed_row_bytes or 0 for known in self.layout.fields if reads_by_row(known, self.by_row))

    @property
    def window_rows(self) -> float:
        """Rows of a window that holds all blocks that rows are drawn from, with some in flight."""
        return min(self.held_rows + _BLOCKS_IN_FLIGHT * self._block_rows, max(1, len(self.selection)))

    @property
    def held_rows(self) -> float:
        """Those without the blocks in flight."""
        rows = self.lanes_per_rank * (1 + self.shuffle.spread) * self._block_rows
        return min(rows, max(1, len(self.selection)))

    @property
    def shuffles_whole_lanes(self) -> bool:
        """Whether rows are spread over their whole lane."""
        return self.shuffle.spread * self._block_rows * self.shuffle.lanes >= len(self.selection)

    @property
    def _block_rows(self) -> float:
        return self.selection.block_rows(self.shuffle.block_bytes)

    @property
    def window_bytes(self) -> int:
        """Bytes of that window."""
        rows = self.window_rows
        # Blocks are permuted, so the largest rows come together only in part.
        size = min(self.selection.largest_rows_bytes(rows), _SKEW * rows * self.selection.row_bytes)
        return round(size * self.window_row_bytes / self.selection.row_bytes)

    @property
    def window_row_bytes(self) -> float:
        """Bytes of an average row in the window, without the columns that builders read from files."""
        return max(0.0, self.selection.row_bytes - self.by_row_bytes)

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

    def batch_bytes(self, rows: int, decode: DecodeOptions, counts: Callable[[Sequence[int]], bool]) -> float:
        """Bytes of some rows of a batch, with those decoded images whose shape `counts`."""
        selection, composition = self.selection, self.selection.composition
        size = selection.largest_rows_bytes(rows) / max(1, rows)
        values = dict.fromkeys(selection.fields, 1.0)
        if composition is not None:
            values = {known: composition.values_per_sample(known.name) for known in selection.fields}
            size = sum(count * selection.average_bytes(known) for known, count in values.items())
            size *= max(1.0, len(self.layout.names) / max(1, len(selection.names)))  # derived columns
        for known, count in values.items():
            shape, decoded = decode.image_shape(known), self._decoded_bytes(known, decode)
            if decoded and (shape is None or counts(shape)):
                size += count * (decoded - selection.average_bytes(known))  # encoded images stay in the window
        return rows * max(1.0, size)

    def sizes_known(self, decode: DecodeOptions) -> bool:
        """Whether the sizes of all values that are decoded are known before."""
        decoded = [known for known in self.selection.fields if decode.decodes(known)]
        return all(self._decoded_bytes(known, decode) is not None for known in decoded)

    def _decoded_bytes(self, known: Field, decode: DecodeOptions) -> float | None:
        """Bytes of a decoded image of a column; None if unknown, or if it has none."""
        shape = decode.image_shape(known)
        if shape is not None:
            return math.prod(shape)
        is_image = isinstance(value_kind(known.kind), Image) and decode.decoder(known) is True
        return self.selection.decoded_bytes(known) if is_image else None


def _window_needs(tables: Sequence[SizedTable]) -> dict[str, Any]:
    """Those of `MemoryNeeds`."""
    blocks = [table for table in tables if not table.selection.scattered]
    return {
        "window_rows": sum(table.window_rows for table in blocks),
        "window_bytes": sum(table.window_bytes for table in blocks),
        "flight_bytes": round(sum((table.window_rows - table.held_rows) * table.window_row_bytes for table in blocks)),
    }


class LoaderSizing:
    """The sizes of one loader; notes for the user go to the collector."""

    def __init__(
        self,
        tables: Sequence[SizedTable],
        partitioner: RankPartitioner,
        *,
        options: LoaderOptions,
        formatter: BatchFormatter,
        placement: Placement | None,
        collector: StatsCollector,
    ) -> None:
        self._partitioner, self._options = partitioner, options
        self._formatter, self._placement, self._collector = formatter, placement, collector
        self._tables: Sequence[SizedTable] = tables
        self._selections = [table.selection for table in tables]
        self._mixed = isinstance(partitioner, MixturePartitioner)
        if self.accelerator is None:
            most = _ROWS_PER_PAGE if self.workers.processes else 1
            self._tables = [replace(table, by_row=most) for table in tables]

    @cached_property
    def workers(self) -> WorkerCounts:
        """How many processes and threads build batches."""
        counts = choose_workers(
            self._options.workers,
            functions=self._formatter.on_host or self._options.decode.has_functions,
            table_bytes=round(sum(each.stored_row_bytes * len(each) for each in self._selections)),
            threads_because=self._threads_because,
            send_error=self._send_error,
        )
        self._collector.note(*counts.notes)
        return counts

    def _send_error(self) -> Exception | None:
        """Why another process cannot get the table and the functions; None if it can."""
        readers = [each.reader for each in self._selections]
        try:
            cloudpickle.dumps((readers, self._options.decode, worker_formatter(self._formatter)))
        except Exception as error:  # what a user's object raises
            return error
        return None

    @property
    def _threads_because(self) -> str | None:
        """Why batches must be built in this process; None if others can build them."""
        for selection in self._selections:
            if selection.reader.store.is_process_local:
                return f"other processes cannot open {selection.reader.store.uri}"
        fixed = [column for table in self._tables for column in table.layout.fixed]
        if self.accelerator is not None and not self._mixed and (self.decodes_on_device or any(map(on_device, fixed))):
            return "batches are built on the device"
        return None

    def pipeline_options(self) -> PipelineOptions:
        budget = split_budget(self.memory_needs)
        self._collector.note(*budget.notes)
        span_rows = budget.batches_per_span * self._options.batch_size
        tables = tuple(self._table_options(table, budget, span_rows) for table in self._tables)
        by_blocks = all(table.plan.by_blocks for table in tables)
        readers, threads = self._num_readers(tables), self.workers.threads
        reads = max(table.plan.page_reads for table in tables)
        if reads > 1 and (given := self._options.shuffle) is not None:
            self._collector.note(self._small_window_note(given, reads if by_blocks else math.inf))
        return PipelineOptions(
            tables=tables,
            plan_rows=self._plan_rows if by_blocks else span_rows,
            batches_per_span=budget.batches_per_span,
            spans=budget.spans,
            window_bytes=budget.window_bytes,
            on_device=by_blocks and budget.device_rows > 0,
            threads=self._num_threads(readers),
            builders=threads if self.memory_needs.device_free_bytes is None else min(threads, _DEVICE_WORKERS),
            fetch_threads=_MAX_FETCHERS // readers,
            readers=readers,
        )

    def _small_window_note(self, given: Shuffle, reads: float) -> str:
        """What to do if pages are read so many times; of mixed tables, only the spread can be changed together."""
        tables, needs, heaviest = self._tables, self.memory_needs, self._tables[0].selection.heaviest

        def changed_needs(new: ShuffleLayout) -> MemoryNeeds:
            layouts = (replace(table.shuffle, spread=new.spread) if self._mixed else new for table in tables)
            return replace(needs, **_window_needs([replace(table, shuffle=next(layouts)) for table in tables]))

        shuffle = max((table.shuffle for table in tables), key=lambda layout: layout.spread)
        least = shuffle.block_bytes if self._mixed or heaviest is None else heaviest.page_bytes
        fitting = fitting_shuffle(shuffle, changed_needs, block_bytes=least)
        changes = {name: value for name, value in asdict(replace(given, window=None)).items() if value and fitting}
        changes |= {} if fitting is None else {"spread": fitting.spread} if self._mixed else asdict(fitting)
        cached = self._page_cache_bytes if self._page_cache_bytes <= _MAX_CACHE_BYTES else 0  # with a larger budget
        return small_window_note(needs, reads, needs.cache_bytes + cached, changes)

    def _table_options(self, table: SizedTable, budget: MemoryBudget, span_rows: int) -> TableOptions:
        selection = table.selection
        reads = 0.0 if budget.window_fits else page_reads(budget.held_share, whole_lanes=table.shuffles_whole_lanes)
        held_long = reads * table.share * span_rows <= table.window_rows and selection.composition is None
        by_lanes = (table.owns_lanes or table.shuffle.spread > 0) and not selection.scattered
        by_blocks = (budget.window_fits or held_long) and by_lanes
        resident = by_blocks and not reads and self._fits(budget)
        by_row = table.by_row if table.by_row_bytes and not resident else 0
        rows = len(selection) * selection.rows_per_sample
        slab_row_bytes = sum(column.row_bytes for column in table.layout.fixed) - (table.by_row_bytes if by_row else 0)
        slab_rows = round(_SLAB_SLACK * (min(budget.window_bytes / max(1, slab_row_bytes), rows) + span_rows))
        page_bytes = budget.window_bytes / len(self._tables) / _PAGE_SHARE
        page_bytes *= selection.heavy_row_bytes / selection.row_bytes
        cache_pages = self._caches_pages and table.light_bytes > 0
        return TableOptions(
            plan=PlanOptions(
                page_bytes=max(1, round(page_bytes)),
                by_blocks=by_blocks,
                page_reads=reads,
                resident=resident,
                trim=not self._options.bad_samples.tolerant,
                pages_cached=cache_pages,
            ),
            by_row=by_row,
            slab_rows=budget.device_rows if by_blocks and budget.device_rows else slab_rows,
            cache_pages=cache_pages,
            image_cache_bytes=min(table.image_cache_bytes, self.budget_bytes // 4 // len(self._tables)),
        )

    def _fits(self, budget: MemoryBudget) -> bool:
        """Whether all rows fit the window, so that they can stay there."""
        if any(each.coarse or each.repeats_rows for each in self._selections):
            return False
        if 0 < budget.device_rows < self._partitioner.rows:
            return False
        return sum(each.largest_rows_bytes(len(each)) for each in self._selections) <= budget.window_bytes

    @property
    def _plan_rows(self) -> int:
        """Rows planned together: few enough for a short wait, enough per lane to amortise the overhead."""
        rows = round(_PLAN_BYTES / sum(table.share * table.selection.row_bytes for table in self._tables))
        return min(_PLAN_ROWS, max(rows, _PLAN_LANE_ROWS * sum(table.lanes_per_rank for table in self._tables)))

    @property
    def _page_cache_bytes(self) -> int:
        """Bytes of all pages of light columns."""
        return sum(table.light_bytes for table in self._tables)

    @property
    def _caches_pages(self) -> bool:
        """Whether there is room for all pages of light columns."""
        return 0 < self._page_cache_bytes <= min(_MAX_CACHE_BYTES, self.budget_bytes // 8)

    @property
    def _batch_bytes(self) -> int:
        """Bytes of a batch in host memory."""
        device = self.accelerator
        return self._with_images(lambda shape: device is None or self._mixed or not device.can_decode(shape))

    def _with_images(self, counts: Callable[[Sequence[int]], bool]) -> int:
        """Bytes of a batch, of which each table has at most its share."""
        rows = self._options.batch_size
        sizes = (
            table.batch_bytes(min(rows, round(table.share * rows) + 1), self._options.decode, counts)
            for table in self._tables
        )
        return round(sum(sizes))

    @property
    def decodes_on_device(self) -> bool:
        """Whether a device decodes encoded images from the window."""
        shapes = [self._options.decode.image_shape(known) for each in self._selections for known in each.fields]
        device = None if self._mixed else self.accelerator
        return device is not None and any(shape is not None and device.can_decode(shape) for shape in shapes)

    @cached_property
    def budget_bytes(self) -> int:
        if self._options.memory_budget is not None:
            return self._options.memory_budget
        larger = 3 if self._formatter.on_host else 1  # than what functions get
        batches = 8 + self._options.workers.count * self._copies * larger
        built = self._batch_bytes if self._formatter.by_rows else max(_SPAN_BYTES, self._batch_bytes)
        wanted = round(1.5 * sum(table.window_bytes for table in self._tables)) + batches * self._batch_bytes
        row_bytes = sum(table.share * table.window_row_bytes for table in self._tables)
        read = max(_SPAN_BYTES, self._options.batch_size * row_bytes)
        wanted += round(self.workers.processes * (_TASKS_PER_BUILDER * read + (2 + self._copies) * built))
        wanted += sum(table.image_cache_bytes for table in self._tables)
        return min(max(_MIN_BUDGET, wanted), available_memory() // 2)

    @property
    def _copies(self) -> int:
        """Copies of a span that making its batches takes: see `MemoryNeeds`."""
        if self._formatter.on_host:  # what functions get, and their results before they are sent
            return 2 if self.workers.processes else 1 + self._formatter.by_rows
        decode = self._options.decode
        varies = any(not decode.image_shape(known) for table in self._tables for known in table.layout.variable)
        return int(varies and self.workers.processes > 0)  # values as they are decoded

    def _num_readers(self, tables: Sequence[TableOptions]) -> int:
        """Processes that read: several if builders only copy rows, because they take more than one can plan and read.

        Each has as many lanes of every table as the others.
        """
        most = min(MAX_READERS, self.workers.processes // _BUILDERS_PER_READER)
        decode, lanes = self._options.decode, math.gcd(*(table.lanes_per_rank for table in self._tables))
        copied = not self._formatter.on_host and not any(
            selection.composition or any(map(decode.decodes, selection.fields)) for selection in self._selections
        )
        if not copied or any(table.plan.resident or table.plan.reads_again for table in tables):
            return 1
        return max((count for count in range(1, most + 1) if lanes % count == 0), default=1)

    def _num_threads(self, readers: int) -> int:
        """Threads that plan and read local files, and without worker processes build."""
        if not all(each.reader.store.is_local for each in self._selections):
            return self.workers.threads + 1
        return max(self.workers.threads, min(available_cores(), _MAX_THREADS // readers))

    @property
    def accelerator(self) -> Accelerator | None:
        """The device that builds batches; None if a formatter needs them in host memory."""
        return None if self._placement is None or self._formatter.on_host else self._placement.accelerator

    @cached_property
    def memory_needs(self) -> MemoryNeeds:
        options, accelerator = self._options, self.accelerator
        there = accelerator is not None and (accelerator.is_cuda or options.device_memory is not None)
        blocks = [table for table in self._tables if not table.selection.scattered]
        device_columns = [] if self._mixed else [c for table in blocks for c in table.layout.fixed if on_device(c)]
        images = sum(table.image_cache_bytes for table in self._tables)
        return MemoryNeeds(
            budget_bytes=self.budget_bytes,
            batch_size=options.batch_size,
            batch_bytes=self._batch_bytes,
            device_batch_bytes=2 * self._with_images(lambda _: True),  # transforms may widen values
            by_rows=self._formatter.by_rows,
            workers=max(1, options.workers.count),
            prefetch_factor=options.prefetch_factor,
            copies=self._copies,
            shares_spans=self.workers.processes > 0 and not self._formatter.on_host and not self._copies,
            functions=self._formatter.on_host or options.decode.has_functions,
            sizes_known=all(table.sizes_known(options.decode) for table in self._tables),
            **_window_needs(self._tables),
            window_row_bytes=sum(table.share * table.window_row_bytes for table in self._tables),
            spans_read=_TASKS_PER_BUILDER * self.workers.processes,
            device_row_bytes=sum(column.row_bytes for column in device_columns),
            cache_bytes=min(images, self.budget_bytes // 4) + self._page_cache_bytes * self._caches_pages,
            device_free_bytes=accelerator.free_bytes() if accelerator is not None and there else None,
            device_memory=options.device_memory,
        )
