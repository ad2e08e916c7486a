"""The worker processes of a loader: started by exec, replaced when they die, gone when the loader is."""

import os
import resource
import selectors
import socket
import subprocess
import weakref
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from itertools import count
from threading import RLock
from typing import Any

import cloudpickle

from penstock.device import SharedMemory
from penstock.engine._stats import StatsCollector
from penstock.engine.assembly import BatchFormatter, Placement
from penstock.engine.workers._counts import WorkerCounts
from penstock.engine.workers._messages import Channel, pickle_message
from penstock.engine.workers._share import LoaderSource
from penstock.engine.workers._slots import Slot, SlotLayout, SlotPool, mixture_columns, table_columns
from penstock.engine.workers._worker_main import WorkerSpec
from penstock.runners import start_python

_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(4 << 20), "MALLOC_TRIM_THRESHOLD_": str(128 << 20)}
"""glibc would come to keep freed images of up to 32 MiB, some in each arena, and so twice the memory that is in use."""
_KILL_S = 1.0

_pools: "weakref.WeakSet[ProcessPool]" = weakref.WeakSet()
_ids = count()


class WorkerProcess:
    """A running worker process."""

    def __init__(self, worker: int, spec: SharedMemory) -> None:
        self.id = next(_ids)  # unlike the pid, never used again
        self.started = True
        """False once it has said that it could not start."""
        self.channel, theirs = Channel.pair()
        with theirs:
            self._process = start_python(
                "penstock.engine.workers._worker_main", theirs.fileno(), spec.fd, worker,
                descriptors=(theirs.fileno(), spec.fd), environment=_MALLOC,
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


class ProcessPool:
    """The worker processes, the memory that they share, and who says what."""

    def __init__(
        self,
        source: LoaderSource,
        formatter: BatchFormatter,
        placement: Placement | None,
        counts: WorkerCounts,
        collector: StatsCollector,
    ) -> None:
        self.source, self.counts, self.collector = source, counts, collector
        functions = formatter.on_host
        mixed = source.mixed_columns
        if mixed is None:
            columns = table_columns(source.tables[0].layout, source.options.decode)
        else:
            columns = mixture_columns(mixed)
        self.slot_layout = SlotLayout.of(
            columns, source.pipeline.batches_per_span * source.options.batch_size,
            flags_rows=source.flags_rows, positions=functions, tables=functions and mixed is not None,
            row_ids=functions or formatter.needs_keys or (placement is not None and placement.needs_keys),
        )  # fmt: skip
        in_slot = {column.name for column in self.slot_layout.columns}
        ships_parts = any(name not in in_slot for name in source.names)
        self.finishes = functions or ships_parts
        """Whether a process makes the batches of a span when all its rows are there."""
        self.max_depth = self._max_depth() if ships_parts else source.pipeline.spans.depth
        """Spans built ahead of the loop."""
        accelerator = None if placement is None else placement.accelerator
        self.slots = SlotPool(
            self.slot_layout.size, source.pipeline.spans.depth, None if accelerator is None else accelerator.pin
        )
        self._spec = cloudpickle.dumps(
            WorkerSpec(source, worker_formatter(formatter), self.slot_layout, counts.lane_owners)
        )
        self._spec_memory: SharedMemory | None = None
        self.processes: list[WorkerProcess] = []
        self._selector: selectors.BaseSelector | None = None
        self._wake: socket.socket | None = None
        self._handles: list[socket.socket | selectors.BaseSelector] = []
        """What is open as long as the pool is; another thread may wait for it."""
        self._runs = 0
        self._running = False
        self._lock = RLock()
        """Held while processes are started or ended, by any thread."""
        weakref.finalize(self, _end_all, self.processes, self._handles)
        _pools.add(self)

    def _max_depth(self) -> int:
        """The spans that can be built ahead if this process holds a descriptor for each part of each."""
        depth, owners = self.source.pipeline.spans.depth, self.counts.lane_owners
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit == resource.RLIM_INFINITY or depth * owners <= limit // 2:
            return depth
        possible = max(2, limit // 2 // owners)
        self.collector.note(
            f"the limit of open files ({limit}) leaves room to build {possible} spans ahead instead of {depth}; raise "
            "it (ulimit -n)"
        )
        return possible

    def open(self) -> int:
        """Start the processes that do not run; returns the number of a new run."""
        with self._lock:
            if self._selector is None:
                self._selector = selectors.DefaultSelector()
                receiver, self._wake = socket.socketpair()
                self._handles += [self._selector, receiver, self._wake]
                for end in (receiver, self._wake):
                    end.setblocking(False)
                self._selector.register(receiver, selectors.EVENT_READ, None)
            if not self._running:
                self._spec_memory = SharedMemory.create(len(self._spec))
                self._spec_memory.bytes[: len(self._spec)] = memoryview(self._spec)
                started: list[WorkerProcess] = []
                try:
                    for worker in range(self.counts.processes):
                        started.append(self._started(worker))
                except BaseException:
                    self._end(started)
                    raise
                self.processes[:], self._running = started, True
            for worker, process in enumerate(self.processes):
                if not process.started:
                    self.replace(worker)
            self._runs += 1
            return self._runs

    def _started(self, worker: int) -> WorkerProcess:
        assert self._spec_memory is not None
        assert self._selector is not None
        process = WorkerProcess(worker, self._spec_memory)
        self._selector.register(process.channel, selectors.EVENT_READ, process)
        return process

    def receive(self) -> Sequence[tuple[int, Any, list[int]]]:
        """Wait for messages: for each the worker, the message and its descriptors; the message is None if it died.

        Returns nothing if `wake` is called in another thread.
        """
        found: list[tuple[int, Any, list[int]]] = []
        selector = self._selector
        if selector is None:
            return found
        for key, _ in selector.select():
            process: WorkerProcess | None = key.data
            if process is None:
                with suppress(BlockingIOError, OSError):
                    key.fileobj.recv(64)  # type: ignore[union-attr]
                continue
            if process not in self.processes:
                continue
            worker = self.processes.index(process)
            try:
                found.append((worker, *process.channel.receive()))
            except (EOFError, OSError):
                found.append((worker, None, []))
        return found

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
            self.processes[worker] = self._started(worker)
            return code

    def send(self, worker: int, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Send a message; if the process has died, `receive` says so."""
        with suppress(OSError):
            self.processes[worker].channel.send(message, descriptors)

    def broadcast(self, message: Any) -> None:
        """Send a message to all processes."""
        pickled = pickle_message(message, 0)
        for process in self.processes[:]:
            with suppress(OSError):
                process.channel.send_pickled(pickled)

    def is_mapped(self, slot: Slot) -> bool:
        """Whether all processes have mapped a slot."""
        return all(process.id in slot.mapped_by for process in self.processes)

    def close(self) -> None:
        """End all processes at once."""
        with self._lock:
            self._running = False
            self._end(self.processes)
        self.wake()

    def _end(self, processes: Sequence[WorkerProcess]) -> None:
        for process in processes:
            process.kill()
        for process in processes:
            if self._selector is not None:
                with suppress(KeyError, ValueError):
                    self._selector.unregister(process.channel)
            process.reap()
            self.collector.forget_requests(process.pid)

    def abandon(self) -> None:
        """In a forked process: forget the processes and the memory, which are the parent's."""
        for process in self.processes:
            process.abandon()
        self.processes.clear()
        self._running, self._lock = False, RLock()
        self.slots.abandon()
        _close_all(self._handles)
        self._selector = self._wake = None


def worker_formatter(formatter: BatchFormatter) -> BatchFormatter:
    """The formatter that runs in worker processes: one that needs no framework, unless it calls functions."""
    if not formatter.on_host:
        return formatter.without_framework()
    made = copy(formatter)
    made.in_worker_process = True
    return made


def _end_all(processes: list[WorkerProcess], handles: list[socket.socket | selectors.BaseSelector]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.reap()
    _close_all(handles)


def _close_all(handles: list[socket.socket | selectors.BaseSelector]) -> None:
    for handle in handles:
        handle.close()
    handles.clear()


def _abandon_all() -> None:
    for pool in list(_pools):
        pool.abandon()


os.register_at_fork(after_in_child=_abandon_all)
