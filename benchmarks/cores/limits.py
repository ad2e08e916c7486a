"""What the cores can do at most, without a loader: decode, gather rows, run a function."""

import itertools
import mmap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from threading import Barrier
from typing import Any

import numpy as np
import simplejpeg

from benchmarks.cores.data import BATCH_SIZE, Data
from benchmarks.loader.job import answer
from benchmarks.loader.transforms import spin

_WARMUP_S = 0.3
_BATCHES_PER_TAKE = 4
"""Batches gathered by one call, so that threads rarely wait for the GIL."""
Work = Callable[[], int]


def decode(data: dict[str, Any], workers: int, seconds: float) -> dict[str, Any]:
    """Images a second that so many processes decode, from memory into a batch that is there already."""
    at = Data(**data)
    encoded = [np.fromfile(path, np.uint8) for path in at.files()]
    ends = np.cumsum([len(image) for image in encoded]).tolist()
    joined = np.concatenate(encoded)  # one array: processes must not copy pages by counting references
    images = list(zip([0, *ends[:-1]], ends, strict=True))
    del encoded

    def worker(number: int) -> Work:
        order = itertools.cycle(np.random.default_rng(number).permutation(len(images)).tolist())
        batch = np.empty((BATCH_SIZE, *at.workload.shape), np.uint8)

        def work() -> int:
            for row in batch:
                start, end = images[next(order)]
                simplejpeg.decode_jpeg(joined[start:end], buffer=row)
            return len(batch)

        return work

    return {"rows_per_s": _processes(worker, workers, seconds)}


def take(data: dict[str, Any], workers: int, seconds: float) -> dict[str, Any]:
    """Rows a second that so many threads gather in random order from a mapped file."""
    at = Data(**data)
    with open(at.plain, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0), mmap.PROT_READ)
    rows = np.frombuffer(mapped, at.workload.dtype).reshape(-1, *at.workload.shape)

    def worker(number: int) -> Work:
        count = min(_BATCHES_PER_TAKE * BATCH_SIZE, len(rows))
        order = np.random.default_rng(number).permutation(len(rows))
        starts = itertools.cycle(range(0, len(rows) - count + 1, count))
        batch = np.empty((count, *rows.shape[1:]), rows.dtype)

        def work() -> int:
            start = next(starts)
            np.take(rows, order[start : start + count], axis=0, out=batch, mode="clip")
            return count

        return work

    barrier = Barrier(workers)
    with ThreadPoolExecutor(workers) as pool:
        return {"rows_per_s": sum(pool.map(lambda number: _rate(worker(number), barrier, seconds), range(workers)))}


def function(loops: int, workers: int, seconds: float) -> dict[str, Any]:
    """Calls a second of a function that is heavy in Python, by so many processes."""

    def worker(number: int) -> Work:  # noqa: ARG001
        def work() -> int:
            spin(None, loops=loops)
            return 1

        return work

    return {"rows_per_s": _processes(worker, workers, seconds)}


def _processes(worker: Callable[[int], Work], count: int, seconds: float) -> float:
    """Work a second of forked processes, which share nothing but the start and the result."""
    context = get_context("fork")
    barrier, rates = context.Barrier(count), context.Array("d", count)

    def run(number: int) -> None:
        rates[number] = _rate(worker(number), barrier, seconds)

    processes = [context.Process(target=run, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError("a process of the limit failed")
    return float(sum(rates[:]))


def _rate(work: Work, barrier: Any, seconds: float) -> float:
    """Work a second after a warm-up; all workers begin together, and none ends before the others were measured."""
    barrier.wait()
    start, done = time.perf_counter(), 0
    while (now := time.perf_counter()) - start < _WARMUP_S:
        work()
    start = now
    while (now := time.perf_counter()) - start < seconds:
        done += work()
    rate = done / (now - start)
    while time.perf_counter() - start < seconds + _WARMUP_S / 3:
        work()
    return rate


if __name__ == "__main__":
    answer(decode, take, function)
