"""Windows over episodes of JPEGs against decoding each image once, and against LeRobot's dataset."""

from functools import partial
from typing import Any

from benchmarks.loader.bench import Job, Line, median, median_share
from benchmarks.semantics import tables
from benchmarks.semantics.bench import EPOCHS, OURS, Bench, Part, ask, in_turns, peer, peer_files, throughput
from benchmarks.semantics.views import BATCH_SIZE, ONE, WORKERS, Spec

LEROBOT, LIMIT = "LeRobot in a DataLoader", "each image decoded once"
_PEER_EPISODES = 100
"""Fewer than ours, because its writer is slow; what an item costs does not depend on it."""
_OF_LIMIT, _TO_PEER, _DECODED, _READ = 0.8, 3.0, 1.5, 1.3


def windows(bench: Bench) -> Part:
    """Windows a second, images decoded and bytes read. Ends are padded, so each image is the last of one window."""
    table = tables.episode_table(bench.folder, bench.scale)
    spec = Spec("windows", {ONE: table}, ["image", "action"])
    bench.warm()
    jobs: dict[str, Job] = {
        OURS: throughput(bench, spec),
        LIMIT: lambda: _as_epochs(ask("limits", "decode", uri=table, workers=WORKERS), "images_per_s"),
    }
    if bench.with_peers:
        jobs[LEROBOT] = _lerobot(bench)
    found = in_turns(bench, jobs)
    cost = ask("costs", "windows", spec=spec.to_json())
    lines = [
        *(_line(found, key, LIMIT, _OF_LIMIT) for key in EPOCHS),
        *(_line(found, key, LEROBOT, _TO_PEER) for key in EPOCHS if bench.with_peers),
        _cost("images decoded in an epoch", cost["decoded_per_image"], "images", _DECODED),
        _cost("bytes read in an epoch", cost["bytes_per_byte"], "bytes of the table", _READ),
    ]
    versions = found[LEROBOT][0]["versions"] if bench.with_peers else {}
    return Part(lines, {**found, "cost": cost}, versions)


def _lerobot(bench: Bench) -> Job:
    count = max(10, round(_PEER_EPISODES * min(1.0, bench.scale)))
    folder = bench.folder / "peers" / f"lerobot-{count}"
    root = peer_files(folder, lambda root: peer("write_episodes", root=root, count=count))
    read = partial(
        peer, "read_windows", root=root, batch_size=BATCH_SIZE, workers=WORKERS, seconds=bench.seconds
    )  # fmt: skip
    return lambda: _as_epochs(read(), "samples_per_s")


def _as_epochs(answer: dict[str, Any], key: str) -> dict[str, Any]:
    """An answer whose rate is the same in all epochs."""
    return answer | dict.fromkeys(EPOCHS, answer[key])


def _line(found: dict[str, list[dict[str, Any]]], key: str, against: str, at_least: float) -> Line:
    ours, other = found[OURS], found[against]
    share = median_share(ours, other, key)
    return Line(
        f"windows, {EPOCHS[key]}", median(ours, key), against, median(other, key), "windows/s", share, at_least=at_least
    )


def _cost(what: str, ratio: float, against: str, at_most: float) -> Line:
    return Line(f"windows, {what}", ratio, against, 1.0, "ratio", ratio, at_most=at_most)
