"""How large everything is: workers, spans, the window and the budget of memory, given the table and the options."""

from collections.abc import Callable, Sequence

import cloudpickle

from penstock.device import Accelerator
from penstock.engine._machine import available_cores, available_memory
from penstock.engine._memory_budget import MemoryBudget, MemoryNeeds, split_budget
from penstock.engine._options import LoaderOptions
from penstock.engine._stats import StatsCollector
from penstock.engine.assembly import BatchFormatter, Placement
from penstock.engine.planning import Layout, PlanOptions, Selection
from penstock.engine.window import on_device, reads_into_batch
from penstock.engine.workers import PipelineOptions, WorkerCounts, choose_workers, worker_formatter
from penstock.format import Field
from penstock.plan import LaneShare, RankPartitioner, ShuffleLayout
from penstock.types import cached_property

_PLAN_ROWS, _PLAN_BYTES, _PLAN_LANE_ROWS = 16 << 10, 1 << 30, 16
_MAX_CACHE_BYTES = 64 << 20
_MAX_FETCHERS, _MAX_READERS = 96, 10
_MIN_BUDGET = 1 << 30
_SKEW = 2.0
"""Largest bytes of a window, relative to average rows."""
_SLAB_SLACK = 4
"""Rows of the slab, which has memory only where it is written, relative to those expected: room for fragmentation."""
_PAGE_SHARE = 8
"""Fraction (1/n) of the window for pages that are read together, if blocks are not read as a whole."""
_DEVICE_WORKERS = 3  # one submits while the device executes for the others; more only contend


