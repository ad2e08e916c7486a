"""LeRobot's dataset and Hugging Face `datasets` in torch's DataLoader; run in the peers' environment."""

import math
import time
from collections.abc import Iterable
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader

from benchmarks.loader.job import answer
from benchmarks.report import versions_of
from benchmarks.semantics.data import ACTION, ACTION_OFFSETS, FPS, IMAGE_OFFSETS, SEQUENCE, SIDE, documents, episodes

_REPO = "penstock/episodes"
_SHARDS, _BUFFER = 8, 1024
"""Shards that the workers divide among them, and sequences of the shuffle buffer."""


def write_episodes(root: str, count: int) -> dict[str, Any]:
    """Write episodes by LeRobot's own writer; it stores the bytes of image files, which are our JPEGs."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset  # type: ignore[import-not-found]

    features = {
        "image": {"dtype": "image", "shape": (SIDE, SIDE, 3), "names": ["height", "width", "channels"]},
        "action": {"dtype": "float32", "shape": (ACTION,), "names": None},
    }
    dataset = LeRobotDataset.create(_REPO, FPS, features, root=Path(root), use_videos=False)
    blank = np.zeros((SIDE, SIDE, 3), np.uint8)
    for episode in episodes(count):
        images = iter(episode.images)
        dataset._save_image = lambda _, path, *__, images=images: path.write_bytes(next(images))
        for action in episode.actions:
            dataset.add_frame({"image": blank, "action": action, "task": "none"})
        dataset.save_episode()
    dataset.finalize()
    return {"episodes": count}


def read_windows(root: str, batch_size: int, workers: int, seconds: float) -> dict[str, Any]:
    """Windows a second of LeRobot's dataset, shuffled; images come as float32, as it always delivers them."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    offsets = {"image": IMAGE_OFFSETS, "action": ACTION_OFFSETS}
    deltas = {name: [offset / FPS for offset in wanted] for name, wanted in offsets.items()}
    dataset = LeRobotDataset(_REPO, root=Path(root), delta_timestamps=deltas)
    loader = DataLoader(dataset, batch_size, shuffle=True, num_workers=workers, persistent_workers=True)
    rate = _rate(loader, "image", (len(IMAGE_OFFSETS), 3, SIDE, SIDE), seconds, workers)
    return {"samples_per_s": rate, "versions": versions_of("lerobot", "datasets", "torch")}


def write_documents(root: str, tokens: int) -> dict[str, Any]:
    """Write documents as Parquet files."""
    values, bounds = documents(tokens)
    Path(root).mkdir(parents=True, exist_ok=True)
    for shard, edges in enumerate(np.array_split(np.arange(len(bounds) - 1), _SHARDS)):
        cuts = bounds[edges[0] : edges[-1] + 2]
        column = pa.LargeListArray.from_arrays(cuts - cuts[0], pa.array(values[cuts[0] : cuts[-1]]))
        pq.write_table(pa.table({"tokens": column}), Path(root, f"{shard:03}.parquet"))
    return {"documents": len(bounds) - 1}


def read_packed(root: str, variant: str, batch_size: int, workers: int, seconds: float) -> dict[str, Any]:
    """Sequences a second of `datasets` where a batched map concatenates documents and cuts them, as they are read."""
    import datasets  # type: ignore[import-not-found]

    files = sorted(map(str, Path(root).glob("*.parquet")))
    stream = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    if variant == "numpy":
        stream = stream.with_format("numpy").map(_group_arrays, batched=True)
    else:
        stream = stream.map(_group_lists, batched=True)
    stream = stream.shuffle(seed=1, buffer_size=_BUFFER).with_format("torch")
    loader = DataLoader(stream, batch_size, num_workers=workers, persistent_workers=True)
    rate = _rate(loader, "tokens", (SEQUENCE,), seconds, workers)
    return {"samples_per_s": rate, "versions": versions_of("datasets", "torch")}


def _group_lists(batch: dict[str, Any]) -> dict[str, Any]:
    """The recipe of the examples of `transformers`, which drops the rest of each batch."""
    joined = list(chain.from_iterable(batch["tokens"]))
    total = len(joined) // SEQUENCE * SEQUENCE
    return {"tokens": [joined[start : start + SEQUENCE] for start in range(0, total, SEQUENCE)]}


def _group_arrays(batch: dict[str, Any]) -> dict[str, Any]:
    """The same on arrays."""
    joined = np.concatenate(list(batch["tokens"]))
    return {"tokens": joined[: len(joined) // SEQUENCE * SEQUENCE].reshape(-1, SEQUENCE)}


def _rate(loader: Iterable[Any], column: str, shape: tuple[int, ...], seconds: float, burst: int) -> float:
    """Samples a second for so many seconds after the first batches, one of each worker; pauses between epochs count."""
    began, samples, number = math.inf, 0, 0
    for batch in chain.from_iterable(repeat(loader)):
        now, number = time.perf_counter(), number + 1
        if tuple(batch[column].shape[1:]) != shape:
            raise RuntimeError(f"a batch has shape {tuple(batch[column].shape)}")
        if number == burst:
            began = now
        elif number > burst:
            samples += len(batch[column])
            if now - began >= seconds and number % burst == 0:
                return samples / (now - began)
    raise AssertionError("a loader can be iterated again and again")


def _define_operators() -> None:
    """Let torchvision be imported where its compiled operators do not fit torch's build; no peer calls them."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library: Any = torch.library
        for name in ("nms", "qnms"):
            library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


if __name__ == "__main__":
    _define_operators()
    answer(write_episodes, read_windows, write_documents, read_packed)
