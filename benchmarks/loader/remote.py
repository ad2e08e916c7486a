"""Figures from an S3 endpoint on loopback, straight and through a proxy that makes it slow."""

import time
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from benchmarks.loader import nginx
from benchmarks.loader.bench import (
    OURS,
    Bench,
    Job,
    Line,
    gather_fetched,
    line_rate,
    median,
    median_share,
    ours,
    rounds,
)
from benchmarks.loader.job import ask
from benchmarks.loader.pages import fetched, pages
from benchmarks.loader.results import Figure
from benchmarks.loader.tables import Place, build
from benchmarks.loader.workloads import raw

DELAYS_MS = (0, 10, 30, 100)
DELAY_MS = 30
SLOW_EVERY, SLOW_S = 200, 2.0
CONSUMED, HALF = 0.9, 0.5
NARROW_MIB_S, FIRST_ROWS, FIRST_BYTES = 100, 256, {"tokens": 614_400_000, "images": 1_800_000_000}
"""A narrow link, and the batch and the tables of which the first batch must not wait for the whole window."""


def s3(bench: Bench) -> Figure:
    """Ours as a share of line rate, unthrottled."""
    rows, lines = [], []
    with bench.server() as server:
        for name, share in (("images", 0.55), ("tokens", 0.40)):
            row, found = _against_line(bench, bench.table(name), server.endpoint, f"{name}, S3", share)
            rows.append({"workload": name} | row)
            lines += found
    return _figure("s3", rows, lines, note="nginx on loopback, shuffled; line rate: plain GETs at the best concurrency")


def https(bench: Bench) -> Figure:
    """The same over TLS, as real buckets are reached."""
    rows, lines = [], []
    with bench.server(tls=True) as server:
        for name in ("images", "tokens"):
            row, found = _against_line(bench, bench.table(name), server.endpoint, f"{name}, HTTPS", 0.6)
            rows.append({"workload": name} | row)
            lines += found
    return _figure("https", rows, lines, note="nginx on loopback with TLS, shuffled; line rate: plain GETs")


def latency(bench: Bench) -> Figure:
    """Ours through the proxy at several delays, against line rate through the same proxy and against each other."""
    place = bench.table("images")
    with bench.server() as server, ExitStack() as stack:
        ways = {delay: stack.enter_context(bench.link(server, delay)) for delay in DELAYS_MS}
        best = {delay: line_rate(place, way, bench.seconds / 2) for delay, way in ways.items()}
        jobs: dict[str, Job] = {}
        for delay, way in ways.items():
            jobs[f"{OURS}, {delay} ms"] = partial(ours, place.at(way), bench.seconds)
            jobs[f"line, {delay} ms"] = partial(best[delay], bench.seconds)
        found = rounds(jobs, bench.rounds, "bytes_per_s")
    rates = {delay: median(found[f"{OURS}, {delay} ms"], "bytes_per_s") for delay in DELAYS_MS}
    line = {delay: median(found[f"line, {delay} ms"], "bytes_per_s") for delay in DELAYS_MS}
    shares = {
        delay: median_share(found[f"{OURS}, {delay} ms"], found[f"line, {delay} ms"], "bytes_per_s")
        for delay in DELAYS_MS
    }
    rows = [
        {
            "delay ms": delay,
            "GB/s": rates[delay] / 1e9,
            "rows/s": rates[delay] / place.workload.row_bytes,
            "line GB/s": line[delay] / 1e9,
            "of line rate": shares[delay],
            "line rate by": str(best[delay]),
        }
        for delay in DELAYS_MS
    ]
    slowest, fastest = min(rates.values()) / 1e9, max(rates.values()) / 1e9
    mine, other = rates[DELAY_MS] / 1e9, line[DELAY_MS] / 1e9
    lines = [
        Line(f"images, {DELAY_MS} ms", mine, "line rate", other, "GB/s", shares[DELAY_MS], at_least=0.95),
        Line("images, slowest delay", slowest, "fastest delay", fastest, "GB/s", slowest / fastest, at_least=0.9),
    ]
    return _figure("latency", rows, lines, note=f"images through a proxy{_link(bench)}, shuffled")


