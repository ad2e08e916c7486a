"""Encode the JPEG files in processes, because one takes too long for many."""

import os
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.loader.job import answer
from benchmarks.loader.workloads import Workload


def encode(folder: str, images: int) -> dict[str, Any]:
    """Write so many JPEG files to a folder."""
    workload, count = Workload("jpeg", images), len(os.sched_getaffinity(0))

    def write(chunks: range) -> None:
        for index in chunks:
            for row, image in enumerate(workload.chunk(index)["image"]):
                Path(folder, f"{index * workload.chunk_rows + row:07}.jpg").write_bytes(image)

    write(range(1))  # the processes share what is computed once
    context = get_context("fork")
    processes = [
        context.Process(target=write, args=(range(first, workload.num_chunks, count),)) for first in range(1, count + 1)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError("a process that encodes images failed")
    return {"images": images}


if __name__ == "__main__":
    answer(encode)
