"""The parts of the benchmark: what is measured in each, and its rows of the printed table."""

import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

from benchmarks.cores.bench import (
    LIMIT,
    OURS,
    OWN,
    PEER,
    Answer,
    Bench,
    Part,
    Target,
    ask,
    compared,
    comparison,
    curve,
    figure,
    in_turns,
    job,
    median,
    ratio,
    say,
)
from benchmarks.cores.data import BATCH_SIZE, BUDGET_SHARE, Data

ROW_S = 0.005
_CALIBRATION_LOOPS, _CALIBRATION_S = 20_000, 0.5
_OVERHEAD_MB, _PROCESS_MB = 300, 60
_TRAIN_S_SHARE = 0.5
"""Seconds of a turn of training, relative to those of a measurement."""


def jpeg(bench: Bench) -> Part:
    """JPEGs, decoded: throughput, the parent's processor time, the start, and memory."""
    data = bench.data("jpeg")
    found = compared(bench, partial(_jobs, bench, data, "decode"), own=None)
    most = found[bench.most]
    part = _streamed("JPEG 256x256, decoded, rows/s", found, {bench.most: Target(to_limit=0.88, to_peer=1.15)})
    cpu = median(most[OURS], "cpu_us_per_row")
    first, theirs = (median(most[role], "first_batch_s") for role in (OURS, PEER))
    part.figures += [
        figure("  parent's CPU time per JPEG, µs", bench.most, cpu,
               peer=median(most[PEER], "cpu_us_per_row"), target=Target(at_most=3.0)),
        figure("  first batch, s", bench.most, first, peer=theirs, target=Target(at_most=1.5)),
    ]  # fmt: skip
    _add_memory(part, bench, data)
    return part


def train(bench: Bench) -> Part:
    """ResNet-50 from JPEGs that are decoded on the host."""
    import torch

    if not torch.cuda.is_available() or find_spec("torchvision") is None:
        say("  left out: torch finds no GPU here, or there is no torchvision")
        return Part()
    data = bench.data("jpeg")
    seconds = bench.seconds * _TRAIN_S_SHARE
    found = ask(
        "ours", "train", budget_s=10 * bench.rounds * (seconds + 1), data=data.to_json(), workers=bench.most,
        worker_type=bench.worker_type, device="cuda", rounds=bench.rounds, seconds=seconds,
    )  # fmt: skip
    if found is None:
        return Part([figure("ResNet-50, steps/s", bench.most, None, target=Target(to_limit=0.95))])
    limit = min(found["resident"], found["loader"])
    name = "resident batch" if found["resident"] < found["loader"] else "loader alone"
    line = figure(
        f"ResNet-50, host JPEG, steps/s ({name})", bench.most, found["ours"],
        limit=limit, to_limit=found["share"], target=Target(to_limit=0.95),
    )  # fmt: skip
    return Part([line], found={"train": found})


def raw(bench: Bench) -> Part:
    """Raw images against a memory-mapped file."""
    data = bench.data("images")
    part = _fixed(bench, data, "raw 224x224x3 uint8, rows/s", Target(to_peer=2.0))
    _add_memory(part, bench, data)
    return part


def tokens(bench: Bench) -> Part:
    """Tokens against a memory-mapped file."""
    data = bench.data("tokens")
    return _fixed(bench, data, "tokens 1024 x uint16, rows/s", Target(to_peer=5.0))


def transform(bench: Bench) -> Part:
    """Five milliseconds of pure Python per row; a fixed number of turns of a loop, because waiting is no work."""
    data = bench.data("few tokens")
    # All cores work while the loop is timed: they are slower then.
    cores = min(bench.most, len(os.sched_getaffinity(0)))
    busy = job("limits", "function", _CALIBRATION_S, loops=_CALIBRATION_LOOPS, workers=cores)()
    if busy is None:
        return Part()
    loops = round(_CALIBRATION_LOOPS * busy["rows_per_s"] / cores * ROW_S)

    def jobs(workers: int, seconds: float, warmup_s: float) -> dict[str, Callable[[], Answer]]:
        ours = _ours(bench, "transformed", data, workers, seconds, 2 * warmup_s, loops=loops)
        return {OURS: ours, LIMIT: job("limits", "function", seconds, loops=loops, workers=workers)}

    found = compared(bench, jobs, own=None)
    part = _streamed("transform, 5 ms of Python, rows/s", found, {})
    part.found["loops"] = loops
    used = median(found[bench.most][OURS])
    busy_cores = None if used is None else used * ROW_S
    share = None if busy_cores is None else busy_cores / bench.most
    line = figure("  cores that the transform uses", bench.most, busy_cores, limit=float(bench.most), to_limit=share,
                  target=Target(to_limit=0.9))  # fmt: skip
    part.figures.append(line)
    return part


