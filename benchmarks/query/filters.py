"""Filters of 1 and 0.1 % of the rows: a sorted column, a scattered one, and that one with a scalar index."""

from typing import Any

from benchmarks.query import ours
from benchmarks.query.bench import LANCE, OURS, Bench, Line, Part, compared, counted
from benchmarks.query.data import LABELS
from benchmarks.query.store import RecordingStore
from benchmarks.query.tables import PLAIN
from penstock.storage import open_store

_SORTED, _SCATTERED, _INDEXED = 1.7, 3.0, 1.5
_MAX_BYTES = 0.05


def filters(bench: Bench) -> Part:
    """The number of rows, and their row ids with one column, `reward`."""
    bench.tables.build("scalar", "bitmap")
    bench.warm()
    one_percent = ", ".join(str(label) for label in range(3, LABELS, LABELS // 10))
    wanted = [
        ("1 %, sorted", f"id < {bench.rows // 100}", False, _SORTED),
        ("1 %, scattered", f"label IN ({one_percent})", False, _SCATTERED),
        ("0.1 %, scattered", "label = 5", False, _SCATTERED),
        ("1 %, scattered, scalar index", f"label IN ({one_percent})", True, _INDEXED),
        ("0.1 %, scattered, scalar index", "label = 5", True, _INDEXED),
    ]
    lines: list[Line] = []
    found: dict[str, Any] = {}
    for name, where, indexed, at_most in wanted:
        for kind in ("count", "rows"):
            times = _in_turns(bench, kind, where, indexed)
            found[f"{name}, {kind}"] = times
            best = min((times[peer], peer) for peer in times if peer != OURS)[1]
            shown = f"filter, {name}: {'count' if kind == 'count' else 'row ids and a column'}"
            lines.append(compared(shown, times[OURS], best, times[best], at_most=at_most))
    return Part([*lines, *_bytes(bench)], found)


def _in_turns(bench: Bench, kind: str, where: str, indexed: bool) -> dict[str, list[float]]:
    """Ours, and Lance without an index or with each of its two."""
    tables = bench.tables
    ds = tables.open("scalar" if indexed else PLAIN)
    peers = {f"{LANCE} BTREE": "scalar", f"{LANCE} BITMAP": "bitmap"} if indexed else {LANCE: PLAIN}
    answers: dict[str, Any] = {}

    def mine() -> float:
        answers[OURS], taken = ours.count(ds, where) if kind == "count" else ours.rows(ds, where)
        return taken

    def theirs(name: str, version: str) -> float:
        at = tables.lance_version(version)
        found = bench.peer.ask(kind, folder=tables.lance, at=at, where=where)
        answers[name] = found["rows" if kind == "count" else "digest"]
        return float(found["seconds"])

    jobs = {name: lambda name=name, version=version: theirs(name, version) for name, version in peers.items()}
    times = bench.in_turns({OURS: mine, **jobs})
    if len(set(answers.values())) != 1:
        raise RuntimeError(f"{where}: the answers differ: {answers}")
    return times


def _bytes(bench: Bench) -> list[Line]:
    """What the sorted filter reads of the column, counted at the store."""
    store = RecordingStore(open_store(bench.tables.ours))
    ds = bench.tables.open(PLAIN, store)
    store.reset()
    ours.count(ds, f"id < {bench.rows // 100}")
    read = store.bytes_of("data/")
    pages = ours.pages_bytes(ds, "id")
    shown = "filter, 1 %, sorted: bytes read of data files"
    return [
        counted(shown, read, "bytes", against="the pages that hold the column", other=pages, at_most=_MAX_BYTES),
        counted(shown, read, "bytes", against="the values of the column", other=8 * bench.rows),
    ]
