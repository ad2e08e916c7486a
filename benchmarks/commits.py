"""What a commit costs after many commits, and on a large table: requests and bytes, counted at the store."""

from pathlib import Path

import numpy as np

import penstock
from benchmarks.report import publish, scratch
from penstock.storage import open_store
from penstock.testing import CountingStore

COMMITS, ROWS, COLUMNS, WINDOW = 1_000, 100, 20, 100


def rows(rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    return {f"c{n:02}": rng.normal(size=count).astype(np.float32) for n in range(COLUMNS)}


def prepare(place: Path, fragments: int, rng: np.random.Generator) -> None:
    """A table of so many fragments, committed in few steps."""
    ds = penstock.create(place, {f"c{n:02}": "float32" for n in range(COLUMNS)})
    for number in range(fragments):
        ds.append(rows(rng, ROWS))
        if number % 500 == 499:
            ds.commit()
    ds.commit()


def measure(place: Path, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Requests and bytes of each of many commits: appends, and now and then an update or a deletion of older rows."""
    store = CountingStore(open_store(place))
    ds = penstock.load(store)
    requests, moved = [], []
    for step in range(COMMITS):
        store.reset()
        ds.append(rows(rng, ROWS))
        if step % 5 == 1:
            ds.update(positions=[int(rng.integers(len(ds)))], data={"c03": 1.0})
        if step % 5 == 3:
            ds.delete(positions=[int(rng.integers(len(ds)))])
        ds.commit()
        requests.append(sum(store.requests.values()))
        moved.append(sum(store.bytes.values()))
    return np.array(requests), np.array(moved)


def main() -> None:
    figures = []
    for fragments in (10, 10_000):
        rng = np.random.default_rng(0)
        with scratch() as folder:
            prepare(folder / "table", fragments, rng)
            requests, moved = measure(folder / "table", rng)
        for name, values in (("requests", requests), ("bytes", moved)):
            first, last = values[:WINDOW], values[-WINDOW:]
            figures.append(
                {
                    "fragments": fragments,
                    "per commit": name,
                    "mean, first 100": float(first.mean()),
                    "mean, last 100": float(last.mean()),
                    "ratio of means": float(last.mean() / first.mean()),
                    "p99, first 100": float(np.percentile(first, 99)),
                    "p99, last 100": float(np.percentile(last, 99)),
                    "ratio of p99": float(np.percentile(last, 99) / np.percentile(first, 99)),
                }
            )
    small, large = figures[:2], figures[2:]
    across = max(b["mean, last 100"] / a["mean, last 100"] for a, b in zip(small, large, strict=True))
    publish("commits", figures, note=f"{COMMITS} commits of {ROWS} rows x {COLUMNS}; large/small table {across:.2f}x")
