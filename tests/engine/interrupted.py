"""A program that reads a table until it is interrupted: `python -m tests.engine.interrupted SCENARIO URI OPTIONS URL`.

It prints `reading` once the loop runs, or waits for its first batch. What a scenario waits for lasts ten minutes, far
longer than any test does, so that a program that ends has not waited for it. The scenario `idle` is the control: the
same imports, and no loader.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import penstock
from penstock import Dataset, Workers
from penstock.storage import RetryPolicy, open_store
from penstock.testing import Fault, FaultyStore
from tests.adapters.transforms import slow, very_slow

LONG_S = 600.0


def slow_store(ds: Dataset) -> Dataset:
    store = FaultyStore(ds._reader.store, Fault("delay", "get", key="data/*", times=10**6, delay_s=LONG_S))
    return penstock.load(store)


SCENARIOS: dict[str, tuple[Callable[[Dataset], Dataset], dict[str, Any]]] = {
    "plain": (lambda ds: ds, {"num_workers": 2}),
    "inline": (lambda ds: ds, {"num_workers": 0, "transform": slow}),
    "slow store": (slow_store, {"num_workers": 2}),
    "hanging bucket": (lambda ds: ds, {"num_workers": 2}),
    "slow transform": (lambda ds: ds, {"num_workers": 2, "transform": very_slow}),
    "slow transform inline": (lambda ds: ds, {"num_workers": 0, "transform": very_slow}),
    "process": (lambda ds: ds, {"num_workers": Workers(1, "process"), "transform": slow}),
    "slow process": (lambda ds: ds, {"num_workers": Workers(1, "process"), "transform": very_slow}),
}


def main(scenario: str, uri: str, options: dict[str, str], endpoint: str | None) -> None:
    if scenario == "idle":
        print("reading", flush=True)
        time.sleep(LONG_S)
    ds = penstock.load(uri, storage_options=options)
    wrap, settings = SCENARIOS[scenario]
    ds = wrap(ds)
    if endpoint is not None:  # the bucket stops answering after the table was opened
        retry = RetryPolicy(deadline_s=LONG_S, attempt_timeout_s=LONG_S)
        store = open_store(uri, options={**options, "endpoint": endpoint}, retry=retry)
        object.__setattr__(ds._reader, "store", store)
    loader = ds.pytorch(batch_size=4, shuffle=True, **settings)
    begun = threading.Event()

    def report() -> None:
        begun.wait(240 if scenario in ("plain", "inline", "process") else 1.0)
        time.sleep(0.3)
        print("reading", flush=True)

    threading.Thread(target=report, daemon=True).start()
    while True:
        for _ in loader:
            begun.set()
            time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4] or None)
