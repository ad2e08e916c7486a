"""Decide how the rows of a rank are read, by threads or by worker processes; run that."""

import time
from collections.abc import Sequence
from dataclasses import replace

from penstock.device import BufferPool, empty_small_pages
from penstock.engine._options import LoaderOptions
from penstock.engine._run import EngineRun
from penstock.engine._sizing import LoaderSizing
from penstock.engine._stats import BadSample, LoaderStats, StatsCollector
from penstock.engine.assembly import BatchAssembler, BatchBuilder, BatchFormatter, Placement, RowGatherer
from penstock.engine.planning import Layout, Rows, compaction_advice, make_selection
from penstock.engine.window import PooledBatches
from penstock.engine.workers import (
    LoaderSource,
    ProcessPool,
    ProcessRun,
    ShareEngine,
    SpanStream,
    ThreadedRun,
)
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
from penstock.table import Reader
from penstock.types import World, cached_property


class LoaderEngine:
    """Rows and columns of a table in the order of a plan, for one rank; `run` reads them."""

    def __init__(
        self,
        reader: Reader,
        names: Sequence[str],
        rows: Rows,
        *,
        world: World,
        options: LoaderOptions,
        formatter: BatchFormatter,
        placement: Placement | None,
        collector: StatsCollector,
    ) -> None:
        options.decode.check(reader.snapshot.schema)
        self.reader, self._names, self._rows, self._options = reader, tuple(names), rows, options
        self._formatter, self.placement, self.collector = formatter, placement, collector
        self._selection = make_selection(
            reader, names, rows, shuffled=options.shuffle is not None, draw=options.draw, seed=options.seed
        )
        count = len(self._selection)
        shuffle = SEQUENTIAL
        if options.shuffle is not None:
            heavy = self._selection.heavy_row_bytes
            width = max(1.0, self._selection.row_bytes / heavy)
            shuffle = resolve_shuffle(
                options.shuffle, round(heavy * count), heavy, width=width,
                shares_rows=self._selection.composition is not None,
            )  # fmt: skip
        self.order = OrderSpec(
            table=reader.store.uri,
            version=reader.name,
            snapshot=self._selection.snapshot_digest,
            selection=self._selection.digest,
            rows=count,
            seed=options.seed,
            shuffled=options.shuffle is not None,
            shuffle=shuffle,
        )
        self.world = world
        for advice in compaction_advice(reader.store.uri, reader.snapshot.nodes):
            self.collector.note(advice)
        self._partitioner = RankPartitioner(
            count, min(shuffle.lanes, max(1, count)), world, options.batch_size, options.drop_last
        )
        self._sizing = LoaderSizing(
            self._selection, Layout(reader.snapshot.schema, names, rows), shuffle, self._partitioner,
            options=options, formatter=formatter, placement=placement, collector=self.collector,
        )  # fmt: skip
        self._pool: ProcessPool | None = None
        if self._sizing.workers.processes:
            self._pool = ProcessPool(self._source, formatter, placement, self._sizing.workers, self.collector)
        self._retries = reader.store.retries

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return self._partitioner.steps()

    def run(self, state: LoaderState) -> EngineRun:
        """Start reading at a state."""
        return EngineRun(
            self._stream(), state,
            partitioner=self._partitioner, placement=self.placement, collector=self.collector, report_bad=self._report,
        )  # fmt: skip

    def close(self) -> None:
        """End the worker processes; a later run starts them again."""
        if self._pool is not None:
            self._pool.close()

    def _report(self, bad: BadSample, count: int, rows: int) -> None:
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
            retries=self.reader.store.retries - self._retries + totals.retries,
            hedges=collector.hedges + totals.hedges,
            read_factor=max(self._partitioner.read_amplification, measured),
            window_bytes=collector.window_bytes + totals.window_bytes,
            window_peak_bytes=collector.window_peak_bytes + totals.window_peak_bytes,
            device_bytes=totals.device_bytes,
            budget_bytes=self._sizing.budget_bytes,
            first_batch_s=collector.first_batch_s,
            stages=totals.stages,
            quality=quality,
            bad_samples=tuple(collector.bad),
            bad_count=collector.bad_count,
            notes=tuple(collector.notes),
            processes=self._sizing.workers.processes,
            threads=self._sizing.workers.threads,
            unanswered_s=time.perf_counter() - since if (since := collector.unanswered_since) is not None else 0.0,
        )

    @cached_property
    def _source(self) -> LoaderSource:
        """What a worker process has to know; built once, and so the same for all runs."""
        options = replace(self._options, bad_samples=replace(self._options.bad_samples, callback=None), follow=None)
        return LoaderSource(
            reader=self.reader, names=self._names, rows=self._rows, order=self.order, partitioner=self._partitioner,
            options=options, pipeline=self._sizing.pipeline_options(),
        )  # fmt: skip

    def _stream(self) -> SpanStream:
        if self._pool is not None:
            return ProcessRun(self._pool, self._formatter, self.placement)
        return self._threaded_run()

    @cached_property
    def _share(self) -> ShareEngine:
        """The engine for all rows, in this process."""
        share = LaneShare(0, 1, self._partitioner)
        return ShareEngine(
            self._source, share, self.collector, selection=self._selection, accelerator=self._sizing.accelerator
        )

    def _threaded_run(self) -> ThreadedRun:
        options, accelerator, placement = self._source.pipeline, self._sizing.accelerator, self.placement
        allocator = empty_small_pages if options.into_batch else None
        buffers = BufferPool(
            max_idle_bytes=(options.depth + 2) * options.batches_per_span * self._sizing.memory_needs.batch_bytes
            + options.into_batch * options.window_bytes,
            allocator=allocator if accelerator is None else accelerator.allocate_pinned,
        )

        def builders(gather: RowGatherer) -> list[BatchBuilder]:
            assemble = BatchAssembler(
                self._formatter, placement, self._share.replacer, self.collector, row_keys=self._source.row_keys
            )
            return [BatchBuilder(gather, assemble, lambda _: buffers.allocate)] * max(1, options.builders)

        return ThreadedRun(
            self._share.pipeline(
                builders,
                PooledBatches(buffers),
                inline=self._options.workers.count == 0,
                depth=options.depth,
                page_allocator=(
                    accelerator.allocate_pinned if accelerator is not None and self._sizing.decodes_on_device else None
                ),
                init_thread=None if placement is None else placement.accelerator.bind_thread,
            )
        )
