"""Images that are much larger decoded than encoded: the memory of all processes stays within the budget."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

import penstock
from penstock import Dataset, Image

MIB = 1 << 20
ROWS, BATCH = 160, 8

PROGRAM = """
import json, os, sys, threading
import numpy as np
import penstock

uri, budget, batch_size, function, type = sys.argv[1:]

def pss(pid):
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0

def children():
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children") as file:
                yield from map(int, file.read().split())
        except OSError:
            pass

before, peak, stop = pss(os.getpid()), 0, threading.Event()

def sample():
    global peak
    while not stop.wait(0.02):
        peak = max(peak, sum(map(pss, [os.getpid(), *children()])) - before)

half = lambda row: {**row, "image": row["image"][::2, ::2].astype(np.float32)}
sampler = threading.Thread(target=sample)
sampler.start()
numbers = []
with penstock.load(uri).numpy(
    batch_size=int(batch_size), memory_budget=int(budget), shuffle=True, num_workers=penstock.Workers(4, type),
    **({"transform": half} if function == "transform" else {}),
) as loader:
    for batch in loader:
        numbers += np.asarray(batch["n"]).tolist()
    processes = loader.stats().processes
stop.set()
sampler.join()
print(json.dumps([peak, numbers, processes]))
"""


def flat_image(height: int, shade: int) -> bytes:
    """A screenshot: a few kilobytes that decode to megabytes."""
    pixels = np.full((height, 1500, 3), shade, np.uint8)
    pixels[: height // 2, :700] = 255 - shade
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, "png", compress_level=1)
    return file.getvalue()


def flat_table(path: Path, shape: tuple[int, int, int] | None) -> Dataset:
    images = [flat_image(1200 if shape else 1200 + 10 * k, 30 * k) for k in range(4)]
    ds = penstock.create(path, {"n": int, "image": Image(shape=shape)})
    ds.append({"n": range(ROWS), "image": [images[n % 4] for n in range(ROWS)]})
    ds.commit()
    return ds


@pytest.mark.parametrize(
    ("shape", "function", "workers", "known"),
    [
        (None, "none", "process", True),
        (None, "none", "process", False),
        (None, "transform", "process", True),
        ((1200, 1500, 3), "transform", "process", True),
        (None, "transform", "thread", True),
    ],
    ids=["images", "sizes unknown", "transform", "fixed shape and transform", "threads"],
)
def test_decoded_images_count(
    tmp_path: Path, monkeypatch: Any, shape: Any, function: str, workers: str, known: bool
) -> None:
    """Gigabytes of images from few megabytes of files, whether the table knows their decoded size or not."""
    if not known:
        monkeypatch.setattr(Image, "decoded_bytes", lambda *_: None)
    ds, budget = flat_table(tmp_path / "t", shape), 128 * MIB
    arguments = [ds.uri, str(budget), str(BATCH), function, workers]
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=240, check=False
    )
    assert found.returncode == 0, found.stderr
    peak, numbers, processes = json.loads(found.stdout)
    assert peak < budget + (300 + 60 * max(1, processes)) * MIB
    with ds.select(["n", "image"]).numpy(batch_size=BATCH, shuffle=True, decode=False) as loader:
        assert numbers == [n for batch in loader for n in batch["n"].tolist()]
