"""What every figure is made with: sizes, rounds, measurements in processes, and the lines it comes to."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.loader.bench import Job, Line, median, median_share, rounds, warm
from benchmarks.loader.environment import peers_python
from benchmarks.loader.job import call
from benchmarks.loader.tables import BUCKET
from benchmarks.semantics.views import Spec

OURS = "penstock"
EPOCHS = {"first_epoch": "first epoch", "later_epochs": "later epochs"}


@dataclass(frozen=True)
class Bench:
    """How large, how long, and against whom."""

    folder: Path
    scale: float
    rounds: int
    seconds: float
    with_peers: bool

    def warm(self) -> None:
        """Have all tables in the page cache."""
        warm(self.folder / BUCKET)


@dataclass(frozen=True)
class Part:
    """What one figure found: lines with targets, and all answers."""

    lines: list[Line]
    found: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)


def ask(module: str, function: str, *, python: str = sys.executable, **arguments: Any) -> dict[str, Any]:
    """A measurement in a process of its own."""
    return call(module, function, json.dumps(arguments), package="benchmarks.semantics", python=python)


def throughput(bench: Bench, spec: Spec) -> Job:
    """Our samples a second, of the first epoch and of later ones."""
    return partial(ask, "ours", "throughput", spec=spec.to_json(), seconds=bench.seconds)


def in_turns(bench: Bench, jobs: Mapping[str, Job], key: str = "first_epoch") -> dict[str, list[dict[str, Any]]]:
    return rounds(jobs, bench.rounds, key)


def peer(function: str, **arguments: Any) -> dict[str, Any]:
    """A measurement in the peers' environment."""
    return ask("peers", function, python=peers_python(), **arguments)


def peer_files(folder: Path, write: Callable[[str], object]) -> str:
    """Rows in the format of a peer, warm; written if they are not there."""
    complete = folder.with_suffix(".complete")
    if not complete.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        write(str(folder))
        complete.touch()
    warm(folder)
    return str(folder)


def compared(
    figure: str,
    ours: Sequence[dict[str, Any]],
    against: str,
    other: Sequence[dict[str, Any]],
    *,
    unit: str,
    per_sample: tuple[float, float] = (1.0, 1.0),
    at_least: float,
) -> list[Line]:
    """Ours against the other, measured in the same way, for the first epoch and for later ones.

    `per_sample` is how many of the unit a sample has, ours and the other's.
    """
    mine, theirs = per_sample
    return [
        Line(
            f"{figure}, {name}", median(ours, key) * mine, against, median(other, key) * theirs, unit,
            median_share(ours, other, key) * mine / theirs, at_least=at_least,
        )
        for key, name in EPOCHS.items()
    ]  # fmt: skip
