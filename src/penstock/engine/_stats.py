"""Where the time goes: busy and waiting time of each stage, and one sentence that names the bottleneck."""

import math
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, product
from threading import Lock, Thread, current_thread
from typing import Any

from penstock.plan import ShuffleQuality
from penstock.runners import available_cores

_MIN_LATENCY_S, _STEPS_PER_DOUBLING = 2.0**-17, 16
_LATENCIES = 26 * _STEPS_PER_DOUBLING
"""Latencies are counted in steps of 4 %, up to about 8 minutes."""
_MAX_BAD_SAMPLES = 1000
_UNANSWERED_S = 3.0
_BUSY_CORES, _PENDING_READS = 0.85, 0.5
"""Share of the cores from which on more memory or a faster store would not help; reads that show that one is slow."""
_STAGES, _STATES = ("fetch", "worker", "transform", "loop"), ("busy", "starved", "blocked")


@dataclass(frozen=True, slots=True)
class BadSample:
    """A row that could not be used and was replaced by another."""

    row_id: int
    epoch: int
    reason: str
    source: str | None = None
    """In a mixture, the name of the source, whose row and epoch these are."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Time spent by one stage, in seconds, summed over threads and processes."""

    busy_s: float
    starved_s: float
    """Waiting for input."""
    blocked_s: float
    """Waiting for memory or for the consumer."""


