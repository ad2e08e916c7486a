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

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from threading import RLock
from typing import Any

from penstock.device import SharedMemory, SharedRegions, arena_bytes
from penstock.engine.window import joined_keys
from penstock.engine.workers._messages import Build, Built, Failed, Published, ReadTo, Release, RowRange, Run, Stop
from penstock.engine.workers._pending import PendingSpan, WindowMemory
from penstock.engine.workers._pool import ProcessPool
from penstock.engine.workers._source import DeliveredSpan
from penstock.errors import PenstockError
from penstock.plan import SpanSteps
from penstock.runners import read_pickled

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


class ProcessRun:
    """Delivers the spans that worker processes build; it has the methods of `ThreadedRun`."""

    def __init__(self, pool: ProcessPool) -> None:
        self._pool, self._ahead = pool, replace(pool.source.pipeline.spans)
        self._schedule: Iterator[SpanSteps] = iter(())
        self._spans: dict[int, PendingSpan] = {}
        """Those that are not delivered, as far as they are known, in order."""
        self._ready: list[int] = []
        """Spans of which something is waiting for a builder, as a heap."""
        self._tasks = [_IN_FLIGHT] * len(pool.readers) + [0] * pool.num_builders
        """Tasks that each worker has not answered; one that reads, or could not start, has as many as it may have."""
        self._released: list[int] = []
        self._memory: WindowMemory | None = None
        self._windows: set[int] = set()
        """The numbers of that and of those before, of which builders may still make batches."""
        self._next = 0
        self._known = 0
        """The number after that of the last known span."""
        self._deaths = 0
        self._lock = RLock()
        """Held while anything here changes; another thread may stop the run."""
        self._failure: tuple[Exception, int] | None = None
        """An error that ends the run, and the first span that will not be built."""
        self._stopped = False
        self._reading_epoch: int | None = 0
        """None while reading is paused."""
        self._epochs: list[SpanSteps] = []
        """The first spans of the epochs that are not delivered, and of the last one before."""

    def start(self, epoch: int, consumed: int) -> None:
        self._reading_epoch = epoch
        self._schedule = self._pool.source.schedule.run(epoch, consumed)
        if self._span(0) is not None:
            self._pool.open(partial(self._start_readers, 0))

    def _start_readers(self, first: int) -> None:
        """Let the readers publish the spans from `first` on, in a new window."""
        start = next(steps for steps in reversed(self._epochs) if steps.number <= first)
        memory = self._memory = WindowMemory(next(_numbers), SharedRegions.create())
        self._windows.add(memory.number)
        self._released = []
        for span in self._spans.values():
            if span.memory is None:
                span.published.clear()
        limit = self._next + self._ahead.depth
        for reader in self._pool.readers:
            message = Run(memory.number, start.epoch, start.start, start.number, first, limit, reader)
            self._pool.send(reader, message, [memory.regions.fd])

    def _tell_readers(self, kind: Callable[..., Any], *fields: Any) -> None:
        """Send all readers a message about their window."""
        memory = self._memory
        if memory is not None:
            message = kind(memory.number, *fields)
            for reader in self._pool.readers:
                self._pool.send(reader, message)

    def read_to(self, epoch: int | None) -> None:
        self._reading_epoch = epoch
        self._tell_readers(ReadTo, epoch)

    def stop(self, *, wait: bool = False) -> None:  # noqa: ARG002
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            self._tell_readers(Stop)
            self._pool.wake()
            for span in self._spans.values():
                if span.slot is not None:
                    self._pool.slots.drop(span.slot)
            self._spans, self._memory = {}, None

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
        if self._stopped:
            return None
        span = self._span(self._next)
        if span is not None and span.error is not None:
            raise span.error
        if span is not None and span.is_built:
            delivered = self._delivered(span)
            del self._spans[self._next]
            self._next += 1
            self._deaths = 0
            self._dispatch()
            self._place_ahead()
            return delivered
        if self._failure is not None and self._next >= self._failure[1]:
            raise self._failure[0]
        if span is None:
            raise PenstockError("a loader was read past its end")
        return None

    def _span(self, number: int) -> PendingSpan | None:
        """A span that is not delivered; None after the last one."""
        while self._known <= number:
            steps = next(self._schedule, None)
            if steps is None:
                break
            self._known = steps.number + 1
            self._spans[steps.number] = PendingSpan(steps)
            if not self._epochs or steps.epoch > self._epochs[-1].epoch:
                self._epochs = [*self._epochs[-1:], steps]
        return self._spans.get(number)

    def _place_ahead(self) -> None:
        """Begin the transfer of the next spans to a device."""
        if self._pool.placement is None:
            return
        for number in range(self._next, self._next + _PLACED_AHEAD):
            span = self._spans.get(number)
            if span is None or span.error is not None or not span.is_built:
                return
            span.delivered = self._delivered(span)

    def _delivered(self, span: PendingSpan) -> DeliveredSpan:
        """What the loop gets of a span that is built."""
        assert span.slot is not None
        return span.delivered or self._pool.deliver(span, self._pool.slots.lease(span.slot))

    def _dispatch(self) -> None:
        """Give spans to builders, as far ahead as there is memory for; tell the reader what was built."""
        limit = self._next + self._ahead.depth
        while self._ready and self._ready[0] < limit and (load := min(self._tasks)) < _IN_FLIGHT:
            span = self._spans[self._ready[0]]
            if self._pool.fills_slots and span.waiting == [None]:
                idle = self._tasks.count(0) // sum(number < limit for number in self._ready)
                span.split(max(idle, _TASKS_AHEAD * self._pool.num_builders // self._ahead.depth))
            self._send(span, span.waiting.pop(0), self._tasks.index(load))
            if not span.waiting:
                heappop(self._ready)
        if self._released:
            self._tell_readers(Release, self._released, limit)
            self._released = []

    def _send(self, span: PendingSpan, rows: RowRange | None, worker: int) -> None:
        builder, memory = self._pool.workers[worker], span.memory
        assert memory is not None
        if span.slot is None:
            span.slot = self._pool.slots.take(builder.slots)
        descriptors = [memory.regions.fd] * (builder.window != memory.number)
        descriptors += [span.slot.memory.fd] * (span.slot.number not in builder.slots)
        builder.window = memory.number
        dropped = list(builder.slots - self._pool.slots.live)
        builder.slots.difference_update(dropped)
        builder.slots.add(span.slot.number)
        message = Build(memory.number, span.steps.number, span.places, span.slot.number, rows, dropped)
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
        memory = SharedMemory(descriptors[0]) if descriptors else None
        if message is None:
            self._replace(worker)
            return
        if message.stats is not None:
            self._pool.collector.record_process(self._pool.workers[worker].process.pid, message.stats)
        if isinstance(message, Built) and message.window in self._windows and not self._stopped:
            self._tasks[worker] -= 1
            self._take(message, memory)
        elif isinstance(message, Published):
            self._take_published(worker, message)
        elif isinstance(message, Failed) and (message.window is None or message.window in self._windows):
            self._failure = message.error.revive(), message.number
            if message.window is None:
                self._pool.workers[worker].started = False
                self._tasks[worker] = _IN_FLIGHT

    def _take_published(self, reader: int, message: Published) -> None:
        memory = self._memory
        if memory is None or message.window != memory.number:  # of another run, or before another reader died
            return
        span = self._span(message.number)
        if span is None or span.memory is not None:  # it was published before a reader died, and one before it was not
            self._pool.send(reader, Release(memory.number, [message.number], self._next + self._ahead.depth))
            return
        span.published[reader] = message
        if len(span.published) < len(self._pool.readers):
            return
        published = [span.published[number] for number in self._pool.readers]
        span.memory, span.places = memory, [each.place for each in published]
        error = next((each.error for each in published if each.error is not None), None)
        if error is not None:
            span.error = error.revive()
            self._released.append(message.number)
            return
        if self._pool.placement is not None and self._pool.placement.needs_keys:
            tasks = [arena_bytes(memory.regions, number, *place) for number, place in enumerate(span.places)]
            span.keys = joined_keys(list(map(read_pickled, tasks)))
        span.waiting = [None]
        heappush(self._ready, message.number)

    def _take(self, built: Built, memory: SharedMemory | None) -> None:
        """Take over what a builder has made; let the readers free the rows of a span that is built, and measure it."""
        span = self._spans.get(built.number)
        if span is None or span.builders.pop(built.rows, None) is None:
            return
        span.take(built, memory)
        if not span.is_built:
            return
        if span.memory is self._memory:
            self._released.append(span.steps.number)
        if span.batches is None:
            self._ahead.record(self._pool.slot_layout.size)
            return
        (_, arrays), memory = span.batches
        size = sum(size for _, _, size in arrays)
        self._ahead.record(size)
        if memory is not None:  # new memory costs a page fault per page
            self._pool.slots.grow(round(_SLOT_SLACK * size))

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
            unpublished = (number for number, span in self._spans.items() if span.memory is None)
            self._start_readers(next(unpublished, self._known))
            self.read_to(self._reading_epoch)
        else:
            self._tasks[worker] = 0
        for number, span in self._spans.items():
            was_waiting = bool(span.waiting)
            span.give_back(worker)
            if span.waiting and not was_waiting:
                heappush(self._ready, number)
