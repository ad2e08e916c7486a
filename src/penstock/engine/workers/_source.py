"""What a rank reads, and how: the planner, the window and the gatherer of its rows, in any process."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from penstock.device import (
    Accelerator,
    Allocator,
    Arena,
    BufferPool,
    ByteAllocator,
    DeviceSlab,
    ImageCache,
    SharedImageCache,
    SharedMemory,
    SharedRegions,
    Slab,
    ThreadImageCache,
)
from penstock.engine._options import LoaderOptions
from penstock.engine._stats import BadSample, StatsCollector
from penstock.engine.assembly import (
    PAD,
    SOURCE,
    ColumnShape,
    MixedColumns,
    RowKeys,
    SpanGatherer,
    TableRows,
    new_collator,
    sample_shapes,
    shared_image_shapes,
)
from penstock.engine.planning import Planner, PlanOptions, Selection, Span, TablePlanner
from penstock.engine.sources import OrderedSource
from penstock.engine.window import TableWindow, Window
from penstock.plan import BuildAhead, RankPartitioner, Schedule, SpanSteps, derive_key, random_u64
from penstock.storage import Fetcher
from penstock.table import Int64Array, PageCache, PageRuns

_MAX_IDLE_PAGE_BYTES, _IDLE_PAGE_SHARE = 64 << 20, 8
"""Limits of idle page buffers of a table: bytes, and fraction (1/n) of the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions(PlanOptions):
    """How the rows of a table are read."""

    by_row: int
    """Builders read large rows of local files themselves, if a page holds at most so many of them."""
    slab_rows: int
    image_cache_bytes: int
    """For decoded images that windows share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """How a rank reads; decided once for all its workers."""

    tables: tuple[TableOptions, ...]
    plan_rows: int
    """Rows that are planned together."""
    batches_per_span: int
    spans: BuildAhead
    """Spans that are built ahead of the loop; to be copied by each run."""
    window_bytes: int
    on_device: bool
    """Whether the slab is in device memory."""
    threads: int
    """Threads that plan and read local files, and without worker processes build."""
    builders: int
    """How many of them may build at a time."""
    fetch_threads: int
    """Largest number of requests in flight to a remote store, of a reader."""
    readers: int = 1
    """Processes that read, if processes build: each has some of the lanes and of the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSource:
    """The rows of a rank and how they are read; a worker process gets a copy."""

    tables: tuple[OrderedSource, ...]
    names: tuple[str, ...]
    """The columns of batches."""
    partitioner: RankPartitioner
    options: LoaderOptions
    pipeline: PipelineOptions
    functions: bool
    """Whether functions get the values of rows."""
    keys: bool
    """Whether tasks have keys of random numbers."""

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.partitioner, self.pipeline.batches_per_span)

    def row_keys(self, steps: SpanSteps, keys: Int64Array) -> RowKeys:
        """Keys of the random numbers of a span's rows, given their `key_ids`, which in a mixture have the epoch."""
        return RowKeys(self.options.seed, 0 if self.is_mixture else steps.epoch, keys)

    def key_ids(self, span: Span) -> Int64Array:
        """What tells the random numbers of a span's rows apart: row ids; each draw of a row has its own.

        In a mixture they depend on the seed and the epoch of the table too.
        """
        keys = np.zeros(span.steps.rows, np.int64)
        for rows in span.tables:
            table, row_keys = self.tables[rows.table], rows.row_ids
            if self.is_mixture:
                row_ids, epochs = row_keys, np.broadcast_to(rows.epochs, len(rows))
                row_keys = np.empty(len(rows), np.int64)
                for epoch in np.unique(epochs).tolist():
                    key, here = derive_key(table.order.seed, epoch), epochs == epoch
                    row_keys[here] = random_u64(key, row_ids[here]).view(np.int64)
            if table.draw is not None:
                row_keys = row_keys ^ random_u64(0, self._draws(span.steps)[rows.places]).view(np.int64)
            keys[rows.places] = row_keys
        return keys

    def _draws(self, steps: SpanSteps) -> Int64Array:
        """The numbers of a span's rows in the order of their table, of a single one in the epoch."""
        numbers = np.empty(steps.rows, np.int64)
        for source in self.partitioner.source_rows(steps):
            numbers[source.places] = source.numbers
        return numbers if self.is_mixture else numbers - steps.epoch * self.partitioner.rows

    @property
    def is_mixture(self) -> bool:
        return self.tables[0].name is not None

    @property
    def needs_positions(self) -> bool:
        """Whether builders have to know which rows of the table they get: to name, or replace, a bad one."""
        if self.functions or self.options.bad_samples.tolerant:
            return True
        each = zip(self.tables, self.pipeline.tables, strict=True)
        return any(options.by_row or table.layout.variable for table, options in each)

    @property
    def mixed_columns(self) -> MixedColumns | None:
        """The columns of a mixture; None for a single table."""
        layouts = {table.name: table.layout for table in self.tables if table.name is not None}
        return MixedColumns.of(layouts, self.names, self.options.decode) if layouts else None

    @property
    def fixed_columns(self) -> dict[str, ColumnShape]:
        """The columns of batches whose rows have a fixed shape."""
        mixed = self.mixed_columns
        if mixed is None:
            shapes = sample_shapes(self.tables[0].layout, self.options.decode)
        else:
            shapes = {column.name: column.fixed for column in mixed.columns if column.fixed is not None}
            shapes[SOURCE] = ColumnShape(np.dtype(np.int64), (), None)
        if self.options.flags_rows(self.partitioner.world):
            shapes[PAD] = ColumnShape(np.dtype(bool), (), None)
        return shapes

    def selections(self) -> list[Selection]:
        """The selected rows and columns of each table."""
        return [table.selection(shuffled=table.order.shuffled, seed=table.order.seed) for table in self.tables]

    def planner(self, selections: Sequence[Selection], reader: int = 0) -> Planner:
        """A planner of the rows of a reader."""
        tables = [
            TablePlanner(number, selections[number], self.tables[number].order, options)
            for number, options in enumerate(self.pipeline.tables)
        ]
        readers = self.pipeline.readers
        return Planner(tables, self.schedule, self.pipeline.plan_rows, reader=reader, readers=readers)

    def fetcher(self, collector: StatsCollector) -> Fetcher[PageRuns] | None:
        """Threads for remote stores; None if all are local."""
        if all(table.reader.store.is_local for table in self.tables):
            return None
        return Fetcher(collector, max_threads=self.pipeline.fetch_threads)

    def window(
        self,
        selections: Sequence[Selection],
        collector: StatsCollector,
        page_caches: Sequence[PageCache | None],
        *,
        regions: SharedRegions | None = None,
        arena: Arena | None = None,
        reader: int = 0,
        accelerator: Accelerator | None = None,
        page_allocator: ByteAllocator | None = None,
    ) -> Window:
        """An empty window, in memory of this process, or in that of `regions` and `arena`, which processes share."""
        options, window_bytes = self.pipeline, self.pipeline.window_bytes // self.pipeline.readers
        tables: list[TableWindow] = []
        for number, table in enumerate(self.tables):
            layout, rows = table.layout, options.tables[number].slab_rows
            slab: Slab
            if options.on_device and accelerator is not None:
                slab = DeviceSlab(layout.fixed, rows, accelerator=accelerator, on_copied=collector.record_device_copy)
            else:
                slab = Slab(layout.fixed, rows // options.readers, table=number, regions=regions, reader=reader)
            # `page_allocator` gives pinned memory, and allocating that synchronises the device: keep all of it.
            idle = window_bytes if page_allocator else min(_MAX_IDLE_PAGE_BYTES, window_bytes // _IDLE_PAGE_SHARE)
            window = TableWindow(
                selections[number], layout, slab,
                page_cache=page_caches[number], by_row=options.tables[number].by_row,
                page_buffers=BufferPool(idle, page_allocator), arena=arena,
                encoded={field.name for field in layout.variable if self.options.decode.decodes(field)} - layout.videos,
            )  # fmt: skip
            tables.append(window)
        return Window(tables, window_bytes, collector)

    def page_caches(self) -> list[PageCache | None]:
        """For each table one that all its windows share, if its light columns are cached."""
        each = zip(self.tables, self.pipeline.tables, strict=True)
        return [PageCache(table.reader.store) if options.pages_cached else None for table, options in each]

    @property
    def _shared_images(self) -> list[tuple[int, dict[str, tuple[int, ...]]]]:
        """For each table the bytes, and the shapes by column, of decoded images that windows share."""
        each = zip(self.tables, self.pipeline.tables, strict=True)
        return [
            (options.image_cache_bytes, shared_image_shapes(table.layout, self.options.decode.only(table.layout.names)))
            for table, options in each
        ]

    @property
    def shared_image_bytes(self) -> int:
        """Bytes of the memory for decoded images that worker processes share."""
        return sum(SharedImageCache.bytes_for(*each) for each in self._shared_images if all(each))

    def image_caches(self, memory: SharedMemory | None) -> list[ImageCache | None]:
        """For each table the decoded images that its windows share, in memory of this process or of all."""
        caches: list[ImageCache | None] = []
        start = 0
        for size, shapes in self._shared_images:
            if not size or not shapes:
                caches.append(None)
            elif memory is None:
                caches.append(ThreadImageCache(size))
            else:
                caches.append(SharedImageCache(memory, start, size, shapes))
                start += SharedImageCache.bytes_for(size, shapes) // 8 * 8
        return caches

    def gatherer(
        self,
        selections: Sequence[Selection],
        collector: StatsCollector,
        accelerator: Accelerator | None = None,
        images: SharedMemory | None = None,
        empty: Allocator | None = None,
    ) -> SpanGatherer:
        """What gathers rows, and replaces bad ones.

        Decoded images of windows may be in memory of all processes, `images`, and images of any shape in that of
        `empty`.
        """
        mixed = self.mixed_columns
        there = accelerator if mixed is None else None
        tables: list[TableRows] = []
        for table, selection, cache in zip(self.tables, selections, self.image_caches(images), strict=True):
            collator = new_collator(
                table.reader, table.layout, self.options.decode.only(table.layout.names), there,
                images=cache if there is None else None,
            )  # fmt: skip
            collator.on_read, collator.empty_any_shape = collector.record_get, empty
            tables.append(TableRows(collator, selection, table.order.seed))
        return SpanGatherer(
            tables, self.options.bad_samples, flag=self.options.flags_rows(self.partitioner.world), mixed=mixed
        )


class DeliveredSpan(NamedTuple):
    """The batches of a span, for the loop."""

    steps: SpanSteps
    batches: Sequence[Any]
    """A `Failure` is the last item."""
    bad: dict[int, BadSample]
    """Rows of the span that were replaced."""
    blocks_drawn: int
    padding: int
    """Rows that only pad the last step."""
