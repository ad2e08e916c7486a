"""`python -m benchmarks semantics`: all figures, or those that are named, in one table and one JSON file."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.loader.bench import Line
from benchmarks.report import RESULTS, machine, publish, scratch, versions_of
from benchmarks.semantics.bench import Bench, Part
from benchmarks.semantics.mixture import mixture
from benchmarks.semantics.packing import packing
from benchmarks.semantics.resume import resume
from benchmarks.semantics.weights import weights
from benchmarks.semantics.windows import windows

FIGURES: dict[str, Callable[[Bench], Part]] = {
    "mixture": mixture,
    "windows": windows,
    "packing": packing,
    "weights": weights,
    "resume": resume,
}
_SHOWN = ("scale", "rounds", "seconds")


def main(words: Sequence[str] = ()) -> None:
    given = _parser().parse_args(words)
    given.results.mkdir(parents=True, exist_ok=True)
    target = given.results / "semantics.json"
    record = _earlier(target)
    with ExitStack() as stack:
        folder = given.folder or stack.enter_context(scratch())
        bench = Bench(folder, given.scale, given.rounds, given.seconds, not given.no_peers)
        for name in given.figures or FIGURES:
            print(name, file=sys.stderr)
            start = time.perf_counter()
            part = FIGURES[name](bench)
            record[name] = asdict(part) | {
                "command": _command(name, given),
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "seconds": round(time.perf_counter() - start),
            }
    parts = {name: record[name] for name in FIGURES if name in record}
    publish(
        "semantics",
        [_row(Line(**line)) for part in parts.values() for line in part["lines"]],
        note="2 workers, shuffled, default options; medians of rounds in turns",
        command=_command(" ".join(given.figures), given),
        folder=given.results,
        versions=versions_of("torch")
        | {key: value for part in parts.values() for key, value in part["versions"].items()},
        more={"parts": parts},
    )


def _row(line: Line) -> dict[str, Any]:
    low = f">= {line.at_least:g}" if line.at_least is not None else ""
    high = f"<= {line.at_most:g}" if line.at_most is not None else ""
    target = low or high
    return {
        "figure": line.figure,
        "ours": line.ours,
        "against": line.against,
        "other": line.other,
        "unit": line.unit,
        "target": target,
        "measured": float(line.ratio),
        "ok": ("yes" if line.holds else "NO") if target else "",
    }


def _earlier(target: Path) -> dict[str, Any]:
    """The figures that an earlier run measured on the same kind of machine."""
    found: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {}
    return dict(found["parts"]) if found.get("machine") == machine() else {}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks semantics", description=__doc__)
    parser.add_argument("figures", nargs="*", choices=[[], *FIGURES], help="others stay in the JSON file")
    parser.add_argument("--scale", type=float, default=1.0, help="size of all tables")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of later epochs, and of each peer, in a round")
    parser.add_argument("--no-peers", action="store_true", help="leave the peers out")
    parser.add_argument("--folder", type=Path, help="keep the tables in this folder, and use those that are there")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON file goes")
    return parser


def _command(figures: str, given: argparse.Namespace) -> str:
    """What measures the same again, on this machine or another."""
    usual = vars(_parser().parse_args([]))
    changed = [f"--{key} {vars(given)[key]:g}" for key in _SHOWN if vars(given)[key] != usual[key]]
    return " ".join(filter(None, ["python -m benchmarks semantics", figures, *changed, "--no-peers" * given.no_peers]))
