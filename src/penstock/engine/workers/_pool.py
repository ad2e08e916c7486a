"""The worker processes of a loader: started by exec, replaced when they die, gone when the loader is."""

import os
import pickle
import selectors
import signal
import socket
import subprocess
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from threading import RLock
from typing import Any, cast

import cloudpickle

from penstock.device import SharedMemory, SlotPool
from penstock.engine._stats import StatsCollector
from penstock.engine.assembly import BatchFormatter, Placement
from penstock.engine.workers._builder_main import BuilderSpec
from penstock.engine.workers._messages import KINDS, Failed, Fork, Reap
from penstock.engine.workers._reader_main import ReaderSpec
from penstock.engine.workers._slots import SlotLayout
from penstock.engine.workers._source import LoaderSource
from penstock.errors import PenstockError
from penstock.runners import Channel, start_python

_MALLOC_MMAP_BYTES, _MALLOC_KEPT_BYTES = 4 << 20, 128 << 20
"""glibc would come to keep freed images of up to 32 MiB, some in each arena, and so twice the memory that is in use."""
_KEPT_SPANS = 2
"""What functions get of a span, and what they make of it."""
_KILL_S = 1.0
_SLOT_SLACK = 1.25
"""Bytes of a slot for results, relative to those expected; larger ones get memory of their own."""

_pools: "weakref.WeakSet[ProcessPool]" = weakref.WeakSet()


class WorkerProcess:
    """A running worker process, which was started by exec."""

    def __init__(self, module: str, spec: SharedMemory, *, kept_bytes: int = _MALLOC_KEPT_BYTES) -> None:
        """Of memory that it has freed it may keep `kept_bytes`: to give back what the next batch needs costs faults."""
        self.started = True
        """False once it has said that it could not start."""
        self.channel, theirs = Channel.pair(KINDS)
        malloc = {"MALLOC_MMAP_THRESHOLD_": _MALLOC_MMAP_BYTES, "MALLOC_TRIM_THRESHOLD_": kept_bytes}
        with theirs:
            self._process = start_python(
                f"penstock.engine.workers.{module}", theirs.fileno(), spec.fd,
                descriptors=(theirs.fileno(), spec.fd), environment={name: str(size) for name, size in malloc.items()},
            )  # fmt: skip
        self.pid = self._process.pid

    def kill(self) -> None:
        """Kill it, without waiting."""
        self._process.kill()

    def reap(self) -> int | None:
        """Close the channel, and wait until the process has ended; returns its exit code."""
        self.channel.close()
        try:
            return self._process.wait(_KILL_S)
        except subprocess.TimeoutExpired:  # it closed its channel but did not exit
            self._process.kill()
            return self._process.wait()

    def abandon(self) -> None:
        """Close the channel in a forked process, which is not the parent of the worker."""
        self.channel.close()
        self._process.returncode = 0

    def ask(self, message: Fork | Reap, descriptors: Sequence[int] = ()) -> int | None:
        """Send a message to a template, and wait for the answer; None if it has died, or has none.

        Raises the error of one that could not start.
        """
        try:
            self.channel.send(message, descriptors)
            answer = self.channel.receive()[0]
        except (EOFError, OSError):
            return None
        if isinstance(answer, Failed):
            raise answer.error.revive()
        return answer  # type: ignore[no-any-return]


