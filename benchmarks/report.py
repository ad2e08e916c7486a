"""What every published number carries: the command, versions, cores and date that made it."""

import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


def publish(
    name: str,
    figures: list[dict[str, Any]],
    *,
    note: str = "",
    command: str = "",
    versions: Mapping[str, str] = MappingProxyType({}),
    more: Mapping[str, Any] = MappingProxyType({}),
    folder: Path = RESULTS,
) -> None:
    """Print figures as a table and keep them as JSON, with `versions` of other programs and `more` that was found."""
    record = {
        "benchmark": name,
        "command": command or f"python -m benchmarks {name}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "python": platform.python_version(),
        "versions": versions_of("penstock", "pyarrow", "numpy", "obstore") | dict(versions),
        "note": note,
        "figures": figures,
        **more,
    }
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    table = Table(title=f"{name}: {note}" if note else name, title_justify="left")
    columns = list({column: None for row in figures for column in row})
    for column in columns:
        table.add_column(column)
    for row in figures:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    Console(width=min(160, shutil.get_terminal_size((140, 24)).columns)).print(table)


def machine() -> str:
    """What this machine is, in a few words."""
    return f"{platform.machine()}, {os.cpu_count()} cores"


def versions_of(*packages: str) -> dict[str, str]:
    """The versions of packages; one that is on the path without being installed says its own, if it has any."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = str(getattr(sys.modules.get(package), "__version__", "not installed"))
    return found


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.3g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)


def seconds(job: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def interleaved(jobs: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Run jobs in turn, so that a noisy machine is noisy to all of them; what each returns, round by round."""
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(rounds):
        for name, job in jobs.items():
            found[name].append(job())
            print(f"  round {number + 1}/{rounds} {name}: {found[name][-1]:.3f}", file=sys.stderr)
    return found


def median_ratio(ours: list[float], limit: list[float]) -> float:
    """The median over rounds of limit / ours, for times: 1 is as fast as the limit."""
    return statistics.median(b / a for a, b in zip(ours, limit, strict=True))


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder on a real disk, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=os.environ.get("BENCH_DIR", "/var/tmp")))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sync() -> None:
    """Flush what earlier runs wrote, so that no run pays for another."""
    os.sync()
