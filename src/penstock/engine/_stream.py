"""Build the pipeline for a table, some options and a rank, and run it."""

import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from operator import itemgetter
from typing import Any, Literal

from penstock.device import Accelerator, HostBuffers, in_small_pages
from penstock.engine._collate import Collator
from penstock.engine._decode import DecodeOptions
from penstock.engine._fetch import Fetcher
from penstock.engine._kept import KeptPages
from penstock.engine._pipeline import Pipeline
from penstock.engine._planner import Planner, PlanOptions
from penstock.engine._selection import Selection
from penstock.engine._shares import Needs, share_out
from penstock.engine._slab import DeviceSlab, Layout, Slab, on_device, placeable
from penstock.engine._stats import BadSample, Gauge, LoaderStats
from penstock.engine._window import Window
from penstock.engine._work import BadPolicy, Failure, Finish, Placement, Worker
from penstock.errors import InvalidInputError
from penstock.plan import IN_ORDER, Dealer, Order, Quality, State, choose_shuffle, perfect_blocks
from penstock.table import Reader, Rows
from penstock.types import World

_STRETCH_ROWS, _STRETCH_BYTES, _STRETCH_LANE_ROWS = 16 << 10, 1 << 30, 16
_KEPT_BYTES = 64 << 20
_MAX_FETCHERS, _MAX_READERS, _READERS_FOR_PROCESSES = 96, 10, 2
_LEAST_BUDGET = 1 << 30
_DEVICE_WORKERS = 3  # one asks a device while it does what the others asked for; more are in each other's way
_WHOLE_NUMBERS = {
    "batch_size": 1, "num_workers": 0, "prefetch_factor": 1, "seed": None, "lanes": None, "block_bytes": None,
}  # fmt: skip
"""Options that are whole numbers, and the least of each; the shuffle knows its own bounds."""


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """How a table is streamed."""

    batch_size: int
    shuffle: bool
    seed: int
    num_workers: int
    """Threads, or processes, that decode, gather and transform; 0 does that in the loop's own thread."""
    prefetch_factor: int
    """Batches that each worker has ready ahead of the loop."""
    drop_last: bool
    memory_budget: int | None
    """Bytes for everything that is fetched, decoded or waiting; None takes what the shuffle needs."""
    lanes: int | None = None
    block_bytes: int | None = None
    spread: float | None = None
    decode: DecodeOptions = field(default_factory=DecodeOptions)
    bad: BadPolicy = field(default_factory=lambda: BadPolicy(False, None, 0))
    worker_type: Literal["thread", "process"] = "thread"
    device_memory: int | None = None
    """Bytes of a device's memory for the window; None takes a modest part of what is free."""

    def __post_init__(self) -> None:
        for name, least in _WHOLE_NUMBERS.items():
            value = getattr(self, name)
            if value is None and name in ("lanes", "block_bytes"):
                continue
            if not isinstance(value, Integral) or (least is not None and value < least):
                wanted = "" if least is None else f" of at least {least}"
                given = "shuffle_block" if name == "block_bytes" else name
                raise InvalidInputError(f"{given} must be a whole number{wanted}, not {value!r}")
            object.__setattr__(self, name, int(value))  # numpy's would not go into a state
        if self.memory_budget is not None and self.memory_budget < 1 << 20:
            raise InvalidInputError(f"memory_budget is a number of bytes, at least 1 MiB, not {self.memory_budget}")
        if self.device_memory is not None and self.device_memory < 1 << 20:
            raise InvalidInputError(f"device_memory is a number of bytes, at least 1 MiB, not {self.device_memory}")
        if self.worker_type not in ("thread", "process"):
            raise InvalidInputError(f'worker_type is "thread" or "process", not {self.worker_type!r}')

    def flags(self, world: World) -> bool:
        """Whether batches say which of their rows stand in for others."""
        return self.bad.tolerant or (world.num_ranks > 1 and not self.drop_last)


