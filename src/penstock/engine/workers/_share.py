"""The engine for a share of a rank's rows: all of them in this process, or some lanes in a worker process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from penstock.device import Accelerator, ByteAllocator
from penstock.engine._memory_budget import BuildAhead, SpanMemory
from penstock.engine._options import LoaderOptions
from penstock.engine._stats import BadSample, StatsCollector
from penstock.engine.assembly import (
    Gatherer,
    MixedColumn,
    MixedGatherer,
    MixedRows,
    RowGatherer,
    RowKeys,
    RowReplacer,
    mixed_columns,
    new_collator,
)
from penstock.engine.planning import Layout, MixedPlanner, Planner, PlanOptions, Rows, Selection, make_selection
from penstock.engine.window import (
    BatchMemory,
    DeviceSlab,
    Fetcher,
    MixedBatches,
    MixedWindow,
    PageCache,
    Slab,
    Window,
    WindowBudget,
)
from penstock.engine.workers._pipeline import AnyPlanner, AnyWindow, Pipeline
from penstock.plan import (
    LaneShare,
    MixturePartitioner,
    MixtureShare,
    OrderSpec,
    RankPartitioner,
    Schedule,
    SpanSteps,
    WeightedDraw,
    random_u64,
)
from penstock.table import Int64Array, Reader

Built = TypeVar("Built")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """How the rows of a table are read."""

    plan: PlanOptions
    into_batch: bool
    """Whether large rows are read directly into batches."""
    slab_rows: int
    cache_pages: bool
    """Whether pages of light columns are cached."""
    image_cache_bytes: int
    """For decoded images that windows share, of one process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """How the pipelines of a rank are built; decided once for all its workers."""

    tables: tuple[TableOptions, ...]
    plan_rows: int
    """Rows of a mixture that are planned together."""
    batches_per_span: int
    spans: SpanMemory
    """Spans that are built, or read into batches, ahead of the loop."""
    window_bytes: int
    """Of one process."""
    on_device: bool
    """Whether the slab is in device memory."""
    threads: int
    """Threads of one process that plan, build and read local files."""
    builders: int
    """How many of them may build at a time."""
    fetch_threads: int
    """Largest number of requests in flight to a remote store, of one process."""

    @property
    def into_batch(self) -> bool:
        return any(table.into_batch for table in self.tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """Rows and columns of a table, and their order."""

    name: str
    """In a mixture."""
    reader: Reader
    names: tuple[str, ...]
    rows: Rows
    draw: WeightedDraw | None
    order: OrderSpec

    @property
    def layout(self) -> Layout:
        return Layout(self.reader.snapshot.schema, self.names, self.rows)

    def selection(self) -> Selection:
        """The selected rows and columns."""
        order = self.order
        return make_selection(
            self.reader, self.names, self.rows, shuffled=order.shuffled, draw=self.draw, seed=order.seed
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSource:
    """The rows of a rank and how they are read; a worker process gets a copy."""

    tables: tuple[TableSource, ...]
    names: tuple[str, ...]
    """The columns of batches."""
    partitioner: RankPartitioner
    options: LoaderOptions
    pipeline: PipelineOptions

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.partitioner, self.pipeline.batches_per_span)

    def row_keys(self, steps: SpanSteps, row_ids: Int64Array) -> RowKeys:
        """Keys of the random numbers of a span's rows; each draw of a row has its own."""
        drawn = np.array([table.draw is not None for table in self.tables])
        if drawn.any() and isinstance(self.partitioner, MixturePartitioner):
            sources, numbers, *_ = self.partitioner.rank_rows(steps)
            row_ids = np.where(drawn[sources], row_ids ^ random_u64(0, numbers).view(np.int64), row_ids)
        elif drawn.any():
            row_ids = row_ids ^ random_u64(0, self.schedule.positions(steps)[0]).view(np.int64)
        return RowKeys(self.options.seed, self.key_epoch(steps), row_ids)

    @property
    def flags_rows(self) -> bool:
        """Whether batches have a `_pad` column."""
        return self.options.flags_rows(self.partitioner.world)

    @property
    def mixed_columns(self) -> list[MixedColumn] | None:
        """The columns of a mixture; None for a single table."""
        if not isinstance(self.partitioner, MixturePartitioner):
            return None
        return mixed_columns([table.layout for table in self.tables], self.names, self.options.decode)

    def share(self, worker: int, num_workers: int) -> LaneShare | MixtureShare:
        """The rows that one of the workers builds."""
        if isinstance(self.partitioner, MixturePartitioner):
            return MixtureShare(worker, num_workers, self.partitioner)
        return LaneShare(worker, num_workers, self.partitioner)

    def padding(self, steps: SpanSteps) -> int:
        """How many rows of a span only pad the last step."""
        if steps.complete:
            return 0
        if isinstance(self.partitioner, MixturePartitioner):
            mask = self.partitioner.rank_rows(steps).padding
        else:
            mask = self.schedule.positions(steps)[1]
        return 0 if mask is None else int(np.count_nonzero(mask))

    def key_epoch(self, steps: SpanSteps) -> int:
        """The epoch that random numbers depend on; in a mixture, the keys of rows have it."""
        return 0 if isinstance(self.partitioner, MixturePartitioner) else steps.epoch


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


class SpanStream(Protocol):
    """The spans of a run, in order, made by threads or by worker processes."""

    def start(self, epoch: int, consumed: int) -> None:
        """Start to read at a position of an epoch."""

    def resume(self, epoch: int) -> None:
        """Continue to read, at most up to the end of the epoch after this one."""

    def pause(self) -> None:
        """Start no more requests until `resume`."""

    def next_span(self) -> DeliveredSpan | None:
        """The next span, None after `stop`; raises the error that occurred in it."""

    def stop(self, *, wait: bool = False) -> None:
        """End the run; with `wait`, wait for a moment until nothing of it runs."""


class ShareEngine:
    """Builds the pipelines of one share, one for each run of the loader."""

    def __init__(
        self,
        source: LoaderSource,
        share: LaneShare | MixtureShare,
        collector: StatsCollector,
        *,
        selections: Sequence[Selection],
        accelerator: Accelerator | None = None,
    ) -> None:
        """`selections` are those of the tables."""
        self._source, self._share, self._collector, self._accelerator = source, share, collector, accelerator
        self._mixed_columns = source.mixed_columns
        self._tables = [
            _Table(source, number, selection, None if self._mixed_columns is None else
                   MixedRows(number, source.tables[number].name, self._mixed_columns), accelerator)
            for number, selection in enumerate(selections)
        ]  # fmt: skip
        self.replacers = [table.replacer for table in self._tables]

    @property
    def column_names(self) -> list[str]:
        """The columns of batches, in the order in which they are gathered."""
        if self._mixed_columns is not None:
            return [column.name for column in self._mixed_columns]
        return self._source.tables[0].layout.delivered

    def pipeline(
        self,
        builders: Callable[[Gatherer], Sequence[Callable[[Any], Built]]],
        batches: BatchMemory,
        *,
        inline: bool,
        ahead: BuildAhead | None,
        page_allocator: ByteAllocator | None = None,
        init_thread: Callable[[], None] | None = None,
    ) -> Pipeline[Built]:
        """A pipeline around a new window, with the builders that `builders` makes of a gatherer.

        `batches` is the memory that large rows are read into, and `page_allocator` gives memory for pages.
        """
        source, options, collector = self._source, self._source.pipeline, self._collector
        budget = WindowBudget(options.window_bytes, collector)
        windows = [table.window(budget, batches, page_allocator, collector) for table in self._tables]
        planners = [table.planner(self._share) for table in self._tables]
        gatherers = [table.gatherer(window) for table, window in zip(self._tables, windows, strict=True)]
        gather: Gatherer = gatherers[0]
        planner: AnyPlanner = planners[0]
        window: AnyWindow = windows[0]
        if self._mixed_columns is not None and isinstance(self._share, MixtureShare):
            shared = batches if isinstance(batches, MixedBatches) else None
            gather = MixedGatherer(gatherers, self._mixed_columns, shared)
            window = MixedWindow(windows)
            orders = [table.order for table in source.tables]
            planner = MixedPlanner(
                planners, source.schedule, self._share, rows=[order.rows for order in orders],
                seeds=[order.seed for order in orders], plan_rows=options.plan_rows,
            )  # fmt: skip
        fetcher = None
        if not all(table.reader.store.is_local for table in source.tables):
            fetcher = Fetcher(collector, max_threads=options.fetch_threads)
        return Pipeline(
            planner, window, fetcher, builders(gather),
            threads=options.threads, inline=inline, tolerant=source.options.bad_samples.tolerant, ahead=ahead,
            collector=collector, init_thread=init_thread,
        )  # fmt: skip


class _Table:
    """What a share needs of one table."""

    def __init__(
        self,
        source: LoaderSource,
        number: int,
        selection: Selection,
        mixed: MixedRows | None,
        accelerator: Accelerator | None,
    ) -> None:
        self._source, self._table, self._options = source, source.tables[number], source.pipeline.tables[number]
        self._selection, self._accelerator = selection, accelerator if mixed is None else None
        self._layout = self._table.layout
        self._page_cache = PageCache(self._table.reader.store) if self._options.cache_pages else None
        decode = source.options.decode.only(self._layout.names)
        self._collator = new_collator(
            self._table.reader, self._layout, decode, self._accelerator,
            image_cache_bytes=self._options.image_cache_bytes,
        )  # fmt: skip
        self.replacer = RowReplacer(
            self._collator, selection, source.options.bad_samples, self._accelerator,
            seed=self._table.order.seed, flag=source.flags_rows, mixed=mixed,
        )  # fmt: skip

    def planner(self, share: LaneShare | MixtureShare) -> Planner:
        """A planner of the rows of the share; in a mixture, it only finds the blocks of rows."""
        own = share if isinstance(share, LaneShare) else LaneShare(0, 1, share.partitioner)
        return Planner(self._selection, self._table.order, self._source.schedule, own, self._options.plan)

    def gatherer(self, window: Window) -> RowGatherer:
        return RowGatherer(self._collator, window, self.replacer, flag=self._source.flags_rows)

    def window(
        self,
        budget: WindowBudget,
        batches: BatchMemory,
        page_allocator: ByteAllocator | None,
        collector: StatsCollector,
    ) -> Window:
        """A window of this table alone."""
        options, accelerator = self._options, self._accelerator
        slab: Slab
        if self._source.pipeline.on_device and accelerator is not None:
            slab = DeviceSlab(
                self._layout.fixed,
                options.slab_rows,
                accelerator=accelerator,
                on_copied=collector.record_device_copy,
            )
        else:
            slab = Slab(self._layout.fixed, options.slab_rows)
        return Window(
            self._table.reader, self._layout, slab,
            budget=budget, heaviest=self._selection.heaviest, page_cache=self._page_cache,
            allocate=page_allocator, batches=batches if options.into_batch else None,
        )  # fmt: skip
