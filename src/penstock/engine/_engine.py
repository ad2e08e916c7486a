"""Decide how the rows of a rank are read, by threads or by worker processes; run that."""

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import cloudpickle

from penstock.device import Accelerator, BufferPool, empty_small_pages
from penstock.engine._machine import available_cores, available_memory
from penstock.engine._memory_budget import MemoryBudget, MemoryNeeds, split_budget
from penstock.engine._options import LoaderOptions
from penstock.engine._stats import BadSample, LoaderStats, StatsCollector
from penstock.engine.assembly import BatchAssembler, BatchBuilder, BatchFormatter, Failure, Placement, RowGatherer
from penstock.engine.planning import Layout, PlanOptions, Selection, compaction_advice
from penstock.engine.window import PooledBatches, on_device, reads_into_batch
from penstock.engine.workers import (
    LoaderSource,
    PipelineOptions,
    ProcessPool,
    ProcessRun,
    ShareEngine,
    SpanStream,
    ThreadedRun,
    WorkerCounts,
    choose_workers,
    worker_formatter,
)
from penstock.errors import InvalidInputError
from penstock.plan import (
    SEQUENTIAL,
    LaneShare,
    LoaderState,
    OrderSpec,
    RankPartitioner,
    ShuffleQuality,
    expected_blocks,
    resolve_shuffle,
)
from penstock.table import Int64Array, Reader
from penstock.types import World, cached_property

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
        formatter: BatchFormatter,
        placement: Placement | None,
    ) -> None:
        options.decode.check(reader.snapshot.schema)
        self._reader, self._names, self._rows, self._options = reader, tuple(names), rows, options
        self._formatter, self.placement, self.collector = formatter, placement, StatsCollector()
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
            self.collector.note(advice)
        self._partitioner = RankPartitioner(
            len(rows), min(shuffle.lanes, max(1, len(rows))), world, options.batch_size, options.drop_last
        )
        self._layout = Layout(reader.snapshot.schema, names)
        self._pool: ProcessPool | None = None
        if self._workers.processes:
            self._pool = ProcessPool(self._source, formatter, placement, self._workers, self.collector)
        self._retries = reader.store.retries

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return self._partitioner.steps()

    def steps_from(self, consumed: int) -> int:
        """Steps to the end of an epoch of which `consumed` positions have been read."""
        return self._partitioner.steps(consumed)

    def run(self, state: LoaderState) -> "EngineRun":
        """Start reading at a state."""
        return EngineRun(self, self._stream(), state)

    def close(self) -> None:
        """End the worker processes; a later run starts them again."""
        if self._pool is not None:
            self._pool.close()

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
        reads_again = collector.rows and not self._source.pipeline.plan.by_blocks  # pages, for the rows of each span
        measured = totals.bytes / (collector.rows * self._selection.stored_row_bytes) if reads_again else 0.0
        return LoaderStats(
            seconds=collector.seconds,
            rows=collector.rows,
            batches=collector.batches,
            bytes=totals.bytes,
            gets=totals.gets,
            latency_s=totals.latency_s,
            retries=self._reader.store.retries - self._retries + totals.retries,
            hedges=collector.hedges + totals.hedges,
            read_factor=max(self._partitioner.read_amplification, measured),
            window_bytes=collector.window_bytes + totals.window_bytes,
            window_peak_bytes=collector.window_peak_bytes + totals.window_peak_bytes,
            device_bytes=totals.device_bytes,
            budget_bytes=self._budget,
            first_batch_s=collector.first_batch_s,
            stages=totals.stages,
            quality=quality,
            bad_samples=tuple(collector.bad),
            bad_count=collector.bad_count,
            notes=tuple(collector.notes),
            processes=self._workers.processes,
            threads=self._workers.threads,
            unanswered_s=time.perf_counter() - since if (since := collector.unanswered_since) is not None else 0.0,
        )

    @cached_property
    def _workers(self) -> WorkerCounts:
        """How many processes and threads build batches."""
        counts = choose_workers(
            self._options.workers,
            self._partitioner,
            functions=self._formatter.on_host or self._options.decode.has_functions,
            table_bytes=round(self._selection.stored_row_bytes * self.order.rows),
            threads_because=self._threads_because,
            send_error=self._send_error,
        )
        for note in counts.notes:
            self.collector.note(note)
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
        if self._accelerator is not None and (self._decodes_on_device or any(map(on_device, self._layout.fixed))):
            return "batches are built on the device"
        return None

    @cached_property
    def _source(self) -> LoaderSource:
        """What a worker process has to know; built once, and so the same for all runs."""
        options = replace(self._options, bad_samples=replace(self._options.bad_samples, callback=None))
        return LoaderSource(
            reader=self._reader, names=self._names, rows=self._rows, order=self.order, partitioner=self._partitioner,
            options=options, pipeline=self._pipeline_options(),
        )  # fmt: skip

    def _pipeline_options(self) -> PipelineOptions:
        options, selection, accelerator, workers = self._options, self._selection, self._accelerator, self._workers
        processes = max(1, workers.processes)
        budget = split_budget(self._memory_needs)
        for note in budget.notes:
            self.collector.note(note)
        span_rows = budget.batches_per_span * options.batch_size
        owned = LaneShare(0, processes, self._partitioner).by_lane and (
            self._partitioner.owns_lanes or self.order.shuffle.spread > 0
        )
        by_blocks = budget.window_fits and owned and not selection.scattered
        in_device = accelerator is not None and by_blocks and budget.on_device
        resident = by_blocks and not workers.processes and self._fits(budget, in_device=in_device)
        into_batch = by_blocks and not in_device and not resident and self._reader.store.is_local
        into_batch = into_batch and any(map(reads_into_batch, self._layout.fixed))
        fixed_bytes = max(1, sum(column.row_bytes for column in self._layout.fixed))
        slab_rows = min(budget.window_bytes / processes / fixed_bytes, self.order.rows)
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
            fetch_threads=-(-_MAX_FETCHERS // processes),
        )

    def _fits(self, budget: MemoryBudget, *, in_device: bool) -> bool:
        """Whether all rows fit the window, so that they can stay there.

        Among several ranks each would come to read all rows, because lanes have other rows in each epoch.
        """
        if self.world.num_ranks > 1 or self._selection.coarse or self._selection.repeats_rows:
            return False
        if in_device and budget.device_rows < self.order.rows:
            return False
        return self._selection.largest_rows_bytes(self.order.rows) <= budget.window_bytes

    @cached_property
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
    def _caches_pages(self) -> bool:
        """Whether each process has room for all pages of light columns."""
        size = self._light_bytes * max(1, self._workers.processes)
        return 0 < size <= min(_MAX_CACHE_BYTES, self._budget // 8)

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
                size -= self._selection.average_bytes(known)  # encoded images stay in the window
        return round(self._options.batch_size * max(1.0, size))

    @property
    def _spans_at_once(self) -> int:
        """Spans that are built at a time; processes that own lanes build each span together."""
        workers = self._workers
        together = workers.processes and not self._formatter.on_host and self._partitioner.lanes_per_rank > 1
        return workers.threads if together else max(1, self._options.workers.count)

    @property
    def _decodes_on_device(self) -> bool:
        """Whether a device decodes encoded images from the window."""
        shapes = [self._options.decode.image_shape(known) for known in self._selection.fields]
        device = self._accelerator
        return device is not None and any(shape is not None and device.can_decode(shape) for shape in shapes)

    @cached_property
    def _budget(self) -> int:
        if self._options.memory_budget is not None:
            return self._options.memory_budget
        wanted = max(_MIN_BUDGET, round(1.5 * self._window_need) + 8 * self._batch_bytes)
        return min(wanted, available_memory() // 2)

    @property
    def _num_builders(self) -> int:
        if self._accelerator is not None and self._memory_needs.device_free_bytes is not None:
            return min(self._workers.threads, _DEVICE_WORKERS)
        return self._workers.threads

    @property
    def _num_threads(self) -> int:
        """Threads of a process that plan, build and read local files."""
        workers = self._workers
        if not self._reader.store.is_local:
            return workers.threads + 1
        return workers.threads if workers.processes else max(workers.threads, min(available_cores(), _MAX_READERS))

    @property
    def _accelerator(self) -> Accelerator | None:
        """The device that builds batches; None if a formatter needs them in host memory."""
        return None if self.placement is None or self._formatter.on_host else self.placement.accelerator

    @cached_property
    def _memory_needs(self) -> MemoryNeeds:
        options, accelerator = self._options, self._accelerator
        there = accelerator is not None and (accelerator.is_cuda or options.device_memory is not None)
        scattered = self._selection.scattered
        return MemoryNeeds(
            budget_bytes=self._budget,
            batch_size=options.batch_size,
            batch_bytes=self._batch_bytes,
            device_batch_bytes=self._device_batch_bytes,
            by_rows=self._formatter.by_rows,
            workers=max(1, options.workers.count),
            spans_at_once=self._spans_at_once,
            prefetch_factor=options.prefetch_factor,
            window_rows=0 if scattered else self._window_rows,
            window_bytes=0 if scattered else self._window_need,
            device_row_bytes=0 if scattered else sum(c.row_bytes for c in self._layout.fixed if on_device(c)),
            cache_bytes=self._light_bytes * max(1, self._workers.processes) if self._caches_pages else 0,
            device_free_bytes=accelerator.free_bytes() if accelerator is not None and there else None,
            device_memory=options.device_memory,
        )

    def _stream(self) -> SpanStream:
        if self._pool is not None:
            return ProcessRun(self._pool, self._formatter, self.placement)
        return self._threaded_run()

    @cached_property
    def _share(self) -> ShareEngine:
        """The engine for all rows, in this process."""
        share = LaneShare(0, 1, self._partitioner)
        return ShareEngine(
            self._source, share, self.collector, selection=self._selection, accelerator=self._accelerator
        )

    def _threaded_run(self) -> ThreadedRun:
        options, accelerator, placement = self._source.pipeline, self._accelerator, self.placement
        allocator = empty_small_pages if options.into_batch else None
        buffers = BufferPool(
            max_idle_bytes=(options.depth + 2) * options.batches_per_span * self._memory_needs.batch_bytes
            + options.into_batch * options.window_bytes,
            allocator=allocator if accelerator is None else accelerator.allocate_pinned,
        )

        def builders(gather: RowGatherer) -> list[BatchBuilder]:
            assemble = BatchAssembler(
                self._formatter, placement, self._share.replacer, self.collector, seed=self._options.seed
            )
            return [BatchBuilder(gather, assemble, lambda _: buffers.allocate)] * max(1, options.builders)

        return ThreadedRun(
            self._share.pipeline(
                builders,
                PooledBatches(buffers),
                inline=self._options.workers.count == 0,
                depth=options.depth,
                page_allocator=(
                    accelerator.allocate_pinned if accelerator is not None and self._decodes_on_device else None
                ),
                init_thread=None if placement is None else placement.accelerator.bind_thread,
            )
        )


class EngineRun:
    """A pass over the rest of an epoch and the following ones; dropping or closing it stops it."""

    def __init__(self, engine: LoaderEngine, stream: SpanStream, state: LoaderState) -> None:
        self._engine, self._stream = engine, stream
        self.state = state
        """The position after the last delivered batch."""
        self.in_progress = False
        """Whether an epoch was started and not finished; only its own iterator can continue it."""
        self._closed_because = "this loader was closed while it was read"
        self._stop = weakref.finalize(self, stream.stop)
        stream.start(state.epoch, state.consumed)

    def epoch(self) -> Iterator[Any]:
        """The batches up to the end of the epoch; then the state is the start of the next one."""
        self.in_progress = True
        self._stream.resume(self.state.epoch)
        collector, order, placement = self._engine.collector, self.state.order, self._engine.placement
        began = mark = time.perf_counter()
        first = True
        epoch_rows = bad_count = 0
        last = not self._engine.steps_from(self.state.consumed)
        while not last:
            found = self._stream.next_span()
            if found is None:
                raise InvalidInputError(self._closed_because)
            steps = found.steps
            collector.blocks_drawn += found.blocks_drawn
            collector.batches_drawn += len(steps.batch_rows)
            waiting = list(zip(found.batches, steps.batch_rows, steps.consumed, strict=False))[::-1]
            bad, padding = sorted(found.bad.items(), reverse=True), found.padding
            del found
            end = 0
            while waiting:
                if not self._stop.alive:
                    raise InvalidInputError(self._closed_because)
                batch, rows, consumed = waiting.pop()
                if isinstance(batch, Failure):
                    raise batch.error
                end += rows
                real = rows - padding
                epoch_rows += real
                while bad and bad[-1][0] < end:
                    bad_count += 1
                    self._engine.report(bad.pop()[1], bad_count, epoch_rows)
                last = steps.last and not waiting
                self.state = LoaderState(order, steps.epoch, consumed)
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
        self._stream.pause()
        self.state = LoaderState(order, self.state.epoch + 1, 0)
        self.in_progress = False

    def stop(self) -> None:
        """Stop the threads without joining them."""
        self._stop()

    def close(self, because: str | None = None) -> None:
        """Stop the threads and join them for a moment; `because` is what its iterator then raises."""
        self._closed_because = because or self._closed_because
        self._stop.detach()
        self._stream.stop(wait=True)
