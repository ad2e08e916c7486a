"""`python -m benchmarks query`: all figures, or those that are named, in one table and one JSON file."""

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

from benchmarks.query.bench import Bench, Line, Part
from benchmarks.query.filters import filters
from benchmarks.query.fragments import fragments
from benchmarks.query.hybrid import hybrid
from benchmarks.query.markdown import render, shown
from benchmarks.query.process import peer
from benchmarks.query.streaming import stream
from benchmarks.query.tables import Tables
from benchmarks.query.texts import text
from benchmarks.query.vectors import scan, vector
from benchmarks.report import RESULTS, machine, publish, scratch, versions_of

FIGURES: dict[str, Callable[[Bench], Part]] = {
    "filters": filters,
    "scan": scan,
    "vector": vector,
    "text": text,
    "hybrid": hybrid,
    "stream": stream,
    "fragments": fragments,
}
_SHOWN = ("rows", "rounds", "queries", "delay")


def main(words: Sequence[str] = ()) -> None:
    given = _parser().parse_args(words)
    target = given.results / "query.json"
    if given.markdown:
        print(render(json.loads(target.read_text())))
        return
    given.results.mkdir(parents=True, exist_ok=True)
    record = _earlier(target)
    with ExitStack() as stack:
        folder = given.folder or stack.enter_context(scratch())
        folder.mkdir(parents=True, exist_ok=True)
        lance = stack.enter_context(peer("lance_peer"))
        tables = Tables(folder, given.rows, lance)
        tables.write()
        bench = Bench(tables, lance, given.rounds, given.queries, given.delay)
        for name in given.figures or FIGURES:
            print(name, file=sys.stderr)
            start = time.perf_counter()
            part = FIGURES[name](bench)
            record[name] = asdict(part) | {
                "command": _command(name, given),
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "seconds": round(time.perf_counter() - start),
            }
        versions = tables.peers()
    parts = {name: record[name] for name in FIGURES if name in record}
    publish(
        "query",
        [_row(Line(**line)) for part in parts.values() for line in part["lines"]],
        note="warm files, ours and Lance's in turns, the smallest of all rounds (and the median)",
        command=_command(" ".join(given.figures), given),
        folder=given.results,
        versions=versions_of("duckdb") | versions,
        more={"parts": parts},
    )


def _row(line: Line) -> dict[str, Any]:
    return {
        "figure": line.figure,
        "ours": shown(line.ours, line.ours_median),
        "against": line.against,
        "other": shown(line.other, line.other_median) if line.against else "",
        "unit": line.unit,
        "target": line.target,
        "measured": float(line.ratio),
        "ok": ("yes" if line.holds else "NO") if line.target else "",
    }


def _earlier(target: Path) -> dict[str, Any]:
    """The figures that an earlier run measured on the same kind of machine."""
    found: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {}
    return dict(found["parts"]) if found.get("machine") == machine() else {}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks query", description=__doc__)
    parser.add_argument("figures", nargs="*", choices=[[], *FIGURES], help="others stay in the JSON file")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of both tables")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--queries", type=int, default=50, help="different vectors or texts of a round")
    parser.add_argument("--delay", type=float, default=30.0, help="milliseconds that a request to the server takes")
    parser.add_argument("--folder", type=Path, help="keep the tables in this folder, and use those that are there")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON file goes")
    parser.add_argument("--markdown", action="store_true", help="print the JSON file as a table, and measure nothing")
    return parser


def _command(figures: str, given: argparse.Namespace) -> str:
    """What measures the same again, on this machine or another."""
    usual = vars(_parser().parse_args([]))
    changed = [f"--{key} {vars(given)[key]:g}" for key in _SHOWN if vars(given)[key] != usual[key]]
    return " ".join(filter(None, ["python -m benchmarks query", figures, *changed]))
