"""What the cores can do at most: decode each image once, without a loader."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

import penstock
from benchmarks.loader.job import answer
from benchmarks.semantics.data import SIDE
from benchmarks.semantics.views import BATCH_SIZE
from penstock.codecs import decode_images_into

_WARMUP_BATCHES = 8


def decode(uri: str, workers: int) -> dict[str, Any]:
    """Images a second that so many threads decode from memory into a batch that is there already, each image once."""
    encoded = penstock.load(uri).select("image").to_arrow()["image"].combine_chunks().to_pylist()
    batches = [encoded[start : start + BATCH_SIZE] for start in range(0, len(encoded), BATCH_SIZE)]

    def work(number: int, chosen: list[list[bytes]]) -> None:
        out = np.empty((BATCH_SIZE, SIDE, SIDE, 3), np.uint8)
        for batch in chosen[number::workers]:
            if errors := decode_images_into(batch, out[: len(batch)]):
                raise RuntimeError(f"an image of the benchmark cannot be decoded: {errors}")

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(partial(work, chosen=batches[:_WARMUP_BATCHES]), range(workers)))
        start = time.perf_counter()
        list(pool.map(partial(work, chosen=batches), range(workers)))
        return {"images_per_s": len(encoded) / (time.perf_counter() - start)}


if __name__ == "__main__":
    answer(decode)
