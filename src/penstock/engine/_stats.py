"""Where the time goes: what each stage did and waited for, and one sentence that says which holds up the loop."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from penstock.plan import Quality

_LATENCIES = 4096
_BAD_KEPT = 1000


@dataclass(frozen=True, slots=True)
class BadSample:
    """A row that could not be used, and was replaced by another."""

    row_id: int
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Stage:
    """How the threads of one stage spent their time, in seconds, all threads together."""

    busy_s: float
    starved_s: float
    """Waiting for work to come in."""
    blocked_s: float
    """Waiting for room to put results."""


@dataclass(frozen=True)
class LoaderStats:
    """What a loader has done so far; print it."""

    seconds: float
    rows: int
    batches: int
    bytes: int
    """Bytes of pages fetched, the ones for the next epoch included."""
    gets: int
    latency_s: tuple[float, float, float]
    """Of a GET with its body and verification: median, 95th and 99th percentile."""
    retries: int
    hedges: int
    read_factor: float
    """About how many times a byte of an epoch is read over all ranks."""
    window_bytes: int
    window_peak_bytes: int
    budget_bytes: int
    first_batch_s: float
    """From the start of the last epoch to its first batch."""
    stages: dict[str, Stage]
    quality: Quality | None
    """How well rows are shuffled; None where they are not."""
    bad_samples: tuple[BadSample, ...]
    bad_count: int
    notes: tuple[str, ...]

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def gets_per_gb(self) -> float:
        return self.gets / (self.bytes / 1e9) if self.bytes else 0.0

    @property
    def bottleneck(self) -> str:
        """One sentence that says what the loop waits for."""
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
        lines += [
            f"{name:<9} busy {stage.busy_s:7.2f} s, starved {stage.starved_s:7.2f} s, blocked {stage.blocked_s:7.2f} s"
            for name, stage in self.stages.items()
        ]
        if self.quality is not None:
            lines.append(f"shuffle: {self.quality}")
        if self.bad_count:
            lines.append(f"{self.bad_count} bad samples were replaced, the last: {self.bad_samples[-1]}")
        return "\n".join([*lines, *self.notes, self.bottleneck])


def _bottleneck(stats: LoaderStats) -> str:
    loop, work, fetch = stats.stages["loop"], stats.stages["work"], stats.stages["fetch"]
    waited = loop.starved_s / max(loop.starved_s + loop.busy_s, 1e-9)
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
    return f"bottleneck: {what}; the loop waited {waited:.0%} of the time, raise num_workers if there are idle cores"


@dataclass
class Gauge:
    """Counts while a loader runs; small and shared by all its threads."""

    started_s: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0
    rows: int = 0
    batches: int = 0
    bytes: int = 0
    gets: int = 0
    hedges: int = 0
    first_batch_s: float = 0.0
    window_bytes: int = 0
    window_peak_bytes: int = 0
    blocks_drawn: int = 0
    batches_drawn: int = 0
    bad_count: int = 0
    bad: deque[BadSample] = field(default_factory=lambda: deque(maxlen=_BAD_KEPT))
    notes: list[str] = field(default_factory=list)
    times: dict[tuple[str, str], float] = field(default_factory=dict)
    _latencies: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES))
    _lock: Lock = field(default_factory=Lock)

    def got(self, size: int, seconds: float) -> None:
        """A GET has ended."""
        with self._lock:
            self.gets += 1
            self.bytes += size
            self._latencies.append(seconds)
            self.times["fetch", "busy"] = self.times.get(("fetch", "busy"), 0.0) + seconds

    def add(self, stage: str, what: str, seconds: float) -> None:
        """Time that a stage was busy, starved or blocked."""
        with self._lock:
            self.times[stage, what] = self.times.get((stage, what), 0.0) + seconds

    @contextmanager
    def timed(self, stage: str, what: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, what, time.perf_counter() - started)

    def spoil(self, bad: BadSample) -> int:
        """Count a bad sample, and say how many there have been."""
        with self._lock:
            self.bad_count += 1
            self.bad.append(bad)
            return self.bad_count

    def note(self, text: str) -> None:
        with self._lock:
            if text not in self.notes:
                self.notes.append(text)

    def stages(self) -> dict[str, Stage]:
        with self._lock:
            return {
                stage: Stage(*(self.times.get((stage, what), 0.0) for what in ("busy", "starved", "blocked")))
                for stage in ("fetch", "work", "transform", "loop")
            }

    def percentiles(self) -> tuple[float, float, float]:
        with self._lock:
            ordered = sorted(self._latencies)
        if not ordered:
            return 0.0, 0.0, 0.0
        return ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.95)], ordered[int(len(ordered) * 0.99)]
