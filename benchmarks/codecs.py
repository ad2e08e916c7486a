"""Codecs: how small, and how fast in and out, on one core."""

import time

import numpy as np
import PIL.Image

import penstock
from benchmarks.report import publish, scratch

ROWS, SIDE, ROUNDS = 256, 224, 3


def make_images() -> np.ndarray:
    """Smooth shapes with some grain, so that codecs have something to do and something to lose."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(ROWS):
        coarse = rng.integers(0, 256, (7, 7, 3), dtype=np.uint8)
        smooth = np.asarray(PIL.Image.fromarray(coarse).resize((SIDE, SIDE), PIL.Image.Resampling.BICUBIC), np.int16)
        rows.append(np.clip(smooth + rng.normal(0, 4, smooth.shape), 0, 255).astype(np.uint8))
    return np.stack(rows)


def run(column: penstock.Column, data: np.ndarray) -> tuple[int, float, float]:
    """Bytes stored, and seconds of processor time to write and to read."""
    with scratch() as folder:
        ds = penstock.create(folder / "t", {"x": column})
        start = time.process_time()
        ds.append({"x": data})
        wrote = time.process_time() - start
        start = time.process_time()
        for _ in ds.batches(64):
            pass
        return ds.summary().bytes, wrote, time.process_time() - start


def main() -> None:
    images = make_images()
    tokens = np.random.default_rng(0).zipf(1.3, (4096, 1024)).clip(max=50_000).astype(np.uint16)
    figures = []
    for data, name, kind, codecs in (
        (images, "images", penstock.Tensor("uint8", images.shape[1:]), ["none", "lz4", "zstd:1", "zstd:3", "zstd:9"]),
        (images, "images", penstock.Image(), ["jpeg:90", "jpeg:75", "webp:80", "png"]),
        (tokens, "tokens", penstock.Tensor("uint16", tokens.shape[1:]), ["none", "lz4", "zstd:1", "zstd:3", "zstd:9"]),
    ):
        for codec in codecs:
            runs = [run(penstock.Column(kind, codec=codec), data) for _ in range(ROUNDS)]
            wrote, read = (float(np.median(times)) for times in zip(*(run[1:] for run in runs), strict=True))
            figures.append(
                {
                    "data": name,
                    "codec": f"image({codec})" if isinstance(kind, penstock.Image) else codec,
                    "size": float(runs[0][0] / data.nbytes),
                    "write MB/s": data.nbytes / 1e6 / wrote,
                    "read MB/s": data.nbytes / 1e6 / read,
                }
            )
    publish(
        "codecs", figures, note="size as a share of the raw bytes; speeds of raw bytes per second of processor time"
    )
