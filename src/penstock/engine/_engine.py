"""Build the pipeline for a table, options and a rank, and run it."""

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from penstock.device import Accelerator, BufferPool, empty_small_pages
from penstock.engine._batch_builder import BatchBuilder, BatchFormatter, Failure, Placement
from penstock.engine._collate import Collator
from penstock.engine._fetch import Fetcher
from penstock.engine._machine import available_cores, available_memory
from penstock.engine._memory_budget import MemoryNeeds, split_budget
from penstock.engine._options import LoaderOptions
from penstock.engine._page_cache import PageCache
from penstock.engine._pipeline import Pipeline
from penstock.engine._planner import Planner, PlanOptions
from penstock.engine._row_sizes import compaction_advice
from penstock.engine._selection import Selection
from penstock.engine._slab import DeviceSlab, Layout, Slab, on_device, reads_into_batch
from penstock.engine._stats import BadSample, LoaderStats, StatsCollector
from penstock.engine._window import Window
from penstock.errors import InvalidInputError
from penstock.plan import (
    SEQUENTIAL,
    LoaderState,
    OrderSpec,
    RankPartitioner,
    ShuffleQuality,
    expected_blocks,
    resolve_shuffle,
)
from penstock.table import Int64Array, Reader
from penstock.types import World

_PLAN_ROWS, _PLAN_BYTES, _PLAN_LANE_ROWS = 16 << 10, 1 << 30, 16
_MAX_CACHE_BYTES = 64 << 20
_MAX_FETCHERS, _MAX_READERS, _READERS_FOR_PROCESSES = 96, 10, 2
_MIN_BUDGET = 1 << 30
_SKEW = 2.0
"""Largest bytes of a window, relative to average rows."""
_SLAB_SLACK = 4
"""Rows of the slab, which has memory only where it is written, relative to those expected: room for fragmentation."""
_PAGE_SHARE = 8
"""Fraction (1/n) of the window for pages that are read together, if blocks are not read as a whole."""
_DEVICE_WORKERS = 3  # one submits while the device executes for the others; more only contend


