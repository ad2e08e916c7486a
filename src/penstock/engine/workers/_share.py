"""The engine for a share of a rank's rows: all of them in this process, or some lanes in a worker process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from penstock.device import Accelerator, ByteAllocator
from penstock.engine._options import LoaderOptions
from penstock.engine._stats import BadSample, StatsCollector
from penstock.engine.assembly import RowGatherer, RowKeys, RowReplacer, new_collator
from penstock.engine.planning import Layout, Planner, PlanOptions, Rows, Selection, Span, make_selection
from penstock.engine.window import BatchMemory, DeviceSlab, Fetcher, PageCache, Slab, Window
from penstock.engine.workers._pipeline import Pipeline
from penstock.plan import LaneShare, OrderSpec, RankPartitioner, Schedule, SpanSteps, random_u64
from penstock.table import Int64Array, Reader

Built = TypeVar("Built")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """How the pipelines of a rank are built; decided once for all its workers."""

    plan: PlanOptions
    batches_per_span: int
    depth: int
    """Spans that are built, or read into batches, ahead of the loop."""
    into_batch: bool
    """Whether large rows are read directly into batches."""
    window_bytes: int
    """Of one process."""
    slab_rows: int
    on_device: bool
    """Whether the slab is in device memory."""
    cache_pages: bool
    """Whether pages of light columns are cached."""
    threads: int
    """Threads of one process that plan, build and read local files."""
    builders: int
    """How many of them may build at a time."""
    image_cache_bytes: int
    """For decoded images that windows share, of one process."""
    fetch_threads: int
    """Largest number of requests in flight to a remote store, of one process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSource:
    """The rows of a rank and how they are read; a worker process gets a copy."""

    reader: Reader
    names: tuple[str, ...]
    rows: Rows
    order: OrderSpec
    partitioner: RankPartitioner
    options: LoaderOptions
    pipeline: PipelineOptions

    @property
    def selection(self) -> Selection:
        """The rows of all ranks."""
        options = self.options
        return make_selection(
            self.reader, self.names, self.rows, shuffled=self.order.shuffled, draw=options.draw, seed=options.seed
        )

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.partitioner, self.pipeline.batches_per_span)

    def row_keys(self, steps: SpanSteps, row_ids: Int64Array) -> RowKeys:
        """Keys of the random numbers of a span's rows; each draw of a row has its own."""
        if self.options.draw is not None:
            row_ids = row_ids ^ random_u64(0, self.schedule.positions(steps)[0]).view(np.int64)
        return RowKeys(self.options.seed, steps.epoch, row_ids)

    @property
    def flags_rows(self) -> bool:
        """Whether batches have a `_pad` column."""
        return self.options.flags_rows(self.partitioner.world)


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
        share: LaneShare,
        collector: StatsCollector,
        *,
        selection: Selection,
        accelerator: Accelerator | None = None,
    ) -> None:
        self._source, self._share, self._collector, self._accelerator = source, share, collector, accelerator
        self._selection = selection
        self._page_cache = PageCache(source.reader.store) if source.pipeline.cache_pages else None
        self.layout = Layout(source.reader.snapshot.schema, source.names, source.rows)
        self._collator = new_collator(
            source.reader, self.layout, source.options.decode, accelerator,
            image_cache_bytes=source.pipeline.image_cache_bytes,
        )  # fmt: skip
        self.replacer = RowReplacer(
            self._collator, selection, source.options.bad_samples, accelerator,
            seed=source.options.seed, flag=source.flags_rows,
        )  # fmt: skip

    def pipeline(
        self,
        builders: Callable[[RowGatherer], Sequence[Callable[[Span], Built]]],
        batches: BatchMemory,
        *,
        inline: bool,
        depth: int | None,
        page_allocator: ByteAllocator | None = None,
        init_thread: Callable[[], None] | None = None,
    ) -> Pipeline[Built]:
        """A pipeline around a new window, with the builders that `builders` makes of a gatherer.

        `batches` is the memory that large rows are read into, and `page_allocator` gives memory for pages.
        """
        source, options, accelerator = self._source, self._source.pipeline, self._accelerator
        slab: Slab
        if options.on_device and accelerator is not None:
            slab = DeviceSlab(
                self.layout.fixed,
                options.slab_rows,
                accelerator=accelerator,
                on_copied=self._collector.record_device_copy,
            )
        else:
            slab = Slab(self.layout.fixed, options.slab_rows)
        window = Window(
            source.reader, self.layout, slab,
            budget_bytes=options.window_bytes, heaviest=self._selection.heaviest, page_cache=self._page_cache,
            collector=self._collector, allocate=page_allocator, batches=batches if options.into_batch else None,
        )  # fmt: skip
        planner = Planner(self._selection, source.order, source.schedule, self._share, options.plan)
        fetcher = None
        if not source.reader.store.is_local:
            fetcher = Fetcher(self._collector, max_threads=options.fetch_threads)
        return Pipeline(
            planner, window, fetcher,
            builders(RowGatherer(self._collator, window, self.replacer, flag=source.flags_rows)),
            threads=options.threads, inline=inline, tolerant=source.options.bad_samples.tolerant, depth=depth,
            collector=self._collector, init_thread=init_thread,
        )  # fmt: skip