class Stream:
    """Rows and columns of a table in the order of a plan, for one rank; `run` reads them."""

    def __init__(
        self,
        reader: Reader,
        names: Sequence[str],
        rows: range | Rows,
        *,
        world: World,
        options: StreamOptions,
        finishers: Sequence[Finish],
        placement: Placement | None,
        gauge: Gauge,
    ) -> None:
        """One finisher for each worker, or one for the loop's own thread."""
        options.decode.check(reader.snapshot.schema)
        self._reader, self._names, self._options = reader, tuple(names), options
        self.finishers, self.placement, self.gauge = finishers, placement, gauge
        self._selection = Selection(reader, names, rows, shuffled=options.shuffle)
        row_bytes = self._selection.heavy_row_bytes
        shuffle = (
            choose_shuffle(
                round(row_bytes * len(rows)), row_bytes,
                lanes=options.lanes, block_bytes=options.block_bytes, spread=options.spread,
            )
            if options.shuffle
            else IN_ORDER
        )  # fmt: skip
        self.order = Order(
            table=reader.store.uri,
            version=reader.name,
            snapshot=self._selection.snapshot_digest,
            selection=self._selection.digest,
            rows=len(rows),
            seed=options.seed,
            shuffled=options.shuffle,
            shuffle=shuffle,
        )
        self.world = world
        self._dealer = Dealer(
            len(rows), min(shuffle.lanes, max(1, len(rows))), world, options.batch_size, options.drop_last
        )
        self._retries = reader.store.retries
        fits = 0 < self._light_bytes <= min(_KEPT_BYTES, self._budget // 8)
        self._kept = KeptPages(reader.store) if fits else None

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return self._dealer.steps()

    def steps_from(self, consumed: int) -> int:
        """Steps to the end of an epoch of which so many positions have been read."""
        return self._dealer.steps(consumed)

    def run(self, state: State) -> "Run":
        """Read on from some point."""
        return Run(self, self._pipeline(), state)

    def report(self, bad: BadSample) -> None:
        """A sample of the batch that is about to be delivered was bad; raises if it was one too many."""
        policy = self._options.bad
        count = self.gauge.spoil(bad)
        if policy.tell is not None:
            policy.tell(bad)
        policy.check(count, self.gauge.rows)

    def stats(self) -> LoaderStats:
        gauge, options, counted = self.gauge, self._options, self.gauge.counted()
        blocks = self.order.rows / self._selection.block_rows(self.order.shuffle)
        quality = None
        if options.shuffle and gauge.batches_drawn:
            drawn = gauge.blocks_drawn / gauge.batches_drawn
            quality = Quality(drawn, perfect_blocks(min(options.batch_size, max(1, self.order.rows)), blocks))
        return LoaderStats(
            seconds=gauge.seconds,
            rows=gauge.rows,
            batches=gauge.batches,
            bytes=counted.bytes,
            gets=counted.gets,
            latency_s=counted.latency_s,
            retries=self._reader.store.retries - self._retries,
            hedges=gauge.hedges,
            read_factor=self._dealer.read_factor,
            window_bytes=gauge.window_bytes,
            window_peak_bytes=gauge.window_peak_bytes,
            device_bytes=counted.device_bytes,
            budget_bytes=self._budget,
            first_batch_s=gauge.first_batch_s,
            stages=counted.stages,
            quality=quality,
            bad_samples=tuple(gauge.bad),
            bad_count=gauge.bad_count,
            notes=tuple(gauge.notes),
        )

    @property
    def _window_need(self) -> int:
        """Bytes that the window takes when it holds all blocks that rows are drawn from, with some on the way."""
        return round(self._window_rows * self._selection.row_bytes)

    @property
    def _window_rows(self) -> float:
        shuffle, rows = self.order.shuffle, self._selection.block_rows(self.order.shuffle)
        held = self._dealer.rank_lanes * (1 + shuffle.spread) + 4
        return held * min(rows, max(1, self.order.rows))

    @property
    def _stretch_rows(self) -> int:
        """Rows that are planned together: not too many to wait for, and enough of each lane to be worth its while."""
        rows = round(_STRETCH_BYTES / self._selection.row_bytes)
        return min(_STRETCH_ROWS, max(rows, _STRETCH_LANE_ROWS * self._dealer.rank_lanes))

    @property
    def _light_bytes(self) -> int:
        """Bytes of all columns but the heaviest, in the whole table: pages are kept whole, whatever rows are chosen."""
        rows = self._reader.snapshot.live
        return round((self._selection.row_bytes - self._selection.heavy_row_bytes) * rows)

    @property
    def _batch_bytes(self) -> int:
        """Bytes of a batch in this process's memory."""
        device = self._accelerator
        return self._with_pictures(lambda shape: device is None or not device.decodes(shape))

    @property
    def _device_batch_bytes(self) -> int:
        """Bytes of a batch on a device, about: a function of the user's may make more of them."""
        return 2 * self._with_pictures(lambda _: True)

    def _with_pictures(self, counts: Callable[[Sequence[int]], bool]) -> int:
        size = self._selection.row_bytes
        for known in self._selection.fields:
            shape = self._options.decode.picture_shape(known)
            if shape is not None and counts(shape):
                size += shape[0] * shape[1] * (shape[2] if len(shape) > 2 else 1)
        return round(self._options.batch_size * size)

    @property
    def _decodes_there(self) -> bool:
        """Whether a device reads encoded pictures from the window."""
        shapes = [self._options.decode.picture_shape(known) for known in self._selection.fields]
        device = self._accelerator
        return device is not None and any(shape is not None and device.decodes(shape) for shape in shapes)

    @property
    def _budget(self) -> int:
        if self._options.memory_budget is not None:
            return self._options.memory_budget
        wanted = max(_LEAST_BUDGET, round(1.5 * self._window_need) + 8 * self._batch_bytes)
        return min(wanted, _memory_bytes() // 2)

    @property
    def _hands(self) -> int:
        """Threads that plan and work, and read local files; those that wait for a process do nothing else."""
        workers, apart = self._options.num_workers, self._options.worker_type == "process"
        if self._reader.store.fan_out > 1:
            return workers + 1
        if apart:
            return workers + _READERS_FOR_PROCESSES
        return max(workers, min(available_cores(), _MAX_READERS))

    @property
    def _accelerator(self) -> Accelerator | None:
        """The device that batches are made on, if nobody wants to see them, or their rows, in this process's memory."""
        on_host = any(finish.on_host for finish in self.finishers)
        return None if self.placement is None or on_host else self.placement.accelerator

    def _needs(self, layout: Layout) -> Needs:
        options, accelerator = self._options, self._accelerator
        there = accelerator is not None and (accelerator.is_cuda or options.device_memory is not None)
        return Needs(
            budget_bytes=self._budget,
            batch_size=options.batch_size,
            batch_bytes=self._batch_bytes,
            device_batch_bytes=self._device_batch_bytes,
            by_rows=any(finish.by_rows for finish in self.finishers),
            workers=max(1, options.num_workers),
            prefetch_factor=options.prefetch_factor,
            window_rows=0 if self._selection.scattered else self._window_rows,
            row_bytes=max(self._selection.row_bytes, sum(column.row_bytes for column in layout.fixed)),
            device_row_bytes=(
                0
                if self._selection.scattered
                else sum(column.row_bytes for column in layout.fixed if on_device(column))
            ),
            kept_bytes=self._light_bytes if self._kept is not None else 0,
            device_free_bytes=accelerator.free_bytes() if accelerator is not None and there else None,
            device_memory=options.device_memory,
        )

    def _pipeline(self) -> Pipeline:
        options, selection, gauge, accelerator = self._options, self._selection, self.gauge, self._accelerator
        layout = Layout(self._reader.snapshot.schema, self._names)
        needs = self._needs(layout)
        shares = share_out(needs)
        for note in shares.notes:
            gauge.note(note)
        span_rows = shares.per_span * options.batch_size
        whole = self._dealer.owns_lanes or self.order.shuffle.spread > 0
        by_blocks = shares.fits and whole and not selection.scattered
        slab: Slab
        if accelerator is not None and by_blocks and shares.on_device:
            slab = DeviceSlab(layout.fixed, shares.device_rows, accelerator=accelerator, crossed=gauge.crossed)
        else:
            slab = Slab(layout.fixed, round(4 * (shares.window_bytes / needs.row_bytes + span_rows)))
        places = by_blocks and not isinstance(slab, DeviceSlab) and self._reader.store.straight
        places = places and any(placeable(column) for column in layout.fixed)
        buffers = HostBuffers(
            keep_bytes=(shares.depth + 2) * shares.per_span * needs.batch_bytes + places * shares.window_bytes,
            allocate=accelerator.pinned if accelerator is not None else in_small_pages if places else None,
        )
        window = Window(
            self._reader, layout, slab,
            budget_bytes=shares.window_bytes, heavy=selection.heaviest, kept=self._kept, gauge=gauge,
            allocate=accelerator.pinned if accelerator is not None and self._decodes_there else None,
            batches=buffers if places else None,
        )  # fmt: skip
        plan_options = PlanOptions(
            span_rows=span_rows,
            stretch_rows=self._stretch_rows if by_blocks else span_rows,
            by_blocks=by_blocks,
            trim=not options.bad.tolerant,
            tell=places,
        )
        planner = Planner(selection, self.order, self._dealer, plan_options)
        remote = self._reader.store.fan_out > 1
        return Pipeline(
            planner, window, Fetcher(gauge, max_threads=_MAX_FETCHERS) if remote else None,
            self._workers(layout, slab, buffers, needs),
            hands=self._hands, inline=options.num_workers == 0, tolerant=options.bad.tolerant, depth=shares.depth,
            gauge=gauge, enter=None if self.placement is None else self.placement.accelerator.adopt,
        )  # fmt: skip

    def _workers(self, layout: Layout, slab: Slab, buffers: HostBuffers, needs: Needs) -> list[Worker]:
        options, accelerator = self._options, self._accelerator
        apart = options.worker_type == "process"
        collator = Collator(self._reader, layout, options.decode, buffers.empty, accelerator, apart=apart)
        count = len(self.finishers) if needs.device_free_bytes is None else _DEVICE_WORKERS
        return [
            Worker(
                collator, slab, finish, self.placement, options.bad, self.gauge,
                selection=self._selection, seed=options.seed, flag=options.flags(self.world),
            )
            for finish in self.finishers[:count]
        ]  # fmt: skip


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Run:
    """A pass over the rest of an epoch, and over those that follow; dropped or closed, it stops its threads."""

    def __init__(self, stream: Stream, pipeline: Pipeline, state: State) -> None:
        self._stream, self._pipeline = stream, pipeline
        self.state = state
        """The point up to which batches have been delivered."""
        self.under_way = False
        """Whether an epoch has been begun and not read to its end: then only its own iterator can go on."""
        self._stop = weakref.finalize(self, pipeline.stop)
        pipeline.start(state.epoch, state.consumed)

    def epoch(self) -> Iterator[Any]:
        """The batches up to the end of the epoch; then the state is that of the next one's beginning."""
        self.under_way = True
        gauge, order, placement = self._stream.gauge, self.state.order, self._stream.placement
        began = mark = time.perf_counter()
        first = True
        last = not self._stream.steps_from(self.state.consumed)
        while not last:
            span, batches = self._pipeline.next_span()
            gauge.blocks_drawn += span.blocks_drawn
            gauge.batches_drawn += len(span.batch_rows)
            waiting = list(zip(batches, span.batch_rows, span.consumed, strict=False))[::-1]  # a failure comes last
            del batches
            spoilt = sorted(span.bad, key=itemgetter(0), reverse=True)
            end = 0
            while waiting:
                if not self._stop.alive:
                    raise InvalidInputError("this loader was closed while it was read")
                batch, rows, consumed = waiting.pop()
                if isinstance(batch, Failure):
                    raise batch.error
                end += rows
                while spoilt and spoilt[-1][0] < end:
                    self._stream.report(spoilt.pop()[1])
                last = span.last and not waiting
                self.state = State(order, span.epoch, consumed)
                now = time.perf_counter()
                gauge.seconds += now - mark
                mark = now
                if first:
                    gauge.first_batch_s, first = now - began, False
                gauge.rows += rows
                gauge.batches += 1
                yield batch if placement is None else placement.hand_over(batch)
                del batch
                now = time.perf_counter()
                gauge.add("loop", "busy", now - mark)
                gauge.seconds += now - mark
                mark = now
        self.state = State(order, self.state.epoch + 1, 0)
        self.under_way = False

    def stop(self) -> None:
        """Stop the threads, and do not wait for them."""
        self._stop()

    def close(self) -> None:
        """Stop the threads, and give them a moment to end."""
        self._stop.detach()
        self._pipeline.stop(wait=True)
