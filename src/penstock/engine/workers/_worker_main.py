"""A worker process: runs the engine for its share of the lanes, and the user's functions.

The contract; if the code disagrees with this list, the code is wrong:

- The process is started by exec, and imports what the pickled functions need, and nothing else of the user's program.
- It exits at once when its channel is closed: also when the parent dies. It ignores Ctrl-C from the start.
- Its main thread only receives messages and never sends, so that the parent never waits for it. A pipeline gathers the
  rows of its lanes into slots; one thread answers each span in order; others finish spans, and send statistics.
- Whatever a user's function, its result or its error raises becomes a message; anything else that ends a thread ends
  the process, and so the loop sees it.
- A message of an earlier run is dropped.
"""

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.abc import MetaPathFinder
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.device import SharedMemory
from penstock.engine._stats import Counters, StatsCollector
from penstock.engine.assembly import (
    PAD,
    SOURCE,
    AnySpan,
    BatchAssembler,
    BatchFormatter,
    Failure,
    GatheredRows,
    Gatherer,
)
from penstock.engine.planning import MixedSpan, RowIdentity
from penstock.engine.window import RowsAt
from penstock.engine.workers._lists import join_rows, pack_rows
from penstock.engine.workers._messages import (
    Assign,
    Channel,
    Failed,
    Finish,
    FinishedSpan,
    Part,
    Pause,
    Resume,
    Run,
    StatsUpdate,
    Stop,
    pack,
    portable,
    unpack,
)
from penstock.engine.workers._pipeline import Pipeline
from penstock.engine.workers._share import LoaderSource, ShareEngine
from penstock.engine.workers._slots import (
    EPOCHS,
    POSITIONS,
    ROW_IDS,
    TABLE_ROW_IDS,
    TABLES,
    MappedSlots,
    SlotLayout,
    write_rows,
)
from penstock.plan import Places, SpanSteps
from penstock.table import Int64Array

_STATS_S, _MIN_STATS_S = 0.5, 0.1
_SWITCH_S = 1e-4
"""A thread that answers gets the GIL this soon from a function: it needs it again after each system call."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Everything that a worker process needs to know."""

    source: LoaderSource
    formatter: BatchFormatter
    slots: SlotLayout
    lane_owners: int
    """The first processes own the lanes; the others only finish spans."""


@dataclass(frozen=True, slots=True)
class SlotRows:
    """The rows of a span in its slot; see `RowSource`."""

    steps: SpanSteps
    epoch: int
    row_ids: Int64Array
    columns: Mapping[str, Int64Array]
    """The hidden columns."""

    def identity(self, index: int) -> RowIdentity:
        """See `RowSource`."""
        position = int(self.columns[POSITIONS][index])
        if TABLES not in self.columns:
            return RowIdentity(0, position, int(self.row_ids[index]), self.epoch)
        table, row_id, epoch = (int(self.columns[name][index]) for name in (TABLES, TABLE_ROW_IDS, EPOCHS))
        return RowIdentity(table, position, row_id, epoch)


class _GatheredPart(NamedTuple):
    """What a process has gathered of a span, besides what is in the slot."""

    columns: dict[str, Any]
    bad: Mapping[int, Any]
    failure: tuple[int, Exception] | None


def main(channel_fd: int, spec_fd: int, worker: int) -> None:
    """Serve the loader at the other end of a channel."""
    sys.setswitchinterval(_SWITCH_S)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _run_thread(_serve, Channel(socket.socket(fileno=channel_fd)), spec_fd, worker)
    os._exit(0)  # threads may be inside the user's function


def _serve(channel: Channel, spec_fd: int, worker: int) -> None:
    try:
        spec = cloudpickle.loads(os.pread(spec_fd, os.fstat(spec_fd).st_size, 0))
        os.close(spec_fd)
        _skip_pandas()
        process = _Worker(channel, spec, worker)
    except BaseException as error:
        channel.send(Failed(None, portable(error), StatsCollector().of_process(0)))
        while True:  # until the other end is closed
            _close(channel.receive()[1])
    process.serve()


def _run_thread(function: Callable[..., None], *args: Any) -> None:
    """What a thread does; its error is the end of the process."""
    try:
        function(*args)
    except (EOFError, ConnectionError):
        pass  # the channel is closed: the main thread ends the process
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _start_thread(name: str, function: Callable[..., None], *args: Any) -> None:
    Thread(target=_run_thread, args=(function, *args), name=name, daemon=True).start()


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class _NoPandas(MetaPathFinder):
    """Lets pyarrow not find pandas, which it imports for its first array, in a second and 40 MB; conversions retry."""

    def find_spec(self, name: str, *_: object) -> None:
        """Refuse pandas."""
        if name == "pandas":
            raise ModuleNotFoundError(name)


