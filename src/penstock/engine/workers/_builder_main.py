"""A builder: a process that makes batches of spans in the shared window, and calls the user's functions.

The contract; if the code disagrees with this list, the code is wrong:

- Builders are forked from a process that has imported the user's functions once for all of them, if it can fork: the
  contract of fork servers is in `runners`.
- A builder has no state but its maps of shared memory: a task names a span, its rows in the window, and a slot.
- It maps the window read-only, and functions get copies of what they may change.
- It does one task after the other, in its main thread, so that nothing contends for its GIL. Whatever a user's
  function, its result or its error raises becomes a message.
"""

import pickle
import time
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from penstock.device import Allocator, SharedMemory, SharedRegions, SlabColumns, arena_bytes
from penstock.engine._stats import BadSample
from penstock.engine.assembly import BatchAssembler, BatchFormatter, Failure, GatheredRows, SpanGatherer
from penstock.engine.planning import Layout
from penstock.engine.window import BuildTask
from penstock.engine.workers._messages import (
    KINDS,
    Build,
    Built,
    ProcessStats,
    RowRange,
    StatsUpdate,
    start_failure,
)
from penstock.engine.workers._slots import SlotLayout, SlotMemory
from penstock.engine.workers._source import LoaderSource
from penstock.runners import Channel, Shipment, compact, load_spec, pack, portable, read_pickled, serve, serve_forks
from penstock.table import RawColumns

_BLOCKS_CACHED = 256
_IDLE_S = 0.2
"""A builder that has no task for so long sends its statistics."""


class BuilderSpec(NamedTuple):
    """Everything that a builder has to know."""

    source: bytes
    """A `LoaderSource`, pickled, because to open a store may start threads."""
    formatter: BatchFormatter
    slots: SlotLayout


def main(channel_fd: int, spec_fd: int) -> None:
    """Serve the loader at the other end of a channel."""
    serve_forks(Channel(channel_fd, KINDS), lambda: partial(_serve_builder, load_spec(spec_fd)))


def _serve_builder(spec: BuilderSpec, channel: Channel, images: Sequence[int]) -> NoReturn:
    serve(channel, lambda: _Builder(channel, spec, images).serve, start_failure)


class _MappedWindow:
    """The window of another process."""

    def __init__(self, number: int, regions: SharedRegions, source: LoaderSource, gatherer: SpanGatherer) -> None:
        self.number, self._regions = number, regions
        layouts = [table.layout for table in source.tables]
        self._slabs = [SlabColumns(layout.fixed, table=table, regions=regions) for table, layout in enumerate(layouts)]
        self.gather = partial(gatherer, slabs=self._slabs)
        self._columns = lru_cache(_BLOCKS_CACHED)(partial(_columns, regions, layouts))

    def task(self, places: Sequence[tuple[int, int]]) -> BuildTask:
        """A task, of which each reader has a part, with the columns of its blocks."""
        return BuildTask.joined([self._part(reader, *place) for reader, place in enumerate(places)])

    def _part(self, reader: int, start: int, size: int) -> BuildTask:
        task: BuildTask = read_pickled(arena_bytes(self._regions, reader, start, size))
        for rows in task.tables:
            self._slabs[rows.table].extend(rows.slab_capacity)
            blocks = [self._columns(reader, rows.table, block) for block in rows.located.blocks]
            memory = partial(arena_bytes, self._regions, reader, 0)
            object.__setattr__(rows, "located", rows.located._replace(blocks=blocks, memory=memory))
        return task


def _columns(
    regions: SharedRegions, layouts: Sequence[Layout], reader: int, table: int, block: tuple[int, int, int, int]
) -> RawColumns:
    """The columns of a block, as the reader describes it: its number, start and size of the columns, and its rows."""
    _, start, size, rows = block
    if not size:  # it could not be read
        return RawColumns.nulls(layouts[table].variable, rows)
    return RawColumns.from_bytes(arena_bytes(regions, reader, start, size))


