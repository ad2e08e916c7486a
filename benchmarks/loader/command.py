"""`python -m benchmarks loader`: all figures of the loader, or those that are named."""

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.loader import local, remote, single
from benchmarks.loader.bench import Bench
from benchmarks.loader.results import Figure, join, keep
from benchmarks.report import RESULTS, scratch

FIGURES: dict[str, Callable[[Bench], Figure]] = {
    "tokens": local.tokens,
    "images": local.images,
    "jpeg": local.jpeg,
    "standard": local.standard,
    "s3": remote.s3,
    "https": remote.https,
    "proxy": remote.proxy_rate,
    "latency": remote.latency,
    "first": remote.first,
    "slow": remote.slow,
    "shuffle": remote.shuffle,
    "resume": remote.resume,
    "memory": single.memory,
    "budget": single.budget,
    "entropy": single.entropy,
    "transform": single.transform,
}

_SIZES = ("size", "jpegs", "rounds", "seconds", "link")


def main(words: Sequence[str] = ()) -> None:
    given = _parser().parse_args(words)
    with ExitStack() as stack:
        data = given.data or stack.enter_context(scratch())
        bench = Bench(
            folder=data,
            size_bytes=int(given.size),
            jpegs=given.jpegs,
            rounds=given.rounds,
            seconds=given.seconds,
            link_mib_s=given.link,
            with_peers=not given.no_peers,
        )
        for name in given.only or FIGURES:
            keep(FIGURES[name](bench), given.results, _command(name, given))
    join(given.results, FIGURES, plot=bench.with_peers)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks loader", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(FIGURES), help="make this figure; may be repeated")
    parser.add_argument("--size", type=float, default=4e9, help="bytes of each raw table")
    parser.add_argument("--jpegs", type=int, default=100_000, help="images in the JPEG table")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="how long each loader runs in a round")
    parser.add_argument("--link", type=float, default=0.0, help="MiB/s that the proxy lets through; 0 for all it can")
    parser.add_argument("--no-peers", action="store_true", help="leave the peers out")
    parser.add_argument("--data", type=Path, help="keep the tables in this folder, and use those that are there")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON files and the plot go")
    return parser


def _command(name: str, given: argparse.Namespace) -> str:
    """What makes this figure again, on this machine or another."""
    usual = vars(_parser().parse_args([]))
    changed = [f"--{key} {value:g}" for key, value in vars(given).items() if key in _SIZES and value != usual[key]]
    return " ".join(["python -m benchmarks loader --only", name, *changed, *["--no-peers"] * given.no_peers])
