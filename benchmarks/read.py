"""Read a fixed-shape column in sequence, verified, against plain read() of the same files with as many threads."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import penstock
from benchmarks.report import interleaved, median_ratio, publish, scratch, seconds
from benchmarks.write import SHAPE, batches

ROWS, BATCH = 7_000, 700
ROUNDS = 9
THREADS = 4


def make(folder: Path) -> penstock.Dataset:
    data = batches()
    ds = penstock.create(folder / "table", {"image": penstock.Tensor("uint8", SHAPE)})
    for n in range(ROWS // BATCH):
        ds.append({"image": data[n % len(data)]})
    ds.commit()
    return penstock.load(folder / "table")


def ours(ds: penstock.Dataset) -> float:
    def work() -> None:
        rows = sum(len(batch["image"]) for batch in ds.batches(None))
        assert rows == ROWS

    return seconds(work)


def plain(folder: Path) -> float:
    paths = sorted((folder / "table" / "data").iterdir())

    def read(path: Path) -> int:
        with open(path, "rb", buffering=0) as file:
            return len(file.read())

    def work() -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            assert sum(pool.map(read, paths)) > ROWS * np.prod(SHAPE)

    return seconds(work)


def main() -> None:
    with scratch() as folder:
        ds = make(folder)
        os.sync()
        times = interleaved({"ours": lambda: ours(ds), "read()": lambda: plain(folder)}, ROUNDS)
    gigabytes = ROWS * np.prod(SHAPE) / 1e9
    figures = [
        {"reader": name, "median s": float(np.median(taken)), "GB/s": gigabytes / float(np.median(taken))}
        for name, taken in times.items()
    ]
    ratio = median_ratio(times["ours"], times["read()"])
    publish(
        "read", figures, note=f"{gigabytes:.1f} GB, warm, verified, {THREADS} threads; ours is {ratio:.0%} of read()"
    )
