"""A run in worker processes, as the loop sees it: route tasks from the reader to builders, deliver batches in order.

The contract; if the code disagrees with this list, the code is wrong:

- Readers publish spans whose rows are all in the shared window, each its share of every span. This process gives a span
  that all have published to the builder with least to do, in order, with a slot for the batches. It owns all shared
  memory, and reads, decodes and copies no row.
- A span that is not built yet is never further ahead of the loop than memory allows. Batches are delivered in order; so
  are errors.
- Readers may free the rows of a span when every builder that was to read them has answered, or has been reaped; never
  because of a time-out.
- If memory allows fewer spans than builders can do, or if fewer are ready, several builders write the rows of a span,
  if no function sees them.
- This process has no thread of its own: messages are handled while the loop waits for a batch, and at each batch.
- A builder that dies costs its tasks, which another one gets. If a reader dies, all begin again with a new window, at
  the first span that is not published; what was published stays in the old one until it is built, and is freed at
  once when it is published again. If processes die three times before a span is delivered, the run fails.
- Another thread may stop the run; it waits while a message is handled. The next run begins when the thread of this one
  receives no more.
- Slots of a stopped run are not reused, because builders may still write to them, and neither is its window.
"""

import os
import time
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from threading import RLock
from typing import Any, NamedTuple

from penstock.device import SharedRegions, arena_bytes
from penstock.engine._memory_budget import BuildAhead
from penstock.engine.assembly import BatchFormatter, Placement
from penstock.engine.window import joined_keys
from penstock.engine.workers._messages import Build, Built, Failed, Published, ReadTo, Release, Run, Stop
from penstock.engine.workers._pending import PendingSpan, RowRange, WindowMemory
from penstock.engine.workers._pool import ProcessPool
from penstock.engine.workers._slots import Delivery
from penstock.engine.workers._source import DeliveredSpan, SpanStream
from penstock.errors import PenstockError
from penstock.plan import SpanSteps
from penstock.runners import read_pickled, unpack
from penstock.table import Int64Array

_MAX_DEATHS = 3
_IN_FLIGHT = 2
"""Tasks of a builder: one that it does, and the next."""
_TASKS_AHEAD = 3
"""Tasks for each builder among the spans that memory allows: also one that is built, and waits for others before it."""
_SLOT_SLACK = 1.25
"""Bytes of a slot relative to the largest results so far."""
_PLACED_AHEAD = 2
"""Spans whose transfer to a device begins before the loop asks for them."""

_numbers = count()


class _EpochStart(NamedTuple):
    """Where a run starts to read an epoch."""

    epoch: int
    consumed: int
    number: int
    """Of its first span."""


