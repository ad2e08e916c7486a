"""Encode the JPEG files in processes, because one takes too long for many."""

import os
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from benchmarks.loader.job import answer
from benchmarks.loader.workloads import CANVAS_SIDE, Workload, photo_canvas

MIN_SIDE, MAX_SIDE, _CONTRASTS, _PHOTO_QUALITY = 200, 520, (1.2, 2.0), 95
"""Of images of many sizes: about 94 KB each, as photographs with much detail."""
_CHUNK = 64


def encode(folder: str, images: int, kind: str) -> dict[str, Any]:
    """Write so many JPEG files to a folder: all 256x256 ("jpeg"), or of many sizes ("photos")."""
    count = len(os.sched_getaffinity(0))
    rows = Workload("jpeg", images).chunk_rows if kind == "jpeg" else _CHUNK

    def write(chunks: range) -> None:
        for index in chunks:
            start = index * rows
            encoded = _photos(start, min(start + rows, images)) if kind == "photos" else _chunk(images, index)
            for row, image in enumerate(encoded, start):
                Path(folder, f"{row:07}.jpg").write_bytes(image)

    write(range(1))  # the processes share what is computed once
    context = get_context("fork")
    processes = [
        context.Process(target=write, args=(range(first, -(-images // rows), count),)) for first in range(1, count + 1)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError("a process that encodes images failed")
    return {"images": images}


def _chunk(images: int, index: int) -> list[bytes]:
    found: list[bytes] = Workload("jpeg", images).chunk(index)["image"]
    return found


def _photos(start: int, end: int) -> list[bytes]:
    """Pieces of one large canvas, each with a size and a contrast of its own."""
    whole, rng = photo_canvas(), np.random.default_rng(start)
    found = []
    for _ in range(start, end):
        sides = rng.integers(MIN_SIDE, MAX_SIDE + 1, 2)
        y, x = rng.integers(0, CANVAS_SIDE - sides + 1)
        piece = whole[y : y + sides[0], x : x + sides[1]] * np.float32(rng.uniform(*_CONTRASTS)) + np.float32(128)
        pixels = np.clip(piece, 0, 255).astype(np.uint8)
        found.append(simplejpeg.encode_jpeg(pixels, quality=_PHOTO_QUALITY, colorsubsampling="420"))
    return found


if __name__ == "__main__":
    answer(encode)
