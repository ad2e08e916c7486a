"""Figures from warm local files: the three workloads against the limit and the peers, and torch's own loader."""

from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.loader.bench import (
    NO_SHUFFLE,
    OURS,
    PEERS,
    Bench,
    Line,
    median,
    median_share,
    ours,
    peer,
    peer_folder,
    rounds,
    warm,
    window,
)
from benchmarks.loader.job import ask
from benchmarks.loader.results import Figure
from benchmarks.loader.tables import Place
from benchmarks.loader.workloads import Workload

COPY = "limit: copying in memory"
GATHER = "limit: reading, checking and gathering, no loader"
IN_MEMORY = "limit: rows in memory"
BATCHES_COUNTED = 50


def tokens(bench: Bench) -> Figure:
    """Tokens, 1024 x uint16."""
    return _workload(bench, "tokens", peers_ratio=5.0, of_limit=0.6)


def images(bench: Bench) -> Figure:
    """Raw images, 224x224x3 uint8."""
    return _workload(bench, "images", peers_ratio=5.0, of_limit=0.88)


def jpeg(bench: Bench) -> Figure:
    """JPEG 256x256, decoded."""
    return _workload(bench, "jpeg", peers_ratio=1.2, of_limit=0.92)


def _workload(bench: Bench, name: str, *, peers_ratio: float, of_limit: float) -> Figure:
    place = bench.table(name)
    workload = place.workload
    rivals = list(PEERS) if bench.with_peers else []
    for rival in rivals:
        peer_folder(bench, rival, workload)
    what = "decoding alone" if name == "jpeg" else "read() of the same files"
    limit = f"limit: {what}"
    jobs = {OURS: partial(_warm_ours, place, bench.seconds), limit: partial(_limit, place, bench.seconds)}
    if name != "jpeg":
        jobs[COPY] = partial(_copy, workload, bench.seconds)
        jobs[GATHER] = partial(_gather, place, bench.seconds)
    jobs |= {rival: partial(peer, bench, rival, workload) for rival in rivals}
    found = rounds(jobs, bench.rounds, "rows_per_s")
    found[OURS][-1] |= ask("ours", "entropy", place=place.to_json())
    rows = [_row(who, workload, found[who], found[limit]) for who in found]
    share = median_share(found[OURS], found[limit], "rows_per_s")
    mine, most = median(found[OURS], "rows_per_s"), median(found[limit], "rows_per_s")
    least = of_limit if name == "jpeg" else None
    lines = [Line(f"{name}, local", mine, what, most, "rows/s", share, at_least=least)]
    if name != "jpeg":
        share, could = median_share(found[OURS], found[GATHER], "rows_per_s"), median(found[GATHER], "rows_per_s")
        lines.append(Line(f"{name}, local", mine, "the same work with no loader", could, "rows/s", share, of_limit))
    if shuffling := [rival for rival in rivals if rival not in NO_SHUFFLE]:
        best = max(shuffling, key=lambda rival: median(found[rival], "rows_per_s"))
        ratio = median_share(found[OURS], found[best], "rows_per_s")
        theirs = median(found[best], "rows_per_s")
        lines.append(Line(f"{name}, local", mine, best, theirs, "rows/s", ratio, at_least=peers_ratio))
    note = f"{workload.rows:,} rows, batches of {workload.batch_size}, warm local files, shuffled"
    versions = {found[rival][0]["package"]: found[rival][0]["version"] for rival in rivals}
    return Figure(name, rows, lines, note=note, versions=versions, stats=found[OURS][-1]["stats"])


def _row(who: str, workload: Workload, found: list[dict[str, Any]], limit: list[dict[str, Any]]) -> dict[str, Any]:
    rate = median(found, "rows_per_s")
    return {
        "loader": who,
        "rows/s": round(rate),
        "GB/s": rate * workload.row_bytes / 1e9,
        "of the limit": median_share(found, limit, "rows_per_s"),
        "label entropy of a true shuffle's": found[-1].get("entropy_share", ""),
    }


def _warm_ours(place: Place, seconds: float) -> dict[str, Any]:
    warm(Path(place.uri))
    return ours(place, seconds)


def _limit(place: Place, seconds: float) -> dict[str, Any]:
    """Rows a second that the machine allows: as it decodes, or as it reads the files."""
    if place.workload.name == "jpeg":
        return ask("limits", "decode", workload={"name": "jpeg", "rows": place.workload.rows}, seconds=seconds)
    found = ask("limits", "read", folder=str(Path(place.uri, "data")), seconds=seconds)
    return {"rows_per_s": found["bytes_per_s"] / (place.table_bytes / place.workload.rows)}


def _copy(workload: Workload, seconds: float) -> dict[str, Any]:
    return {"rows_per_s": ask("limits", "copy", seconds=seconds)["bytes_per_s"] / workload.row_bytes}


def _gather(place: Place, seconds: float) -> dict[str, Any]:
    return ask("limits", "gather", folder=str(Path(place.uri, "data")), **window(place), seconds=seconds)


def standard(bench: Bench) -> Figure:
    """Our rows in torch's own DataLoader against Deep Lake's, and requests against pages."""
    rows, lines = [], []
    for name in ("tokens", "images"):
        place = bench.table(name)
        jobs = {OURS: partial(_standard, place, bench.seconds), IN_MEMORY: partial(_hand_over, place, bench.seconds)}
        if bench.with_peers:
            peer_folder(bench, "deeplake", place.workload)
            jobs["deeplake"] = partial(peer, bench, "deeplake", place.workload)
        found = rounds(jobs, bench.rounds, "rows_per_s")
        mine = median(found[OURS], "rows_per_s")
        gets, pages = _requests(bench, place)
        theirs = ratio = 0.0
        what = f"DataLoader of rows, {name}"
        if bench.with_peers:
            theirs = median(found["deeplake"], "rows_per_s")
            ratio = median_share(found[OURS], found["deeplake"], "rows_per_s")
            lines.append(Line(what, mine, "deeplake", theirs, "rows/s", ratio, at_least=5.0))
        limit = median(found[IN_MEMORY], "rows_per_s")
        share = median_share(found[OURS], found[IN_MEMORY], "rows_per_s")
        lines.append(Line(what, mine, "DataLoader of rows in memory", limit, "rows/s", share))
        lines.append(Line(what, gets, "pages touched", pages, "GETs per batch", gets / pages, at_most=1.0))
        rows.append(
            {
                "workload": name,
                "rows/s": round(mine),
                "deeplake rows/s": round(theirs),
                "ratio": ratio,
                "from memory rows/s": round(limit),
                "GETs per batch": gets,
                "pages per batch": pages,
            }
        )
    return Figure(
        "standard", rows, lines, note="DataLoader(ds.pytorch(), shuffle=True, num_workers=2), warm local files"
    )


def _hand_over(place: Place, seconds: float) -> dict[str, Any]:
    workload = {"name": place.workload.name, "rows": place.workload.rows}
    return ask("limits", "hand_over", workload=workload, workers=2, seconds=seconds)


def _standard(place: Place, seconds: float) -> dict[str, Any]:
    warm(Path(place.uri))
    return ask("ours", "standard", place=place.to_json(), seconds=seconds)


def _requests(bench: Bench, place: Place) -> tuple[float, float]:
    """GETs of data and pages touched, per batch of random rows from a server that counts."""
    with bench.server(log=True) as server:
        found = ask("ours", "touched", place=place.at(server.endpoint).to_json(), batches=BATCHES_COUNTED)
        gets = sum(f"/{place.name}/data/" in got.key and got.method == "GET" for got in server.answers())
    return gets / found["batches"], found["pages"] / found["batches"]
