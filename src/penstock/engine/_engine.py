"""Decide how the rows of a rank are read, by threads or by worker processes; run that."""

import time
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from penstock.device import BufferPool
from penstock.engine._memory_budget import BuildAhead
from penstock.engine._options import LoaderOptions
from penstock.engine._run import EngineRun, Position
from penstock.engine._sizing import LoaderSizing, SizedTable
from penstock.engine._stats import LoaderStats, StatsCollector
from penstock.engine.assembly import (
    BatchAssembler,
    BatchFormatter,
    BuiltBatches,
    Placement,
    RowGatherer,
    SpanGatherer,
    array_bytes,
)
from penstock.engine.planning import Span
from penstock.engine.sources import Layouts, MixtureSource, Source, make_order
from penstock.engine.window import BuildTask
from penstock.engine.workers import LoaderSource, ProcessPool, ProcessRun, SpanStream, ThreadedRun
from penstock.plan import RankPartitioner, ShuffleQuality, State, expected_blocks
from penstock.table import PageCache, VersionLease, compaction_advice
from penstock.types import World, cached_property


class LoaderEngine:
    """Rows and columns of a table in the order of a plan, for one rank; `run` reads them."""

    def __init__(
        self,
        source: Source | MixtureSource,
        *,
        world: World,
        options: LoaderOptions,
        formatter: BatchFormatter,
        placement: Placement | None,
        collector: StatsCollector,
        layouts: Layouts = MappingProxyType({}),
    ) -> None:
        """`layouts` take the place of those that derive from the tables."""
        self.source = source
        self.order = make_order(source, world, options, layouts)
        self._options, self._tables, self._selections = options, self.order.tables, self.order.selections
        self._formatter, self.placement, self.collector = formatter, placement, collector
        self.world = world
        for table in self._tables:
            self.collector.note(*compaction_advice(table.reader))
        each = zip(self._tables, self._selections, self.order.lanes_per_rank, self.order.shares, strict=True)
        self._sized = [
            SizedTable(selection, table.layout, table.order.shuffle, lanes, self._partitioner.owns_lanes, share)
            for table, selection, lanes, share in each
        ]
        self._sizing = LoaderSizing(
            self._sized, self._partitioner,
            options=options, formatter=formatter, placement=placement, collector=self.collector,
        )  # fmt: skip
        self._new_pool()
        self._retries = sum(table.reader.store.retries for table in self._tables)

    def _new_pool(self) -> None:
        self._pool: ProcessPool | None = None
        if self._sizing.workers.processes:
            self._pool = ProcessPool(
                self._source, self._formatter, self.placement, self._sizing.workers.processes, self.collector
            )

    @property
    def _partitioner(self) -> RankPartitioner:
        return self.order.partitioner

    def resume(self, state: Mapping[str, Any]) -> State:
        """The position of a state; raises `InvalidInputError` if that has another order."""
        before = self._partitioner
        position = self.order.resume(state)
        if self._partitioner is not before:  # a mixture continues in another order
            self.close()
            vars(self).pop("_source", None)
            vars(self).pop("_parts", None)
            self._new_pool()
        return position

    def lease(self) -> VersionLease:
        """A lease of the versions that are read."""
        return VersionLease([table.reader for table in self._tables])

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return self._partitioner.steps()

    def run(self, state: State) -> EngineRun:
        """Start reading at a state."""
        stream: SpanStream
        if self._pool is None:
            stream = self._threaded_run()
        else:
            stream = ProcessRun(self._pool, self._formatter, self.placement)
        return EngineRun(
            stream, Position(state.epoch, state.consumed), partitioner=self._partitioner, placement=self.placement,
            collector=self.collector, bad_samples=self._options.bad_samples,
        )  # fmt: skip

    def close(self) -> None:
        """End the worker processes; a later run starts them again."""
        if self._pool is not None:
            self._pool.close()

    def stats(self) -> LoaderStats:
        collector, totals = self.collector, self.collector.totals()
        quality = None
        if any(table.order.shuffled for table in self._tables) and collector.batches_drawn:
            drawn = collector.blocks_drawn / collector.batches_drawn
            uniform = sum(map(self._expected_blocks, self._sized))
            quality = ShuffleQuality(min(drawn, uniform), uniform)  # blocks differ in size, so more can be drawn
        reads_again = collector.rows and any(table.plan.reads_again for table in self._source.pipeline.tables)
        stored = sum(table.share * table.selection.stored_row_bytes for table in self._sized)
        measured = totals.bytes / (collector.rows * stored) if reads_again else 0.0  # pages, for the rows of each span
        totals.retries += sum(table.reader.store.retries for table in self._tables) - self._retries
        return LoaderStats(
            **totals.summary(),
            read_factor=max(self._partitioner.read_amplification, measured),
            budget_bytes=self._sizing.budget_bytes,
            first_batch_s=collector.first_batch_s,
            quality=quality,
            bad_samples=tuple(collector.bad),
            bad_count=collector.bad_count,
            processes=self._sizing.workers.processes,
            threads=self._sizing.workers.threads,
            unanswered_s=time.perf_counter() - since if (since := totals.unanswered_since) is not None else 0.0,
        )

    def _expected_blocks(self, table: SizedTable) -> float:
        """Blocks of a table that a batch of a uniform shuffle draws from."""
        rows = len(table.selection)
        blocks = rows / table.selection.block_rows(table.shuffle.block_bytes)
        return expected_blocks(min(max(1, round(table.share * self._options.batch_size)), max(1, rows)), blocks)

    @cached_property
    def _source(self) -> LoaderSource:
        """What a worker process has to know; built once, and so the same for all runs."""
        options = replace(self._options, bad_samples=replace(self._options.bad_samples, callback=None), follow=None)
        return LoaderSource(
            tables=tuple(self._tables), names=self.order.names, partitioner=self._partitioner, options=options,
            pipeline=self._sizing.pipeline_options(),
        )  # fmt: skip

    @cached_property
    def _parts(self) -> tuple[list[PageCache | None], list[RowGatherer]]:
        """What all runs in threads share: caches of pages, and what gathers rows."""
        gatherers = self._source.gatherers(self._selections, self.collector, self._sizing.accelerator)
        return self._source.page_caches(), gatherers

    def _threaded_run(self) -> ThreadedRun:
        source, options, collector = self._source, self._source.pipeline, self.collector
        accelerator, placement, formatter = self._sizing.accelerator, self.placement, self._formatter
        page_caches, gatherers = self._parts
        pinned = None if accelerator is None else accelerator.allocate_pinned
        window = source.window(
            self._selections, collector, page_caches, accelerator=accelerator,
            page_allocator=pinned if self._sizing.decodes_on_device else None,
        )  # fmt: skip
        ahead = BuildAhead(options.spans)
        idle = (options.spans.depth + 2) * options.batches_per_span * self._sizing.memory_needs.batch_bytes
        buffers = BufferPool(max_idle_bytes=idle, allocator=pinned)
        gather = SpanGatherer(
            gatherers, [window.slab(number) for number in range(len(self._tables))], source.mixed_columns
        )
        assemble = BatchAssembler(formatter, placement, gatherers, collector, row_keys=source.row_keys)
        keys = formatter.needs_keys or (placement is not None and placement.needs_keys)
        positions = source.needs_positions or formatter.on_host

        def make_task(span: Span) -> BuildTask:
            return window.task(span, source.key_ids(span) if keys else None, positions=positions)

        def build(task: BuildTask) -> BuiltBatches:
            gathered = gather(task, lambda _: buffers.allocate)
            size = array_bytes(gathered.columns)
            built = assemble(task, gathered)
            ahead.record(max(size, array_bytes(built.batches)))
            return built

        return ThreadedRun(
            source.planner(self._selections), window, source.fetcher(collector),
            builders=[build] * max(1, options.builders), make_task=make_task,
            inline=self._options.workers.count == 0, ahead=ahead, threads=options.threads,
            tolerant=source.options.bad_samples.tolerant, collector=collector,
            init_thread=None if placement is None else placement.accelerator.bind_thread,
        )  # fmt: skip
