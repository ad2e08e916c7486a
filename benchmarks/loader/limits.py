"""What the machine can do at most, each measured in a process of its own: decode, read files, gather, fetch."""

import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import simplejpeg
import torch
from awscrt.checksums import crc32c
from obstore.store import S3Store

from benchmarks.loader.job import answer
from benchmarks.loader.measure import rate
from benchmarks.loader.workloads import Workload

CORES = len(os.sched_getaffinity(0))
STEP_BYTES = 4 << 20
_IMAGES = 2048
_COPIED_BYTES = 256 << 20
_READ_BYTES = 1 << 20


def decode(workload: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Images a second that all cores decode, into batches that are there already, as strictly as we do."""
    rows = Workload(**workload)
    images: list[bytes] = []
    for chunk in rows.chunks():
        images += chunk["image"]
        if len(images) >= _IMAGES:
            break

    def batch(out: np.ndarray, number: int) -> int:
        for row in range(len(out)):
            simplejpeg.decode_jpeg(images[(number * len(out) + row) % len(images)], buffer=out[row])
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


def gather(folder: str, row_bytes: int, window_bytes: int, block_bytes: int, seconds: float) -> dict[str, Any]:
    """Rows a second that all cores read from files, check, and gather in random order: a shuffle with no loader."""
    files: dict[str, int] = {}

    def read(key: str, start: int, into: np.ndarray) -> None:
        if key not in files:
            files[key] = os.open(key, os.O_RDONLY)
        os.preadv(files[key], [into.data], start)

    objects = {str(path): path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()}
    return _gathered(read, objects, row_bytes, window_bytes, block_bytes, CORES, seconds)


def gather_fetched(
    bucket: str,
    options: dict[str, str],
    objects: dict[str, int],
    concurrency: int,
    row_bytes: int,
    window_bytes: int,
    block_bytes: int,
    seconds: float,
) -> dict[str, Any]:
    """The same from a store, by obstore's GETs, whose bodies are copied into the window."""
    store = S3Store(bucket, config=options)  # type: ignore[arg-type]

    def read(key: str, start: int, into: np.ndarray) -> None:
        body = obstore.get_range(store, key, start=start, length=into.nbytes)
        into.reshape(-1)[:] = np.frombuffer(body, np.uint8)

    return _gathered(read, objects, row_bytes, window_bytes, block_bytes, concurrency, seconds)


def _gathered(
    read: Callable[[str, int, np.ndarray], None],
    objects: dict[str, int],
    row_bytes: int,
    window_bytes: int,
    block_bytes: int,
    workers: int,
    seconds: float,
) -> dict[str, Any]:
    """Each worker has a window of its own, into which it reads a quarter of the blocks before each gather."""
    rows = max(1, block_bytes // row_bytes)
    step = rows * row_bytes
    blocks = [(key, start) for key, size in objects.items() for start in range(0, size - step, step)]
    order = np.random.default_rng(0).permutation(len(blocks)).tolist()
    fresh = max(1, window_bytes // workers // step // 4)

    def shuffler(seed: int) -> Callable[[int], int]:
        window = np.ones((4 * fresh * rows, row_bytes), np.uint8)
        batch = np.ones((fresh * rows, row_bytes), np.uint8)
        rng = np.random.default_rng(seed)

        def turn(number: int) -> int:
            for block in range(fresh):
                first = (number % 4 * fresh + block) * rows
                into = window[first : first + rows].reshape(-1)
                read(*blocks[order[(number * fresh + block) % len(order)]], into)
                crc32c(into.data)
            np.take(window, rng.integers(0, len(window), len(batch)), axis=0, out=batch, mode="clip")
            return len(batch)

        return turn

    return {"rows_per_s": _rate([shuffler(seed) for seed in range(workers)], seconds)}


def hand_over(workload: dict[str, Any], workers: int, seconds: float) -> dict[str, Any]:
    """Rows a second that torch's own loader gets across from rows that are in memory already."""
    rows = Workload(**workload)
    loader = torch.utils.data.DataLoader(
        RowsInMemory(rows), rows.batch_size, shuffle=True, num_workers=workers, persistent_workers=True
    )
    return asdict(rate(loader, rows, seconds=seconds))


class RowsInMemory(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """As many rows as a workload has, of which only some are different."""

    def __init__(self, workload: Workload) -> None:
        self._rows = workload.rows
        self._columns = {name: torch.from_numpy(values) for name, values in workload.chunk(0).items()}
        self._different = len(self._columns[workload.column])

    def __len__(self) -> int:
        return self._rows

    def __getitems__(self, indices: list[int]) -> list[dict[str, torch.Tensor]]:
        numbers = (index % self._different for index in indices)
        return [{name: values[number] for name, values in self._columns.items()} for number in numbers]


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
    answer(decode, read, gather, gather_fetched, hand_over, copy, fetch)
