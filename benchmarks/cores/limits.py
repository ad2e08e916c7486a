"""What the cores can do at most, without a loader: decode, gather rows, run a function."""

import itertools
import mmap
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from threading import Barrier
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg

from benchmarks.cores.data import BATCH_SIZE, Data
from benchmarks.cores.images import MAX_SIDE
from benchmarks.loader.job import answer
from benchmarks.loader.transforms import spin

_WARMUP_S = 0.3
_IMAGES_AT_ONCE = 16
"""Few, so that all processes end at about the same time."""
_SLOTS = 3
"""Batches that a process of our loader may have unread."""
_BATCHES_PER_TAKE = 4
"""Batches gathered by one call, so that threads rarely wait for the GIL."""
Work = Callable[[], int]


def decode(
    data: dict[str, Any], workers: int, seconds: float, apply: str | None = None, decoder: str = ""
) -> dict[str, Any]:
    """Images a second that so many processes decode, from memory into a batch that is there already.

    To apply "crop", `decoder` makes an image, which is cropped and dropped.
    """
    at = Data(**data)
    encoded = [np.fromfile(path, np.uint8) for path in at.files()]
    ends = np.cumsum([len(image) for image in encoded]).tolist()
    joined = np.concatenate(encoded)  # one array: processes must not copy pages by counting references
    images = list(zip([0, *ends[:-1]], ends, strict=True))
    del encoded

    def worker(number: int) -> Work:
        order = itertools.cycle(np.random.default_rng(number).permutation(len(images)).tolist())
        rows = itertools.cycle(range(BATCH_SIZE))
        image = _cropped(decoder) if apply else _decoded(at)

        def work() -> int:
            for row in itertools.islice(rows, _IMAGES_AT_ONCE):
                start, end = images[next(order)]
                image(joined[start:end], row)
            return _IMAGES_AT_ONCE

        return work

    return {"rows_per_s": _processes(worker, workers, seconds)}


def _decoded(data: Data) -> Callable[[Any, int], object]:
    largest = 3 * MAX_SIDE**2 if data.kind == "photos" else data.workload.row_bytes
    batch = np.ones((BATCH_SIZE, largest), np.uint8)  # written once, so that its pages are there
    return lambda encoded, row: simplejpeg.decode_jpeg(encoded, buffer=batch[row])


def _cropped(decoder: str) -> Callable[[Any, int], object]:
    import torch

    from benchmarks.cores.functions import DECODERS, crop

    torch.set_num_threads(1)
    decoded = DECODERS[decoder]
    return lambda encoded, _: crop(decoded(encoded))


def gather(data: dict[str, Any], workers: int, seconds: float) -> dict[str, Any]:
    """Rows a second that so many processes gather in random order from shared memory into shared memory."""
    at = Data(**data)
    window, size = os.memfd_create("window"), os.stat(at.plain).st_size
    with open(at.plain, "rb") as file:
        while os.sendfile(window, file.fileno(), None, 1 << 30):
            pass

    def worker(number: int) -> Work:
        rows = _shared(window, size, mmap.PROT_READ).view(at.workload.dtype).reshape(-1, *at.workload.shape)
        slots, slot_bytes = os.memfd_create("slots"), _SLOTS * BATCH_SIZE * at.workload.row_bytes
        os.ftruncate(slots, slot_bytes)
        shared = _shared(slots, slot_bytes, mmap.PROT_READ | mmap.PROT_WRITE)
        batches = itertools.cycle(shared.view(rows.dtype).reshape(_SLOTS, BATCH_SIZE, *rows.shape[1:]))
        order = np.random.default_rng(number).permutation(len(rows))
        starts = itertools.cycle(range(0, len(rows) - BATCH_SIZE + 1, BATCH_SIZE))

        def work() -> int:
            start = next(starts)
            np.take(rows, order[start : start + BATCH_SIZE], axis=0, out=next(batches), mode="clip")
            return BATCH_SIZE

        return work

    return {"rows_per_s": _processes(worker, workers, seconds)}


def _shared(file: int, size: int, protection: int) -> npt.NDArray[np.uint8]:
    """Shared memory as bytes; mapped by each process, because pages that a parent mapped would be mapped again."""
    return np.frombuffer(mmap.mmap(file, size, mmap.MAP_SHARED | mmap.MAP_POPULATE, protection), np.uint8)


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
    answer(decode, gather, take, function)