class ProcessRun(SpanStream):
    """Delivers the spans that worker processes build."""

    def __init__(self, pool: ProcessPool, formatter: BatchFormatter, placement: Placement | None) -> None:
        self._pool, self._placement = pool, placement
        self._source = pool.source
        self._delivery = Delivery(pool.slot_layout, formatter, placement, pool.collector, self._source.row_keys)
        self._ahead = BuildAhead(self._source.pipeline.spans)
        self._schedule: Iterator[SpanSteps] = iter(())
        self._steps: dict[int, SpanSteps] = {}
        """Spans that are not published yet, as far as they are known."""
        self._published: dict[int, dict[int, Published]] = {}
        """Spans that some readers have published, by the number of the reader."""
        self._pending: dict[int, PendingSpan] = {}
        self._ready: list[int] = []
        """Spans of which something is waiting for a builder, as a heap."""
        self._tasks = [_IN_FLIGHT] * len(pool.readers) + [0] * pool.num_builders
        """Tasks that each worker has not answered; one that reads, or could not start, has as many as it may have."""
        self._released: list[int] = []
        self._memory: WindowMemory | None = None
        self._next = 0
        self._known = 0
        """The number after that of the last known span."""
        self._deaths = 0
        self._lock = RLock()
        """Held while anything here changes; another thread may stop the run."""
        self._failure: tuple[Exception, int] | None = None
        """An error that ends the run, and the first span that will not be built."""
        self._stopped = False
        self._run = 0
        self._reading_epoch: int | None = 0
        """None while reading is paused."""
        self._epochs: list[_EpochStart] = []
        """The epochs of spans that are not delivered, and the last one before."""

    def start(self, epoch: int, consumed: int) -> None:
        self._reading_epoch = epoch
        self._epochs = [_EpochStart(epoch, consumed, 0)]
        self._schedule = self._source.schedule.run(epoch, consumed)

        def begin(run: int) -> None:
            self._run = run
            self._start_readers(self._epochs[0], 0)

        self._pool.open(begin)

    def _start_readers(self, start: _EpochStart, first: int) -> None:
        self._memory = WindowMemory(next(_numbers), SharedRegions.create())
        self._published, self._released = {}, []
        limit = self._next + self._ahead.depth
        for reader in self._pool.readers:
            message = Run(self._run, *start, first, limit, reader, self._memory.number)
            self._pool.send(reader, message, [self._memory.regions.fd])

    def _tell_readers(self, message: Any) -> None:
        for reader in self._pool.readers:
            self._pool.send(reader, message)

    def pause(self) -> None:
        self.resume(None)

    def resume(self, epoch: int | None) -> None:
        """Let the readers read, at most up to the end of the epoch after this one; None pauses them."""
        self._reading_epoch = epoch
        self._tell_readers(ReadTo(self._run, epoch))

    def stop(self, *, wait: bool = False) -> None:  # noqa: ARG002
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            self._tell_readers(Stop(self._run))
            self._pool.wake()
            for span in self._pending.values():
                span.close()
                if span.slot is not None:
                    self._pool.slots.drop(span.slot)
            self._pending, self._memory = {}, None

    def next_span(self) -> DeliveredSpan | None:
        started = time.perf_counter()
        self._receive(wait=False)
        while not self._stopped:
            with self._lock:
                delivered = self._next_delivery()
            if delivered is not None:
                self._pool.collector.add_time("loop", "starved", time.perf_counter() - started)
                return delivered
            self._receive(wait=True)
        return None

    def _next_delivery(self) -> DeliveredSpan | None:
        """The next span; None if it is not built, or after `stop`. Raises the error that occurred in it."""
        span = self._pending.get(self._next)
        if span is not None and span.error is not None:
            raise span.error
        if span is not None and span.is_built:
            delivered = span.delivered or self._deliver(span)
            del self._pending[self._next]
            self._next += 1
            self._deaths = 0
            self._dispatch()
            self._place_ahead()
            return delivered
        if self._failure is not None and self._next >= self._failure[1]:
            raise self._failure[0]
        if span is None and not self._stopped and self._steps_of(self._next) is None:
            raise PenstockError("a loader was read past its end")
        return None

    def _steps_of(self, number: int) -> SpanSteps | None:
        """The steps of a span that is not published; None after the last one."""
        while self._known <= number:
            steps = next(self._schedule, None)
            if steps is None:
                break
            self._known = steps.number + 1
            self._steps[steps.number] = steps
            if steps.epoch > self._epochs[-1].epoch:
                self._epochs = [self._epochs[-1], _EpochStart(steps.epoch, 0, steps.number)]
        return self._steps.get(number)

    def _place_ahead(self) -> None:
        """Begin the transfer of the next spans to a device."""
        if self._placement is None:
            return
        for number in range(self._next, self._next + _PLACED_AHEAD):
            span = self._pending.get(number)
            if span is None or span.error is not None or not span.is_built:
                return
            if span.delivered is None:
                span.delivered = self._deliver(span)

    def _dispatch(self) -> None:
        """Give spans to builders, as far ahead as there is memory for; tell the reader what was built."""
        limit = self._next + self._ahead.depth
        while self._ready and self._ready[0] < limit and (load := min(self._tasks)) < _IN_FLIGHT:
            span = self._pending[self._ready[0]]
            if self._pool.fills_slots:
                idle = self._tasks.count(0) // sum(number < limit for number in self._ready)
                span.split(max(idle, _TASKS_AHEAD * self._pool.num_builders // self._ahead.depth))
            self._send(span, span.waiting.pop(0), self._tasks.index(load))
            if not span.waiting:
                heappop(self._ready)
        if self._released:
            self._tell_readers(Release(self._run, self._released, limit))
            self._released = []

    def _send(self, span: PendingSpan, rows: RowRange | None, worker: int) -> None:
        process = self._pool.builder(worker)
        if span.slot is None:
            span.slot = self._pool.slots.take(process.slots)
        new_memory, new_slot = process.memory != span.memory.number, span.slot.number not in process.slots
        descriptors = [span.memory.regions.fd] * new_memory + [span.slot.memory.fd] * new_slot
        process.memory = span.memory.number
        dropped = list(process.slots - self._pool.slots.live)
        process.slots.difference_update(dropped)
        process.slots.add(span.slot.number)
        message = Build(
            self._run, span.steps.number, [each.place for each in span.published],
            span.slot.number, rows, new_memory, new_slot, dropped,
        )  # fmt: skip
        span.builders[rows] = worker
        self._tasks[worker] += 1
        self._pool.send(worker, message, descriptors)

    def _receive(self, *, wait: bool) -> None:
        """Handle all messages that are there; with `wait`, wait for one, and handle those that are there by then."""
        with self._pool.receiving:
            more = True
            while more and not self._stopped:
                more = False
                for message in self._pool.receive(wait=wait):  # without the lock: another thread may stop the run
                    with self._lock:
                        self._handle(*message)
                    more = not wait
        with self._lock:
            if not self._stopped:
                self._dispatch()

    def _handle(self, worker: int, message: Any, descriptors: list[int]) -> None:
        descriptor = descriptors[0] if descriptors else None
        if message is None:
            self._replace(worker)
            return
        if message.stats is not None:
            self._pool.collector.record_process(self._pool.processes[worker].pid, message.stats)
        if isinstance(message, Failed) and message.run in (None, self._run):
            self._failure = message.error.revive(), message.number
            if message.run is None:
                self._pool.processes[worker].started = False
                self._tasks[worker] = _IN_FLIGHT
        elif isinstance(message, Built) and message.run == self._run and not self._stopped:
            self._tasks[worker] -= 1
            self._take(message, descriptor)
        elif isinstance(message, Published) and message.run == self._run and not self._stopped:
            self._take_published(worker, message)
        elif descriptor is not None:
            os.close(descriptor)

    def _take_published(self, reader: int, message: Published) -> None:
        if self._memory is None or message.memory != self._memory.number:  # before another reader died
            return
        parts = self._published.setdefault(message.number, {})
        parts[reader] = message
        if len(parts) < len(self._pool.readers):
            return
        del self._published[message.number]
        steps = self._steps_of(message.number)
        if steps is None:  # it was published before a reader died, and one before it was not
            self._released.append(message.number)
            return
        del self._steps[message.number]
        published = [parts[number] for number in self._pool.readers]
        error = next((each.error for each in published if each.error is not None), None)
        keys: Int64Array | None = None
        if self._pool.keys and self._placement is not None and error is None:
            regions = self._memory.regions
            tasks = [read_pickled(arena_bytes(regions, number, *each.place)) for number, each in enumerate(published)]
            keys = joined_keys(tasks)
        span = self._pending[message.number] = PendingSpan(steps, published, self._memory, keys)
        if error is not None:
            span.error, span.waiting = error.revive(), []
            self._released.append(message.number)
        else:
            heappush(self._ready, message.number)

    def _take(self, built: Built, descriptor: int | None) -> None:
        span = self._pending.get(built.number)
        if span is None or span.builders.pop(built.rows, None) is None:
            if descriptor is not None:
                os.close(descriptor)
            return
        span.take(built, descriptor)
        if span.is_built:
            self._release(span)

    def _release(self, span: PendingSpan) -> None:
        """Let the reader free the rows of a span, and measure it."""
        if self._memory is not None and span.memory.number == self._memory.number:
            self._released.append(span.steps.number)
        if span.batches is None:
            self._ahead.record(self._pool.slot_layout.size)
            return
        (_, arrays), descriptor = span.batches
        size = sum(size for _, _, size in arrays)
        self._ahead.record(size)
        if descriptor is not None:  # new memory costs a page fault per page
            self._pool.slots.grow(round(_SLOT_SLACK * size))

    def _deliver(self, span: PendingSpan) -> DeliveredSpan:
        """What the loop gets of a span that is built."""
        assert span.slot is not None
        memory = self._pool.slots.lease(span.slot)
        if span.batches is None:
            failure = None if span.failure is None else (span.failure[0], span.failure[1].revive())
            batches = self._delivery.of_slot(span.steps, memory, span.keys, span.bad, failure)
        else:
            shipment, descriptor = span.batches
            span.batches = shipment, None
            batches = self._delivery.of_builder(span.steps, unpack(shipment, descriptor, memory), span.keys)
        blocks_drawn = sum(each.blocks_drawn for each in span.published)
        return DeliveredSpan(span.steps, batches, span.bad, blocks_drawn, sum(each.padding for each in span.published))

    def _replace(self, worker: int) -> None:
        """Start another process in place of one that died, with all that is left of its work."""
        if self._stopped:
            return
        code = self._pool.replace(worker)
        self._deaths += 1
        if self._deaths >= _MAX_DEATHS:
            raise PenstockError(
                f"worker processes ended {_MAX_DEATHS} times while one batch was made, the last time exit code {code}; "
                "look for a transform or a decoder that crashes or takes too much memory"
            )
        self._pool.collector.note(f"a worker process ended (exit code {code}) and was started again")
        if worker in self._pool.readers:
            first = next(number for number in range(self._next, self._known + 1) if number not in self._pending)
            start = next(start for start in reversed(self._epochs) if start.number <= first)
            self._start_readers(start, first)
            self.resume(self._reading_epoch)
        else:
            self._tasks[worker] = 0
        for number, span in self._pending.items():
            was_waiting = bool(span.waiting)
            span.give_back(worker)
            if span.waiting and not was_waiting:
                heappush(self._ready, number)