class LoaderEngine:
    """Rows and columns of a table in the order of a plan, for one rank; `run` reads them."""

    def __init__(
        self,
        reader: Reader,
        names: Sequence[str],
        rows: range | Int64Array,
        *,
        world: World,
        options: LoaderOptions,
        formatters: Sequence[BatchFormatter],
        placement: Placement | None,
        collector: StatsCollector,
    ) -> None:
        """One finisher for each worker, or one for the loop's own thread."""
        options.decode.check(reader.snapshot.schema)
        self._reader, self._names, self._options = reader, tuple(names), options
        self.formatters, self.placement, self.collector = formatters, placement, collector
        self._selection = Selection(reader, names, rows, shuffled=options.shuffle is not None)
        shuffle = SEQUENTIAL
        if options.shuffle is not None:
            heavy = self._selection.heavy_row_bytes
            width = max(1.0, self._selection.row_bytes / heavy)
            shuffle = resolve_shuffle(options.shuffle, round(heavy * len(rows)), heavy, width=width)
        self.order = OrderSpec(
            table=reader.store.uri,
            version=reader.name,
            snapshot=self._selection.snapshot_digest,
            selection=self._selection.digest,
            rows=len(rows),
            seed=options.seed,
            shuffled=options.shuffle is not None,
            shuffle=shuffle,
        )
        self.world = world
        for advice in compaction_advice(reader.store.uri, reader.snapshot.nodes):
            collector.note(advice)
        self._partitioner = RankPartitioner(
            len(rows), min(shuffle.lanes, max(1, len(rows))), world, options.batch_size, options.drop_last
        )
        self._retries = reader.store.retries
        self._by_blocks = True  # the last run read whole blocks, each once
        fits = 0 < self._light_bytes <= min(_MAX_CACHE_BYTES, self._budget // 8)
        self._page_cache = PageCache(reader.store) if fits else None

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return self._partitioner.steps()

    def steps_from(self, consumed: int) -> int:
        """Steps to the end of an epoch of which `consumed` positions have been read."""
        return self._partitioner.steps(consumed)

    def run(self, state: LoaderState) -> "EngineRun":
        """Start reading at a state."""
        return EngineRun(self, self._pipeline(), state)

    def report(self, bad: BadSample, count: int, rows: int) -> None:
        """Record a bad sample, the `count`th in `rows` rows of this epoch.

        Raises `SampleError` over the limit, or what the callback raises.
        """
        policy = self._options.bad_samples
        self.collector.record_bad(bad)
        if policy.callback is not None:
            policy.callback(bad)
        policy.check(count, rows, -(-self.order.rows // self.world.num_ranks))

    def stats(self) -> LoaderStats:
        collector, options, totals = self.collector, self._options, self.collector.totals()
        blocks = self.order.rows / self._selection.block_rows(self.order.shuffle.block_bytes)
        quality = None
        if options.shuffle and collector.batches_drawn:
            drawn = collector.blocks_drawn / collector.batches_drawn
            uniform = expected_blocks(min(options.batch_size, max(1, self.order.rows)), blocks)
            quality = ShuffleQuality(min(drawn, uniform), uniform)  # blocks differ in size, so more can be drawn
        fresh = self._by_blocks or not collector.rows  # else pages are read again for the rows of each span
        measured = 0.0 if fresh else totals.bytes / (collector.rows * self._selection.stored_row_bytes)
        return LoaderStats(
            seconds=collector.seconds,
            rows=collector.rows,
            batches=collector.batches,
            bytes=totals.bytes,
            gets=totals.gets,
            latency_s=totals.latency_s,
            retries=self._reader.store.retries - self._retries,
            hedges=collector.hedges,
            read_factor=max(self._partitioner.read_amplification, measured),
            window_bytes=collector.window_bytes,
            window_peak_bytes=collector.window_peak_bytes,
            device_bytes=totals.device_bytes,
            budget_bytes=self._budget,
            first_batch_s=collector.first_batch_s,
            stages=totals.stages,
            quality=quality,
            bad_samples=tuple(collector.bad),
            bad_count=collector.bad_count,
            notes=tuple(collector.notes),
            unanswered_s=time.perf_counter() - since if (since := collector.unanswered_since) is not None else 0.0,
        )

    @property
    def _window_need(self) -> int:
        """Bytes of a window that holds all blocks that rows are drawn from, with some in flight."""
        rows = self._window_rows
        # Blocks are permuted, so the largest rows come together only in part.
        return round(min(self._selection.largest_rows_bytes(rows), _SKEW * rows * self._selection.row_bytes))

    @property
    def _window_rows(self) -> float:
        shuffle, rows = self.order.shuffle, self._selection.block_rows(self.order.shuffle.block_bytes)
        held = self._partitioner.lanes_per_rank * (1 + shuffle.spread) + 4
        return min(held * rows, max(1, self.order.rows))

    @property
    def _plan_rows(self) -> int:
        """Rows planned together: few enough for a short wait, enough per lane to amortise the overhead."""
        rows = round(_PLAN_BYTES / self._selection.row_bytes)
        return min(_PLAN_ROWS, max(rows, _PLAN_LANE_ROWS * self._partitioner.lanes_per_rank))

    @property
    def _light_bytes(self) -> int:
        """Bytes of all columns but the heaviest, in the whole table, because the cache holds whole pages."""
        rows = self._reader.snapshot.live
        return round((self._selection.row_bytes - self._selection.heavy_row_bytes) * rows)

    @property
    def _batch_bytes(self) -> int:
        """Bytes of a batch in host memory."""
        device = self._accelerator
        return self._with_images(lambda shape: device is None or not device.can_decode(shape))

    @property
    def _device_batch_bytes(self) -> int:
        """Approximate bytes of a batch on a device, doubled because transforms may widen values."""
        return 2 * self._with_images(lambda _: True)

    def _with_images(self, counts: Callable[[Sequence[int]], bool]) -> int:
        size = self._selection.largest_rows_bytes(self._options.batch_size) / self._options.batch_size
        for known in self._selection.fields:
            shape = self._options.decode.image_shape(known)
            if shape is not None and counts(shape):
                size += shape[0] * shape[1] * (shape[2] if len(shape) > 2 else 1)
        return round(self._options.batch_size * size)

    @property
    def _decodes_on_device(self) -> bool:
        """Whether a device decodes encoded images from the window."""
        shapes = [self._options.decode.image_shape(known) for known in self._selection.fields]
        device = self._accelerator
        return device is not None and any(shape is not None and device.can_decode(shape) for shape in shapes)

    @property
    def _budget(self) -> int:
        if self._options.memory_budget is not None:
            return self._options.memory_budget
        wanted = max(_MIN_BUDGET, round(1.5 * self._window_need) + 8 * self._batch_bytes)
        return min(wanted, available_memory() // 2)

    @property
    def _num_threads(self) -> int:
        """Threads that plan, build and read local files; a thread that waits for a process does nothing else."""
        workers, in_processes = self._options.workers.count, self._options.workers.type == "process"
        if not self._reader.store.is_local:
            return workers + 1
        if in_processes:
            return workers + _READERS_FOR_PROCESSES
        return max(workers, min(available_cores(), _MAX_READERS))

    @property
    def _accelerator(self) -> Accelerator | None:
        """The device that builds batches; None if a formatter needs them in host memory."""
        on_host = any(formatter.on_host for formatter in self.formatters)
        return None if self.placement is None or on_host else self.placement.accelerator

    def _memory_needs(self, layout: Layout) -> MemoryNeeds:
        options, accelerator = self._options, self._accelerator
        there = accelerator is not None and (accelerator.is_cuda or options.device_memory is not None)
        return MemoryNeeds(
            budget_bytes=self._budget,
            batch_size=options.batch_size,
            batch_bytes=self._batch_bytes,
            device_batch_bytes=self._device_batch_bytes,
            by_rows=any(formatter.by_rows for formatter in self.formatters),
            workers=max(1, options.workers.count),
            prefetch_factor=options.prefetch_factor,
            window_rows=0 if self._selection.scattered else self._window_rows,
            window_bytes=0 if self._selection.scattered else self._window_need,
            device_row_bytes=(
                0
                if self._selection.scattered
                else sum(column.row_bytes for column in layout.fixed if on_device(column))
            ),
            cache_bytes=self._light_bytes if self._page_cache is not None else 0,
            device_free_bytes=accelerator.free_bytes() if accelerator is not None and there else None,
            device_memory=options.device_memory,
        )

    def _pipeline(self) -> Pipeline:
        options, selection, collector, accelerator = self._options, self._selection, self.collector, self._accelerator
        layout = Layout(self._reader.snapshot.schema, self._names)
        needs = self._memory_needs(layout)
        budget = split_budget(needs)
        for note in budget.notes:
            collector.note(note)
        span_rows = budget.batches_per_span * options.batch_size
        whole = self._partitioner.owns_lanes or self.order.shuffle.spread > 0
        by_blocks = self._by_blocks = budget.window_fits and whole and not selection.scattered
        slab: Slab
        if accelerator is not None and by_blocks and budget.on_device:
            slab = DeviceSlab(
                layout.fixed,
                budget.device_rows,
                accelerator=accelerator,
                on_copied=collector.record_device_copy,
            )
        else:
            fixed_bytes = max(1, sum(column.row_bytes for column in layout.fixed))
            rows = min(budget.window_bytes / fixed_bytes, self.order.rows)
            slab = Slab(layout.fixed, round(_SLAB_SLACK * (rows + span_rows)))
        into_batch = by_blocks and not isinstance(slab, DeviceSlab) and self._reader.store.is_local
        into_batch = into_batch and any(reads_into_batch(column) for column in layout.fixed)
        buffers = BufferPool(
            max_idle_bytes=(budget.prefetch_spans + 2) * budget.batches_per_span * needs.batch_bytes
            + into_batch * budget.window_bytes,
            allocator=accelerator.allocate_pinned
            if accelerator is not None
            else empty_small_pages
            if into_batch
            else None,
        )
        window = Window(
            self._reader, layout, slab,
            budget_bytes=budget.window_bytes, heaviest=selection.heaviest, page_cache=self._page_cache,
            collector=collector,
            allocate=accelerator.allocate_pinned if accelerator is not None and self._decodes_on_device else None,
            batch_buffers=buffers if into_batch else None,
        )  # fmt: skip
        plan_options = PlanOptions(
            span_rows=span_rows,
            plan_rows=self._plan_rows if by_blocks else span_rows,
            page_bytes=max(
                1, round(budget.window_bytes / _PAGE_SHARE * selection.heavy_row_bytes / selection.row_bytes)
            ),
            by_blocks=by_blocks,
            trim=not options.bad_samples.tolerant,
            assign_destinations=into_batch,
        )
        planner = Planner(selection, self.order, self._partitioner, plan_options)
        remote = not self._reader.store.is_local
        return Pipeline(
            planner, window, Fetcher(collector, max_threads=_MAX_FETCHERS) if remote else None,
            self._builders(layout, slab, buffers, needs),
            threads=self._num_threads, inline=options.workers.count == 0, tolerant=options.bad_samples.tolerant,
            depth=budget.prefetch_spans, collector=collector,
            init_thread=None if self.placement is None else self.placement.accelerator.bind_thread,
        )  # fmt: skip

    def _builders(self, layout: Layout, slab: Slab, buffers: BufferPool, needs: MemoryNeeds) -> list[BatchBuilder]:
        options, accelerator = self._options, self._accelerator
        in_processes = options.workers.type == "process"
        collator = Collator(
            self._reader, layout, options.decode, buffers.allocate, accelerator, defer_decode=in_processes
        )
        count = len(self.formatters) if needs.device_free_bytes is None else _DEVICE_WORKERS
        return [
            BatchBuilder(
                collator, slab, formatter, self.placement, options.bad_samples, self.collector,
                selection=self._selection, seed=options.seed, flag=options.flags_rows(self.world),
            )
            for formatter in self.formatters[:count]
        ]  # fmt: skip


class EngineRun:
    """A pass over the rest of an epoch and the following ones; dropping or closing it stops its threads."""

    def __init__(self, engine: LoaderEngine, pipeline: Pipeline, state: LoaderState) -> None:
        self._engine, self._pipeline = engine, pipeline
        self.state = state
        """The position after the last delivered batch."""
        self.in_progress = False
        """Whether an epoch was started and not finished; only its own iterator can continue it."""
        self._closed_because = "this loader was closed while it was read"
        self._stop = weakref.finalize(self, pipeline.stop)
        pipeline.start(state.epoch, state.consumed)

    def epoch(self) -> Iterator[Any]:
        """The batches up to the end of the epoch; then the state is the start of the next one."""
        self.in_progress = True
        self._pipeline.resume(self.state.epoch)
        collector, order, placement = self._engine.collector, self.state.order, self._engine.placement
        began = mark = time.perf_counter()
        first = True
        epoch_rows = bad_count = 0
        last = not self._engine.steps_from(self.state.consumed)
        while not last:
            found = self._pipeline.next_span()
            if found is None:
                raise InvalidInputError(self._closed_because)
            span, batches = found
            collector.blocks_drawn += span.blocks_drawn
            collector.batches_drawn += len(span.batch_rows)
            waiting = list(zip(batches, span.batch_rows, span.consumed, strict=False))[::-1]  # a `Failure` is last
            del batches
            bad = sorted(span.bad, key=itemgetter(0), reverse=True)
            end = 0
            while waiting:
                if not self._stop.alive:
                    raise InvalidInputError(self._closed_because)
                batch, rows, consumed = waiting.pop()
                if isinstance(batch, Failure):
                    raise batch.error
                end += rows
                real = rows if span.padding is None else rows - int(np.count_nonzero(span.padding))
                epoch_rows += real
                while bad and bad[-1][0] < end:
                    bad_count += 1
                    self._engine.report(bad.pop()[1], bad_count, epoch_rows)
                last = span.last and not waiting
                self.state = LoaderState(order, span.epoch, consumed)
                now = time.perf_counter()
                collector.seconds += now - mark
                mark = now
                if first:
                    collector.first_batch_s, first = now - began, False
                collector.rows += real
                collector.batches += 1
                yield batch if placement is None else placement.make_ready(batch)
                del batch
                now = time.perf_counter()
                collector.add_time("loop", "busy", now - mark)
                collector.seconds += now - mark
                mark = now
        self._pipeline.pause()
        self.state = LoaderState(order, self.state.epoch + 1, 0)
        self.in_progress = False

    def stop(self) -> None:
        """Stop the threads without joining them."""
        self._stop()

    def close(self, because: str | None = None) -> None:
        """Stop the threads and join them for a moment; `because` is what its iterator then raises."""
        self._closed_because = because or self._closed_because
        self._stop.detach()
        self._pipeline.stop(wait=True)