def _skip_pandas() -> None:
    if "pandas" not in sys.modules:
        finder = _NoPandas()
        sys.meta_path.insert(0, finder)
        np.asarray(pa.array([0]))
        sys.meta_path.remove(finder)


class _Worker:
    def __init__(self, channel: Channel, spec: WorkerSpec, worker: int) -> None:
        self._channel, self._spec, self._source = channel, spec, spec.source
        self._share = self._source.share(worker, spec.lane_owners)
        self._collector = StatsCollector()
        source = self._source
        selections = [table.selection() for table in source.tables]
        self._engine = ShareEngine(source, self._share, self._collector, selections=selections)
        self._assemble = BatchAssembler(
            spec.formatter, None, self._engine.replacers, self._collector, row_keys=source.row_keys
        )
        self._names = self._engine.column_names
        self._slots = MappedSlots(spec.slots)
        self._run = 0
        self._stats_sent_s = 0.0
        self._pipeline: Pipeline[_GatheredPart] | None = None
        self._spare = 0
        """The slot for the next batches that functions make."""
        self._finishes: SimpleQueue[tuple[Finish, list[int]]] = SimpleQueue()
        _start_thread("penstock-finish", self._finish_spans)
        _start_thread("penstock-stats", self._send_stats)

    def serve(self) -> None:
        """Receive messages until the channel is closed."""
        while True:
            self._handle(*self._channel.receive())

    def _handle(self, message: Any, descriptors: list[int]) -> None:
        if isinstance(message, Run):
            self._start(message)
        elif isinstance(message, Assign):
            self._slots.map(message.new, descriptors, message.dropped)
            if message.run == self._run:
                self._slots.assign(message.slots)
                if self._pipeline is not None:
                    self._pipeline.raise_limit(message.limit)
        elif isinstance(message, Finish):
            self._finishes.put((message, descriptors))
        elif message.run == self._run and self._pipeline is not None:
            if isinstance(message, Pause):
                self._pipeline.pause()
            elif isinstance(message, Resume):
                self._pipeline.resume(message.epoch)
            elif isinstance(message, Stop):
                self._pipeline.stop()

    def _start(self, message: Run) -> None:
        if self._pipeline is not None:
            self._pipeline.stop()
        self._run = message.run
        self._slots.reset()
        if self._share.worker >= self._spec.lane_owners:
            return
        self._pipeline = self._engine.pipeline(
            lambda gather: [partial(self._build, gather)] * self._source.pipeline.builders,
            self._slots,
            inline=False,
            ahead=None,
        )
        _start_thread("penstock-answer", self._answer, message.run, self._pipeline)
        self._pipeline.start(message.epoch, message.consumed, message.number, message.first)

    def _build(self, gather: Gatherer, span: AnySpan) -> _GatheredPart:
        """Gather rows into their places in the slot."""
        if not len(span):
            return _GatheredPart({}, {}, None)
        columns = self._slots.span_columns(span)
        places = np.asarray(span.places)

        def empty(name: str) -> Any:
            if name not in columns:
                return np.empty
            if isinstance(span.places, slice):
                return lambda _shape, _dtype: columns[name][span.places]
            return lambda _shape, _dtype: RowsAt(columns[name], places)

        gathered = gather(span, empty)
        found = gathered.columns
        if ROW_IDS in columns:
            found[ROW_IDS] = span.row_ids
        if POSITIONS in columns:
            found[POSITIONS] = span.positions
        if isinstance(span, MixedSpan) and TABLES in columns:
            found |= {TABLES: span.tables, EPOCHS: span.epochs, TABLE_ROW_IDS: span.table_row_ids}
        write_rows(columns, span.places, found)
        rest = {name: pack_rows(values) for name, values in found.items() if name not in columns}
        return _GatheredPart(rest, gathered.bad, gathered.failure)

    def _answer(self, run: int, pipeline: Pipeline[_GatheredPart]) -> None:
        """Answer spans in order."""
        try:
            while (built := pipeline.next_span()) is not None:
                self._send_part(run, *built)
                del built  # while this waits for the next one
        except BaseException as error:
            self._channel.send(Failed(run, portable(error), self._stats()))

    def _send_part(self, run: int, span: AnySpan, part: _GatheredPart) -> None:
        shipment, memory = pack(part.columns) if part.columns else (None, None)
        place = np.arange(span.steps.rows)[span.places]
        failure = None
        if part.failure is not None:
            failure = int(place[part.failure[0]]), portable(part.failure[1])
        bad = {int(place[index]): bad for index, bad in part.bad.items()}
        message = Part(run, span.number, span.places, shipment, bad, failure, span.blocks_drawn, self._new_stats())
        self._slots.release(span)
        self._channel.send(message, [] if memory is None else [memory.fd])

    def _finish_spans(self) -> None:
        while True:
            message, descriptors = self._finishes.get()
            if message.run != self._run:
                _close(descriptors)
                continue
            memory = None
            try:
                finished, memory = self._finish(message, descriptors)
            except BaseException as error:
                number, stats = message.steps.number, self._new_stats()
                finished = FinishedSpan(message.run, number, message.slot, portable(error), message.bad, stats)
            self._channel.send(finished, [] if memory is None else [memory.fd])
            del finished, memory

    def _send_stats(self) -> None:
        while True:
            time.sleep(_STATS_S)
            if time.monotonic() - self._stats_sent_s >= _STATS_S:
                self._channel.send(StatsUpdate(self._stats()))

    def _finish(self, message: Finish, descriptors: list[int]) -> tuple[FinishedSpan, SharedMemory | None]:
        """Make the batches of a span; its slot stays as it is, because another process may have to make them again."""
        steps = message.steps
        functions = self._spec.formatter.on_host
        hidden_start = self._spec.slots.values_end
        if message.spare is not None:
            self._spare = message.spare
        memory = self._slots.memory(message.slot)
        shared = self._slots.columns(message.slot, steps.rows)
        if functions:  # which may keep what they get, and the slot is used again
            shared = {name: values.copy() for name, values in shared.items()}
        failure = None if message.failure is None else (message.failure[0], message.failure[1].revive())
        gathered = GatheredRows(self._columns(shared, steps.rows, message, descriptors), message.bad, failure)
        nothing = np.zeros(0, np.int64)
        rows = SlotRows(steps, self._source.key_epoch(steps), shared.get(ROW_IDS, nothing), shared)
        to_transport = self._spec.formatter.to_transport
        with self._collector.timed("worker", "busy"):
            built = self._assemble(rows, gathered, steps.batch_rows)
        batches = [
            portable(batch.error) if isinstance(batch, Failure) else to_transport(batch) for batch in built.batches
        ]
        slot = self._spare if functions else message.slot
        found = self._slots.memory(slot)
        del built, shared, rows
        gathered.columns = {}  # before its successor is packed
        shipment, own = pack(batches, found[:hidden_start], into_slot=functions)
        if functions:
            found[hidden_start:] = memory[hidden_start:]
            self._spare = message.slot
        return FinishedSpan(message.run, steps.number, slot, shipment, gathered.bad, self._new_stats()), own

    def _columns(
        self, shared: Mapping[str, npt.NDArray[Any]], rows: int, message: Finish, descriptors: list[int]
    ) -> dict[str, Any]:
        """All columns of a span, in the order in which threads would make them."""
        left = iter(descriptors)
        try:
            parts: list[tuple[Places, dict[str, Any]]] = [
                (places, unpack(shipment, next(left) if shipment.has_memory else None))
                for places, shipment in message.parts
            ]
        finally:
            _close(left)
        joined = join_rows(parts, rows)
        found: dict[str, Any] = {}
        for name in self._names:
            _add(found, shared if name in shared else joined, name)
        if SOURCE in shared:
            found[SOURCE] = shared[SOURCE]
        if PAD in shared:
            found[PAD] = shared[PAD]
        return found

    def _new_stats(self) -> Counters | None:
        """The statistics, unless they were sent a moment ago."""
        return self._stats() if time.monotonic() - self._stats_sent_s > _MIN_STATS_S else None

    def _stats(self) -> Counters:
        self._stats_sent_s = time.monotonic()
        return self._collector.of_process(sum(table.reader.store.retries for table in self._source.tables))


def _add(found: dict[str, Any], columns: Mapping[str, Any], name: str) -> None:
    """Add a column, and its mask if it has one."""
    found[name] = columns[name]
    if f"{name}_mask" in columns:
        found[f"{name}_mask"] = columns[f"{name}_mask"]
