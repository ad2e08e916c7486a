"""How fast the loader feeds a GPU, beside what the machine could do at most; through `ds.pytorch(device="cuda")` alone.

Tables lie in memory-backed files (`BENCH_DIR`, /dev/shm); they are four times as large as the window on the device and
as the host's budget, and every page is verified.
"""

import os
import shutil
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import simplejpeg
import torch
from awscrt.checksums import crc32c

import penstock
from benchmarks.report import publish
from penstock import DeviceOptions, Shuffle

CORES = len(os.sched_getaffinity(0))
RAW, JPEG = (224, 224, 3), (376, 504, 3)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PIXELS = penstock.ImageTransform(dtype="bfloat16", mean=MEAN, std=STD, memory_format="channels_last")
CROPPED = penstock.ImageTransform(
    crop=(224, 224), hflip_prob=0.5, dtype="bfloat16", mean=MEAN, std=STD, memory_format="channels_last"
)
GIB = 1 << 30
SIZE = int(float(os.environ.get("BENCH_GPU_GIB", "24")) * GIB)
IMAGES = int(os.environ.get("BENCH_GPU_IMAGES", "60000"))
SECONDS = float(os.environ.get("BENCH_GPU_SECONDS", "8"))
ROUNDS = int(os.environ.get("BENCH_GPU_ROUNDS", "3"))
BATCH = 256
REST_S = 0.5
PEER_WORKERS = 14


