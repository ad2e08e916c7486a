"""What the machine can do at most, each measured in a process of its own: decode, read files, copy memory, fetch."""

import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import simplejpeg
from obstore.store import S3Store

from benchmarks.loader.job import answer
from benchmarks.loader.workloads import Workload

CORES = os.cpu_count() or 1
STEP_BYTES = 4 << 20
_PICTURES = 2048
_COPIED_BYTES = 256 << 20
_READ_BYTES = 1 << 20


def decode(workload: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Pictures a second that all cores decode, into batches that are there already, as strictly as we do."""
    rows = Workload(**workload)
    pictures: list[bytes] = []
    for chunk in rows.chunks():
        pictures += chunk["image"]
        if len(pictures) >= _PICTURES:
            break

    def batch(out: np.ndarray, number: int) -> int:
        for row in range(len(out)):
            simplejpeg.decode_jpeg(pictures[(number * len(out) + row) % len(pictures)], buffer=out[row])
        return len(out)

    buffers = [np.empty((rows.batch_size, *rows.shape), np.uint8) for _ in range(CORES)]
    return {"rows_per_s": _rate([partial(batch, out) for out in buffers], seconds)}


def read(folder: str, seconds: float) -> dict[str, Any]:
    """Bytes a second that all cores read from the files of a folder, in order."""
    paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())

    def file(buffer: bytearray, number: int) -> int:
        count = 0
        with open(paths[number % len(paths)], "rb", buffering=0) as source:
            while part := source.readinto(buffer):
                count += part
        return count

    buffers = [bytearray(_READ_BYTES) for _ in range(CORES)]
    return {"bytes_per_s": _rate([partial(file, buffer) for buffer in buffers], seconds)}


def copy(seconds: float) -> dict[str, Any]:
    """Bytes a second that all cores copy in memory, beyond the caches."""
    pairs = [(np.ones(_COPIED_BYTES, np.uint8), np.ones(_COPIED_BYTES, np.uint8)) for _ in range(CORES)]

    def once(source: np.ndarray, target: np.ndarray, _: int) -> int:
        np.copyto(target, source)
        return len(target)

    return {"bytes_per_s": _rate([partial(once, *pair) for pair in pairs], seconds)}


def fetch(
    bucket: str, options: dict[str, str], objects: dict[str, int], concurrency: int, whole: bool, seconds: float
) -> dict[str, Any]:
    """Bytes a second of plain GETs from threads, of whole objects or of ranges of 4 MiB."""
    store = S3Store(bucket, config=options)  # type: ignore[arg-type]
    ranges = [(key, start) for key, size in objects.items() for start in range(0, size, size if whole else STEP_BYTES)]

    def get(number: int) -> int:
        key, start = ranges[number % len(ranges)]
        if whole:
            return len(obstore.get(store, key).bytes())
        return len(obstore.get_range(store, key, start=start, end=min(start + STEP_BYTES, objects[key])))

    with ThreadPoolExecutor(concurrency) as pool:
        sum(pool.map(get, range(concurrency)))  # opens the connections
    return {"bytes_per_s": _rate([get] * concurrency, seconds)}


def _rate(workers: list[Callable[[int], int]], seconds: float) -> float:
    """What all workers together get done in a second, each in a thread, with numbered pieces of work."""
    numbers = itertools.count()
    start = time.perf_counter()

    def work(worker: Callable[[int], int]) -> int:
        done = 0
        while time.perf_counter() - start < seconds:
            done += worker(next(numbers))
        return done

    with ThreadPoolExecutor(len(workers)) as pool:
        done = sum(pool.map(work, workers))
    return done / (time.perf_counter() - start)


if __name__ == "__main__":
    answer(decode, read, copy, fetch)