class _Builder:
    def __init__(self, channel: Channel, spec: BuilderSpec, images: Sequence[int]) -> None:
        self._channel, self._formatter, self._layout = channel, spec.formatter, spec.slots
        self._source: LoaderSource = pickle.loads(spec.source)
        source, formatter, self._stats = self._source, spec.formatter, ProcessStats(self._source)
        collector = self._stats.collector
        memory = SharedMemory(images[0]) if images else None
        self._memory: SlotMemory | None = None
        """Where values go that need no copy then."""
        self._gather = source.gatherer(source.selections(), collector, images=memory, empty=self._allocate)
        if formatter.batch_transform is None:  # else what it stacks is no result
            formatter.empty = self._allocate
        self._assemble = BatchAssembler(formatter, None, self._gather, collector, row_keys=source.row_keys)
        self._window: _MappedWindow | None = None
        self._slots: dict[int, npt.NDArray[np.uint8]] = {}

    def serve(self) -> None:
        """Build until the channel is closed."""
        while True:
            started = time.perf_counter()
            if not self._channel.has_message(_IDLE_S):
                self._channel.send(StatsUpdate(self._stats.all()))
            message, descriptors = self._channel.receive()
            self._stats.collector.add_time("worker", "starved", time.perf_counter() - started)
            window = self._map(message, descriptors)
            with self._stats.collector.timed("worker", "busy"):
                built, memory = self._build(message, window)
            self._channel.send(built._replace(stats=self._stats.new()), [] if memory is None else [memory.fd])
            del built, memory, window

    def _map(self, message: Build, descriptors: Sequence[int]) -> _MappedWindow:
        """Map what the message needs, and unmap slots that are not used any more; returns the window."""
        left = list(descriptors)
        if self._window is None or self._window.number != message.window:
            regions = SharedRegions(left.pop(0), writable=False)
            self._window = _MappedWindow(message.window, regions, self._source, self._gather)
        for number in message.dropped:
            self._slots.pop(number, None)
        if message.slot not in self._slots:
            self._slots[message.slot] = SharedMemory(left.pop(0)).bytes
        return self._window

    def _build(self, message: Build, window: _MappedWindow) -> tuple[Built, SharedMemory | None]:
        built = Built(message.window, message.number, message.rows, None, {}, None, None)
        try:
            task, slot = window.task(message.places), self._slots[message.slot]
            if message.rows is not None:
                return self._write_rows(built, message.rows, task, slot, window.gather), None
            bad, shipment, memory = self._make_batches(task, slot, window.gather)
            return built._replace(batches=shipment, bad=bad), memory
        except BaseException as error:
            return built._replace(batches=portable(error)), None

    def _write_rows(
        self,
        built: Built,
        rows: RowRange,
        task: BuildTask,
        slot: npt.NDArray[np.uint8],
        gather: partial[GatheredRows],
    ) -> Built:
        first, end = rows
        columns = self._layout.arrays(SlotMemory(slot), task.steps.rows)
        columns = {name: values[first:end] for name, values in columns.items()}
        gathered = gather(task.part(first, end), empty=partial(_allocator, columns))
        _write(columns, gathered)
        failure = None
        if gathered.failure is not None:
            failure = first + gathered.failure[0], portable(gathered.failure[1])
        return built._replace(bad={first + index: bad for index, bad in gathered.bad.items()}, failure=failure)

    def _make_batches(
        self, task: BuildTask, slot: npt.NDArray[np.uint8], gather: partial[GatheredRows]
    ) -> tuple[dict[int, BadSample], Shipment, SharedMemory | None]:
        """Make all batches of a span; returns the rows that were replaced, and the batches for the loop."""
        memory, functions = SlotMemory(slot), self._formatter.on_host
        columns = {} if functions else self._layout.arrays(memory, task.steps.rows)
        self._memory = None if functions else memory
        gathered = gather(task, empty=partial(_allocator, columns))
        self._memory = memory if functions else None
        batches = [
            portable(batch.error) if isinstance(batch, Failure) else compact(self._formatter.to_transport(batch))
            for batch in self._assemble(task, gathered).batches
        ]
        gathered.columns = {}  # before their successors are packed
        return gathered.bad, *pack(batches, slot)

    def _allocate(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.empty(shape, dtype) if self._memory is None else self._memory.allocate(shape, dtype)


def _allocator(columns: dict[str, npt.NDArray[Any]], name: str) -> Allocator:
    """The memory of a column in the slot, if it fits there."""
    column = columns.get(name)

    def allocate(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        if column is not None and column.shape == tuple(shape) and column.dtype == dtype:
            return column
        return np.empty(shape, dtype)

    return allocate


def _write(columns: dict[str, npt.NDArray[Any]], gathered: GatheredRows) -> None:
    """Write columns to the slot that are not there yet."""
    for name, values in columns.items():
        written = gathered.columns.get(name)
        if written is not None and not np.may_share_memory(values, written):
            values[:] = written