class Builder(WorkerProcess):
    """A builder: forked from a template, or one that was the template of itself alone."""

    def __init__(self, template: WorkerProcess, memory: Sequence[SharedMemory], *, forked: bool) -> None:
        """`memory` is for decoded images, if there is some.

        Raises `ChildProcessError` if the template has died, or cannot fork because it has threads.
        """
        self.started = True
        self.memory: int | None = None
        """The shared memory of a window that it has mapped."""
        self.slots: set[int] = set()
        """The slots that it has mapped."""
        self._template, self._forked, self._reaped = template, forked, False
        self.channel, theirs = Channel.pair(KINDS)
        try:
            with theirs:
                pid = template.ask(Fork(become=not forked), [theirs.fileno(), *(each.fd for each in memory)])
            if pid is None:
                raise ChildProcessError
        except BaseException:
            self.channel.close()
            raise
        self.pid = pid

    def kill(self) -> None:
        if not self._forked:
            self._template.kill()
        elif not self._reaped:  # else another process may have its number
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def reap(self) -> int | None:
        """Close the channel, and wait until the process has ended; returns its exit code, None if nobody knows."""
        self.channel.close()
        if not self._forked:
            return self._template.reap()
        if self._reaped:
            return None
        self.kill()  # it may have closed its channel and not exited
        self._reaped = True
        return self._template.ask(Reap(self.pid))

    def abandon(self) -> None:
        self.channel.close()
        if not self._forked:
            self._template.abandon()


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
        accelerator = None if placement is None else placement.accelerator
        self.slots = SlotPool(size, source.pipeline.spans.max_depth, None if accelerator is None else accelerator.pin)
        self.keys = formatter.needs_keys or (placement is not None and placement.needs_keys)
        """Whether tasks have keys of random numbers."""
        worker = worker_formatter(formatter)
        positions = source.needs_positions or formatter.on_host
        self._specs = [
            cloudpickle.dumps(ReaderSpec(source, self.keys or worker.needs_keys, positions)),
            pickle.dumps(BuilderSpec(cloudpickle.dumps(source), cloudpickle.dumps(worker), self.slot_layout)),
        ]
        self._templates: list[WorkerProcess] = []
        """The process that builders are forked from, while they run."""
        self._spec_memory: list[SharedMemory] = []
        self._image_memory: list[SharedMemory] = []
        """For decoded images that windows share, if they do."""
        self.processes: list[WorkerProcess] = []
        self._selector: selectors.BaseSelector | None = None
        self._wake: socket.socket | None = None
        self._handles: list[socket.socket | selectors.BaseSelector] = []
        """What is open as long as the pool is; another thread may wait for it."""
        self._runs = 0
        self._running = False
        self._lock = RLock()
        """Held while processes are started or ended, by any thread."""
        self.receiving = RLock()
        """Held by the run that receives: a new one begins when the one before it can take none of its messages."""
        weakref.finalize(self, _close_all, self._handles)
        weakref.finalize(self, _end_all, self.processes, self._templates)
        _pools.add(self)

    def open(self, begin: Callable[[int], None]) -> None:
        """Start the processes that do not run, and call `begin` with the number of a new run.

        That is as soon as there are readers: builders start while these read. A run before it has been stopped.
        """
        with self.receiving, self._lock:
            if self._selector is None:
                self._selector = selectors.DefaultSelector()
                receiver, self._wake = socket.socketpair()
                self._handles += [self._selector, receiver, self._wake]
                for end in (receiver, self._wake):
                    end.setblocking(False)
                self._selector.register(receiver, selectors.EVENT_READ, None)
            self._runs += 1
            if self._running:
                for worker, process in enumerate(self.processes):
                    if not process.started:
                        self.replace(worker)
                begin(self._runs)
                return
            try:
                self._start(begin)
            except BaseException:
                self.close()
                raise

    def _start(self, begin: Callable[[int], None]) -> None:
        self._spec_memory = [_shared(spec) for spec in self._specs]
        images = self.source.shared_image_bytes
        self._image_memory = [SharedMemory.create(images)] if images else []
        self._templates[:] = [self._new_template()]
        self.processes.clear()
        for _ in self.readers:
            self._add(WorkerProcess("_reader_main", self._spec_memory[0]))
        self._running = True
        begin(self._runs)
        for builder in self._new_builders(self.num_builders):
            self._add(builder)

    def _add(self, process: WorkerProcess) -> None:
        assert self._selector is not None
        self._selector.register(process.channel, selectors.EVENT_READ, len(self.processes))
        self.processes.append(process)

    def _new_template(self) -> WorkerProcess:
        kept_bytes = max(_MALLOC_KEPT_BYTES, _KEPT_SPANS * self.source.pipeline.spans.span_bytes)
        return WorkerProcess("_builder_main", self._spec_memory[1], kept_bytes=kept_bytes)

    def _new_builders(self, count: int) -> Iterator[Builder]:
        """Start builders: forks of the template, or if that cannot fork, processes of their own, all at once."""
        with suppress(ChildProcessError):
            while count:
                yield Builder(self._templates[0], self._image_memory, forked=True)
                count -= 1
        alone = [self._new_template() for _ in range(count)]
        try:
            while alone:
                yield Builder(alone[0], self._image_memory, forked=False)
                del alone[0]
        except ChildProcessError:
            code = alone[0].reap()
            raise PenstockError(f"a worker process could not start: it ended with exit code {code}") from None
        finally:
            _end_all(alone)

    def receive(self, *, wait: bool = True) -> Iterator[tuple[int, Any, list[int]]]:
        """One message of each worker that has sent some: the worker, the message and its descriptors; None if it died.

        With `wait`, waits for one. There is none if `wake` is called in another thread.
        """
        selector = self._selector
        if selector is None:
            return
        for key, _ in selector.select(None if wait else 0):
            worker: int | None = key.data
            if worker is None:
                with suppress(BlockingIOError, OSError):
                    key.fileobj.recv(64)  # type: ignore[union-attr]
                continue
            process = self.processes[worker]
            if process.channel is not key.fileobj:  # it was replaced by what was done for another message
                continue
            try:
                message, descriptors = process.channel.receive()
            except (EOFError, OSError):
                message, descriptors = None, []
            yield worker, message, descriptors

    def wake(self) -> None:
        """Make `receive` return, in whatever thread it waits."""
        if self._wake is not None:
            with suppress(OSError):
                self._wake.send(b"1")

    def replace(self, worker: int) -> int | None:
        """Start another process in place of one that died; returns the exit code of that."""
        with self._lock:
            if not self._running:  # another thread has closed the loader
                return None
            process = self.processes[worker]
            assert self._selector is not None
            self._selector.unregister(process.channel)
            code = process.reap()
            self.collector.forget_requests(process.pid)
            if worker in self.readers:
                process = WorkerProcess("_reader_main", self._spec_memory[0])
            else:
                [process] = self._new_builders(1)
            self._selector.register(process.channel, selectors.EVENT_READ, worker)
            self.processes[worker] = process
            return code

    def send(self, worker: int, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Send a message; if the process has died, `receive` says so."""
        with suppress(OSError, IndexError):  # another thread may have closed the loader
            self.processes[worker].channel.send(message, descriptors)

    @property
    def readers(self) -> range:
        """The readers among the processes."""
        return range(self.source.pipeline.readers)

    def builder(self, worker: int) -> Builder:
        """The process of a worker that builds."""
        return cast(Builder, self.processes[worker])

    def close(self) -> None:
        """End all processes at once."""
        with self._lock:
            self._running, self._image_memory = False, []
            for process in self.processes:
                process.kill()
            for process in self.processes:
                if self._selector is not None:
                    with suppress(KeyError, ValueError):
                        self._selector.unregister(process.channel)
                process.reap()
                self.collector.forget_requests(process.pid)
            _end_all(self._templates)
            self._templates.clear()
        self.wake()

    def abandon(self) -> None:
        """In a forked process: forget the processes and the memory, which are the parent's."""
        for process in self.processes:
            process.abandon()
        while self._templates:
            self._templates.pop().abandon()
        self.processes.clear()
        self._running, self._lock, self.receiving = False, RLock(), RLock()
        self.slots.abandon()
        _close_all(self._handles)
        self._selector = self._wake = None


def _shared(data: bytes) -> SharedMemory:
    memory = SharedMemory.create(len(data))
    memory.bytes[: len(data)] = memoryview(data)
    return memory


def worker_formatter(formatter: BatchFormatter) -> BatchFormatter:
    """The formatter that runs in worker processes: one that needs no framework, unless it calls functions."""
    if not formatter.on_host:
        return formatter.without_framework()
    made = copy(formatter)
    made.in_worker_process = True
    return made


def _end_all(*groups: list[WorkerProcess]) -> None:
    """End processes, and then the template that they were forked from."""
    for processes in groups:
        for process in processes:
            process.kill()
        for process in processes:
            process.reap()


def _close_all(handles: list[socket.socket | selectors.BaseSelector]) -> None:
    for handle in handles:
        handle.close()
    handles.clear()


def _abandon_all() -> None:
    for pool in list(_pools):
        pool.abandon()


os.register_at_fork(after_in_child=_abandon_all)
