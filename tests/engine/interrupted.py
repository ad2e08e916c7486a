"""A program that reads a table until somebody interrupts it: `python -m tests.engine.interrupted SCENARIO PLACE`.

It says `reading` when it has been at it for a moment, and `left` when its loop has ended by itself.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import penstock
from penstock import Dataset
from penstock.storage import open_store
from penstock.testing import Fault, FaultyStore
from tests.adapters.transforms import slow, very_slow


def slow_store(ds: Dataset) -> Dataset:
    store = FaultyStore(ds._reader.store, Fault("delay", "get", key="data/*", times=10**6, delay_s=30))
    return penstock.load(store)


SCENARIOS: dict[str, tuple[Callable[[Dataset], Dataset], dict[str, Any]]] = {
    "plain": (lambda ds: ds, {"num_workers": 2}),
    "inline": (lambda ds: ds, {"num_workers": 0, "transform": slow}),
    "slow store": (slow_store, {"num_workers": 2}),
    "hanging bucket": (lambda ds: ds, {"num_workers": 2}),
    "slow transform": (lambda ds: ds, {"num_workers": 2, "transform": very_slow}),
    "slow transform inline": (lambda ds: ds, {"num_workers": 0, "transform": very_slow}),
    "process": (lambda ds: ds, {"num_workers": 1, "worker_type": "process", "transform": slow}),
    "slow process": (lambda ds: ds, {"num_workers": 1, "worker_type": "process", "transform": very_slow}),
}


def main(scenario: str, uri: str, options: dict[str, str], endpoint: str | None) -> None:
    ds = penstock.load(uri, options=options)
    wrap, settings = SCENARIOS[scenario]
    ds = wrap(ds)
    if endpoint is not None:  # the way to the bucket is lost after the table was opened
        object.__setattr__(ds._reader, "store", open_store(uri, options={**options, "endpoint": endpoint}))
    loader = ds.pytorch(batch_size=4, shuffle=True, **settings)
    begun = threading.Event()

    def say() -> None:
        begun.wait(60 if scenario in ("plain", "inline", "process") else 1.0)
        time.sleep(0.3)
        print("reading", flush=True)

    threading.Thread(target=say, daemon=True).start()
    while True:
        for _ in loader:
            begun.set()
            time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4] or None)