def small(bench: Bench) -> Part:
    """A small table from its second epoch on, against a large one; default shuffle and budget, two workers."""
    table, large = bench.data("few tokens"), bench.data("tokens")
    jobs = {
        OURS: _ours(bench, "default_budget", table, 2, bench.seconds, bench.warmup_s, skip_epochs=1),
        PEER: _ours(bench, "default_budget", large, 2, bench.seconds, bench.warmup_s, skip_epochs=0),
    }
    found = in_turns(jobs, bench.rounds, bench.deadline)
    sizes = f"{table.table_bytes / 1e9:.2g} GB of tokens, rows/s (peer: {large.table_bytes / 1e9:.2g} GB)"
    return Part([comparison(sizes, 2, found, Target(to_peer=1.0))], found={"rounds": {"2": found}})


PARTS: dict[str, Callable[[Bench], Part]] = {
    "jpeg": jpeg,
    "train": train,
    "raw": raw,
    "tokens": tokens,
    "transform": transform,
    "small": small,
}
TABLES = {
    "jpeg": ("jpeg",),
    "train": ("jpeg",),
    "raw": ("images",),
    "tokens": ("tokens",),
    "transform": ("few tokens",),
    "small": ("few tokens", "tokens"),
}
"""The tables of each part."""
WEIGHTS = {"jpeg": 5, "train": 2, "raw": 5, "tokens": 6, "transform": 4, "small": 2}
"""Approximate time of each part, relative to the others."""


def note(bench: Bench) -> str:
    """How our loader is set."""
    return (
        f"shuffled, batches of {BATCH_SIZE}, memory_budget 1/{BUDGET_SHARE} of the table, Shuffle(spread=1) where the "
        f"default window takes more than half of that; scale {bench.scale:g}; {bench.rounds} x {bench.seconds:g} s "
        f"with {bench.most} workers, 1 x {bench.short_s:.2g} s with fewer; peer: torch DataLoader"
    )


def _fixed(bench: Bench, data: Data, what: str, target: Target) -> Part:
    own = 2 if bench.most > 2 else None
    found = compared(bench, partial(_jobs, bench, data, "take"), own=own)
    part = _streamed(what, found, {bench.most: target})
    if own is not None:
        most = found[bench.most]
        mine = most[OWN]
        part.figures.append(
            figure("  the same, peer: our own 2 workers", bench.most, median(most[OURS]), peer=median(mine),
                   to_peer=ratio(most[OURS], mine), target=Target(to_peer=3.0))
        )  # fmt: skip
    return part


def _jobs(
    bench: Bench, data: Data, limit: str, workers: int, seconds: float, warmup_s: float
) -> dict[str, Callable[[], Answer]]:
    at = {"data": data.to_json(), "workers": workers}
    return {
        OURS: _ours(bench, "throughput", data, workers, seconds, warmup_s),
        PEER: job("peers", "throughput", seconds, warmup_s=warmup_s, **at),
        LIMIT: job("limits", limit, seconds, **at),
    }


def _ours(
    bench: Bench, function: str, data: Data, workers: int, seconds: float, warmup_s: float, **more: Any
) -> Callable[[], Answer]:
    at = {"data": data.to_json(), "workers": workers, "worker_type": bench.worker_type}
    return job("ours", function, seconds, warmup_s=warmup_s, **at, **more)


def _streamed(what: str, found: dict[int, dict[str, list[Answer]]], targets: dict[int, Target]) -> Part:
    figures = [comparison(what, count, found[count], targets.get(count)) for count in sorted(found)]
    return Part(figures, curve(found), {"rounds": {str(count): answers for count, answers in found.items()}})


def _add_memory(part: Part, bench: Bench, data: Data) -> None:
    seconds = bench.seconds / 2
    found = _ours(bench, "memory", data, bench.most, seconds, bench.warmup_s)()
    part.found["memory"] = found
    if found is None:
        return
    budget_mb = found["budget_bytes"] / 1e6
    allowed = budget_mb + _OVERHEAD_MB + _PROCESS_MB * found["processes"]
    peak, imported = found["peak_bytes"] / 1e6, found["imported_bytes"] / 1e6
    if not peak:
        say("  no figure for memory: /proc has no proportional set sizes here")
        return
    line = figure(
        f"  peak PSS, MB, processes: {found['processes']} ({imported:,.0f} after imports)",
        bench.most, peak, limit=allowed, to_limit=peak / allowed, target=Target(at_most=round(allowed)),
    )  # fmt: skip
    part.figures.append(line)