@dataclass(frozen=True)
class LoaderStats:
    """Statistics of a loader; `print` shows a summary."""

    seconds: float
    rows: int
    """Rows delivered, without those that only fill the last step."""
    batches: int
    bytes: int
    """Bytes of pages fetched, prefetch for the next epoch included."""
    gets: int
    latency_s: tuple[float, float, float]
    """Latency of a GET with body and verification: median, 95th and 99th percentile."""
    retries: int
    hedges: int
    read_factor: float
    """Approximate number of times that a byte of an epoch is read, over all ranks; measured if too little memory makes
    the loader read pages repeatedly, or if rows have an order of their own."""
    window_bytes: int
    window_peak_bytes: int
    device_bytes: int
    """Bytes of rows copied to the device window."""
    budget_bytes: int
    first_batch_s: float
    """From the start of the last epoch to its first batch."""
    stages: dict[str, StageTimes]
    quality: ShuffleQuality | None
    """Shuffle quality; None without shuffle."""
    bad_samples: tuple[BadSample, ...]
    bad_count: int
    notes: tuple[str, ...]
    processes: int
    """Worker processes; 0 if batches are built by threads of this process."""
    threads: int
    """Threads that build batches, in each process."""
    unanswered_s: float
    """For how long the store has answered none of the pending requests."""
    cpu_s: float
    """Processor time of worker processes, and of all threads of this process while the loader is iterated."""

    @property
    def rows_per_s(self) -> float:
        """Rows delivered per second."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def gets_per_gb(self) -> float:
        """Requests per gigabyte fetched."""
        return self.gets / (self.bytes / 1e9) if self.bytes else 0.0

    @property
    def bottleneck(self) -> str:
        """One sentence that names what the loop waits for."""
        loop, work, fetch = self.stages["loop"], self.stages["worker"], self.stages["fetch"]
        waited = loop.starved_s / max(loop.starved_s + loop.busy_s, 1e-9)
        if self.unanswered_s > _UNANSWERED_S:
            return f"the store does not answer: no response for {self.unanswered_s:.0f} s"
        if not self.batches:
            return "bottleneck: nothing has been read yet"
        if waited < 0.05:
            return f"bottleneck: the training loop; it waited for data {waited:.1%} of the time"
        cores, waits = available_cores(), work.starved_s > work.busy_s
        all_busy = self.cpu_s > _BUSY_CORES * cores * self.seconds
        if waits and not all_busy:
            if fetch.blocked_s > max(fetch.busy_s * 0.5, work.busy_s):
                return (
                    "bottleneck: memory; fetching waited for room in the window, raise memory_budget "
                    f"(waited {waited:.0%})"
                )
            if fetch.busy_s < _PENDING_READS * loop.starved_s:
                return f"bottleneck: planning; the loop waited {waited:.0%} of the time, and reads took little of that"
            rate = self.bytes / max(self.seconds, 1e-9) / 1e6
            return (
                f"bottleneck: storage; the loop waited {waited:.0%} of the time for {rate:,.0f} MB/s "
                f"with a GET taking {1e3 * self.latency_s[0]:.0f} ms"
            )
        transform = self.stages["transform"].busy_s
        what = "reading, decoding and gathering" if waits else "decoding and gathering"
        if transform > 0.5 * max(work.busy_s, fetch.busy_s * waits):
            what = "your transform"
        workers = max(1, self.processes) * self.threads
        used = f"raise num_workers, {workers} of {cores} cores are used"
        advice = f"all {cores} cores are used" if all_busy or workers >= cores else used
        return f"bottleneck: {what}; the loop waited {waited:.0%} of the time, and {advice}"

    def __str__(self) -> str:
        median, slow, slowest = (1e3 * value for value in self.latency_s)
        lines = [
            f"{self.rows:,} rows in {self.seconds:.1f} s: {self.rows_per_s:,.0f} rows/s, "
            f"{self.bytes / max(self.seconds, 1e-9) / 1e6:,.0f} MB/s; first batch after {self.first_batch_s:.2f} s",
            f"{self.gets:,} GETs ({self.gets_per_gb:,.0f} per GB), {median:.0f} / {slow:.0f} / {slowest:.0f} ms "
            f"(median, p95, p99), {self.retries} retries, {self.hedges} hedges; each byte is read "
            f"{self.read_factor:.2f} times over all ranks",
            f"window {self.window_peak_bytes / 1e6:,.0f} MB at most, of a budget of {self.budget_bytes / 1e6:,.0f} MB",
        ]
        if self.processes:
            lines.append(f"{self.processes} worker processes, each with {self.threads} threads that build batches")
        if self.device_bytes:
            lines.append(f"{self.device_bytes / 1e9:,.2f} GB were copied to the window on the device")
        lines += [
            f"{name:<9} busy {stage.busy_s:7.2f} s, starved {stage.starved_s:7.2f} s, blocked {stage.blocked_s:7.2f} s"
            for name, stage in self.stages.items()
        ]
        if self.quality is not None:
            lines.append(f"shuffle: {self.quality}")
        if self.bad_count:
            lines.append(f"{self.bad_count} bad samples were replaced, the last: {self.bad_samples[-1]}")
        return "\n".join([*lines, *self.notes, self.bottleneck])


@dataclass(eq=False)
class Counters:
    """Counters of a thread or a process, or their sums over all of them."""

    seconds: float = 0.0
    first_batch_s: float = 0.0
    rows: int = 0
    batches: int = 0
    blocks_drawn: int = 0
    """Sum over batches of the number of blocks that a batch draws from."""
    batches_drawn: int = 0
    bad_count: int = 0
    bytes: int = 0
    gets: int = 0
    device_bytes: int = 0
    retries: int = 0
    hedges: int = 0
    window_bytes: int = 0
    window_peak_bytes: int = 0
    cpu_s: float = 0.0
    latencies: list[int] = field(default_factory=lambda: [0] * _LATENCIES)
    """GETs by latency; a list of constant length, because another thread may read it meanwhile."""
    times: dict[tuple[str, str], float] = field(default_factory=lambda: dict.fromkeys(product(_STAGES, _STATES), 0.0))
    """Seconds by stage and state; all of them, for the same reason."""
    notes: tuple[str, ...] = ()
    unanswered_since: float | None = None
    """When the store last answered, if requests are pending."""

    def add(self, other: "Counters") -> None:
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.latencies = [mine + more for mine, more in zip(self.latencies, other.latencies, strict=True)]
        for stage_and_state, seconds in other.times.items():
            self.times[stage_and_state] += seconds
        self.notes = tuple(dict.fromkeys(self.notes + other.notes))
        since = [each for each in (self.unanswered_since, other.unanswered_since) if each is not None]
        self.unanswered_since = max(since, default=None)  # the last answer that any process got

    def record_latency(self, seconds: float) -> None:
        """Count the latency of a GET."""
        index = math.ceil(_STEPS_PER_DOUBLING * math.log2(max(seconds, _MIN_LATENCY_S) / _MIN_LATENCY_S))
        self.latencies[min(index, _LATENCIES - 1)] += 1

    @property
    def latency_s(self) -> tuple[float, float, float]:
        """Median, 95th and 99th percentile of the latency of a GET, rounded up by at most 5 %."""
        ends = list(accumulate(self.latencies))
        if not ends[-1]:
            return 0.0, 0.0, 0.0
        indices = (bisect_right(ends, int(ends[-1] * share)) for share in (0.5, 0.95, 0.99))
        median, slow, slowest = (_MIN_LATENCY_S * 2 ** (index / _STEPS_PER_DOUBLING) for index in indices)
        return median, slow, slowest

    @property
    def stages(self) -> dict[str, StageTimes]:
        """The times of each stage."""
        return {stage: StageTimes(*(self.times[stage, state] for state in _STATES)) for stage in _STAGES}

    def summary(self) -> dict[str, Any]:
        """What `LoaderStats` shows of them."""
        return {each.name: getattr(self, each.name) for each in fields(LoaderStats) if hasattr(self, each.name)}


_SUMMED = [each.name for each in fields(Counters) if each.default == 0]


class StatsCollector(Counters):
    """Collects statistics. Its own counters are those that only one thread at a time changes.

    Others are counted by each thread for itself, because a shared lock would be contended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bad: deque[BadSample] = deque(maxlen=_MAX_BAD_SAMPLES)
        self._threads: dict[Thread, Counters] = {}
        self._finished_threads = Counters()
        self._processes: dict[int, Counters] = {}
        """The latest counters of worker processes, by pid; also of those that have ended."""
        self._lock = Lock()
        self._cpu_before_s = time.process_time()

    def _of_thread(self) -> Counters:
        counters = self._threads.get(current_thread())
        if counters is None:
            with self._lock:
                for thread in [thread for thread in self._threads if not thread.is_alive()]:
                    self._finished_threads.add(self._threads.pop(thread))
                counters = self._threads[current_thread()] = Counters()
        return counters

    def record_get(self, size: int, seconds: float) -> None:
        """Count a GET."""
        counters = self._of_thread()
        counters.gets += 1
        counters.bytes += size
        counters.record_latency(seconds)
        counters.times["fetch", "busy"] += seconds

    def record_device_copy(self, size: int) -> None:
        """Count bytes copied to a device."""
        self._of_thread().device_bytes += size

    def add_time(self, stage: str, what: str, seconds: float) -> None:
        """Add time that a stage was busy, starved or blocked."""
        self._of_thread().times[stage, what] += seconds

    @contextmanager
    def timed(self, stage: str, what: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add_time(stage, what, time.perf_counter() - started)

    def record_bad(self, bad: BadSample) -> None:
        """Count a bad sample."""
        with self._lock:
            self.bad_count += 1
            self.bad.append(bad)

    def note(self, *texts: str) -> None:
        with self._lock:
            self.notes = tuple(dict.fromkeys(self.notes + texts))

    def record_process(self, pid: int, counters: Counters) -> None:
        """Take over the counters of a worker process."""
        with self._lock:
            self._processes[pid] = counters

    def forget_requests(self, pid: int) -> None:
        """Forget what a worker process waits for, because it has ended."""
        with self._lock:
            if pid in self._processes:
                self._processes[pid] = replace(self._processes[pid], unanswered_since=None, window_bytes=0)

    def of_process(self, retries: int) -> Counters:
        """The counters of this process, if it is a worker."""
        total = self.totals()
        total.retries, total.cpu_s = retries, time.process_time() - self._cpu_before_s
        total.times.update(dict.fromkeys(product(["loop"], _STATES), 0.0))
        return total

    def totals(self) -> Counters:
        """Counters summed over all threads and processes."""
        total = Counters()
        with self._lock:
            for counters in (self, self._finished_threads, *self._threads.values(), *self._processes.values()):
                total.add(counters)
        return total
