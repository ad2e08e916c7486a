"""A builder: a process that makes batches of spans in the shared window, and calls the user's functions.

The contract; if the code disagrees with this list, the code is wrong:

- Builders are forked from a template, which was started by exec, and has imported the user's functions once for all of
  them. It forks only while it has one thread: if what it imported has started others, it becomes a builder itself, and
  each builder needs one. It waits for the end of a builder when it is told to, so that its pid is not used before.
- A builder has no state but its maps of shared memory: a task names a span, its rows in the window, and a slot.
- It maps the window read-only, and functions get copies of what they may change.
- It does one task after the other, in its main thread, so that nothing contends for its GIL. Whatever a user's
  function, its result or its error raises becomes a message.
"""

import gc
import os
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from penstock.device import Allocator, SharedMemory, SharedRegions, SlabColumns, arena_bytes
from penstock.engine.assembly import BatchAssembler, BatchFormatter, Failure, GatheredRows, SpanGatherer
from penstock.engine.window import BuildTask
from penstock.engine.workers._messages import Build, Built, Reap, StatsUpdate
from penstock.engine.workers._process import ProcessStats, run_process, serve_loader
from penstock.engine.workers._slots import SlotLayout, SlotMemory
from penstock.engine.workers._source import LoaderSource
from penstock.runners import Channel, compact, pack, portable, read_pickled
from penstock.table import RawColumns

_BLOCKS_CACHED = 256
_IDLE_S = 0.2
"""A builder that has no task for so long sends its statistics."""


@dataclass(frozen=True, slots=True)
class BuilderSpec:
    """Everything that a builder has to know."""

    source: bytes
    """A `LoaderSource`, pickled, because to open a store may start threads."""
    formatter: bytes
    """A `BatchFormatter`, pickled."""
    slots: SlotLayout


def main(channel_fd: int, spec_fd: int) -> None:
    """Serve the loader at the other end of a channel."""
    run_process(channel_fd, spec_fd, _Template, threads=False)


class _Template:
    """What a process is before it is a builder, or builders are forked from it."""

    def __init__(self, channel: Channel, spec: BuilderSpec) -> None:
        self._channel, self._spec, self._formatter = channel, spec, pickle.loads(spec.formatter)

    def serve(self) -> None:
        """Do what the loop says until the channel is closed."""
        while True:
            message, descriptors = self._channel.receive()
            if isinstance(message, Reap):
                _, status = os.waitpid(message.pid, 0)
                self._channel.send(os.waitstatus_to_exitcode(status))
            elif message.become:
                self._channel.send(os.getpid())
                self._become_builder(descriptors)
            else:
                self._channel.send(self._fork(descriptors))
                for descriptor in descriptors:
                    os.close(descriptor)

    def _fork(self, descriptors: Sequence[int]) -> int | None:
        if _threads() > 1:
            return None
        gc.freeze()  # or a collection would copy the memory that processes share
        pid = os.fork()
        if not pid:
            self._channel.close()
            self._become_builder(descriptors)
        return pid

    def _become_builder(self, descriptors: Sequence[int]) -> NoReturn:
        channel_fd, *images = descriptors
        serve_loader(channel_fd, lambda channel: _Builder(channel, self._spec, self._formatter, images))


def _threads() -> int:
    """Threads of this process, without one of jemalloc, which starts it again in a fork."""
    names = [Path(f"/proc/self/task/{thread}/comm").read_text() for thread in os.listdir("/proc/self/task")]
    return sum("jemalloc" not in name for name in names)


