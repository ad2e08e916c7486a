"""Open a table of 100,000 fragments: requests and seconds."""

import time

import numpy as np

import penstock
from benchmarks.report import publish, scratch, seconds
from penstock.format import Fragment, new_int_id
from penstock.storage import open_store
from penstock.testing import CountingStore
from penstock.types import RowRange

FRAGMENTS = 100_000
ROUNDS = 9


def main() -> None:
    with scratch() as folder:
        ds = penstock.create(folder / "table", {"x": "float32"})
        ds.append({"x": np.zeros(100, np.float32)})
        ds.commit()
        session = ds._session
        [real] = session.tree.fragments(session.snapshot.nodes)
        copies = [  # the same rows again and again: only the manifests matter here
            Fragment(
                new_int_id(), real.rows, (RowRange(n * 100, n * 100 + 100),), real.files, statistics=real.statistics
            )
            for n in range(1, FRAGMENTS)
        ]
        session.changes.record("append")
        session.update_snapshot(session.tree.append(session.snapshot.nodes, copies), session.snapshot.schema, {})
        start = time.perf_counter()
        ds.commit()
        made = time.perf_counter() - start
        store = CountingStore(open_store(folder / "table"))
        taken = []
        for _ in range(ROUNDS):
            store.reset()
            taken.append(seconds(lambda: penstock.load(store)))
            requests, moved = sum(store.requests.values()), sum(store.bytes.values())
        opened = penstock.load(store)
        assert len(opened) == FRAGMENTS * 100
        store.reset()
        row = seconds(lambda: opened[len(opened) // 2])
        figures = [
            {"what": "open", "requests": requests, "bytes": moved, "seconds": float(np.median(taken))},
            {
                "what": "then one row from the middle",
                "requests": sum(store.requests.values()),
                "bytes": sum(store.bytes.values()),
                "seconds": row,
            },
        ]
    publish(
        "opening", figures, note=f"{FRAGMENTS:,} fragments on local disk (the commit that made them took {made:.1f} s)"
    )
