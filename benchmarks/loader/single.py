"""Figures of our loader alone: memory, too little of it, shuffle quality, and heavy transforms in Python."""

from functools import partial
from typing import Any

from benchmarks.loader.bench import OURS, Bench, Line, median, median_share, rounds
from benchmarks.loader.job import ask
from benchmarks.loader.results import Figure
from benchmarks.loader.tables import build
from benchmarks.loader.transforms import loops_per_ms
from benchmarks.loader.workloads import Workload, raw, window_bytes

TIMES_LARGER = 10
OVERHEAD_BYTES = 300_000_000
BUDGETS = {0.9: 1.5, 0.5: 4.0, 0.25: 8.0}
"""Shares of the shuffle window, and how often a byte may be read then."""


def memory(bench: Bench) -> Figure:
    """Peak memory above that after the imports, for a table and one ten times larger, with the same budget."""
    workload = raw("images", bench.size_bytes // 2)
    small = build(bench.folder, workload)
    large = build(bench.folder, Workload("images", workload.rows * TIMES_LARGER))
    budget = small.budget_bytes
    rows: list[dict[str, Any]] = []
    lines = []
    with bench.server() as server:
        for where, places in (
            ("local", (small, large)),
            ("S3", (small.at(server.endpoint), large.at(server.endpoint))),
        ):
            jobs = {
                size: partial(ask, "ours", "memory", place=place.to_json(), budget_bytes=budget, seconds=bench.seconds)
                for size, place in zip(("table", "large"), places, strict=True)
            }
            found = rounds(jobs, bench.rounds, "peak_bytes")
            peaks = {size: median(found[size], "peak_bytes") / 1e6 for size in jobs}
            rows += [
                {"from": where, "table": size, "budget MB": budget / 1e6, "peak MB": peak}
                for size, peak in peaks.items()
            ]
            most = (budget + OVERHEAD_BYTES) / 1e6
            growth = peaks["large"] / peaks["table"]
            lines += [
                Line(
                    f"memory, {where}", peaks["table"], "budget + 300 MB", most, "MB", peaks["table"] / most, None, 1.0
                ),
                Line(f"memory, {where}, 10x", peaks["large"], "the table", peaks["table"], "MB", growth, None, 1.1),
            ]
    return Figure("memory", rows, lines, note="peak resident memory above that after the imports, images, shuffled")


def budget(bench: Bench) -> Figure:
    """What is fetched with less memory than the shuffle window needs."""
    rows, lines = [], []
    for name in ("tokens", "images", "jpeg"):
        place = bench.table(name)
        window = window_bytes(place.table_bytes)
        for share, at_most in BUDGETS.items():
            size = round(window * share)
            found = ask("ours", "budget", place=place.to_json(), budget_bytes=size, seconds=bench.seconds)
            times = found["bytes_per_byte"]
            rows.append({"workload": name, "window MB": window / 1e6, "budget MB": size / 1e6} | found)
            what = f"{name}, budget {share:.0%} of the window"
            lines.append(Line(what, times, "of the epoch", 1.0, "bytes per byte", times, at_most=at_most))
    return Figure("budget", rows, lines, note="bytes fetched for each byte of an epoch, shuffled, local files")


def entropy(bench: Bench) -> Figure:
    """Label entropy of batches from a table sorted by label."""
    rows, lines = [], []
    for name in ("images", "tokens", "jpeg"):
        place = bench.table(name)
        share = ask("ours", "entropy", place=place.to_json())["entropy_share"]
        rows.append({"workload": name, "rows": place.workload.rows, "label entropy of a true shuffle's": share})
        lines.append(Line(f"{name}, label entropy", share, "true shuffle", 1.0, "share", share, at_least=0.9))
    return Figure("entropy", rows, lines, note="table sorted by label, 100 labels, a whole epoch")


def transform(bench: Bench) -> Figure:
    """A millisecond of pure Python for each row, with one process and with two."""
    place = bench.table("tokens")
    loops = loops_per_ms()

    def run(workers: int) -> dict[str, Any]:
        return ask("ours", "transformed", place=place.to_json(), loops=loops, workers=workers, seconds=bench.seconds)

    found = rounds({"two": partial(run, 2), "one": partial(run, 1)}, bench.rounds, "rows_per_s")
    ratio = median_share(found["two"], found["one"], "rows_per_s")
    two, one = (median(found[name], "rows_per_s") for name in ("two", "one"))
    rows = [{"one worker rows/s": one, "two workers rows/s": two, "ratio": ratio}]
    lines = [Line("1 ms of Python per row, 2 workers", two, "1 worker", one, "rows/s", ratio, at_least=1.7)]
    return Figure("transform", rows, lines, note=f"{OURS}, worker processes, tokens, {loops:,} turns of a loop per row")
