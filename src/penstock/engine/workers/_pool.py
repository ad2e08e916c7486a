"""The worker processes of a loader: replaced when they die, gone when the loader is."""

import os
import selectors
import socket
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import cloudpickle

from penstock.device import SharedMemory, SlotPool
from penstock.engine._stats import StatsCollector
from penstock.engine.assembly import BatchFormatter, Placement
from penstock.engine.workers._builder_main import BuilderSpec
from penstock.engine.workers._messages import KINDS
from penstock.engine.workers._pending import Delivery
from penstock.engine.workers._slots import SlotLayout
from penstock.engine.workers._source import LoaderSource
from penstock.errors import PenstockError
from penstock.runners import Channel, ForkedProcess, ForkServer, WorkerProcess

_MALLOC_MMAP_BYTES, _MALLOC_KEPT_BYTES = 4 << 20, 128 << 20
"""glibc would come to keep freed images of up to 32 MiB, some in each arena, and so twice the memory that is in use."""
_KEPT_SPANS = 2
"""What functions get of a span, and what they make of it."""
_SLOT_SLACK = 1.25
"""Bytes of a slot for results, relative to those expected; larger ones get memory of their own."""

_pools: "weakref.WeakSet[ProcessPool]" = weakref.WeakSet()


@dataclass(slots=True, eq=False)
class Worker:
    """A process that reads or builds, and what it has mapped if it builds."""

    process: WorkerProcess | ForkedProcess
    started: bool = True
    """False once it has said that it could not start."""
    window: int | None = None
    slots: set[int] = field(default_factory=set)


