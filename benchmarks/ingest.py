"""Take data in: JPEGs from a far bucket, raw tensors against the peers' writers, tar shards linked and copied."""

import io
import os
import shutil
import statistics
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import obstore
from obstore.store import S3Store

import penstock
from benchmarks.loader import nginx
from benchmarks.loader.environment import peers_python
from benchmarks.loader.job import call
from benchmarks.loader.proxy import Delays, proxy
from benchmarks.loader.workloads import Workload, raw
from benchmarks.report import interleaved, median_ratio, publish, scratch, sync

JPEGS, DELAY_MS = 20_000, 30
CONCURRENCIES = (64, 128, 256, 512)
TENSORS_BYTES = 2_000_000_000
WRITERS = ("mosaic", "litdata", "webdataset")
SHARD_ROWS = 1000
ROUNDS, JPEG_ROUNDS = 3, 7
STREAM_S = 6.0


def main() -> None:
    with scratch() as folder:
        figures = [jpegs(folder / "jpegs"), tensors(folder / "tensors"), linked(folder / "linked")]
    publish("ingest", figures, note="every run in full, table made anew; medians of the ratios")


def jpegs(folder: Path) -> dict[str, Any]:
    """The objects of a bucket 30 ms away, against fetching them and nothing else."""
    bucket = folder / "bucket"
    for number, image in enumerate(images(JPEGS)):
        path = bucket / f"{number % 100:03}" / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)
    keys = [path.relative_to(bucket).as_posix() for path in sorted(bucket.rglob("*.jpg"))]
    with ExitStack() as stack:
        server = stack.enter_context(nginx.serve(folder, listed="bucket"))
        endpoint = stack.enter_context(proxy(server.port, Delays(DELAY_MS)))
        options = nginx.options(endpoint)
        best = min(CONCURRENCIES, key=lambda concurrency: fetch(options, keys, concurrency))
        times = interleaved(
            {
                "ours": lambda: timed(
                    folder / "table", lambda at: penstock.ingest("s3://bucket", at, storage_options=options)
                ),
                "fetch alone": lambda: fetch(options, keys, best),
            },
            JPEG_ROUNDS,
        )
    rate = JPEGS / statistics.median(times["ours"])
    return {
        "what": f"{JPEGS:,} JPEGs from S3, {DELAY_MS} ms away",
        "ours": f"{rate:,.0f} files/s",
        "against": f"obstore alone, {best} at once: {JPEGS / statistics.median(times['fetch alone']):,.0f} files/s",
        "ratio": median_ratio(times["ours"], times["fetch alone"]),
        "wanted": 0.8,
    }


def fetch(options: dict[str, str], keys: list[str], concurrency: int) -> float:
    store = S3Store("bucket", config=options)  # type: ignore[arg-type]
    start = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        for _ in pool.map(lambda key: len(obstore.get(store, key).bytes()), keys):
            pass
    return time.perf_counter() - start


def tensors(folder: Path) -> dict[str, Any]:
    """Raw tensors from local files into a table, against the peers' writers on the same rows; all durable."""
    workload = raw("images", TENSORS_BYTES)
    source = folder / "source"
    source.mkdir(parents=True)
    for index, chunk in enumerate(workload.chunks()):
        np.save(source / f"image_{index:05}.npy", chunk["image"])
    jobs: dict[str, Callable[[], float]] = {
        "ours": lambda: timed(folder / "table", lambda at: penstock.ingest(source, at)),
    }
    for writer in WRITERS:
        jobs[writer] = lambda writer=writer: peer(writer, folder / "peer", workload)  # type: ignore[misc]
    times = interleaved(jobs, ROUNDS)
    fastest = min(WRITERS, key=lambda writer: statistics.median(times[writer]))
    return {
        "what": f"{workload.rows:,} raw images, local",
        "ours": f"{TENSORS_BYTES / statistics.median(times['ours']) / 1e9:.2f} GB/s",
        "against": f"{fastest}'s writer: {TENSORS_BYTES / statistics.median(times[fastest]) / 1e9:.2f} GB/s",
        "ratio": median_ratio(times["ours"], times[fastest]),
        "wanted": 1.0,
    }


def peer(writer: str, folder: Path, workload: Workload) -> float:
    """Seconds that a peer takes for the same rows, and the disk to have them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sync()
    found = call("peers", writer, "write", str(folder / "data"), workload.to_json(), python=peers_python())
    start = time.perf_counter()
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
    return float(found["write_s"]) - float(found["make_s"]) + time.perf_counter() - start


def linked(folder: Path) -> dict[str, Any]:
    """Rows a second from a table that points into tar shards, against one that has them."""
    source = folder / "shards"
    source.mkdir(parents=True)
    rows = iter(enumerate(images(JPEGS)))
    for shard in range(JPEGS // SHARD_ROWS):
        with tarfile.open(source / f"{shard:05}.tar", "w") as tar:
            for number, image in islice(rows, SHARD_ROWS):
                for ending, data in (("jpg", image), ("cls", str(number * 100 // JPEGS).encode())):
                    info = tarfile.TarInfo(f"{number:06}.{ending}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    penstock.ingest(source, folder / "copied")
    penstock.ingest(source, folder / "linked", link=True)
    rates = interleaved(
        {"linked": lambda: stream(folder / "linked"), "copied": lambda: stream(folder / "copied")}, ROUNDS
    )
    return {
        "what": f"{JPEGS:,} JPEGs in tar shards, linked, streamed shuffled",
        "ours": f"{statistics.median(rates['linked']):,.0f} rows/s",
        "against": f"the same rows copied: {statistics.median(rates['copied']):,.0f} rows/s",
        "ratio": statistics.median(a / b for a, b in zip(rates["linked"], rates["copied"], strict=True)),
        "wanted": 0.7,
    }


def stream(place: Path) -> float:
    """Rows a second of decoded batches, shuffled."""
    ds = penstock.load(place, links=True)
    with ds.pytorch(batch_size=64, shuffle=True, num_workers=2, image_size=(256, 256)) as loader:
        rows, start = 0, 0.0
        for batch in endless(loader):
            if not start:
                start = time.perf_counter()
                continue
            rows += len(batch["image"])
            if time.perf_counter() - start > STREAM_S:
                return rows / (time.perf_counter() - start)
    raise AssertionError


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def timed(place: Path, job: Callable[[Path], object]) -> float:
    shutil.rmtree(place, ignore_errors=True)
    sync()
    start = time.perf_counter()
    job(place)
    return time.perf_counter() - start


def images(count: int) -> Iterator[bytes]:
    made = Workload("jpeg", count)
    return (image for chunk in made.chunks() for image in chunk["image"])
