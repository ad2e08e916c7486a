"""What history costs: opening and comparing deep in it, comparing large versions, and compacting small fragments."""

import os
import shutil
from pathlib import Path

import numpy as np

import penstock
from benchmarks.report import interleaved, median_ratio, publish, scratch, seconds, sync
from penstock.storage import open_store
from penstock.testing import CountingStore

DEPTHS = (10, 10_000)
LARGE_ROWS, CHANGED = 10_000_000, 100
FRAGMENTS, FRAGMENT_BYTES = 1_000, 100_000
ROUNDS = 5


def total(store: CountingStore) -> tuple[int, int]:
    return sum(store.requests.values()), sum(store.bytes.values())


def depth() -> list[dict[str, object]]:
    """Open, and compare neighbours, after few and after many commits."""
    figures = []
    store = CountingStore(open_store("memory://"))
    ds = penstock.create(store, {"x": "int64"})
    for step in range(DEPTHS[-1]):
        ds.append({"x": [step]})
        ds.commit()
        if step + 1 in DEPTHS:
            store.reset()
            opened = penstock.load(store)
            requests, _ = total(store)
            store.reset()
            found = opened.diff(step, step + 1)
            assert len(found.added) == 1
            diff_requests, diff_bytes = total(store)
            figures.append(
                {
                    "commits": step + 1,
                    "requests to load": requests,
                    "requests to diff neighbours": diff_requests,
                    "bytes to diff neighbours": diff_bytes,
                }
            )
    return figures


def large_diff() -> dict[str, object]:
    """Two versions of ten million rows that differ in a hundred."""
    with scratch() as folder:
        ds = penstock.create(folder / "t", {"id": "int64", "label": "int32", "v": penstock.Tensor("float32", (16,))})
        rng = np.random.default_rng(0)
        step = 1_000_000
        for start in range(0, LARGE_ROWS, step):
            ds.append(
                {
                    "id": np.arange(start, start + step),
                    "label": rng.integers(0, 1000, step).astype(np.int32),
                    "v": rng.normal(size=(step, 16)).astype(np.float32),
                }
            )
        ds.commit()
        size = ds.summary().bytes
        rows = np.sort(rng.choice(LARGE_ROWS, CHANGED, replace=False))
        ds.update(positions=rows, data={"label": -1})
        ds.commit()
        store = CountingStore(open_store(folder / "t"))
        ds = penstock.load(store)
        store.reset()
        taken = seconds(lambda: ds.diff(1, 2))
        _, read = total(store)
        found = ds.diff(1, 2)
        assert len(found.updated_rows) == CHANGED
    return {"rows": LARGE_ROWS, "differ": CHANGED, "table bytes": size, "read": read, "share": read / size, "s": taken}


def compaction() -> dict[str, object]:
    """Many small fragments into few, against copying the same files."""
    with scratch() as folder:
        width = 10_000
        ds = penstock.create(folder / "t", {"x": penstock.Tensor("uint8", (width,))})
        rng = np.random.default_rng(0)
        for _ in range(FRAGMENTS):
            ds.append({"x": rng.integers(0, 256, (FRAGMENT_BYTES // width, width), dtype=np.uint8)})
        ds.commit()

        def ours() -> float:
            place = folder / "copy"
            shutil.copytree(folder / "t", place)
            sync()
            taken = seconds(lambda: penstock.compact(place))
            shutil.rmtree(place)
            return taken

        def plain() -> float:
            place = folder / "plain"
            place.mkdir()
            sync()
            taken = seconds(lambda: copy_files(folder / "t" / "data", place))
            shutil.rmtree(place)
            return taken

        times = interleaved({"compact": ours, "copy": plain}, ROUNDS)
        store = CountingStore(open_store(folder / "t"))
        whole = ds.summary().bytes
        penstock.compact(store)
        figures: dict[str, object] = {
            "fragments": FRAGMENTS,
            "bytes": whole,
            "read / bytes": store.bytes["get"] / whole,
            "written / bytes": store.bytes["put"] / whole,
            "compact s": float(np.median(times["compact"])),
            "copy s": float(np.median(times["copy"])),
            "share of a copy's speed": median_ratio(times["compact"], times["copy"]),
        }
    return figures


def copy_files(source: Path, target: Path) -> None:
    """Copy the files one by one, each made durable as ours are."""
    for path in source.iterdir():
        with open(target / path.name, "wb") as file:
            file.write(path.read_bytes())
            file.flush()
            os.fsync(file.fileno())


def main() -> None:
    figures = depth()
    ratio = figures[1]["bytes to diff neighbours"] / figures[0]["bytes to diff neighbours"]  # type: ignore[operator]
    publish("history-depth", figures, note=f"bytes to diff neighbours, deep / shallow: {ratio:.2f}x")
    publish("history-diff", [large_diff()])
    publish("history-compact", [compaction()])
