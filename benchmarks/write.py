"""Append and commit 2 GB of raw images, against pyarrow's IPC writer; both made durable."""

import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa

import penstock
from benchmarks.report import interleaved, median_ratio, publish, scratch, seconds, sync

SHAPE = (224, 224, 3)
ROWS, BATCH = 13_300, 700
ROUNDS = 5


def batches() -> list[np.ndarray]:
    """A few batches of noise, used in turn: making 2 GB of noise would be the benchmark."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (BATCH, *SHAPE), dtype=np.uint8) for _ in range(3)]


def ours(folder: Path, data: list[np.ndarray]) -> float:
    place = folder / "ours"
    ds = penstock.create(place, {"image": penstock.Tensor("uint8", SHAPE)})
    sync()

    def work() -> None:
        arrow = (as_batch(data[n % len(data)]) for n in range(ROWS // BATCH))
        ds.append(arrow)
        ds.commit()

    taken = seconds(work)
    shutil.rmtree(place)
    return taken


def as_batch(images: np.ndarray) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.FixedShapeTensorArray.from_numpy_ndarray(images)], names=["image"])


def arrow_alone(folder: Path, data: list[np.ndarray]) -> float:
    place = folder / "arrow.arrow"
    sync()

    def work() -> None:
        with open(place, "wb") as file:
            first = as_batch(data[0])
            with pa.ipc.new_file(file, first.schema) as writer:
                for n in range(ROWS // BATCH):
                    writer.write_batch(as_batch(data[n % len(data)]))
            file.flush()
            os.fsync(file.fileno())

    taken = seconds(work)
    place.unlink()
    return taken


def main() -> None:
    data = batches()
    gigabytes = ROWS * np.prod(SHAPE) / 1e9
    with scratch() as folder:
        times = interleaved({"ours": lambda: ours(folder, data), "pyarrow": lambda: arrow_alone(folder, data)}, ROUNDS)
    figures = [
        {"writer": name, "median s": float(np.median(taken)), "GB/s": gigabytes / float(np.median(taken))}
        for name, taken in times.items()
    ]
    ratio = median_ratio(times["ours"], times["pyarrow"])
    publish("write", figures, note=f"{gigabytes:.1f} GB of raw images, durable; ours is {ratio:.0%} of pyarrow's speed")
