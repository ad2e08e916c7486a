"""Figures on disk: one JSON for each, and all of them in a table and a plot."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.loader.bench import Line
from benchmarks.loader.environment import peers_python
from benchmarks.loader.job import call
from benchmarks.report import publish

PREFIX = "loader-"


@dataclass(frozen=True)
class Figure:
    """What one measurement found."""

    name: str
    rows: list[dict[str, Any]]
    lines: list[Line]
    note: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    stats: str = ""
    """What our loader said of itself."""


def keep(figure: Figure, folder: Path, command: str) -> None:
    """Print a figure and write it down with what made it."""
    publish(
        f"{PREFIX}{figure.name}",
        figure.rows,
        note=figure.note,
        command=command,
        versions={package: version(package) for package in ("torch", "simplejpeg")} | figure.versions,
        folder=folder,
        more={"lines": [asdict(line) for line in figure.lines], "stats": figure.stats.splitlines()},
    )
    _print(figure.lines)


def join(folder: Path, names: Iterable[str], *, plot: bool) -> None:
    """All figures that there are, in one table, one JSON and one plot, which the peers' environment draws."""
    paths = [folder / f"{PREFIX}{name}.json" for name in names]
    records = [json.loads(path.read_text()) for path in paths if path.exists()]
    lines = [Line(**line) for record in records for line in record["lines"]]
    _print(lines)
    target = folder / "loader.json"
    target.write_text(json.dumps({"benchmark": "loader", "records": records}, indent=1) + "\n")
    if plot:
        call("plot", str(target), str(folder / "loader.png"), python=peers_python())


def _print(lines: Sequence[Line]) -> None:
    table = Table(title="loader", title_justify="left")
    for column in ("figure", "ours", "against", "other", "unit", "ratio", "wanted", ""):
        table.add_column(column)
    for line in lines:
        low = f">= {line.at_least:g}" if line.at_least is not None else ""
        high = f"<= {line.at_most:g}" if line.at_most is not None else ""
        verdict = ("holds" if line.holds else "FAILS") if low or high else ""
        numbers = (_number(line.ours), line.against, _number(line.other), line.unit, f"{line.ratio:.3g}")
        table.add_row(line.figure, *numbers, " ".join(filter(None, (low, high))), verdict)
    Console(width=140).print(table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
