"""The parts of the benchmark: what is measured in each, and its rows of the printed table."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from benchmarks.cores.bench import (
    BEFORE,
    LIMIT,
    OURS,
    OWN,
    PEER,
    Answer,
    Answers,
    Bench,
    Part,
    Target,
    ask,
    compared,
    curve,
    figure,
    job,
    say,
)
from benchmarks.cores.data import BATCH_SIZE, BUDGET_SHARE, Data

ROW_S = 0.005
_CALIBRATION_LOOPS, _CALIBRATION_S = 20_000, 0.5
_OVERHEAD_MB, _PROCESS_MB = 300, 40
_TRAIN_S_SHARE = 0.5
"""Seconds of a turn of training, relative to those of a measurement."""
Jobs = dict[str, Callable[[], Answer]]
Arguments = Mapping[str, Any]
_NONE: Arguments = MappingProxyType({})


def jpeg(bench: Bench) -> Part:
    """JPEGs, decoded: throughput, the parent's processor time, the start, and memory."""
    data = bench.data("jpeg")
    found = compared(bench, partial(_jobs, bench, data, "decode"), own=None)
    part = _streamed(bench, "JPEG 256x256, decoded, rows/s", found, Target(to_limit=0.9, to_peer=1.15))
    most = found[bench.most]
    part.figures += [
        figure("  parent's CPU time per JPEG, µs", bench.most, most, Target(at_most=2.3), "cpu_us_per_row"),
        figure("  first batch, s", bench.most, most, Target(at_most=1.15), "first_batch_s"),
    ]
    _add_memory(part, bench, data)
    return part


def crops(bench: Bench) -> Part:
    """JPEGs of many sizes with torchvision's RandomResizedCrop as `transform`."""
    if find_spec("torchvision") is None:
        say("  left out: there is no torchvision here")
        return Part()
    return _photos(bench, "JPEG of many sizes, RandomResizedCrop", Target(to_limit=0.75, to_peer=1.2), apply="crop")


def lists(bench: Bench) -> Part:
    """JPEGs of many sizes, as lists."""
    return _photos(bench, "JPEG of many sizes, lists", Target(to_peer=1.1))


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
    turns: Answers = {OURS: [None], LIMIT: [None]}
    if found is not None:
        turns[OURS] = [{"steps": turn["ours"]} for turn in found["turns"]]
        turns[LIMIT] = [{"steps": min(turn["resident"], turn["loader"])} for turn in found["turns"]]
    what = "ResNet-50, host JPEG, steps/s (limit: the slower of a resident batch and the loader alone)"
    return Part([figure(what, bench.most, turns, Target(to_limit=0.95), "steps")], found={"train": found})


def raw(bench: Bench) -> Part:
    """Raw images against a memory-mapped file."""
    data = bench.data("images")
    part = _fixed(bench, data, "raw 224x224x3 uint8, rows/s", Target(to_peer=2.0, at_least=124_000))
    _add_memory(part, bench, data)
    return part


def tokens(bench: Bench) -> Part:
    """Tokens against a memory-mapped file."""
    data = bench.data("tokens")
    return _fixed(bench, data, "tokens 1024 x uint16, rows/s", Target(to_peer=5.0, at_least=4_900_000))


def resident(bench: Bench) -> Part:
    """A table that fits into memory, from its second epoch on."""
    data = bench.data("few tokens")
    jobs = partial(_jobs, bench, data, "gather", ours={"default_options": True, "skip_epochs": 1})
    what = f"{data.table_bytes / 1e6:.0f} MB of tokens, epoch 2 on, rows/s"
    return _streamed(bench, what, compared(bench, jobs, own=None), Target(to_limit=0.6))


def text(bench: Bench) -> Part:
    """Text as lists."""
    return _text(bench, "text, 2.5 KB, rows/s")


def tokenized(bench: Bench) -> Part:
    """Text through a tokenizer in Python as `batch_transform`."""
    return _text(bench, "text, 2.5 KB, Python batch_transform, rows/s", apply="tokenize")


def transform(bench: Bench) -> Part:
    """Five milliseconds of pure Python per row; a fixed number of turns of a loop, because waiting is no work."""
    data = bench.data("few tokens")
    # All cores work while the loop is timed: they are slower then.
    cores = min(bench.most, len(os.sched_getaffinity(0)))
    busy = job("limits", "function", _CALIBRATION_S, loops=_CALIBRATION_LOOPS, workers=cores)()
    if busy is None:
        return Part()
    loops = round(_CALIBRATION_LOOPS * busy["rows_per_s"] / cores * ROW_S)

    def jobs(workers: int, seconds: float, warmup_s: float) -> Jobs:
        limit = job("limits", "function", seconds, loops=loops, workers=workers)
        return _ours(bench, "transformed", data, workers, seconds, 2 * warmup_s, loops=loops) | (
            {LIMIT: limit} if bench.with_peers else {}
        )

    part = _streamed(bench, "transform, 5 ms of Python, rows/s", compared(bench, jobs, own=None), Target(to_limit=0.92))
    part.found["loops"] = loops
    return part


@dataclass(frozen=True)
class Case:
    """A part, and what it needs."""

    run: Callable[[Bench], Part]
    tables: tuple[str, ...]
    weight: float
    """Approximate time, relative to the other parts."""
    usual: bool = True
    """Whether it is measured if no part is named."""


