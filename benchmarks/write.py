"""Append and commit: 2 GB of raw images, against pyarrow's IPC writer; and ragged tensors, against fixed shapes."""

import multiprocessing
import os
import resource
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa

import penstock
from benchmarks.report import interleaved, median_ratio, publish, scratch, seconds, sync

SHAPE = (224, 224, 3)
ROWS, BATCH = 13_300, 700
ROUNDS = 5
SCANS = 800
"""About 190 MB."""


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


def lidar(*, ragged: bool) -> list[np.ndarray]:
    """Scans of about 20,000 points; a few arrays, used in turn."""
    rng = np.random.default_rng(0)
    counts = rng.integers(10_000, 30_000, 20) if ragged else [20_000] * 20
    return [rng.random((int(count), 3), dtype=np.float32) for count in counts]


def write_scans(folder: Path, *, ragged: bool) -> tuple[float, float]:
    """MB/s of a durable append of scans, and the growth of resident memory over the size of the scans."""
    some = lidar(ragged=ragged)
    scans = [scan.copy() for _ in range(SCANS // len(some)) for scan in some]
    size = sum(scan.nbytes for scan in scans)
    place = folder / "scans"
    ds = penstock.create(place, {"points": penstock.Tensor("float32", (None if ragged else 20_000, 3))})
    sync()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def work() -> None:
        ds.append({"points": scans})
        ds.commit()

    taken = seconds(work)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    shutil.rmtree(place)
    return size / taken / 1e6, grown * 1024 / size


def scans(folder: Path) -> None:
    """Each run in a process of its own, whose largest resident memory counts."""
    context = multiprocessing.get_context("spawn")
    found: dict[str, list[tuple[float, float]]] = {"ragged": [], "fixed": []}
    for _ in range(ROUNDS):
        for name, runs in found.items():
            with context.Pool(1) as pool:
                runs.append(pool.apply(write_scans, (folder,), {"ragged": name == "ragged"}))
    figures = [
        {
            "shape": name,
            "median MB/s": float(np.median([speed for speed, _ in runs])),
            "memory / data": float(np.median([memory for _, memory in runs])),
        }
        for name, runs in found.items()
    ]
    ratio = float(np.median([a / b for (a, _), (b, _) in zip(found["ragged"], found["fixed"], strict=True)]))
    publish(
        "write-ragged",
        figures,
        note=f"lidar scans, durable; ragged is {ratio:.0%} of the speed of a fixed shape",
        command="python -m benchmarks write",
    )


def main() -> None:
    data = batches()
    gigabytes = ROWS * np.prod(SHAPE) / 1e9
    with scratch() as folder:
        times = interleaved({"ours": lambda: ours(folder, data), "pyarrow": lambda: arrow_alone(folder, data)}, ROUNDS)
        scans(folder)
    figures = [
        {"writer": name, "median s": float(np.median(taken)), "GB/s": gigabytes / float(np.median(taken))}
        for name, taken in times.items()
    ]
    ratio = median_ratio(times["ours"], times["pyarrow"])
    publish("write", figures, note=f"{gigabytes:.1f} GB of raw images, durable; ours is {ratio:.0%} of pyarrow's speed")
