"""`python -m benchmarks cores`: all parts, or those that are named, in one table, one JSON file and one plot."""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.cores import tables
from benchmarks.cores.bench import Bench, say
from benchmarks.cores.parts import PARTS, TABLES, WEIGHTS, note
from benchmarks.loader.environment import peers_python
from benchmarks.loader.job import call
from benchmarks.report import RESULTS, machine, publish, scratch, versions_of

_SHARED_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 6 << 30
"""Left for the batches of a DataLoader, which lie there too."""
_LAST_ROUND_SHARE = 0.9
"""No round of a part is begun after this share of its time."""
_SHOWN = ("workers", "rounds", "seconds", "warmup", "scale", "copies", "worker_type")


def main(words: Sequence[str] = ()) -> None:
    given = _parser().parse_args(words)
    target, partial = given.results / "cores.json", given.results / "cores.json.tmp"
    if given.plot:
        _plot(target, install=True)
        return
    given.results.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    chosen = [name for name in PARTS if name in (given.only or PARTS)]
    record: dict[str, Any] = {}
    with _folder(given.folder, given.scale) as folder:
        bench = Bench(
            folder=folder, workers=tuple(sorted(set(given.workers))), rounds=given.rounds, seconds=given.seconds,
            warmup_s=given.warmup, scale=given.scale, copies=given.copies, worker_type=given.worker_type,
            deadline=start,
        )  # fmt: skip
        say(f"tables in {folder}")
        for index, name in enumerate(chosen):
            say(f"{name} (after {time.perf_counter() - start:.0f} s)")
            share = sum(WEIGHTS[part] for part in chosen[: index + 1]) / sum(WEIGHTS[part] for part in chosen)
            found = PARTS[name](replace(bench, deadline=start + _LAST_ROUND_SHARE * share * 60 * given.minutes))
            record[name] = asdict(found) | {"date": datetime.now(UTC).isoformat(timespec="seconds")}
            partial.write_text(json.dumps(record, indent=1) + "\n")
            if given.folder is None:
                later = {table for part in chosen[index + 1 :] for table in TABLES[part]}
                for table in set(TABLES[name]) - later:
                    tables.delete(folder, table)
    if given.only:
        earlier = _earlier(target)
        record = {name: record.get(name, earlier.get(name)) for name in PARTS if name in record or name in earlier}
    figures = [row for part in record.values() for row in part["figures"]]
    if not figures:
        return
    publish(
        "cores", figures, note=note(bench), command=_command(given), folder=given.results,
        versions=versions_of("torch", "torchvision", "simplejpeg"), more={"parts": record},
    )  # fmt: skip
    partial.unlink()  # it serves if the run is ended before
    _plot(target, install=False)
    say(f"{time.perf_counter() - start:.0f} s in all")


@contextmanager
def _folder(given: Path | None, scale: float) -> Iterator[Path]:
    """Where the tables are: a folder that stays, or one in shared memory or on a disk that is removed."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
    elif _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free > tables.needed_bytes(scale) + _ROOM_BYTES:
        with tempfile.TemporaryDirectory(prefix="penstock-cores-", dir=_SHARED_MEMORY) as folder:
            yield Path(folder)
    else:
        with scratch() as disk:
            yield disk


def _earlier(target: Path) -> dict[str, Any]:
    """The parts that an earlier run measured on the same kind of machine."""
    found: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {}
    return found["parts"] if found.get("machine") == machine() else {}


def _plot(target: Path, *, install: bool) -> None:
    """Draw the curves, in this environment, that of the peers, or not at all; `install` makes that of the peers."""
    words = (str(target), str(target.with_suffix(".png")))
    python = sys.executable
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        if not install and "BENCH_PEERS_PYTHON" not in os.environ:
            say("no plot: matplotlib is missing; `python -m benchmarks cores --plot` draws it from the JSON file")
            return
        python = peers_python()
    call("plot", *words, package="benchmarks.cores", python=python)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks cores", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), help="parts to measure; others stay in the JSON file")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4, 8, 16], help="targets are for the largest")
    parser.add_argument("--rounds", type=int, default=2, help="with the largest number of workers; once with fewer")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement; a quarter with fewer workers")
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds after the first batch that are not counted")
    parser.add_argument("--minutes", type=float, default=8.0, help="leave out further rounds to stay below this")
    parser.add_argument("--scale", type=float, default=1.0, help="size of all tables")
    parser.add_argument("--copies", type=int, default=6, help="rows of the JPEG table for each image")
    parser.add_argument("--worker-type", choices=["thread", "process"], help="of ours; by default the loader decides")
    parser.add_argument("--folder", type=Path, help="keep the tables in this folder, and use those that are there")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON file and the plot go")
    parser.add_argument("--plot", action="store_true", help="only draw the plot, from the JSON file")
    return parser


def _command(given: argparse.Namespace) -> str:
    """What measures the same again, on this machine or another."""
    usual = vars(_parser().parse_args([]))
    changed = {name: value for name, value in vars(given).items() if name in _SHOWN and value != usual[name]}
    words = [
        f"--{name.replace('_', '-')} {' '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in changed.items()
    ]
    return " ".join(["python -m benchmarks cores", *words])