PARTS = {
    "jpeg": Case(jpeg, ("jpeg",), 7),
    "train": Case(train, ("jpeg",), 4, usual=False),
    "crops": Case(crops, ("photos",), 7),
    "lists": Case(lists, ("photos",), 5),
    "raw": Case(raw, ("images",), 6),
    "tokens": Case(tokens, ("tokens",), 7),
    "transform": Case(transform, ("few tokens",), 4),
    "resident": Case(resident, ("few tokens",), 5),
    "text": Case(text, ("text",), 4),
    "tokenized": Case(tokenized, ("text",), 4),
}


def note(bench: Bench) -> str:
    """How our loader is set."""
    fewer = f", 1 x {bench.short_s:.2g} s with fewer" if len(bench.workers) > 1 else ""
    return (
        f"shuffled, batches of {BATCH_SIZE}, memory_budget 1/{BUDGET_SHARE} of the table, Shuffle(spread=1) where the "
        "default window takes more than half of that; default options for JPEGs of many sizes, epoch 2 on and text; "
        f"size {bench.size:g}; {bench.rounds} x {bench.seconds:g} s with {bench.most} workers{fewer}; "
        "peer: torch DataLoader"
    )


def _fixed(bench: Bench, data: Data, what: str, target: Target) -> Part:
    own = 2 if 2 in bench.workers[:-1] else None
    found = compared(bench, partial(_jobs, bench, data, "take"), own=own)
    part = _streamed(bench, what, found, target)
    if own is not None:
        turns = {OURS: found[bench.most][OURS], PEER: found[bench.most][OWN]}
        line = figure("  the same, peer: our own 2 workers", bench.most, turns, Target(to_peer=3.0))
        part.figures.append(line)
    return part


def _photos(bench: Bench, what: str, target: Target, *, apply: str | None = None) -> Part:
    data = bench.data("photos")
    found = ask("peers", "settings", budget_s=10, data=data.to_json(), apply=apply, workers=bench.most)
    if found is None:
        return Part()
    tried = found.pop("tried")
    say(f"  the peer has {', '.join(found.values())}; rows/s: {tried}")
    limits = {"apply": apply, "decoder": found["decoder"]}
    peer, ours = found | {"apply": apply}, {"apply": apply, "default_options": True}
    jobs = partial(_jobs, bench, data, "decode", ours=ours, peer=peer, limits=limits)
    named = f"{what} (peer: {', '.join(found.values())}), rows/s"
    part = _streamed(bench, named, compared(bench, jobs, own=None), target)
    part.found["settings"] = found | {"tried": tried}
    return part


def _text(bench: Bench, what: str, *, apply: str | None = None) -> Part:
    ours, peer = {"apply": apply, "default_options": True}, {"apply": apply}
    jobs = partial(_jobs, bench, bench.data("text"), None, ours=ours, peer=peer)
    return _streamed(bench, what, compared(bench, jobs, own=None), None)


def _jobs(
    bench: Bench, data: Data, limit: str | None, workers: int, seconds: float, warmup_s: float,
    *, ours: Arguments = _NONE, peer: Arguments = _NONE, limits: Arguments = _NONE,
) -> Jobs:  # fmt: skip
    """Our loader, the one before, the peer and the limit, each with further arguments."""
    jobs = _ours(bench, "throughput", data, workers, seconds, warmup_s, **ours)
    if bench.with_peers:
        at = {"data": data.to_json(), "workers": workers}
        jobs[PEER] = job("peers", "throughput", seconds, warmup_s=warmup_s, **at, **peer)
        if limit is not None:
            jobs[LIMIT] = job("limits", limit, seconds, **at, **limits)
    return jobs


def _ours(bench: Bench, function: str, data: Data, workers: int, seconds: float, warmup_s: float, **more: Any) -> Jobs:
    at = {"data": data.to_json(), "workers": workers, "worker_type": bench.worker_type, "warmup_s": warmup_s} | more
    jobs = {OURS: job("ours", function, seconds, **at)}
    if bench.against is not None:
        jobs[BEFORE] = job("ours", function, seconds, source=bench.against / "src", **at)
    return jobs


def _streamed(bench: Bench, what: str, found: dict[int, Answers], target: Target | None) -> Part:
    """Rows per second; the target is for the largest number of workers."""
    wanted = {bench.most: target if bench.with_peers else None}
    figures = [figure(what, count, found[count], wanted.get(count)) for count in sorted(found)]
    return Part(figures, curve(found), {"rounds": {str(count): answers for count, answers in found.items()}})


def _add_memory(part: Part, bench: Bench, data: Data) -> None:
    jobs = _ours(bench, "memory", data, bench.most, bench.seconds / 2, bench.warmup_s)
    found = {role: run() for role, run in jobs.items()}
    part.found["memory"] = found
    ours = found[OURS]
    if ours is None or not ours["peak_bytes"]:
        say("  no figure for memory: the measurement failed, or /proc has no proportional set sizes here")
        return
    allowed = ours["budget_bytes"] / 1e6 + _OVERHEAD_MB + _PROCESS_MB * ours["processes"]
    above: Answers = {
        role: [answer and {"mb": (answer["peak_bytes"] - answer["imported_bytes"]) / 1e6}]
        for role, answer in found.items()
    }
    what = f"  peak PSS above {ours['imported_bytes'] / 1e6:,.0f} MB of imports, MB, processes: {ours['processes']}"
    target = Target(at_most=round(allowed))
    part.figures.append(figure(what, bench.most, above | {LIMIT: [{"mb": allowed}]}, target, "mb"))
