"""Measurements of our loader, always through `ds.pytorch`; each runs in a process of its own."""

import gc
import re
import time
from dataclasses import asdict
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch

import penstock
from benchmarks.loader.job import answer
from benchmarks.loader.measure import entropy_share, rate
from benchmarks.loader.pages import count_holding, pages
from benchmarks.loader.tables import Place
from benchmarks.loader.transforms import spin

WORKERS = 2
"""As many as the peers that work in processes get."""
TRANSFORMED_ROWS, STARTING_BATCHES = 64, 40
"""Rows of a batch where each takes long; and what is delivered while processes still start."""


def throughput(place: dict[str, Any], seconds: float, shuffle: bool = True) -> dict[str, Any]:
    """Rows a second, and what the loader says it waited for."""
    at = Place.from_json(place)
    with _loader(at, at.open(), **{} if shuffle else {"shuffle": False}) as loader:
        found = asdict(rate(loader, at.workload, seconds=seconds))
        return found | {"stats": str(loader.stats())}


def first_batch(place: dict[str, Any], state: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Seconds to open the table, and from the same moment to the first batch, or to that which follows a state."""
    at = Place.from_json(place)
    gc.collect()  # or Python would look through all of torch, for a tenth of a second, at some moment after its import
    gc.freeze()
    start = time.perf_counter()
    ds = at.open()
    opened = time.perf_counter()
    with _loader(at, ds, **options) as loader:
        if state is not None:
            loader.load_state_dict(state)
        next(iter(loader))
        taken = time.perf_counter() - start
        return {"open_s": opened - start, "first_batch_s": taken, "fetched_bytes": loader.stats().bytes}


def budget(place: dict[str, Any], budget_bytes: int, seconds: float) -> dict[str, Any]:
    """Bytes fetched for each byte of the rows that are delivered, with so much memory.

    As many rows as an epoch has are counted from its first quarter on, when the window is full, or fewer if the time
    is up: what was prefetched before and what is prefetched after them are the same.
    """
    at = Place.from_json(place)
    rows, start, began = 0, time.perf_counter(), None
    with _loader(at, at.open(), memory_budget=budget_bytes) as loader:
        for batch in chain.from_iterable(repeat(loader)):
            rows += len(batch[at.workload.column])
            now = time.perf_counter()
            if began is None and (4 * rows >= at.workload.rows or now - start > seconds):
                began = (now, rows, loader.stats().bytes)
            elif began is not None and (rows - began[1] >= at.workload.rows or now - began[0] > 4 * seconds):
                break
        assert began is not None
        fetched, counted = loader.stats().bytes - began[2], rows - began[1]
    return {
        "rows_per_s": counted / (now - began[0]),
        "epochs": counted / at.workload.rows,
        "bytes_per_byte": fetched / (counted * at.table_bytes / at.workload.rows),
    }


def memory(place: dict[str, Any], budget_bytes: int, seconds: float) -> dict[str, Any]:
    """The most memory the process had at any time, above what it had after the imports."""
    imported = _status_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # starts the high-water mark again
    at = Place.from_json(place)
    with _loader(at, at.open(), memory_budget=budget_bytes) as loader:
        found = rate(loader, at.workload, seconds=seconds)
    return asdict(found) | {"imported_bytes": imported, "peak_bytes": _status_bytes("VmHWM") - imported}


def entropy(place: dict[str, Any]) -> dict[str, Any]:
    """Label entropy over a whole epoch, as a share of a true shuffle's."""
    at = Place.from_json(place)
    with _loader(at, at.open()) as loader:
        return {"entropy_share": entropy_share(loader, at.workload, batches=None)}


def part(place: dict[str, Any], share: float, **options: Any) -> dict[str, Any]:
    """The rows of the first part of an epoch, and the state behind them."""
    at = Place.from_json(place)
    with _loader(at, at.open(), **options) as loader:
        steps = int(len(loader) * share)
        rows = [at.workload.row_numbers(batch[at.workload.column].numpy()) for batch in islice(loader, steps)]
        return {"state": loader.state_dict(), "rows": np.concatenate(rows).tolist()}


def rest(place: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """The rows of an epoch from a state to its end."""
    at = Place.from_json(place)
    with _loader(at, at.open()) as loader:
        loader.load_state_dict(state)
        rows = [at.workload.row_numbers(batch[at.workload.column].numpy()) for batch in loader]
        return {"rows": np.concatenate(rows).tolist()}


def transformed(place: dict[str, Any], loops: int, workers: int, seconds: float) -> dict[str, Any]:
    """Rows a second through a transform that is heavy in Python."""
    at = Place.from_json(place)
    options = {"transform": partial(spin, loops=loops), "num_workers": penstock.Workers(workers, "process")}
    with _loader(at, at.open(), batch_size=TRANSFORMED_ROWS, **options) as loader:
        return asdict(rate(loader, at.workload, seconds=seconds, skip=STARTING_BATCHES))


def standard(place: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Rows a second of our rows in torch's own loader."""
    at = Place.from_json(place)
    loader = torch.utils.data.DataLoader(
        at.open().pytorch(), at.workload.batch_size, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    return asdict(rate(loader, at.workload, seconds=seconds))


def touched(place: dict[str, Any], batches: int) -> dict[str, Any]:
    """Batches of random rows through torch's own loader, and how many pages hold them."""
    at = Place.from_json(place)
    ds = at.open()
    order = np.random.default_rng(0).permutation(at.workload.rows)
    size = at.workload.batch_size
    wanted = [order[start : start + size].tolist() for start in range(0, len(order), size)][:batches]
    loader = torch.utils.data.DataLoader(ds.pytorch(), batch_sampler=wanted, num_workers=WORKERS)
    rows = sum(len(batch[at.workload.column]) for batch in loader)
    files = pages(ds)
    return {
        "rows": rows,
        "batches": len(wanted),
        "pages": sum(count_holding(files, np.array(numbers)) for numbers in wanted),
    }


def _loader(place: Place, ds: penstock.Dataset, **options: Any) -> Any:
    return ds.pytorch(
        **{
            "batch_size": place.workload.batch_size,
            "shuffle": penstock.Shuffle(seed=1),
            "num_workers": WORKERS,
            "memory_budget": place.budget_bytes,
        }
        | options
    )


def _status_bytes(name: str) -> int:
    found = re.search(rf"{name}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


if __name__ == "__main__":
    answer(throughput, first_batch, budget, memory, entropy, part, rest, transformed, standard, touched)