class ProcessPool:
    """The readers, the builders, the memory that they share, and who says what; the readers come first."""

    def __init__(
        self,
        source: LoaderSource,
        formatter: BatchFormatter,
        placement: Placement | None,
        builders: int,
        collector: StatsCollector,
    ) -> None:
        self.source, self.collector, self.num_builders = source, collector, builders
        rows = source.pipeline.batches_per_span * source.options.batch_size
        self.slot_layout = SlotLayout(source.fixed_columns, rows)
        self.fills_slots = not formatter.on_host and self.slot_layout.columns.keys() >= set(source.names)
        """Whether a span is complete when its rows are in its slot, so that several builders can write them."""
        size = self.slot_layout.size
        if not self.fills_slots:
            size = max(size, round(_SLOT_SLACK * source.pipeline.spans.span_bytes))
        self.placement = placement
        pin = None if placement is None else placement.accelerator.pin
        self.slots = SlotPool(size, source.pipeline.spans.max_depth, pin)
        self.deliver = Delivery(source, self.slot_layout, formatter, placement, collector)
        self._reader_spec = cloudpickle.dumps(source)
        self._builder_spec = cloudpickle.dumps(BuilderSpec(self._reader_spec, formatter.for_worker(), self.slot_layout))
        self.workers: list[Worker] = []
        self._servers: list[ForkServer] = []
        """The process that builders are forked from, while they run."""
        self._images: SharedMemory | None = None
        """For decoded images that windows share, if they do."""
        self._selector: _ChannelSelector | None = None
        """Receives from the processes; None if they do not run."""
        self._lock = RLock()
        """Held while processes are started or ended, by any thread."""
        self.receiving = RLock()
        """Held by the run that receives: a new one begins when the one before it can take none of its messages."""
        weakref.finalize(self, _end_all, self.workers, self._servers)
        _pools.add(self)

    def open(self, begin: Callable[[], None]) -> None:
        """Start the processes that do not run, and call `begin` as soon as there are readers.

        Builders start while these read. A run before this one has been stopped.
        """
        with self.receiving, self._lock:
            if self._selector is not None:
                for number, worker in enumerate(self.workers):
                    if not worker.started:
                        self.replace(number)
                begin()
                return
            try:
                self._start(begin)
            except BaseException:
                self.close()
                raise

    def _start(self, begin: Callable[[], None]) -> None:
        selector = self._selector = _ChannelSelector()
        images = self.source.shared_image_bytes
        self._images = SharedMemory.create(images) if images else None
        self._servers[:] = [self._new_server()]
        self.workers.clear()
        for number in self.readers:
            self.workers.append(Worker(self._new_reader()))
            selector.add(self.workers[number].process.channel, number)
        begin()
        for builder in self._new_builders(self.num_builders):
            selector.add(builder.channel, len(self.workers))
            self.workers.append(Worker(builder))

    def _new_reader(self) -> WorkerProcess:
        malloc = _malloc_options(_MALLOC_KEPT_BYTES)
        return WorkerProcess("penstock.engine.workers._reader_main", self._reader_spec, KINDS, malloc)

    def _new_server(self) -> ForkServer:
        malloc = _malloc_options(max(_MALLOC_KEPT_BYTES, _KEPT_SPANS * self.source.pipeline.spans.span_bytes))
        return ForkServer("penstock.engine.workers._builder_main", self._builder_spec, KINDS, malloc)

    def _new_builders(self, count: int) -> Iterator[WorkerProcess | ForkedProcess]:
        """Start builders: forks of the fork server, or if that cannot fork, processes of their own, all at once."""
        descriptors = [] if self._images is None else [self._images.fd]
        with suppress(ChildProcessError):
            while count:
                yield self._servers[0].fork(descriptors)
                count -= 1
        alone = [self._new_server() for _ in range(count)]
        try:
            while alone:
                alone[0].become(descriptors)
                yield alone.pop(0)
        except ChildProcessError:
            code = alone[0].reap()
            raise PenstockError(f"a worker process could not start: it ended with exit code {code}") from None
        finally:
            _end(alone)

    def receive(self, *, wait: bool = True) -> Iterator[tuple[int, Any, list[int]]]:
        """One message of each worker that has sent some: the worker, the message and its descriptors; None if it died.

        With `wait`, waits for one. There is none if `wake` is called in another thread.
        """
        selector = self._selector  # another thread may close the loader
        return iter(()) if selector is None else selector.receive(wait=wait)

    def wake(self) -> None:
        """Make `receive` return, in whatever thread it waits."""
        selector = self._selector
        if selector is not None:
            selector.wake()

    def replace(self, number: int) -> int | None:
        """Start another process in place of one that died; returns the exit code of that."""
        with self._lock:
            if self._selector is None:  # another thread has closed the loader
                return None
            before = self.workers[number].process
            self._selector.remove(before.channel)
            code = before.reap()
            self.collector.forget_requests(before.pid)
            if number in self.readers:
                self.workers[number] = Worker(self._new_reader())
            else:
                [self.workers[number]] = map(Worker, self._new_builders(1))
            self._selector.add(self.workers[number].process.channel, number)
            return code

    def send(self, worker: int, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Send a message; if the process has died, `receive` says so."""
        with suppress(OSError, IndexError):  # another thread may have closed the loader
            self.workers[worker].process.channel.send(message, descriptors)

    @property
    def readers(self) -> range:
        """The readers among the workers."""
        return range(self.source.pipeline.readers)

    def close(self) -> None:
        """End all processes at once."""
        with self._lock:
            selector, self._selector, self._images = self._selector, None, None
            for worker in self.workers:
                if selector is not None:
                    selector.remove(worker.process.channel)
                self.collector.forget_requests(worker.process.pid)
            _end_all(self.workers, self._servers)
            self._servers.clear()
        if selector is not None:
            selector.wake()

    def abandon(self) -> None:
        """In a forked process: forget the processes and the memory, which are the parent's."""
        for process in (*(worker.process for worker in self.workers), *self._servers):
            process.abandon()
        self.workers.clear()
        self._servers.clear()
        self._lock, self.receiving = RLock(), RLock()
        self.slots.abandon()
        self._selector = None


class _ChannelSelector:
    """Waits for messages of several channels, each of which has a number; one thread at a time receives."""

    def __init__(self) -> None:
        self._numbers: dict[Channel, int] = {}
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def __del__(self) -> None:
        for handle in (self._selector, self._woken, self._wake):
            handle.close()

    def add(self, channel: Channel, number: int) -> None:
        """Receive from a channel, until it is removed before its end is closed."""
        self._numbers[channel] = number
        self._selector.register(channel, selectors.EVENT_READ, channel)

    def remove(self, channel: Channel) -> None:
        if self._numbers.pop(channel, None) is not None:
            self._selector.unregister(channel)

    def receive(self, *, wait: bool) -> Iterator[tuple[int, Any, list[int]]]:
        for key, _ in self._selector.select(None if wait else 0):
            channel = key.data
            if channel is None:
                with suppress(OSError):
                    self._woken.recv(64)
            elif (number := self._numbers.get(channel)) is not None:  # else it was removed because of another message
                try:
                    message, descriptors = channel.receive()
                except (EOFError, OSError):
                    message, descriptors = None, []
                yield number, message, descriptors

    def wake(self) -> None:
        with suppress(OSError):
            self._wake.send(b"1")


def _malloc_options(kept_bytes: int) -> dict[str, str]:
    """A process may keep so much memory that it has freed: to give back what the next batch needs costs faults."""
    return {"MALLOC_MMAP_THRESHOLD_": str(_MALLOC_MMAP_BYTES), "MALLOC_TRIM_THRESHOLD_": str(kept_bytes)}


def _end_all(workers: Sequence[Worker], servers: Sequence[ForkServer]) -> None:
    """End processes, and then the one that they were forked from."""
    _end([worker.process for worker in workers])
    _end(servers)


def _end(processes: Sequence[WorkerProcess | ForkedProcess]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.reap()


def _abandon_all() -> None:
    for pool in list(_pools):
        pool.abandon()


os.register_at_fork(after_in_child=_abandon_all)
