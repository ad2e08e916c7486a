"""Random compositions of the loader, in a loop that pauses while workers are killed: the same batches, and no hang."""

import os
import signal
import time
from functools import cache
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import Shuffle, Workers
from tests.engine.test_hangs import ROWS, table_of_all_kinds
from tests.engine.test_modes import assert_same
from tests.engine.watch import worker_processes
from tests.servers import new_location

FIXED, VARIABLE = ["fixed"], ["ragged", "text", "json", "bytes", "image"]


@cache
def table() -> penstock.Dataset:
    return table_of_all_kinds(new_location("folder").uri)


def same_batch(batch: dict[str, Any]) -> dict[str, Any]:
    return dict(batch)


def same_sample(sample: dict[str, Any]) -> dict[str, Any]:
    return dict(sample)


def drawn_view(rng: np.random.Generator) -> Any:
    """Some rows or samples of the table."""
    ds = table()
    columns = ["n", *rng.choice(FIXED + VARIABLE, rng.integers(0, 4), replace=False).tolist()]
    plain = ["n", *rng.choice(["fixed", "ragged", "text", "bytes"], rng.integers(1, 3), replace=False).tolist()]
    kind = rng.choice(["all", "slice", "list", "split", "windows", "weights", "mixture", "packed"])
    if kind == "slice":
        return ds[int(rng.integers(0, 30)) :: int(rng.integers(1, 4))].select(columns)
    if kind == "list":
        return ds[rng.integers(0, ROWS, 60).tolist()].select(columns)
    if kind == "split":
        return ds.split({"a": 0.7, "b": 0.3})["a"].select(columns)
    if kind == "windows":
        return ds.windows(length=int(rng.integers(2, 5))).select(["n", "fixed"])
    if kind == "weights":
        return ds.select(columns).weighted(rng.random(ROWS), rows=int(rng.integers(20, 150)))
    if kind == "mixture":
        halves = {"a": ds[:40].select(plain), "b": ds[40:].select(plain)}
        return penstock.mix(halves, weights={"a": float(rng.random() + 0.2), "b": 1.0})
    if kind == "packed":
        return ds.pack("ragged", length=2048)
    return ds.select(columns)


def read_composition(seed: int) -> int:
    """Compare a composition, read with pauses and deaths, with the same one read in this thread; returns the deaths."""
    rng = np.random.default_rng(seed)
    view = drawn_view(rng)
    options: dict[str, Any] = {"batch_size": int(rng.integers(1, 24))}
    if rng.random() < 0.7:
        options["shuffle"] = Shuffle(
            seed=int(rng.integers(9)), block_bytes=int(rng.choice([5000, 60_000, 1 << 20])),
            spread=float(rng.choice([0.0, 1.0, 4.0])), lanes=int(rng.choice([1, 2, 4, 24])),
        )  # fmt: skip
    functions: list[dict[str, Any]] = [{}, {}, {"batch_transform": same_batch}, {"transform": same_sample}]
    options |= functions[rng.integers(4)]
    if "image" in view.schema and rng.random() < 0.5:
        options["decode"] = False
    machine: dict[str, Any] = {
        "num_workers": Workers(int(rng.integers(1, 4)), str(rng.choice(["thread", "process", "process"]))),  # type: ignore[arg-type]
        "prefetch_factor": int(rng.integers(1, 5)),
        "memory_budget": [None, 1 << 20, 32 << 20][rng.integers(3)],
    }
    pauses = dict.fromkeys(rng.integers(0, 20, 3).tolist(), float(rng.choice([0.05, 0.2, 0.6])))
    kill_at = int(rng.integers(1, 20)) if rng.random() < 0.4 else -1
    deaths = 0
    with view.numpy(num_workers=0, **options) as here, view.numpy(**machine, **options) as loader:
        for epoch in range(2):
            expected = list(here)
            found = []
            stop_at = int(rng.integers(1, max(2, len(expected)))) if rng.random() < 0.3 else -1
            for step, batch in enumerate(loader):
                found.append(batch)
                time.sleep(pauses.pop(step, 0))
                if step == kill_at and not epoch and (pids := worker_processes()):
                    os.kill(pids[step % len(pids)], signal.SIGKILL)
                    deaths += 1
                if step == stop_at:
                    break
            if stop_at >= 0:
                state = loader.state_dict()
                if state["consumed"]:
                    loader.load_state_dict(state)
                    found += list(loader)
            assert_same(found, expected)
    return deaths


@pytest.mark.parametrize("seed", range(5))
def test_a_paused_loop_gets_the_same_batches(seed: int) -> None:
    read_composition(seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(20))
def test_five_hundred_compositions_in_a_paused_loop(part: int) -> None:
    for seed in range(25 * part, 25 * part + 25):
        read_composition(seed)
