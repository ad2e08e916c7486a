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
from benchmarks.cores.parts import PARTS, note
from benchmarks.loader.environment import peers_python
from benchmarks.loader.job import call
from benchmarks.report import RESULTS, machine, publish, scratch, versions_of

_SHARED_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 10 << 30
"""Left for the batches of a DataLoader, which lie there too."""
_LAST_ROUND_SHARE = 0.9
"""No round of a part is begun after this share of its time."""
_SHOWN = ("only", "workers", "rounds", "seconds", "warmup", "size", "copies", "worker_type", "against", "no_peers")


def main(words: Sequence[str] = ()) -> None:
    given = _parser().parse_args(words)
    target, partial = given.results / "cores.json", given.results / "cores.json.tmp"
    if given.plot:
        _plot(target, install=True)
        return
    given.results.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    chosen = [name for name, case in PARTS.items() if (name in given.only if given.only else case.usual)]
    total = sum(PARTS[name].weight for name in chosen)
    record: dict[str, Any] = {}
    with _folder(given.folder, given.size) as folder:
        bench = Bench(
            folder=folder, workers=tuple(sorted(set(given.workers))), rounds=given.rounds, seconds=given.seconds,
            warmup_s=given.warmup, size=given.size, copies=given.copies, worker_type=given.worker_type,
            with_peers=not given.no_peers, against=given.against, deadline=start,
        )  # fmt: skip
        say(f"tables in {folder}")
        for index, name in enumerate(chosen):
            say(f"{name} (after {time.perf_counter() - start:.0f} s)")
            share = sum(PARTS[part].weight for part in chosen[: index + 1]) / total
            found = PARTS[name].run(replace(bench, deadline=start + _LAST_ROUND_SHARE * share * 60 * given.minutes))
            made = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "command": _command(given)}
            record[name] = asdict(found) | made
            partial.write_text(json.dumps(record, indent=1) + "\n")
            if given.folder is None:
                later = {table for part in chosen[index + 1 :] for table in PARTS[part].tables}
                for table in set(PARTS[name].tables) - later:
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
def _folder(given: Path | None, size: float) -> Iterator[Path]:
    """Where the tables are: a folder that stays, or one in shared memory or on a disk that is removed."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
    elif _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free > tables.needed_bytes(size) + _ROOM_BYTES:
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
    """Draw the bars, in this environment, that of the peers, or not at all; `install` makes that of the peers."""
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
    only = "parts to measure, by default all but `train`; others stay in the JSON file"
    parser.add_argument("--only", nargs="+", action="extend", choices=list(PARTS), help=only)
    parser.add_argument("--workers", nargs="+", type=int, default=[16], help="targets are for the largest")
    parser.add_argument("--rounds", type=int, default=3, help="with the most workers, if --minutes allow; 1 with fewer")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement; a quarter with fewer workers")
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds after the first batch that are not counted")
    parser.add_argument("--minutes", type=float, default=8.0, help="leave out further rounds to stay below this")
    parser.add_argument("--size", type=float, default=1.0, help="of all tables, relative to the full ones")
    parser.add_argument("--copies", type=int, default=6, help="rows of the JPEG tables for each image")
    parser.add_argument("--worker-type", choices=["thread", "process"], help="of ours; by default the loader decides")
    against = "a checkout that reads the same format: its loader is measured in turns with this one's"
    parser.add_argument("--against", type=_checkout, help=against)
    parser.add_argument("--no-peers", action="store_true", help="leave out the peers and the limits")
    parser.add_argument("--folder", type=Path, help="keep the tables in this folder, and use those that are there")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON file and the plot go")
    parser.add_argument("--plot", action="store_true", help="only draw the plot, from the JSON file")
    return parser


def _checkout(path: str) -> Path:
    if not Path(path, "src", "penstock").is_dir():
        raise argparse.ArgumentTypeError(f"{path} has no src/penstock")
    return Path(path).resolve()


def _command(given: argparse.Namespace) -> str:
    """What measures the same again, on this machine or another."""
    usual = vars(_parser().parse_args([]))
    changed = {name: value for name, value in vars(given).items() if name in _SHOWN and value != usual[name]}
    words = ["python -m benchmarks cores"]
    for name, value in changed.items():
        shown = [] if value is True else value if isinstance(value, list) else [value]
        words += [f"--{name.replace('_', '-')}", *map(str, shown)]
    return " ".join(words)
