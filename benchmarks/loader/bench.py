"""What every figure of the loader is made with: sizes, tables, peers, rounds; and what it comes to in a line."""

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.loader import nginx
from benchmarks.loader.environment import peers_python
from benchmarks.loader.job import ask, call
from benchmarks.loader.nginx import Server
from benchmarks.loader.proxy import Delays, proxy
from benchmarks.loader.tables import BUCKET, Place, build, data_files
from benchmarks.loader.workloads import Workload, raw

CONCURRENCIES = (4, 8, 16, 32, 64)
GATHERERS = 8
WINDOW_SHARE, BLOCK_SHARE = 13, 1024
"""Parts of a table that our window and our blocks are by default."""
OURS = "penstock"
Job = Callable[[], dict[str, Any]]
PEERS = {
    "lance": "lance",
    "litdata": "litdata",
    "mosaic": "mosaic",
    "webdataset": "webdataset",
    "deeplake": "deeplake",
    "deeplake, random view": "deeplake",
    "lance, batches in random order": "lance",
}
"""Loaders of peers, and the file of each; the fastest come right after ours, because machines swing by the minute."""
NO_SHUFFLE = frozenset({"lance, batches in random order"})
"""Shown, but no rival: a batch holds neighbours."""


@dataclass(frozen=True)
class Bench:
    """How large and how long."""

    folder: Path
    size_bytes: int
    jpegs: int
    rounds: int
    seconds: float
    link_mib_s: float
    with_peers: bool

    def workload(self, name: str) -> Workload:
        return Workload("jpeg", self.jpegs) if name == "jpeg" else raw(name, self.size_bytes)

    def table(self, name: str) -> Place:
        return build(self.folder, self.workload(name))

    def server(self, *, log: bool = False, tls: bool = False) -> AbstractContextManager[Server]:
        """The folder of all tables as an S3 endpoint."""
        return nginx.serve(self.folder, log=log, tls=tls)

    @contextmanager
    def link(
        self, server: Server, delay_ms: float, *, every_nth: int = 0, extra_s: float = 0.0, mib_s: float | None = None
    ) -> Iterator[str]:
        """A slow way to the server, which lets through as much as all of them or `mib_s`."""
        mib_s = self.link_mib_s if mib_s is None else mib_s
        with proxy(server.port, Delays(delay_ms, every_nth, extra_s, mib_s)) as endpoint:
            yield endpoint


@dataclass(frozen=True)
class Line:
    """A figure in one line: ours against something, and what the ratio should be."""

    figure: str
    ours: float
    against: str
    other: float
    unit: str
    ratio: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def holds(self) -> bool:
        low, high = self.at_least, self.at_most
        return (low is None or self.ratio >= low) and (high is None or self.ratio <= high)


def rounds(jobs: Mapping[str, Job], count: int, key: str) -> dict[str, list[dict[str, Any]]]:
    """Run jobs in turn, so that a noisy machine is noisy to all of them; all their answers, one of which is shown."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in jobs}
    for number in range(count):
        for name, job in jobs.items():
            found[name].append(job())
            print(f"  round {number + 1}/{count} {name}: {found[name][-1][key]:,.3f}", file=sys.stderr)
    return found


def median(answers: Sequence[dict[str, Any]], key: str) -> float:
    return float(statistics.median(answer[key] for answer in answers))


def median_share(ours: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]], key: str) -> float:
    """The median over rounds of ours as a share of the other's."""
    return float(statistics.median(a[key] / b[key] for a, b in zip(ours, other, strict=True)))


def ours(place: Place, seconds: float, **options: Any) -> dict[str, Any]:
    """Our loader's rate, in a process of its own; bytes are those of batches."""
    found = ask("ours", "throughput", place=place.to_json(), seconds=seconds, **options)
    return found | {"bytes_per_s": found["rows_per_s"] * place.workload.row_bytes}


def warm(folder: Path) -> None:
    """Have all files of a folder in the page cache."""
    buffer = bytearray(1 << 20)
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


@dataclass(frozen=True)
class LineRate:
    """The best way to fetch a table's objects by plain GETs from an endpoint."""

    place: Place
    endpoint: str
    concurrency: int
    whole: bool

    def __call__(self, seconds: float) -> dict[str, Any]:
        return _fetch(self.place, self.endpoint, self.concurrency, self.whole, seconds)

    def __str__(self) -> str:
        return f"{self.concurrency} x {'whole objects' if self.whole else '4 MiB'}"


def line_rate(place: Place, endpoint: str, seconds: float) -> LineRate:
    """Try every concurrency, with whole objects and ranges of them."""
    tried = {
        (concurrency, whole): _fetch(place, endpoint, concurrency, whole, seconds)["bytes_per_s"]
        for concurrency in CONCURRENCIES
        for whole in (False, True)
    }
    best = max(tried, key=tried.__getitem__)
    shown = ", ".join(f"{n}{' whole' if whole else ''} {found / 1e9:.2f}" for (n, whole), found in tried.items())
    print(f"  line rate in GB/s: {shown}", file=sys.stderr)
    return LineRate(place, endpoint, *best)


def _fetch(place: Place, endpoint: str, concurrency: int, whole: bool, seconds: float) -> dict[str, Any]:
    return ask("limits", "fetch", **_objects(place, endpoint), concurrency=concurrency, whole=whole, seconds=seconds)


def gather_fetched(place: Place, endpoint: str, seconds: float) -> dict[str, Any]:
    """What the machine does of our work with no loader: GETs, checks, a window and gathers."""
    found = ask(
        "limits",
        "gather_fetched",
        **_objects(place, endpoint),
        **window(place),
        concurrency=GATHERERS,
        seconds=seconds,
    )
    return found | {"bytes_per_s": found["rows_per_s"] * place.workload.row_bytes}


def window(place: Place) -> dict[str, int]:
    """What our window, blocks and rows are by default."""
    return {
        "row_bytes": place.workload.row_bytes,
        "window_bytes": place.table_bytes // WINDOW_SHARE,
        "block_bytes": place.table_bytes // BLOCK_SHARE,
    }


def _objects(place: Place, endpoint: str) -> dict[str, Any]:
    sizes = {f"{place.name}/data/{name}": size for name, size in data_files(place).items()}
    return {"bucket": BUCKET, "options": nginx.options(endpoint), "objects": sizes}


def peer_folder(bench: Bench, loader: str, workload: Workload) -> Path:
    """The workload in the format of a peer; written if it is not there."""
    folder = bench.folder / "peers" / PEERS[loader] / f"{workload.name}-{workload.rows}"
    complete = folder.with_suffix(".complete")
    if not complete.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        call("peers", PEERS[loader], "write", str(folder), workload.to_json(), python=peers_python())
        complete.touch()
    return folder


def peer(bench: Bench, loader: str, workload: Workload, *, workers: int = 2) -> dict[str, Any]:
    """A peer's rate, its files warm, in a process of its own."""
    folder = peer_folder(bench, loader, workload)
    warm(folder)
    words = (str(folder), workload.to_json(), loader, str(bench.seconds), str(workers))
    return call("peers", PEERS[loader], "read", *words, python=peers_python())