class LoaderSizing:
    """The sizes of one loader; notes for the user go to the collector."""

    def __init__(
        self,
        selection: Selection,
        layout: Layout,
        shuffle: ShuffleLayout,
        partitioner: RankPartitioner,
        *,
        options: LoaderOptions,
        formatter: BatchFormatter,
        placement: Placement | None,
        collector: StatsCollector,
    ) -> None:
        self._selection, self._shuffle, self._partitioner, self._options = selection, shuffle, partitioner, options
        self._formatter, self._placement, self._collector = formatter, placement, collector
        self._reader = selection.reader
        self._layout = layout

    @cached_property
    def workers(self) -> WorkerCounts:
        """How many processes and threads build batches."""
        counts = choose_workers(
            self._options.workers,
            self._partitioner,
            functions=self._formatter.on_host or self._options.decode.has_functions,
            table_bytes=round(self._selection.stored_row_bytes * self._partitioner.rows),
            threads_because=self._threads_because,
            send_error=self._send_error,
        )
        for note in counts.notes:
            self._collector.note(note)
        return counts

    def _send_error(self) -> Exception | None:
        """Why another process cannot get the table and the functions; None if it can."""
        try:
            cloudpickle.dumps((self._reader, self._options.decode, worker_formatter(self._formatter)))
        except Exception as error:  # what a user's object raises
            return error
        return None

    @property
    def _threads_because(self) -> str | None:
        """Why batches must be built in this process; None if others can build them."""
        if self._reader.store.is_process_local:
            return f"other processes cannot open {self._reader.store.uri}"
        if self.accelerator is not None and (self.decodes_on_device or any(map(on_device, self._layout.fixed))):
            return "batches are built on the device"
        return None

    def pipeline_options(self) -> PipelineOptions:
        options, selection, accelerator, workers = self._options, self._selection, self.accelerator, self.workers
        processes = max(1, workers.processes)
        budget = split_budget(self.memory_needs)
        for note in budget.notes:
            self._collector.note(note)
        span_rows = budget.batches_per_span * options.batch_size
        owned = LaneShare(0, processes, self._partitioner).by_lane and (
            self._partitioner.owns_lanes or self._shuffle.spread > 0
        )
        by_blocks = budget.window_fits and owned and not selection.scattered
        in_device = accelerator is not None and by_blocks and budget.on_device
        resident = by_blocks and not workers.processes and self._fits(budget, in_device=in_device)
        into_batch = by_blocks and not in_device and not resident and selection.composition is None
        into_batch = into_batch and self._reader.store.is_local
        into_batch = into_batch and any(map(reads_into_batch, self._layout.fixed))
        fixed_bytes = max(1, sum(column.row_bytes for column in self._layout.fixed))
        slab_rows = min(
            budget.window_bytes / processes / fixed_bytes, self._partitioner.rows * selection.rows_per_sample
        )
        page_bytes = budget.window_bytes / processes / _PAGE_SHARE * selection.heavy_row_bytes / selection.row_bytes
        window_spans = round(min(budget.window_bytes, self._window_need) / max(1.0, selection.row_bytes * span_rows))
        return PipelineOptions(
            plan=PlanOptions(
                plan_rows=self._plan_rows if by_blocks else span_rows,
                page_bytes=max(1, round(page_bytes)),
                by_blocks=by_blocks,
                resident=resident,
                trim=not options.bad_samples.tolerant,
            ),
            batches_per_span=budget.batches_per_span,
            depth=budget.prefetch_spans + (into_batch and workers.processes > 0) * window_spans,
            into_batch=into_batch,
            window_bytes=budget.window_bytes // processes,
            slab_rows=budget.device_rows if in_device else round(_SLAB_SLACK * (slab_rows + span_rows)),
            on_device=in_device,
            cache_pages=self._caches_pages,
            threads=self._num_threads,
            builders=self._num_builders,
            image_cache_bytes=min(self._image_cache_need, self.budget_bytes // 4) // processes,
            fetch_threads=-(-_MAX_FETCHERS // processes),
        )

    def _fits(self, budget: MemoryBudget, *, in_device: bool) -> bool:
        """Whether all rows fit the window, so that they can stay there.

        Among several ranks each would come to read all rows, because lanes have other rows in each epoch.
        """
        if self._partitioner.world.num_ranks > 1 or self._selection.coarse or self._selection.repeats_rows:
            return False
        if self._partitioner.steps() * self._partitioner.step_rows < self._partitioner.rows:
            return False  # `drop_last`: an epoch does not read every block
        if in_device and budget.device_rows < self._partitioner.rows:
            return False
        return self._selection.largest_rows_bytes(self._partitioner.rows) <= budget.window_bytes

    @cached_property
    def _window_need(self) -> int:
        """Bytes of a window that holds all blocks that rows are drawn from, with some in flight."""
        rows = self._window_rows
        # Blocks are permuted, so the largest rows come together only in part.
        return round(min(self._selection.largest_rows_bytes(rows), _SKEW * rows * self._selection.row_bytes))

    @property
    def _window_rows(self) -> float:
        shuffle, rows = self._shuffle, self._selection.block_rows(self._shuffle.block_bytes)
        held = self._partitioner.lanes_per_rank * (1 + shuffle.spread) + 4
        return min(held * rows, max(1, self._partitioner.rows))

    @property
    def _plan_rows(self) -> int:
        """Rows planned together: few enough for a short wait, enough per lane to amortise the overhead."""
        rows = round(_PLAN_BYTES / self._selection.row_bytes)
        return min(_PLAN_ROWS, max(rows, _PLAN_LANE_ROWS * self._partitioner.lanes_per_rank))

    @property
    def _light_bytes(self) -> int:
        """Bytes of all columns but the heaviest, in the whole table, because the cache holds whole pages."""
        rows = self._reader.snapshot.live
        return round(
            (self._selection.row_bytes - self._selection.heavy_row_bytes) / self._selection.rows_per_sample * rows
        )

    @property
    def _caches_pages(self) -> bool:
        """Whether each process has room for all pages of light columns."""
        size = self._light_bytes * max(1, self.workers.processes)
        return 0 < size <= min(_MAX_CACHE_BYTES, self.budget_bytes // 8)

    @property
    def _image_cache_need(self) -> int:
        """Bytes of decoded images that windows share, at a time."""
        shared = self._selection.shared_images if self.accelerator is None else None
        return 0 if shared is None else shared.cache_bytes(self._partitioner.lanes_per_rank)

    @property
    def _batch_bytes(self) -> int:
        """Bytes of a batch in host memory."""
        device = self.accelerator
        return self._with_images(lambda shape: device is None or not device.can_decode(shape))

    def _with_images(self, counts: Callable[[Sequence[int]], bool]) -> int:
        selection = self._selection
        size = selection.largest_rows_bytes(self._options.batch_size) / self._options.batch_size
        if selection.composition is not None:
            size = sum(self._values_per_sample(known) * selection.average_bytes(known) for known in selection.fields)
            size *= max(1, len(self._layout.names) / max(1, len(selection.names)))  # derived columns
        for known in selection.fields:
            shape = self._options.decode.image_shape(known)
            if shape is not None and counts(shape):
                pixels = shape[0] * shape[1] * (shape[2] if len(shape) > 2 else 1)
                # encoded images stay in the window
                size += self._values_per_sample(known) * (pixels - selection.average_bytes(known))
        return round(self._options.batch_size * max(1.0, size))

    def _values_per_sample(self, known: Field) -> float:
        composition = self._selection.composition
        return 1.0 if composition is None else composition.values_per_sample(known.name)

    @property
    def _spans_at_once(self) -> int:
        """Spans that are built at a time; processes that own lanes build each span together."""
        workers = self.workers
        together = workers.processes and not self._formatter.on_host and self._partitioner.lanes_per_rank > 1
        return workers.threads if together else max(1, self._options.workers.count)

    @property
    def decodes_on_device(self) -> bool:
        """Whether a device decodes encoded images from the window."""
        shapes = [self._options.decode.image_shape(known) for known in self._selection.fields]
        device = self.accelerator
        return device is not None and any(shape is not None and device.can_decode(shape) for shape in shapes)

    @cached_property
    def budget_bytes(self) -> int:
        if self._options.memory_budget is not None:
            return self._options.memory_budget
        wanted = round(1.5 * self._window_need) + 8 * self._batch_bytes + self._image_cache_need
        wanted = max(_MIN_BUDGET, wanted)
        return min(wanted, available_memory() // 2)

    @property
    def _num_builders(self) -> int:
        if self.accelerator is not None and self.memory_needs.device_free_bytes is not None:
            return min(self.workers.threads, _DEVICE_WORKERS)
        return self.workers.threads

    @property
    def _num_threads(self) -> int:
        """Threads of a process that plan, build and read local files."""
        workers = self.workers
        if not self._reader.store.is_local:
            return workers.threads + 1
        return workers.threads if workers.processes else max(workers.threads, min(available_cores(), _MAX_READERS))

    @property
    def accelerator(self) -> Accelerator | None:
        """The device that builds batches; None if a formatter needs them in host memory."""
        return None if self._placement is None or self._formatter.on_host else self._placement.accelerator

    @cached_property
    def memory_needs(self) -> MemoryNeeds:
        options, accelerator = self._options, self.accelerator
        there = accelerator is not None and (accelerator.is_cuda or options.device_memory is not None)
        scattered = self._selection.scattered
        return MemoryNeeds(
            budget_bytes=self.budget_bytes,
            batch_size=options.batch_size,
            batch_bytes=self._batch_bytes,
            device_batch_bytes=2 * self._with_images(lambda _: True),  # transforms may widen values
            by_rows=self._formatter.by_rows,
            workers=max(1, options.workers.count),
            spans_at_once=self._spans_at_once,
            prefetch_factor=options.prefetch_factor,
            window_rows=0 if scattered else self._window_rows,
            window_bytes=0 if scattered else self._window_need,
            device_row_bytes=0 if scattered else sum(c.row_bytes for c in self._layout.fixed if on_device(c)),
            cache_bytes=min(self._image_cache_need, self.budget_bytes // 4)
            + (self._light_bytes * max(1, self.workers.processes) if self._caches_pages else 0),
            device_free_bytes=accelerator.free_bytes() if accelerator is not None and there else None,
            device_memory=options.device_memory,
        )
