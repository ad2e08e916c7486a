"""Where the time goes: busy and waiting time of each stage, and one sentence that names the bottleneck."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from threading import Lock, current_thread, local
from typing import NamedTuple

from penstock.engine._machine import available_cores
from penstock.plan import ShuffleQuality

_LATENCIES = 1024
_MAX_BAD_SAMPLES = 1000
_UNANSWERED_S = 3.0
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
        return _bottleneck(self)

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


class WorkerStats(NamedTuple):
    """Counters of a worker process since it started."""

    bytes: int
    gets: int
    times: dict[tuple[str, str], float]
    latencies: list[float]
    """Those since the last message."""
    retries: int
    hedges: int
    window_bytes: int
    window_peak_bytes: int
    notes: tuple[str, ...]
    unanswered_since: float | None


class Totals(NamedTuple):
    """Counters summed over threads and processes."""

    bytes: int
    gets: int
    device_bytes: int
    latency_s: tuple[float, float, float]
    stages: dict[str, StageTimes]
    retries: int
    """Of worker processes, as are those below."""
    hedges: int
    window_bytes: int
    window_peak_bytes: int


def _bottleneck(stats: LoaderStats) -> str:
    loop, work, fetch = stats.stages["loop"], stats.stages["worker"], stats.stages["fetch"]
    waited = loop.starved_s / max(loop.starved_s + loop.busy_s, 1e-9)
    if stats.unanswered_s > _UNANSWERED_S:
        return f"the store does not answer: no response for {stats.unanswered_s:.0f} s"
    if not stats.batches:
        return "bottleneck: nothing has been read yet"
    if waited < 0.05:
        return f"bottleneck: the training loop; it waited for data {waited:.1%} of the time"
    if fetch.blocked_s > max(fetch.busy_s * 0.5, work.busy_s) and work.starved_s > work.busy_s:
        return f"bottleneck: memory; fetching waited for room in the window, raise memory_budget (waited {waited:.0%})"
    if work.starved_s > work.busy_s:
        rate = stats.bytes / max(stats.seconds, 1e-9) / 1e6
        return (
            f"bottleneck: storage; the loop waited {waited:.0%} of the time for {rate:,.0f} MB/s "
            f"with a GET taking {1e3 * stats.latency_s[0]:.0f} ms"
        )
    transform = stats.stages["transform"].busy_s
    what = "your transform" if transform > 0.5 * work.busy_s else "decoding and gathering"
    workers, cores = max(1, stats.processes) * stats.threads, available_cores()
    advice = (
        f"all {cores} cores are used" if workers >= cores else f"raise num_workers, {workers} of {cores} cores are used"
    )
    return f"bottleneck: {what}; the loop waited {waited:.0%} of the time, and {advice}"


class _ThreadStats:
    """Counters of one thread."""

    def __init__(self) -> None:
        self.thread = current_thread()
        self.bytes = self.gets = self.device_bytes = 0
        self.latencies: deque[float] = deque(maxlen=_LATENCIES)
        self.times = dict.fromkeys(product(_STAGES, _STATES), 0.0)  # all: another thread may read them meanwhile

    def merge(self, other: "_ThreadStats") -> None:
        self.bytes += other.bytes
        self.gets += other.gets
        self.device_bytes += other.device_bytes
        self.latencies += other.latencies
        for what, seconds in other.times.items():
            self.times[what] += seconds


class StatsCollector:
    """Collects statistics; each thread has its own counters, because a shared lock would be contended."""

    def __init__(self) -> None:
        self.seconds = self.first_batch_s = 0.0
        self.rows = self.batches = self.hedges = 0
        self.window_bytes = self.window_peak_bytes = 0
        self.blocks_drawn = self.batches_drawn = 0
        self.bad_count = 0
        self.unanswered_since: float | None = None
        """When the store last answered, if requests are pending."""
        self.bad: deque[BadSample] = deque(maxlen=_MAX_BAD_SAMPLES)
        self.notes: list[str] = []
        self._finished = _ThreadStats()
        """Counters of finished threads."""
        self._threads: list[_ThreadStats] = []
        self._processes: dict[int, WorkerStats] = {}
        """The latest counters of worker processes, by pid; also of those that have ended."""
        self._local = local()
        self._lock = Lock()

    def _thread_stats(self) -> _ThreadStats:
        found: _ThreadStats | None = getattr(self._local, "stats", None)
        if found is None:
            found = self._local.stats = _ThreadStats()
            with self._lock:
                for over in [stats for stats in self._threads if not stats.thread.is_alive()]:
                    self._threads.remove(over)
                    self._finished.merge(over)
                self._threads.append(found)
        return found

    def record_get(self, size: int, seconds: float) -> None:
        """Count a GET."""
        stats = self._thread_stats()
        stats.gets += 1
        stats.bytes += size
        stats.latencies.append(seconds)
        stats.times["fetch", "busy"] += seconds

    def record_device_copy(self, size: int) -> None:
        """Count bytes copied to a device."""
        self._thread_stats().device_bytes += size

    def add_time(self, stage: str, what: str, seconds: float) -> None:
        """Add time that a stage was busy, starved or blocked."""
        self._thread_stats().times[stage, what] += seconds

    @contextmanager
    def timed(self, stage: str, what: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add_time(stage, what, time.perf_counter() - started)

    def record_bad(self, bad: BadSample) -> int:
        """Count a bad sample; returns the total."""
        with self._lock:
            self.bad_count += 1
            self.bad.append(bad)
            return self.bad_count

    def note(self, text: str) -> None:
        with self._lock:
            if text not in self.notes:
                self.notes.append(text)

    def record_process(self, pid: int, stats: WorkerStats) -> None:
        """Take over the counters of a worker process."""
        with self._lock:
            self._processes[pid] = stats
            self._finished.latencies += stats.latencies
            self.notes += [note for note in stats.notes if note not in self.notes]
            since = [each.unanswered_since for each in self._processes.values() if each.unanswered_since is not None]
            self.unanswered_since = max(since, default=None)  # the last answer that any process got

    def forget_requests(self, pid: int) -> None:
        """Forget what a worker process waits for, because it has ended."""
        with self._lock:
            if pid in self._processes:
                self._processes[pid] = self._processes[pid]._replace(unanswered_since=None, window_bytes=0)

    def of_process(self, retries: int) -> WorkerStats:
        """The counters of this process, if it is a worker."""
        with self._lock:
            total = self._sum()
            latencies = list(total.latencies)
            times = {what: seconds for what, seconds in total.times.items() if what[0] != "loop"}
            for stats in (self._finished, *self._threads):
                stats.latencies.clear()
        return WorkerStats(
            total.bytes, total.gets, times, latencies, retries, self.hedges,
            self.window_bytes, self.window_peak_bytes, tuple(self.notes), self.unanswered_since,
        )  # fmt: skip

    def _sum(self) -> _ThreadStats:
        total = _ThreadStats()
        for stats in (self._finished, *self._threads):
            total.merge(stats)
        return total

    def totals(self) -> Totals:
        """Counters summed over all threads and processes."""
        with self._lock:
            total, processes = self._sum(), list(self._processes.values())
        for process in processes:
            total.bytes += process.bytes
            total.gets += process.gets
            for what, seconds in process.times.items():
                total.times[what] += seconds
        ordered = sorted(total.latencies)
        shares = (0.5, 0.95, 0.99)
        middle, slow, slowest = (ordered[int(len(ordered) * share)] if ordered else 0.0 for share in shares)
        stages = {stage: StageTimes(*(total.times[stage, state] for state in _STATES)) for stage in _STAGES}
        return Totals(
            total.bytes, total.gets, total.device_bytes, (middle, slow, slowest), stages,
            sum(process.retries for process in processes), sum(process.hedges for process in processes),
            sum(process.window_bytes for process in processes),
            sum(process.window_peak_bytes for process in processes),
        )  # fmt: skip
