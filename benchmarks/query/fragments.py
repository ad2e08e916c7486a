"""A filter that keeps 10 of 100,000 fragments; all but those exist as manifests only."""

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from benchmarks.query.bench import Bench, Line, Part, counted
from benchmarks.query.store import RecordingStore
from penstock.format import Fragment, Statistics, new_int_id
from penstock.storage import open_store
from penstock.types import RowRange

FRAGMENTS, KEPT, ROWS = 100_000, 10, 100
"""Fragments of the table, those that the filter keeps, and rows of each."""
_SECONDS, _REQUESTS = 1.0, 50


def fragments(bench: Bench) -> Part:
    """Seconds and requests from opening the table to the number of rows, on local files and on a slow store."""
    uri = bench.tables.folder / f"fragments-{FRAGMENTS}"
    if not uri.with_suffix(".complete").exists():
        shutil.rmtree(uri, ignore_errors=True)
        _write(uri)
        uri.with_suffix(".complete").touch()
    lines: list[Line] = []
    found: dict[str, Any] = {}
    for name, latency_s in (("local files", 0.0), (f"{bench.delay_ms:g} ms per request", bench.delay_ms / 1e3)):
        taken, requests, trips = [], [], []
        for _ in range(1 + bench.rounds):
            store = RecordingStore(open_store(uri), latency_s)
            start = time.perf_counter()
            kept = len(penstock.load(store).where(_where()))
            taken.append(time.perf_counter() - start)
            requests.append(len(store.reads))
            trips.append(store.round_trips())
            if kept != KEPT * ROWS:
                raise RuntimeError(f"the filter keeps {kept} rows")
        del taken[0]  # with the imports
        found[name] = {"seconds": taken, "requests": requests, "round_trips": trips}
        figure = f"{FRAGMENTS:,} fragments, filter keeps {KEPT}, {name}"
        median = float(np.median(taken))
        lines.append(Line(figure, min(taken), "", 1.0, "s", min(taken), at_most=_SECONDS, ours_median=median))
        lines.append(counted(f"{figure}: requests", max(requests), "requests", at_most=_REQUESTS))
    return Part(lines, found)


def _where() -> str:
    first = _first_kept()
    return f"x >= {first * ROWS} AND x < {(first + KEPT) * ROWS}"


def _first_kept() -> int:
    return FRAGMENTS // 2


def _write(uri: Path) -> None:
    """Values rise from fragment to fragment; those that the filter keeps are real."""
    ds = penstock.create(uri, {"x": "int64"})
    [field] = ds.schema
    first = _first_kept()
    for number in range(first, first + KEPT):
        ds.append({"x": np.arange(number * ROWS, (number + 1) * ROWS)})
        ds.commit()
    session = ds._session
    real = dict(enumerate(session.tree.fragments(session.snapshot.nodes), first))
    every = [_fragment(field.id, number, real.get(number, real[first])) for number in range(FRAGMENTS)]
    session.changes.record("append")
    session.update_snapshot(session.tree.append((), every), session.snapshot.schema, {})
    ds.commit()


def _fragment(field_id: int, number: int, like: Fragment) -> Fragment:
    low, high = number * ROWS, (number + 1) * ROWS
    bounds = Statistics(field_id, 0, str(low), str(high - 1))
    return Fragment(new_int_id(), ROWS, (RowRange(low, high),), like.files, statistics=(bounds,))
