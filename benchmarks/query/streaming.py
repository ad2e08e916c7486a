"""A filtered view of a tenth of the rows in the loader, against a table that holds just those rows."""

import time
from typing import Any
from unittest.mock import patch

import numpy as np

import penstock
from benchmarks.query.bench import OURS, Bench, Line, Part, counted
from benchmarks.query.data import LABELS, IntArray
from benchmarks.query.store import RecordingStore
from benchmarks.query.tables import PLAIN, value_bytes, write_table
from benchmarks.semantics.costs import _can_plan_this_epoch
from penstock.engine.workers import _reading
from penstock.storage import open_store

_BATCH, _WORKERS, _LATER_EPOCHS = 256, 2, 3
_CLUSTER_SHARE = 100
"""Parts of the table that a cluster is; one part in ten is in the view."""
_AT_LEAST, _MAX_BYTES = 0.8, 2.0


def stream(bench: Bench) -> Part:
    """Rows per second of the first epoch and of later ones, shuffled; bytes of an epoch, counted at the store."""
    size = max(1, bench.rows // _CLUSTER_SHARE)
    wheres = {"clustered": f"(id // {size}) % 10 = 3", "scattered": f"label < {LABELS // 10}"}
    lines: list[Line] = []
    found: dict[str, Any] = {}
    for name, where in wheres.items():
        ids = _ids(bench, name, size)
        apart = _table(bench, name, ids)
        bench.warm()
        rates: dict[str, list[dict[str, float]]] = {OURS: [], "apart": []}
        view = bench.tables.open(PLAIN).where(where)
        if len(view) != len(ids):
            raise RuntimeError(f"{where} keeps {len(view)} rows, not {len(ids)}")
        views = {OURS: view, "apart": apart}
        for each in views.values():
            _rates(each, len(ids))  # imports, and whatever else happens once
        for _ in range(bench.rounds):
            for key, each in views.items():
                rates[key].append(_rates(each, len(ids)))
        found[name] = rates
        for epoch in ("first epoch", "later epochs"):
            lines.append(_line(f"view of 10 %, {name}, {epoch}", rates, epoch, clustered=name == "clustered"))
        read, needed = _bytes(bench, where), value_bytes(apart)
        target = {"at_most": _MAX_BYTES} if name == "scattered" else {}
        lines.append(
            counted(f"view of 10 %, {name}: bytes of an epoch", read, "bytes", against="bytes of its values",
                    other=needed, **target)
        )  # fmt: skip
    return Part(lines, found)


def _line(figure: str, rates: dict[str, list[dict[str, float]]], epoch: str, *, clustered: bool) -> Line:
    """The best of all rounds, which other work on the machine disturbs least; and medians."""
    ours, other = ([each[epoch] for each in rates[name]] for name in (OURS, "apart"))
    return Line(
        figure, max(ours), "a table of these rows", max(other), "rows/s", max(ours) / max(other),
        at_least=_AT_LEAST if clustered else None,
        ours_median=float(np.median(ours)), other_median=float(np.median(other)),
    )  # fmt: skip


def _ids(bench: Bench, name: str, size: int) -> IntArray:
    """The rows that the view should have, which are their ids too."""
    if name == "clustered":
        ids = np.arange(bench.rows)
        return ids[(ids // size) % 10 == 3]
    return np.flatnonzero(bench.tables.open(PLAIN).select("label").to_numpy()["label"] < LABELS // 10)


def _table(bench: Bench, name: str, ids: IntArray) -> penstock.Dataset:
    """A table of just these rows."""
    uri = bench.tables.ours.with_name(f"{bench.tables.ours.name}-{name}")
    complete = uri.with_suffix(".complete")
    if not complete.exists():
        if penstock.exists(uri):
            penstock.delete(uri)
        write_table(uri, bench.tables.open(PLAIN)[ids].to_arrow())
        complete.touch()
    return penstock.load(uri)


def _rates(view: Any, rows: int) -> dict[str, float]:
    """Rows a second of one loader, from its first batch asked for to the end of an epoch, and of three more epochs."""
    with _loader(view) as loader:
        start = time.perf_counter()
        first = sum(len(batch["id"]) for batch in loader)
        end = time.perf_counter()
        later = sum(len(batch["id"]) for _ in range(_LATER_EPOCHS) for batch in loader)
        last = time.perf_counter()
    if (first, later) != (rows, _LATER_EPOCHS * rows):
        raise RuntimeError(f"an epoch has {first} rows, not {rows}")
    return {"first epoch": first / (end - start), "later epochs": later / (last - end)}


def _bytes(bench: Bench, where: str) -> int:
    """Bytes of data files that one epoch reads; no other epoch is read ahead, so that all bytes belong to it."""
    store = RecordingStore(open_store(bench.tables.ours))
    view = bench.tables.open(PLAIN, store).where(where)
    store.reset()
    with patch.object(_reading.SpanReader, "_can_plan", _can_plan_this_epoch), _loader(view) as loader:
        for _ in loader:
            pass
        return store.bytes_of("data/")


def _loader(view: Any) -> Any:
    return view.pytorch(batch_size=_BATCH, shuffle=penstock.Shuffle(seed=1), num_workers=_WORKERS)
