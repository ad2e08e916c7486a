"""What every figure is made with: the tables, rounds in turns, and the lines it comes to."""

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.loader.bench import warm
from benchmarks.query.process import Peer
from benchmarks.query.tables import Tables

OURS, LANCE = "penstock", "Lance"
Job = Callable[[], float]
"""Something that measures itself: the seconds of one question."""


@dataclass(frozen=True)
class Bench:
    """How large, how often, and against whom."""

    tables: Tables
    peer: Peer
    rounds: int
    queries: int
    """Different vectors or texts of a round."""
    delay_ms: float

    @property
    def rows(self) -> int:
        return self.tables.rows

    def warm(self) -> None:
        """Have both tables in the page cache."""
        warm(self.tables.folder)

    def in_turns(self, jobs: Mapping[str, Job]) -> dict[str, list[float]]:
        """The seconds of jobs, round by round, after one call of each that does not count."""
        for job in jobs.values():
            job()
        found: dict[str, list[float]] = {name: [] for name in jobs}
        for number in range(self.rounds):
            # Whoever goes first finds the caches of the processor cold, so they take turns in that too.
            for name in list(jobs)[:: 1 if number % 2 == 0 else -1]:
                found[name].append(jobs[name]())
        shown = ", ".join(f"{name} {1e3 * min(taken):.2f}" for name, taken in found.items())
        print(f"  min ms: {shown}", file=sys.stderr)
        return found


@dataclass(frozen=True)
class Line:
    """A figure in one line: ours against something, and what the ratio should be."""

    figure: str
    ours: float
    against: str
    other: float
    unit: str
    ratio: float
    at_least: float | None = None
    at_most: float | None = None
    ours_median: float | None = None
    other_median: float | None = None

    @property
    def target(self) -> str:
        low = f">= {self.at_least:g}" if self.at_least is not None else ""
        return low or (f"<= {self.at_most:g}" if self.at_most is not None else "")

    @property
    def holds(self) -> bool:
        low, high = self.at_least, self.at_most
        return (low is None or self.ratio >= low) and (high is None or self.ratio <= high)


@dataclass(frozen=True)
class Part:
    """What one figure found: lines with targets, and all that was measured."""

    lines: list[Line]
    found: dict[str, Any] = field(default_factory=dict)


def compared(
    figure: str,
    ours: Sequence[float],
    against: str,
    other: Sequence[float],
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Line:
    """Times in milliseconds, and the ratio of the smallest: ours to the other's, or with `at_least` the other way."""
    ratio = min(ours) / min(other) if at_least is None else min(other) / min(ours)
    return Line(
        figure, 1e3 * min(ours), against, 1e3 * min(other), "ms", ratio, at_least, at_most,
        1e3 * statistics.median(ours), 1e3 * statistics.median(other),
    )  # fmt: skip


def counted(figure: str, ours: float, unit: str, *, against: str = "", other: float = 1.0, **target: float) -> Line:
    """A number and its bound; a ratio where there is something to compare it with."""
    return Line(figure, ours, against, other, unit, ours / other, **target)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
