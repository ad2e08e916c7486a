"""A run in worker processes, as the loop sees it: assign spans, collect their parts, deliver batches in order.

The contract; if the code disagrees with this list, the code is wrong:

- Each span has a slot. The processes that own lanes write their rows into it, and say so. When all rows are there, this
  process delivers views of the slot; or, if functions are called or columns have a variable size, one worker process
  makes the batches. This process reads, decodes and copies no row.
- Spans are assigned in order, as many as may be built ahead, and delivered in order; so are errors.
- This process has no thread of its own: messages are handled while the loop waits for a batch.
- If a worker process dies, another one takes over its share from the first span that is not answered, and unfinished
  spans are finished by others: a process writes the batches that functions make to a spare slot of its own, and gets
  that of the span in exchange, while it has more to finish. If processes die three times before a span is delivered,
  the run fails.
- Slots of a stopped run are not reused, because processes may still write to them.
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from penstock.engine._memory_budget import BuildAhead
from penstock.engine._stats import BadSample
from penstock.engine.assembly import (
    PAD,
    BatchAssembler,
    BatchFormatter,
    Columns,
    Failure,
    GatheredRows,
    Placement,
)
from penstock.engine.workers._messages import (
    Assign,
    Failed,
    Finish,
    FinishedSpan,
    Part,
    Pause,
    RemoteError,
    Resume,
    Run,
    Shipment,
    StatsUpdate,
    Stop,
    unpack,
)
from penstock.engine.workers._pool import ProcessPool
from penstock.engine.workers._share import DeliveredSpan
from penstock.engine.workers._slots import HIDDEN, ROW_IDS, Slot
from penstock.engine.workers._worker_main import SlotRows
from penstock.errors import PenstockError
from penstock.plan import Places, SpanSteps

_MAX_DEATHS = 3
_BUILT_AHEAD = 2
"""Spans whose transfer to a device begins before the loop asks for them."""


@dataclass(slots=True, eq=False)
class _PendingSpan:
    """A span that is assigned and not delivered."""

    steps: SpanSteps
    slot: Slot
    missing: set[int]
    """The workers whose part is missing."""
    parts: list[tuple[Places, Shipment, int | None]] = field(default_factory=list)
    """Columns that are not in the slot, with a descriptor of their memory."""
    bad: dict[int, BadSample] = field(default_factory=dict)
    failure: tuple[int, RemoteError] | None = None
    error: BaseException | None = None
    blocks_drawn: int = 0
    finisher: int | None = None
    """The worker that makes the batches."""
    batches: tuple[Shipment, int | None] | None = None
    """What it made, with a descriptor of its memory."""
    delivered: DeliveredSpan | None = None

    def close_parts(self) -> None:
        """Close the descriptors of the parts."""
        for *_, descriptor in self.parts:
            if descriptor is not None:
                os.close(descriptor)
        self.parts = []

    def close(self) -> None:
        """Close the descriptors of all that was not delivered."""
        self.close_parts()
        if self.batches is not None and self.batches[1] is not None:
            os.close(self.batches[1])


class _EpochStart(NamedTuple):
    """Where a run starts to read an epoch."""

    epoch: int
    consumed: int
    number: int
    """Of its first span."""


class ProcessRun:
    """Delivers the spans that worker processes build; see `SpanStream`."""

    def __init__(self, pool: ProcessPool, formatter: BatchFormatter, placement: Placement | None) -> None:
        self._pool, self._formatter, self._placement = pool, formatter, placement
        self._source = pool.source
        self._assemble = BatchAssembler(formatter, placement, (), pool.collector, row_keys=self._source.row_keys)
        self._shares = [
            self._source.share(worker, pool.counts.lane_owners) for worker in range(pool.counts.lane_owners)
        ]
        self._steps: Iterator[SpanSteps] = iter(())
        self._unassigned: SpanSteps | None = None
        self._pending: dict[int, _PendingSpan] = {}
        self._spares: dict[int, Slot] = {}
        """The slots that workers write the next batches of functions to."""
        self._ahead = BuildAhead(self._source.pipeline.spans)
        self._next = 0
        self._deaths = 0
        self._errors: dict[int, Exception] = {}
        """Errors of workers that answer no more spans."""
        self._stopped = self._paused = False
        self._run = self._reading_epoch = 0
        self._epochs: list[_EpochStart] = []
        """The epochs of spans that are not delivered, and the last one before."""

    def start(self, epoch: int, consumed: int) -> None:
        """See `SpanStream`."""
        self._run = self._pool.open()
        self._reading_epoch = epoch
        self._epochs = [_EpochStart(epoch, consumed, 0)]
        self._steps = self._source.schedule.run(epoch, consumed)
        self._pool.broadcast(Run(self._run, epoch, consumed, 0, 0))
        self._assign()

    def resume(self, epoch: int) -> None:
        """See `SpanStream`."""
        self._reading_epoch, self._paused = epoch, False
        self._pool.broadcast(Resume(self._run, epoch))
        self._assign()

    def pause(self) -> None:
        """See `SpanStream`."""
        self._paused = True
        self._pool.broadcast(Pause(self._run))

    def stop(self, *, wait: bool = False) -> None:  # noqa: ARG002
        """See `SpanStream`."""
        if self._stopped:
            return
        self._stopped = True
        self._pool.broadcast(Stop(self._run))
        self._pool.wake()
        pending, self._pending = list(self._pending.values()), {}
        for span in pending:
            span.close()
            self._pool.slots.drop(span.slot)
        while self._spares:
            self._pool.slots.drop(self._spares.popitem()[1])

    def next_span(self) -> DeliveredSpan | None:
        """See `SpanStream`."""
        started = time.perf_counter()
        while not self._stopped:
            span = self._pending.get(self._next)
            if span is None:
                raise PenstockError("a loader was read past its end")
            if span.error is not None:
                raise span.error
            if span.delivered is None and self._is_complete(span):
                self._deliver(span)
            if span.delivered is not None:
                del self._pending[self._next]
                self._next += 1
                self._deaths = 0
                self._assign()
                self._place_ahead()
                self._pool.collector.add_time("loop", "starved", time.perf_counter() - started)
                return span.delivered
            self._receive()
        return None

    def _is_complete(self, span: _PendingSpan) -> bool:
        return span.batches is not None if self._pool.finishes else not span.missing

    def _place_ahead(self) -> None:
        """Begin the transfer of the next spans to a device."""
        if self._placement is None:
            return
        for number in range(self._next, self._next + _BUILT_AHEAD):
            span = self._pending.get(number)
            if span is None or span.error is not None or not self._is_complete(span):
                return
            if span.delivered is None:
                self._deliver(span)

    def _assign(self) -> None:
        """Assign spans as far ahead as there are slots for, and not beyond the next epoch."""
        fresh: dict[int, _PendingSpan] = {}
        limit = self._next + min(self._ahead.depth, self._pool.max_depth)
        while self._next + len(self._pending) + len(fresh) < limit:
            steps = self._unassigned or next(self._steps, None)
            self._unassigned = steps
            if steps is None or steps.epoch > self._reading_epoch + 1:
                break
            self._unassigned = None
            if steps.epoch > self._epochs[-1].epoch:
                self._epochs = [self._epochs[-1], _EpochStart(steps.epoch, 0, steps.number)]
            owners = {share.worker for share in self._shares if share.owns(steps)}
            span = _PendingSpan(steps, self._pool.slots.take(), owners)
            for worker in owners:
                span.error = span.error or self._errors.get(worker)
            fresh[steps.number] = span
        self._pending |= fresh
        if not fresh:
            return
        dropped = self._pool.slots.take_dropped()
        if all(self._pool.is_mapped(span.slot) for span in fresh.values()):
            slots = {number: span.slot.number for number, span in fresh.items()}
            self._pool.broadcast(Assign(self._run, slots, [], dropped, max(fresh) + 1))
            return
        for worker in range(len(self._pool.processes)):
            self._send_slots(worker, fresh, dropped)

    def _send_slots(self, worker: int, spans: dict[int, _PendingSpan], dropped: list[int]) -> None:
        process = self._pool.processes[worker].id
        new = [span.slot for span in spans.values() if process not in span.slot.mapped_by]
        for slot in new:
            slot.mapped_by.add(process)
        slots = {number: span.slot.number for number, span in spans.items()}
        message = Assign(self._run, slots, [slot.number for slot in new], dropped, max(spans) + 1)
        self._pool.send(worker, message, [slot.memory.fd for slot in new])

    def _receive(self) -> None:
        """Wait for messages, and handle them."""
        for worker, message, descriptors in self._pool.receive():
            descriptor = descriptors[0] if descriptors else None
            if message is None:
                self._replace(worker)
                continue
            if message.stats is not None:
                self._pool.collector.record_process(self._pool.processes[worker].pid, message.stats)
            if isinstance(message, StatsUpdate):
                continue
            if isinstance(message, Failed) and message.run in (None, self._run):
                self._fail(worker, message.error.revive(), started=message.run is not None)
            elif message.run != self._run or self._stopped:
                for each in descriptors:
                    os.close(each)
            elif isinstance(message, Part):
                self._take_part(worker, message, descriptor)
            else:
                self._take_batches(worker, message, descriptor)
        if not self._stopped:  # spans may be smaller than expected
            self._assign()

    def _fail(self, worker: int, error: Exception, *, started: bool) -> None:
        """Raise the error of a worker at the first span that waits for it; if it has not `started`, it makes none."""
        self._errors[worker] = error
        self._pool.processes[worker].started = started
        for span in self._pending.values():
            if worker in span.missing or (not started and span.finisher == worker and span.batches is None):
                span.error = span.error or error

    def _take_part(self, worker: int, part: Part, descriptor: int | None) -> None:
        span = self._pending.get(part.number)
        if span is None:  # another thread has stopped the run
            if descriptor is not None:
                os.close(descriptor)
            return
        span.missing.discard(worker)
        span.bad |= part.bad
        span.blocks_drawn += part.blocks_drawn
        if part.failure is not None and (span.failure is None or part.failure[0] < span.failure[0]):
            span.failure = part.failure
        if part.shipment is not None:
            span.parts.append((part.places, part.shipment, descriptor))
        if not span.missing:
            self._record(span, [descriptor for *_, descriptor in span.parts])
            if self._pool.finishes:
                self._finish(span)

    def _record(self, span: _PendingSpan, descriptors: Sequence[int | None]) -> None:
        """Measure a span, of which these descriptors have what is not in the slot."""
        sizes = (os.fstat(descriptor).st_size for descriptor in descriptors if descriptor is not None)
        self._ahead.record(span.slot.memory.bytes.nbytes + sum(sizes))

    def _finish(self, span: _PendingSpan) -> None:
        """Let the worker with least to do make the batches of a span."""
        busy = [0] * len(self._pool.processes)
        for other in self._pending.values():
            if other.finisher is not None and other.batches is None:
                busy[other.finisher] += 1
        span.finisher = busy.index(min(busy))
        if not self._pool.processes[span.finisher].started:
            span.error = span.error or self._errors.get(span.finisher)
        descriptors = [descriptor for *_, descriptor in span.parts if descriptor is not None]
        parts = [(places, shipment) for places, shipment, _ in span.parts]
        spare = self._new_spare(span.finisher) if self._formatter.on_host else None
        message = Finish(self._run, span.steps, span.slot.number, spare, parts, dict(span.bad), span.failure)
        self._pool.send(span.finisher, message, descriptors)

    def _new_spare(self, worker: int) -> int | None:
        """The number of a slot for the batches that a worker makes, None if it has one."""
        if worker in self._spares:
            return None
        slot = self._spares[worker] = self._pool.slots.take()
        process = self._pool.processes[worker].id
        if process not in slot.mapped_by:
            slot.mapped_by.add(process)
            self._pool.send(worker, Assign(self._run, {}, [slot.number], [], 0), [slot.memory.fd])
        return slot.number

    def _take_batches(self, worker: int, finished: FinishedSpan, descriptor: int | None) -> None:
        span = self._pending.get(finished.number)
        if span is None or span.batches is not None:
            if descriptor is not None:
                os.close(descriptor)
        elif isinstance(finished.batches, RemoteError):
            span.error = finished.batches.revive()
        else:
            span.close_parts()
            if finished.slot != span.slot.number:
                span.slot, self._spares[worker] = self._spares[worker], span.slot
            span.batches, span.bad = (finished.batches, descriptor), finished.bad
            self._record(span, [descriptor])
            busy = any(other.finisher == worker and other.batches is None for other in self._pending.values())
            if worker in self._spares and not busy:
                self._pool.slots.give_back(self._spares.pop(worker))

    def _deliver(self, span: _PendingSpan) -> None:
        """Make what the loop gets of a complete span."""
        steps = span.steps
        memory = self._pool.slots.lease(span.slot)
        columns = self._pool.slot_layout.arrays(memory, steps.rows)
        row_ids = columns.get(ROW_IDS, np.zeros(0, np.int64))
        if span.batches is None:
            found: Columns = {name: values for name, values in columns.items() if not name.startswith(HIDDEN)}
            if PAD in found:
                found[PAD] = found.pop(PAD)
            rows = SlotRows(steps, self._source.key_epoch(steps), row_ids, {})
            failure = None if span.failure is None else (span.failure[0], span.failure[1].revive())
            batches = self._assemble(rows, GatheredRows(found, span.bad, failure), steps.batch_rows).batches
        else:
            shipment, descriptor = span.batches
            span.batches = shipment, None
            batches = self._received(unpack(shipment, descriptor, memory), steps, row_ids)
        padding = self._source.padding(steps)
        span.delivered = DeliveredSpan(steps, batches, span.bad, span.blocks_drawn, padding)

    def _received(self, batches: list[Any], steps: SpanSteps, row_ids: Any) -> list[Any]:
        """Batches as a worker process made them, converted and transferred."""
        found: list[Any] = []
        formatter, placement = self._formatter, self._placement
        keys = None
        if placement is not None and placement.needs_keys:
            keys = self._source.row_keys(steps, row_ids)
        start = 0
        for batch, rows in zip(batches, steps.batch_rows, strict=False):
            if isinstance(batch, RemoteError):
                found.append(Failure(batch.revive()))
                break
            made = formatter.from_transport(batch) if formatter.on_host else formatter.from_numpy(batch)
            if placement is not None:
                made = placement.place(made, None if keys is None else keys.part(start, rows))
            found.append(made)
            start += rows
        return found

    def _replace(self, worker: int) -> None:
        """Start another process in place of one that died, with all that is left of its work."""
        if self._stopped:
            return
        code = self._pool.replace(worker)
        if worker in self._spares:
            self._pool.slots.drop(self._spares.pop(worker))
        self._deaths += 1
        if self._deaths >= _MAX_DEATHS:
            raise PenstockError(
                f"worker processes ended {_MAX_DEATHS} times while one batch was made, the last time exit code {code}; "
                "look for a transform or a decoder that crashes or takes too much memory"
            )
        self._pool.collector.note(f"a worker process ended (exit code {code}) and was started again")
        unanswered = [number for number, span in self._pending.items() if worker in span.missing]
        first = min(unanswered, default=self._next + len(self._pending))
        start = next(start for start in reversed(self._epochs) if start.number <= first)
        self._pool.send(worker, Run(self._run, *start, first))
        self._pool.send(worker, Pause(self._run) if self._paused else Resume(self._run, self._reading_epoch))
        open_spans = {number: span for number, span in self._pending.items() if span.delivered is None}
        if open_spans:
            self._send_slots(worker, open_spans, [])
        for span in open_spans.values():
            if span.finisher == worker and span.batches is None and span.error is None:
                self._finish(span)
