"""What every part is made with: sizes, measurements in rounds, and the rows of the printed table."""

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cores import tables
from benchmarks.cores.data import Data
from benchmarks.loader.job import call

OURS, BEFORE, PEER, LIMIT, OWN = "ours", "before", "peer", "limit", "ours with fewer workers"
Answer = dict[str, Any] | None
"""What a measurement found; None if it failed."""
Answers = dict[str, list[Answer]]
_START_S = 90.0
"""Seconds for imports, the start of workers and the end of all of them, beside the time that is measured."""


@dataclass(frozen=True)
class Bench:
    """How large, how long, and with how many workers."""

    folder: Path
    workers: tuple[int, ...]
    rounds: int
    seconds: float
    warmup_s: float
    size: float
    """Of all tables, relative to the full ones."""
    copies: int
    worker_type: str | None
    with_peers: bool
    """And limits."""
    against: Path | None
    """Another checkout, whose loader is measured in turns with this one's."""
    deadline: float
    """When no further round is begun, by `time.perf_counter`; the first round is always measured."""

    @property
    def short_s(self) -> float:
        """Seconds of a measurement with fewer workers."""
        return self.seconds / 4

    @property
    def most(self) -> int:
        """The number of workers that targets are for."""
        return self.workers[-1]

    def data(self, name: str) -> Data:
        """The table of that name; made if it is not there."""
        start = time.perf_counter()
        data = tables.build(self.folder, name, size=self.size, copies=self.copies)
        size, budget = data.table_bytes / 1e6, data.budget_bytes / 1e6
        say(
            f"  {name}: {data.rows:,} rows, {size:,.0f} MB; budget {budget:,.0f} MB, spread "
            f"{data.spread or 'by default'}; made in {time.perf_counter() - start:.1f} s"
        )
        return data


@dataclass
class Part:
    """What one part of the benchmark found."""

    figures: list[dict[str, Any]] = field(default_factory=list)
    curve: list[dict[str, Any]] = field(default_factory=list)
    """Rows per second for each number of workers; empty if the part has no curve."""
    found: dict[str, Any] = field(default_factory=dict)
    """All answers, round by round."""


def ask(module: str, function: str, *, budget_s: float, source: Path | None = None, **arguments: Any) -> Answer:
    """A measurement in a process of its own; one that fails is reported, and the others go on."""
    try:
        words = (function, json.dumps(arguments))
        timeout_s = _START_S + 3 * budget_s
        return call(module, *words, package="benchmarks.cores", timeout_s=timeout_s, source=source)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        say(f"  FAILED: {error}")
        return None


def in_turns(jobs: Mapping[str, Callable[[], Answer]], rounds: int, deadline: float = math.inf) -> Answers:
    """Run jobs in turn, so that a noisy machine is noisy to all of them."""
    found: Answers = {name: [] for name in jobs}
    for number in range(rounds):
        if number and time.perf_counter() > deadline:
            say("  no time for more rounds")
            break
        for name, job in jobs.items():
            answer = job()
            found[name].append(answer)
            shown = "failed" if answer is None else f"{answer['rows_per_s']:,.2f}"
            say(f"  round {number + 1}/{rounds} {name}: {shown}")
    return found


def median(answers: Sequence[Answer], key: str = "rows_per_s") -> float | None:
    values = [answer[key] for answer in answers if answer is not None and key in answer]
    return float(statistics.median(values)) if values else None


def ratio(ours: Sequence[Answer], other: Sequence[Answer], key: str = "rows_per_s") -> float | None:
    """The median over rounds of ours relative to the other; that of medians if they were not measured in turns."""
    if len(ours) != len(other):
        mine, theirs = median(ours, key), median(other, key)
        return None if mine is None or theirs is None else mine / theirs
    turns = [a[key] / b[key] for a, b in zip(ours, other, strict=True) if a and b and key in a and key in b]
    return float(statistics.median(turns)) if turns else None


@dataclass(frozen=True)
class Target:
    """What a figure should be: ratios, or at least or at most a value."""

    to_peer: float | None = None
    to_limit: float | None = None
    at_least: float | None = None
    at_most: float | None = None

    def __str__(self) -> str:
        parts = (
            f">= {self.to_limit:.0%} of limit" if self.to_limit is not None else "",
            f">= {self.to_peer:g}x peer" if self.to_peer is not None else "",
            f">= {self.at_least:,.0f}" if self.at_least is not None else "",
            f"<= {self.at_most:g}" if self.at_most is not None else "",
        )
        return ", ".join(filter(None, parts))

    def met(self, ours: float | None, to_peer: float | None, to_limit: float | None) -> bool:
        """Whether all hold; a value that could not be measured does not."""
        low = ((to_peer, self.to_peer), (to_limit, self.to_limit), (ours, self.at_least))
        return all(least is None or (found is not None and found >= least) for found, least in low) and (
            self.at_most is None or (ours is not None and ours <= self.at_most)
        )


def figure(
    what: str, workers: int, found: Answers, target: Target | None = None, key: str = "rows_per_s"
) -> dict[str, Any]:
    """A row of the printed table: medians, and medians of the ratios in each round."""
    medians = {role: median(found.get(role, []), key) for role in (OURS, BEFORE, PEER, LIMIT)}
    before, peer, limit = (
        ratio(found[OURS], found[role], key) if role in found else None for role in (BEFORE, PEER, LIMIT)
    )
    met = "" if target is None else "yes" if target.met(medians[OURS], peer, limit) else "NO"
    ratios = {"x before": before, "x peer": peer, "of limit": limit}
    numbers = {role: _rounded(value) for role, value in medians.items()}
    return {"what": what, "workers": workers, **numbers, **ratios, "target": str(target or ""), "ok": met}


def compared(
    bench: Bench, jobs: Callable[[int, float, float], dict[str, Callable[[], Answer]]], *, own: int | None
) -> dict[int, Answers]:
    """Answers by number of workers: in rounds for the largest, where targets are, and once and shorter for the others.

    `jobs` makes the measurements for a number of workers, seconds and a warm-up; `own` is a number of workers of ours
    that is measured in the rounds of the largest.
    """
    found = {}
    for count in bench.workers[:-1]:
        say(f"  {count} workers")
        fewer = jobs(count, bench.short_s, bench.warmup_s / 2)
        found[count] = in_turns({role: run for role, run in fewer.items() if role != OURS or count != own}, 1)
    say(f"  {bench.most} workers")
    main = jobs(bench.most, bench.seconds, bench.warmup_s)
    if own is None:
        return found | {bench.most: in_turns(main, bench.rounds, bench.deadline)}
    main[OWN] = jobs(own, bench.seconds, bench.warmup_s)[OURS]
    found[bench.most] = in_turns(main, bench.rounds, bench.deadline)
    found.setdefault(own, {})[OURS] = found[bench.most][OWN]
    return found


def curve(found: Mapping[int, Answers]) -> list[dict[str, Any]]:
    """Rows per second over the number of workers."""
    return [{"workers": count} | {role: median(found[count].get(role, [])) for role in (OURS, PEER, LIMIT)}
            for count in sorted(found)]  # fmt: skip


def job(module: str, function: str, seconds: float, **arguments: Any) -> Callable[[], Answer]:
    """A measurement that runs for so many seconds."""
    return partial(ask, module, function, budget_s=seconds, seconds=seconds, **arguments)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _rounded(value: float | None) -> float | int | None:
    return round(value) if value is not None and value >= 100 else value