def first(bench: Bench) -> Figure:
    """Seconds from opening the table to the first shuffled batch, and to that after a resume in mid-epoch."""
    rows: list[dict[str, Any]] = []
    lines: list[Line] = []
    with (
        bench.server() as server,
        bench.link(server, DELAY_MS) as fast,
        bench.link(server, DELAY_MS, mib_s=NARROW_MIB_S) as narrow,
    ):
        for name in ("images", "tokens"):
            _first(bench, name, bench.table(name), fast, 1.5, rows, lines)
        for name, size in FIRST_BYTES.items():
            place = build(bench.folder, raw(name, min(size, bench.size_bytes)))
            label = f"{name}, {NARROW_MIB_S} MiB/s"
            _first(bench, label, place, narrow, 1.0, rows, lines, batch_size=FIRST_ROWS)
    note = f"from load() to the first shuffled batch, {DELAY_MS} ms to each request{_link(bench)}"
    return _figure("first", rows, lines, note=note)


def _first(
    bench: Bench, label: str, place: Place, way: str, allowed_s: float, rows: list[dict[str, Any]], lines: list[Line],
    **options: Any,
) -> None:  # fmt: skip
    state = ask("ours", "part", place=place.to_json(), share=HALF, **options)["state"]
    at = {"place": place.at(way).to_json(), **options}
    jobs = {
        "fresh": partial(ask, "ours", "first_batch", **at),
        "resumed": partial(ask, "ours", "first_batch", state=state, **at),
    }
    found = rounds(jobs, bench.rounds, "first_batch_s")
    batch_size = options.get("batch_size", place.workload.batch_size)
    what = f"{label}, {place.table_bytes / 1e6:,.0f} MB, batch of {batch_size}"
    for start, answers in found.items():
        opened, taken, fetched = (median(answers, key) for key in ("open_s", "first_batch_s", "fetched_bytes"))
        rows.append({"workload": what, "start": start, "open s": opened, "first batch s": taken, "MB": fetched / 1e6})
        lines.append(Line(f"{what}, {start}", taken, "allowed", allowed_s, "s", taken / allowed_s, at_most=1.0))


def slow(bench: Bench) -> Figure:
    """One GET in 200 takes 2 s longer."""
    place = bench.table("images")
    with (
        bench.server() as server,
        bench.link(server, DELAY_MS) as even,
        bench.link(server, DELAY_MS, every_nth=SLOW_EVERY, extra_s=SLOW_S) as uneven,
    ):
        jobs = {
            "uneven": partial(ours, place.at(uneven), 2 * bench.seconds),
            "even": partial(ours, place.at(even), 2 * bench.seconds),
        }
        found = rounds(jobs, bench.rounds, "bytes_per_s")
    ratio = median_share(found["uneven"], found["even"], "bytes_per_s")
    rates = [median(found[name], "bytes_per_s") / 1e9 for name in ("uneven", "even")]
    note = f"images, {DELAY_MS} ms to each request and {SLOW_S:.0f} s to one in {SLOW_EVERY}{_link(bench)}"
    rows = [{"all GETs alike GB/s": rates[1], "one in 200 late GB/s": rates[0], "ratio": ratio}]
    lines = [Line("images, one GET in 200 late", rates[0], "none late", rates[1], "GB/s", ratio, at_least=0.9)]
    return _figure("slow", rows, lines, note=note, stats=found["uneven"][-1]["stats"])


def shuffle(bench: Bench) -> Figure:
    """What shuffling costs."""
    rows, lines = [], []
    with bench.server() as server:
        for name in ("images", "tokens"):
            place = bench.table(name).at(server.endpoint)
            jobs = {
                "on": partial(ours, place, bench.seconds),
                "off": partial(ours, place, bench.seconds, shuffle=False),
            }
            found = rounds(jobs, bench.rounds, "bytes_per_s")
            ratio = median_share(found["on"], found["off"], "bytes_per_s")
            on, off = (median(found[name], "bytes_per_s") / 1e9 for name in ("on", "off"))
            rows.append({"workload": name, "shuffled GB/s": on, "in order GB/s": off, "ratio": ratio})
            lines.append(Line(f"{name}, shuffled", on, "in order", off, "GB/s", ratio, at_least=0.85))
    return _figure("shuffle", rows, lines, note="nginx on loopback")