def main() -> None:
    """Measure everything, and print one table."""
    if not torch.cuda.is_available():
        print("gpu: torch finds no GPU here", file=sys.stderr)
        return
    folder = Path(os.environ.get("BENCH_DIR", "/dev/shm")) / "penstock-gpu"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        rows = [*_raw(folder), *_jpeg(folder)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    versions = {"torch": torch.__version__, "cuda": str(torch.version.cuda)}
    publish(
        "gpu",
        rows,
        note=f"{torch.cuda.get_device_name()}; {SIZE / GIB:g} GiB of raw images, {IMAGES:,} JPEGs, "
        "shuffled, verified, memory-backed files",
        versions=versions,
    )


def _raw(folder: Path) -> Iterator[dict[str, Any]]:
    _say("writing raw images")
    ds = _raw_table(folder / "raw")
    size = ds.summary().bytes
    options = {
        "batch_size": BATCH, "shuffle": Shuffle(block_bytes=16 << 20), "memory_budget": size // 4, "drop_last": True,
        "device": DeviceOptions(transform={"image": PIXELS}, memory=size // 4),
    }  # fmt: skip
    copy, check, peer = _pinned_copy(), _read_and_check(folder / "raw"), _torch_loader(folder)
    row_bytes = int(np.prod(RAW))
    ours, stats = _rounds(lambda: _rate(ds, options))
    _say(stats)
    yield _line("raw 224x224x3 to normalised bf16, img/s", ours, "pinned copy", copy / row_bytes, None)
    yield _line("the same", ours, f"{CORES} cores read and check", check / row_bytes, None)
    yield _line("the same", ours, f"torch DataLoader, {PEER_WORKERS} workers", peer, 10.0)
    yield _line("the same", ours, "figure asked for", 150_000.0, 1.0)
    copied, table = _epoch_bytes(ds, options)
    yield _line("bytes copied to the device in an epoch", copied, "bytes of the rows", table, 1.0)
    yield from _training("raw", ds, options, at_least=0.99)


def _jpeg(folder: Path) -> Iterator[dict[str, Any]]:
    _say("writing JPEGs")
    ds, images = _jpeg_table(folder / "jpeg")
    size = ds.summary().bytes
    options = {
        "batch_size": BATCH, "shuffle": Shuffle(block_bytes=4 << 20), "memory_budget": max(256 << 20, size // 4),
        "device": DeviceOptions(memory=size // 4), "drop_last": True,
    }  # fmt: skip
    turns = [(_rate(ds, options), _nvjpeg(images)) for _ in range(2 * ROUNDS)]  # nvJPEG's own speed comes and goes
    _say("  rounds: " + ", ".join(f"{ours:,.0f}/{alone:,.0f}" for (ours, _), alone in turns))
    _say(turns[-1][0][1])
    share = statistics.median(ours / alone for (ours, _), alone in turns)
    ours, alone = statistics.median(ours for (ours, _), _ in turns), statistics.median(alone for _, alone in turns)
    yield _line("JPEG 376x504 decoded on the GPU, img/s", ours, "nvJPEG alone", alone, 0.85) | _judged(share, 0.85)
    yield _line("the same, largest difference of a pixel", _pixel_difference(ds), "decoded by the processor", 1.0, None)
    cropped = DeviceOptions(transform={"image": CROPPED}, memory=size // 4)
    yield from _training("JPEG", ds, options | {"device": cropped}, at_least=0.97)


def _line(what: str, ours: float, limit_name: str, limit: float, at_least: float | None) -> dict[str, Any]:
    share = ours / limit
    met = "" if at_least is None else "yes" if share >= at_least else "no"
    return {
        "what": what,
        "ours": ours,
        "limit": limit_name,
        "limit is": limit,
        "share": share,
        "asked": at_least,
        "met": met,
    }


def _judged(share: float, at_least: float) -> dict[str, Any]:
    """What is said of turns that were taken one after the other: the median of their ratios counts."""
    return {"share": share, "met": "yes" if share >= at_least else "no"}


def _rounds(job: Callable[[], tuple[float, str]]) -> tuple[float, str]:
    found = [job() for _ in range(ROUNDS)]
    _say("  rounds: " + ", ".join(f"{value:,.0f}" for value, _ in found))
    return statistics.median(value for value, _ in found), found[-1][1]


def _rate(ds: penstock.Dataset, options: dict[str, Any]) -> tuple[float, str]:
    """Rows a second that arrive on the GPU, after a start."""
    with ds.pytorch(**options) as loader:
        batches = (batch for _ in cycle([0]) for batch in loader)
        deque(islice(batches, 40), maxlen=0)
        torch.cuda.synchronize()
        start, rows = time.perf_counter(), 0
        for batch in batches:
            rows += len(batch["image"])
            if time.perf_counter() - start > SECONDS:
                break
        torch.cuda.synchronize()
        found = rows / (time.perf_counter() - start)
        return found, str(loader.stats())


def _epoch_bytes(ds: penstock.Dataset, options: dict[str, Any]) -> tuple[float, float]:
    with ds.pytorch(**options) as loader:
        rows = sum(len(batch["image"]) for batch in loader)
        return float(loader.stats().device_bytes), float(rows * int(np.prod(RAW)))


def _training(name: str, ds: penstock.Dataset, options: dict[str, Any], at_least: float) -> Iterator[dict[str, Any]]:
    """ResNet-50 from the loader, interleaved with the same step on one batch that stays."""
    from torchvision.models import resnet50

    torch.manual_seed(0)
    model = resnet50().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step(batch: dict[str, torch.Tensor]) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    with ds.pytorch(**options) as loader:
        batches = (batch for _ in cycle([0]) for batch in loader)
        resident = next(batches)
        resident = {key: value.clone() for key, value in resident.items()}
        main_s: list[float] = []

        def timed(count: int, source: Callable[[], dict[str, torch.Tensor]]) -> float:
            torch.cuda.synchronize()
            time.sleep(REST_S)  # else the loader would go on with what it is asked to have ready, in the other's turn
            start = time.perf_counter()
            for _ in range(count):
                step(source())
            torch.cuda.synchronize()
            return count / (time.perf_counter() - start)

        def loaded() -> dict[str, torch.Tensor]:
            start = time.thread_time()
            batch = next(batches)
            main_s.append(time.thread_time() - start)
            return batch

        timed(20, loaded)
        timed(20, lambda: resident)
        main_s.clear()
        turns = [(timed(40, loaded), timed(40, lambda: resident)) for _ in range(3 * ROUNDS)]
        _say(f"  {name} training: " + ", ".join(f"{a:.2f}/{b:.2f}" for a, b in turns))
        _say(str(loader.stats()))
    ours, limit = (statistics.median(turn[side] for turn in turns) for side in (0, 1))
    share = statistics.median(a / b for a, b in turns)
    line = _line(f"ResNet-50 bf16 from {name}, steps/s", ours, "one batch that stays", limit, at_least)
    yield line | _judged(share, at_least)
    per_step = 1e3 * statistics.mean(main_s)
    yield _line(f"main thread's time per step, {name}, ms", per_step, "at most", 1.0, None) | {
        "met": "yes" if per_step < 1 else "no"
    }


def _pinned_copy() -> float:
    host = torch.empty(GIB // 2, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(GIB // 2, dtype=torch.uint8, device="cuda")
    there.copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(20):
        there.copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    return 20 * len(host) / (time.perf_counter() - start)


def _read_and_check(folder: Path) -> float:
    """Bytes a second that all cores read from the table's files and check."""
    paths = sorted(path for path in (folder / "data").iterdir() if path.stat().st_size > 1 << 20)

    def read(worker: int) -> int:
        buffer, done, start = np.empty(16 << 20, np.uint8), 0, time.perf_counter()
        for path in cycle(paths[worker::CORES] or paths):
            with open(path, "rb", buffering=0) as source:
                while count := source.readinto(buffer.data):
                    crc32c(buffer[:count].data)
                    done += count
            if time.perf_counter() - start > SECONDS / 2:
                return done
        return done

    start = time.perf_counter()
    with ThreadPoolExecutor(CORES) as pool:
        return sum(pool.map(read, range(CORES))) / (time.perf_counter() - start)


class MappedRows(torch.utils.data.Dataset[torch.Tensor]):
    """The same kind of rows as a plain dataset of torch has them: one mapped file."""

    def __init__(self, path: Path, rows: int) -> None:
        self._rows = np.memmap(path, np.uint8, "r", shape=(rows, *RAW))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.from_numpy(np.array(self._rows[row]))


def _torch_loader(folder: Path) -> float:
    """Rows a second that torch's own loader brings to the GPU, shuffled, normalised there in the same way."""
    rows = 4 * GIB // int(np.prod(RAW))
    path = folder / "rows.bin"
    np.random.default_rng(0).integers(0, 256, (rows, *RAW), np.uint8).tofile(path)
    loader = torch.utils.data.DataLoader(
        MappedRows(path, rows), BATCH, shuffle=True, num_workers=PEER_WORKERS, pin_memory=True, persistent_workers=True
    )
    batches = (batch for _ in cycle([0]) for batch in loader)

    def arrive(count: float) -> int:
        done, start = 0, time.perf_counter()
        for batch in batches:
            done += len(PIXELS(batch.cuda(non_blocking=True), None))
            if time.perf_counter() - start > count:
                break
        torch.cuda.synchronize()
        return done

    arrive(3.0)
    start = time.perf_counter()
    found = arrive(SECONDS) / (time.perf_counter() - start)
    path.unlink()
    return found


def _nvjpeg(images: list[bytes]) -> float:
    """Images a second that nvJPEG decodes when their bytes are there and nothing else is done."""
    from torchvision.io import ImageReadMode, decode_jpeg

    encoded = [torch.frombuffer(bytearray(image), dtype=torch.uint8) for image in images[: 8 * BATCH]]
    batches = [encoded[start : start + BATCH] for start in range(0, len(encoded), BATCH)]
    for batch in batches:
        decode_jpeg(batch, mode=ImageReadMode.RGB, device="cuda")
    torch.cuda.synchronize()
    start, done = time.perf_counter(), 0
    for batch in cycle(batches):
        done += len(decode_jpeg(batch, mode=ImageReadMode.RGB, device="cuda"))
        if time.perf_counter() - start > SECONDS / 2:
            break
    torch.cuda.synchronize()
    return done / (time.perf_counter() - start)


def _pixel_difference(ds: penstock.Dataset) -> float:
    """The largest difference between a pixel decoded there and here, over some batches in the same order."""
    largest = 0
    options: dict[str, Any] = {"batch_size": 64, "shuffle": True}
    view = ds.select(["image", "_row_id"])
    with view.pytorch(**options, device="cuda") as there, view.pytorch(**options) as here:
        for one, other in islice(zip(there, here, strict=True), 8):
            assert torch.equal(one["_row_id"].cpu(), other["_row_id"])
            largest = max(largest, int((one["image"].cpu().int() - other["image"].int()).abs().max()))
    return float(largest)


def _raw_table(folder: Path) -> penstock.Dataset:
    rows, chunk = SIZE // int(np.prod(RAW)), 1024
    noise = np.random.default_rng(0).integers(0, 256, (chunk, *RAW), np.uint8)

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, rows, chunk):
            values = noise ^ np.uint8(start // chunk % 251)
            numbers = np.arange(start, start + chunk)
            columns = {"image": pa.FixedShapeTensorArray.from_numpy_ndarray(values), "label": pa.array(numbers % 1000)}
            yield pa.RecordBatch.from_pydict(columns)

    image = penstock.Column(penstock.Tensor("uint8", RAW), page_bytes=1 << 20)
    ds = penstock.create(folder, {"image": image, "label": "int64"})
    ds.append(batches())
    ds.commit()
    return ds


def _jpeg_table(folder: Path) -> tuple[penstock.Dataset, list[bytes]]:
    rng = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(1024)[:, None], np.fft.rfftfreq(1024)[None])
    frequency[0, 0] = 1
    smooth = [np.fft.irfft2(np.fft.rfft2(rng.standard_normal((1024, 1024))) / frequency**1.3) for _ in range(3)]
    canvas = np.stack([128 + 50 * (layer - layer.mean()) / layer.std() for layer in smooth], -1)
    canvas = np.clip(canvas, 0, 255).astype(np.uint8)
    corners = rng.integers(0, (1024 - JPEG[0], 1024 - JPEG[1]), (IMAGES, 2)).tolist()

    def encode(corner: list[int]) -> bytes:
        piece = np.ascontiguousarray(canvas[corner[0] : corner[0] + JPEG[0], corner[1] : corner[1] + JPEG[1]])
        data: bytes = simplejpeg.encode_jpeg(piece, quality=85, colorsubsampling="420")
        return data

    with ThreadPoolExecutor(CORES) as pool:
        images = list(pool.map(encode, corners))
    image = penstock.Column(penstock.Image("jpeg", shape=JPEG), page_bytes=1 << 20)
    ds = penstock.create(folder, {"image": image, "label": "int64"})
    ds.append({"image": images, "label": np.arange(IMAGES) % 1000})
    ds.commit()
    return ds, images


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
