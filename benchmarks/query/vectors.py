"""Nearest rows by cosine: the exact scan, and the index with and without filters."""

from collections.abc import Callable
from typing import Any

from benchmarks.query import ours
from benchmarks.query.bench import LANCE, OURS, Bench, Line, Part, compared, counted, mean
from benchmarks.query.data import LABELS, FloatArray, queries
from benchmarks.query.ours import Found
from benchmarks.query.reference import nearest, recall
from benchmarks.query.remote import remote
from benchmarks.query.tables import PLAIN

K = 10
LANCE_SEARCH = {"nprobes": 32, "refine_factor": 10}
_SCAN_QUERIES = 5
_LABEL_ENDS = {"no filter": LABELS, "50 %": LABELS // 2, "10 %": LABELS // 10, "1 %": LABELS // 100, "0.1 %": 1}
"""Filters by how much they keep; labels less than these are kept."""
_SCAN, _FASTER, _RECALL, _REQUESTS, _ROUND_TRIPS = 1.5, 20.0, 0.95, 40, 1


def scan(bench: Bench) -> Part:
    """The exact scan, against reading and verifying the same pages, and against Lance's."""
    bench.warm()
    ds, asked = bench.tables.open(PLAIN), queries(_SCAN_QUERIES)
    answers: dict[str, Any] = {}
    times = bench.in_turns({
        OURS: _ours(answers, asked, lambda vector: ours.search(ds, K, vector=vector)),
        "pages": lambda: ours.read_pages(ds, "emb"),
        LANCE: _lance(bench, answers, PLAIN, _SCAN_QUERIES, {"use_index": False}, ""),
    })  # fmt: skip
    wanted = nearest(bench.rows, asked, K, [LABELS])[LABELS]
    for name in (OURS, LANCE):
        if recall(answers[name], wanted) < 1:
            raise RuntimeError(f"the exact scan of {name} found other rows")
    return Part(
        [
            compared(
                "exact vector scan", times[OURS], "reading and verifying the same pages", times["pages"], at_most=_SCAN
            ),
            compared("exact vector scan", times[OURS], LANCE, times[LANCE]),
        ],
        {"times": times},
    )


def vector(bench: Bench) -> Part:
    """The index: build, recall and time by filter, requests."""
    bench.tables.build("scalar", "vector")
    bench.warm()
    built = bench.tables.built("vector")
    lines = [
        counted(
            "vector index: build, processor time", built["ours"]["cpu_s"], "s", against=f"{LANCE} IVF_PQ",
            other=built["lance"]["cpu_s"], at_most=1.0,
        ),
        counted(
            "vector index: build", built["ours"]["wall_s"], "s", against=f"{LANCE} IVF_PQ",
            other=built["lance"]["wall_s"],
        ),
    ]  # fmt: skip
    wanted = nearest(bench.rows, queries(bench.queries), K, list(_LABEL_ENDS.values()))
    found: dict[str, Any] = {"built": built}
    for name, end in _LABEL_ENDS.items():
        times, answers = _indexed(bench, "" if end == LABELS else f"label < {end}")
        mine, theirs = (recall(answers[key], wanted[end]) for key in (OURS, LANCE))
        found[name] = {"times": times, "recall": {OURS: mine, LANCE: theirs}}
        figure = f"vector index, {name}"
        lines.append(counted(f"{figure}: recall@10", mine, "share", at_least=_RECALL))
        lines.append(compared(f"{figure}: a query", times[OURS], f"{LANCE}, recall {theirs:.3f}", times[LANCE]))
        if end == LABELS:
            lines.append(compared(figure, times[OURS], "exact scan", times["scan"], at_least=_FASTER))
    requests, more = _requests(bench)
    return Part([*lines, *requests], found | more)


def _indexed(bench: Bench, where: str) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Ours and Lance's in turns; without a filter, the exact scan too."""
    ds, plain, asked = bench.tables.open("vector"), bench.tables.open(PLAIN), queries(bench.queries)
    answers: dict[str, Any] = {}
    filtered = {"where": where} if where else {}
    jobs = {
        OURS: _ours(answers, asked, lambda vector: ours.search(ds, K, vector=vector, **filtered)),
        LANCE: _lance(bench, answers, "vector", bench.queries, LANCE_SEARCH, where),
    }
    if not where:
        first = asked[:_SCAN_QUERIES]
        jobs["scan"] = _ours({}, first, lambda vector: ours.search(plain, K, vector=vector))
    return bench.in_turns(jobs), answers


def _ours(answers: dict[str, Any], asked: FloatArray, ask: Callable[[FloatArray], tuple[Found, float]]) -> Any:
    """The mean seconds of some queries, one at a time."""

    def job() -> float:
        found, taken = zip(*(ask(vector) for vector in asked), strict=True)
        answers[OURS] = [each.ids for each in found]
        return mean(taken)

    return job


def _lance(
    bench: Bench, answers: dict[str, Any], version: str, count: int, search: dict[str, Any], where: str
) -> Callable[[], float]:
    at = bench.tables.lance_version(version)

    def job() -> float:
        found = bench.peer.ask(
            "nearest", folder=bench.tables.lance, at=at, asked=[0, count], k=K, search=search, where=where
        )
        answers[LANCE] = found["ids"]
        return mean(found["seconds"])

    return job


def _requests(bench: Bench) -> tuple[list[Line], dict[str, Any]]:
    """Of queries after the first, on a server that answers late."""
    with remote(bench, "vector") as far:
        counts, waits, sizes, taken = [], [], [], []
        for number, asked in enumerate(queries(min(8, bench.queries))):
            far.reset()
            _, seconds = ours.search(far.ds, K, vector=asked)
            counts.append(far.requests())
            waits.append(far.store.round_trips())
            sizes.append(far.store.bytes_of(""))
            taken.append(seconds)
            if number == 0:
                first = {"requests": counts.pop(), "round_trips": waits.pop(), "bytes": sizes.pop(), "s": taken.pop()}
    found = {"first": first, "requests": counts, "round_trips": waits, "bytes": sizes, "seconds": taken}
    late = f"{bench.delay_ms:g} ms per request"
    lines = [
        counted("vector index, object storage: requests of a query, most", max(counts), "requests", at_most=_REQUESTS),
        counted("vector index, object storage: round trips, most", max(waits), "round trips", at_most=_ROUND_TRIPS),
        counted("vector index, object storage: bytes of a query, mean", mean(sizes), "bytes"),
        counted(f"vector index, object storage, {late}: a query, mean", 1e3 * mean(taken), "ms"),
        counted("vector index, object storage: requests of the first query", first["requests"], "requests"),
    ]
    return lines, {"remote": found}