class _MappedWindow:
    """The window of another process."""

    def __init__(self, source: LoaderSource, regions: SharedRegions) -> None:
        self._regions, self._layouts = regions, [table.layout for table in source.tables]
        self.slabs = [
            SlabColumns(layout.fixed, table=number, regions=regions) for number, layout in enumerate(self._layouts)
        ]
        self._blocks: dict[tuple[int, int], RawColumns] = {}
        """The block that was used longest ago comes first."""

    def task(self, places: Sequence[tuple[int, int]]) -> BuildTask:
        """A task, of which each reader has a part, with the columns of its blocks."""
        return BuildTask.joined([self._part(reader, *place) for reader, place in enumerate(places)])

    def _part(self, reader: int, start: int, size: int) -> BuildTask:
        task: BuildTask = read_pickled(arena_bytes(self._regions, reader, start, size))
        for rows in task.tables:
            self.slabs[rows.table].extend(rows.slab_capacity)
            blocks = [self._columns(reader, rows.table, *block) for block in rows.located.blocks]  # type: ignore[misc]
            memory = partial(arena_bytes, self._regions, reader, 0)
            object.__setattr__(rows, "located", rows.located._replace(blocks=blocks, memory=memory))
        return task

    def _columns(self, reader: int, table: int, number: int, start: int, size: int, rows: int) -> RawColumns:
        columns = self._blocks.pop((reader, number), None)
        if columns is None:
            columns = RawColumns.nulls(self._layouts[table].variable, rows)
            if size:
                columns = RawColumns.from_bytes(arena_bytes(self._regions, reader, start, size))
        self._blocks[reader, number] = columns
        if len(self._blocks) > _BLOCKS_CACHED:
            del self._blocks[next(iter(self._blocks))]
        return columns


class _Builder:
    def __init__(self, channel: Channel, spec: BuilderSpec, formatter: BatchFormatter, images: Sequence[int]) -> None:
        self._channel, self._formatter, self._layout = channel, formatter, spec.slots
        self._source: LoaderSource = pickle.loads(spec.source)
        source, self._stats = self._source, ProcessStats(self._source)
        collector = self._stats.collector
        memory = SharedMemory(images[0]) if images else None
        self._memory: SlotMemory | None = None
        """Where values go that need no copy then."""
        self._gatherers = source.gatherers(source.selections(), collector, images=memory, empty=self._allocate)
        if formatter.batch_transform is None:  # else what it stacks is no result
            formatter.empty = self._allocate
        self._assemble = BatchAssembler(formatter, None, self._gatherers, collector, row_keys=source.row_keys)
        self._mixed = source.mixed_columns
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
            self._map(message, descriptors)
            with self._stats.collector.timed("worker", "busy"):
                built, memory = self._build(message)
            self._channel.send(built._replace(stats=self._stats.new()), [] if memory is None else [memory.fd])
            del built, memory

    def _map(self, message: Build, descriptors: Sequence[int]) -> None:
        left = list(descriptors)
        if message.new_memory:
            self._window = _MappedWindow(self._source, SharedRegions(left.pop(0), writable=False))
        for number in message.dropped:
            self._slots.pop(number, None)
        if message.new_slot:
            self._slots[message.slot] = SharedMemory(left.pop(0)).bytes

    def _build(self, message: Build) -> tuple[Built, SharedMemory | None]:
        shipment: Any = None
        memory = failure = None
        bad: dict[int, Any] = {}
        try:
            gathered, shipment, memory = self._batches(message)
            bad = gathered.bad
            if shipment is None and gathered.failure is not None:
                failure = gathered.failure[0], portable(gathered.failure[1])
        except BaseException as error:
            shipment = portable(error)
        return Built(message.run, message.number, message.rows, shipment, bad, failure, None), memory

    def _batches(self, message: Build) -> tuple[GatheredRows, Any, SharedMemory | None]:
        assert self._window is not None
        task, slot = self._window.task(message.places), self._slots[message.slot]
        gather = SpanGatherer(self._gatherers, self._window.slabs, self._mixed)
        memory, self._memory = SlotMemory(slot), None
        columns = self._layout.arrays(memory, task.steps.rows)
        if message.rows is not None:
            first, end = message.rows
            task, columns = task.part(first, end), {name: values[first:end] for name, values in columns.items()}
            gathered = gather(task, partial(_allocator, columns))
            _write(columns, gathered)
            gathered.bad = {first + index: bad for index, bad in gathered.bad.items()}
            if gathered.failure is not None:
                gathered.failure = first + gathered.failure[0], gathered.failure[1]
            return gathered, None, None
        functions = self._formatter.on_host
        self._memory = None if functions else memory
        gathered = gather(task, partial(_allocator, {} if functions else columns))
        self._memory = SlotMemory(slot) if functions else None
        built = self._assemble(task, gathered)
        to_transport = self._formatter.to_transport
        batches = [
            portable(batch.error) if isinstance(batch, Failure) else compact(to_transport(batch))
            for batch in built.batches
        ]
        gathered.columns = {}  # before their successors are packed
        del built
        return gathered, *pack(batches, slot)

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