def resume(bench: Bench) -> Figure:
    """A run that goes on at 90 % of an epoch: its first batch, its rows, and what it fetches."""
    place = bench.table("images")
    with bench.server(log=True) as server, bench.link(server, DELAY_MS) as way:
        at = place.at(way).to_json()
        before = ask("ours", "part", place=at, share=CONSUMED)
        jobs = {
            "resumed": partial(ask, "ours", "first_batch", place=at, state=before["state"]),
            "fresh": partial(ask, "ours", "first_batch", place=at),
        }
        found = rounds(jobs, bench.rounds, "first_batch_s")
        time.sleep(1)  # requests in flight of the last round
        earlier = len(server.answers())
        jobs["resumed"]()  # not to the end of the epoch: there the next one's blocks are fetched ahead
        answers = server.answers()[earlier:]
        after = ask("ours", "rest", place=at, state=before["state"])
    twice = len(set(before["rows"]) & set(after["rows"]))
    missing = place.workload.rows - len(set(before["rows"]) | set(after["rows"]))
    brought = fetched(pages(place.open()), answers, np.array(after["rows"]))
    needed, other = brought.needed / 1e6, brought.other / 1e6
    ratio = median_share(found["resumed"], found["fresh"], "first_batch_s")
    resumed, fresh = (median(found[name], "first_batch_s") for name in ("resumed", "fresh"))
    rows = [
        {
            "fresh s": fresh,
            "resumed s": resumed,
            "ratio": ratio,
            "rows twice": twice,
            "rows missing": missing,
            "fetched MB of pages with rows left": needed,
            "of those again": brought.again / 1e6,
            "of others": other,
        }
    ]
    lines = [
        Line("resume at 90 %, first batch", resumed, "fresh start", fresh, "s", ratio, at_most=1.2),
        Line("resume at 90 %, fetched of used pages", other, "of others", needed, "MB", other / needed, at_most=0.02),
        Line("resume at 90 %, rows twice or missing", twice + missing, "none", 0, "rows", twice + missing, at_most=0),
    ]
    return _figure("resume", rows, lines, note=f"images, {DELAY_MS} ms to each request; bytes counted at the server")


def proxy_rate(bench: Bench) -> Figure:
    """What the proxy itself lets through."""
    place = bench.table("images")
    rows, lines = [], []
    with bench.server() as server, bench.link(server, 0) as way, bench.link(server, DELAY_MS) as slow_way:
        for name, endpoint in (("none", server.endpoint), ("0 ms", way), (f"{DELAY_MS} ms", slow_way)):
            best = line_rate(place, endpoint, bench.seconds / 2)
            rate = best(bench.seconds)["bytes_per_s"]
            rows.append({"proxy": name, "GB/s": rate / 1e9, "MiB/s": rate / (1 << 20), "line rate by": str(best)})
    through, direct = rows[-1]["GB/s"], rows[0]["GB/s"]
    lines.append(Line(f"proxy at {DELAY_MS} ms", through, "no proxy", direct, "GB/s", through / direct))
    return _figure("proxy", rows, lines, note=f"plain GETs{_link(bench)}")


def _against_line(
    bench: Bench, place: Place, endpoint: str, figure: str, at_least: float
) -> tuple[dict[str, Any], list[Line]]:
    best = line_rate(place, endpoint, bench.seconds / 2)
    jobs = {
        OURS: partial(ours, place.at(endpoint), bench.seconds),
        "line": partial(best, bench.seconds),
        "no loader": partial(gather_fetched, place, endpoint, bench.seconds),
    }
    found = rounds(jobs, bench.rounds, "bytes_per_s")
    mine, line, bare = (median(found[name], "bytes_per_s") / 1e9 for name in jobs)
    share, of_bare = (median_share(found[OURS], found[name], "bytes_per_s") for name in ("line", "no loader"))
    row = {"GB/s": mine, "line GB/s": line, "of line rate": share, "line rate by": str(best), "no loader GB/s": bare}
    return row, [
        Line(figure, mine, "line rate", line, "GB/s", share, at_least=at_least),
        Line(figure, mine, "the same work with no loader", bare, "GB/s", of_bare),
    ]


def _link(bench: Bench) -> str:
    return f" and a link of {bench.link_mib_s:,.0f} MiB/s" if bench.link_mib_s else ""


def _figure(name: str, rows: list[dict[str, Any]], lines: list[Line], **more: Any) -> Figure:
    return Figure(name, rows, lines, versions={"nginx": nginx.version()}, **more)
