"""Decide how the rows of a rank are read, by threads or by worker processes; run that."""

import time
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from penstock.device import BufferPool
from penstock.engine._options import LoaderOptions
from penstock.engine._run import EngineRun, Position
from penstock.engine._sizing import LoaderSizing
from penstock.engine._stats import LoaderStats, StatsCollector
from penstock.engine.assembly import (
    BatchAssembler,
    BatchFormatter,
    BuiltBatches,
    Placement,
    SpanGatherer,
    array_bytes,
    has_lists,
)
from penstock.engine.sources import Layouts, MixtureSource, Source, make_order
from penstock.engine.window import BuildTask
from penstock.engine.workers import LoaderSource, ProcessPool, ProcessRun, ThreadedRun
from penstock.plan import ShuffleQuality, State
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
        self._options, self._formatter, self.placement, self.collector = options, formatter, placement, collector
        self.world = world
        self._pool: ProcessPool | None = None
        for table in self.order.tables:
            collector.note(*compaction_advice(table.reader))
        self._sizing = LoaderSizing(
            self.order, options=options, formatter=formatter, placement=placement, collector=collector
        )
        self._open_pool()
        self._retries = sum(table.reader.store.retries for table in self.order.tables)

    def _open_pool(self) -> None:
        processes = self._sizing.workers.processes
        if processes:
            self._pool = ProcessPool(self._source, self._formatter, self.placement, processes, self.collector)

    def resume(self, state: Mapping[str, Any]) -> State:
        """The position of a state; raises `InvalidInputError` if that has another order."""
        before = self.order.partitioner
        position = self.order.resume(state)
        if self.order.partitioner is not before:  # a mixture continues in another order
            self.close()
            for made_of_it in ("_source", "_parts"):
                vars(self).pop(made_of_it, None)
            self._open_pool()
        return position

    def lease(self) -> VersionLease:
        """A lease of the versions that are read."""
        return VersionLease([table.reader for table in self.order.tables])

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return self.order.partitioner.steps()

    def run(self, state: State) -> EngineRun:
        """Start reading at a state."""
        stream = self._threaded_run() if self._pool is None else ProcessRun(self._pool)
        return EngineRun(
            stream, Position(state.epoch, state.consumed), partitioner=self.order.partitioner, placement=self.placement,
            collector=self.collector, bad_samples=self._options.bad_samples,
        )  # fmt: skip

    def close(self) -> None:
        """End the worker processes; a later run starts them again."""
        if self._pool is not None:
            self._pool.close()

    def stats(self) -> LoaderStats:
        collector, totals, sizing = self.collector, self.collector.totals(), self._sizing
        quality = None
        if any(table.order.shuffled for table in self.order.tables) and collector.batches_drawn:
            drawn = collector.blocks_drawn / collector.batches_drawn
            uniform = sum(table.blocks_drawn(self._options.batch_size) for table in sizing.tables)
            quality = ShuffleQuality(min(drawn, uniform), uniform)  # blocks differ in size, so more can be drawn
        read_factor = self.order.partitioner.read_amplification
        if collector.rows and any(table.reads_again for table in self._source.pipeline.tables):
            stored = sum(table.share * table.selection.stored_row_bytes for table in sizing.tables)
            read_factor = max(read_factor, totals.bytes / (collector.rows * stored))  # pages, for the rows of each span
        totals.retries += sum(table.reader.store.retries for table in self.order.tables) - self._retries
        return LoaderStats(
            **totals.summary(),
            read_factor=read_factor,
            budget_bytes=sizing.budget_bytes,
            quality=quality,
            bad_samples=tuple(collector.bad),
            processes=sizing.workers.processes,
            threads=sizing.workers.threads,
            unanswered_s=time.perf_counter() - since if (since := totals.unanswered_since) is not None else 0.0,
        )

    @cached_property
    def _source(self) -> LoaderSource:
        """What a worker process has to know; built once, and so the same for all runs."""
        options = replace(self._options, bad_samples=replace(self._options.bad_samples, callback=None), follow=None)
        formatter = self._formatter.for_worker() if self._sizing.workers.processes else self._formatter
        keys = formatter.needs_keys or (self.placement is not None and self.placement.needs_keys)
        return LoaderSource(
            tables=tuple(self.order.tables), names=tuple(self.source.names), partitioner=self.order.partitioner,
            options=options, pipeline=self._sizing.pipeline_options(), functions=formatter.on_host, keys=keys,
        )  # fmt: skip

    @cached_property
    def _parts(self) -> tuple[list[PageCache | None], SpanGatherer]:
        """What all runs in threads share: caches of pages, and what gathers rows."""
        gatherer = self._source.gatherer(self.order.selections, self.collector, self._sizing.accelerator)
        return self._source.page_caches(), gatherer

    def _threaded_run(self) -> ThreadedRun:
        source, options, collector = self._source, self._source.pipeline, self.collector
        accelerator, placement, formatter = self._sizing.accelerator, self.placement, self._formatter
        page_caches, gather = self._parts
        pinned = None if accelerator is None else accelerator.allocate_pinned
        window = source.window(
            self.order.selections, collector, page_caches, accelerator=accelerator,
            page_allocator=pinned if self._sizing.decodes_on_device else None,
        )  # fmt: skip
        ahead = replace(options.spans)
        idle = (ahead.max_depth + 2) * options.batches_per_span * self._sizing.batch_bytes
        buffers = BufferPool(max_idle_bytes=idle, allocator=pinned)
        slabs = [window.slab(number) for number in range(len(self.order.tables))]
        assemble = BatchAssembler(formatter, placement, gather, collector, row_keys=source.row_keys)

        def build(task: BuildTask) -> BuiltBatches:
            gathered = gather(task, slabs, lambda _: buffers.allocate)
            size = array_bytes(gathered.columns)
            made_anew = placement is not None or formatter.on_host or has_lists(gathered.columns)
            built = assemble(task, gathered)
            ahead.record(max(size, array_bytes(built.batches)) if made_anew else size)
            return built

        return ThreadedRun(
            source, self.order.selections, window, collector, build=build, ahead=ahead,
            init_thread=None if placement is None else placement.accelerator.bind_thread,
        )  # fmt: skip
