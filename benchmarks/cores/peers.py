"""torch's DataLoader in its fastest plain form: a map-style dataset, persistent workers, an endless random order."""

import mmap
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

from benchmarks.cores.data import BATCH_SIZE, Data
from benchmarks.cores.functions import DECODERS, crop, tokenize
from benchmarks.cores.rate import measure
from benchmarks.loader.job import answer

PREFETCH_FACTORS = {"jpeg": 4, "images": 4, "tokens": 4, "photos": 2, "text": 2}
_EPOCHS = 1000
"""Epochs drawn one after the other by the sampler, so that workers do not pause between them."""
_TRIED_IMAGES, _TRIED_TIMES, _TRIED_S = 64, 3, 1.0
_WAYS = ("file_descriptor", "file_system", "arrays")
"""How the images of a list come from a worker: each in shared memory, by two strategies of torch, or pickled."""
Read = Callable[[bytes], torch.Tensor]


class ImageFiles(Dataset[tuple[torch.Tensor, int]]):
    """JPEG files; each file is as many rows as the table has copies of it."""

    def __init__(self, files: list[Path], labels: list[int], read: Read) -> None:
        self._files, self._labels, self._read = [str(path) for path in files], labels, read

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        with open(self._files[row % len(self._files)], "rb") as file:
            return self._read(file.read()), self._labels[row]


class MappedRows(Dataset[torch.Tensor]):
    """Rows of a mapped file; the collate function makes the only copy."""

    def __init__(self, data: Data) -> None:
        shape = (data.rows, *data.workload.shape)
        # Copy-on-write, and never written: torch warns of arrays that are read-only.
        self._rows = torch.from_numpy(np.asarray(np.memmap(data.plain, data.workload.dtype, "c", shape=shape)))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> torch.Tensor:
        return self._rows[row]


class MappedText(Dataset[str]):
    """Rows of a mapped file of text: a list of all of them would be copied by workers that count references."""

    def __init__(self, data: Data) -> None:
        with open(data.plain, "rb") as file:
            self._text = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
        self._ends = np.concatenate(([0], data.ends()))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, row: int) -> str:
        return self._text[self._ends[row] : self._ends[row + 1]].decode()


def settings(data: dict[str, Any], apply: str | None, workers: int) -> dict[str, Any]:
    """What is fastest here for images of many sizes: the decoder, and how lists come from the workers."""
    tried: dict[str, float] = {}
    images = [path.read_bytes() for path in Data(**data).files()[:_TRIED_IMAGES]]
    for name in _TRIED_TIMES * list(DECODERS):
        with suppress(ImportError, RuntimeError):  # torchvision is missing, or was built without its decoder
            tried[name] = max(tried.get(name, 0.0), _decoded_per_s(images, _read(name, apply)))
    decoder = max(tried, key=tried.__getitem__)
    if apply is not None:
        return {"decoder": decoder, "tried": tried}
    ways = {way: throughput(data, workers, _TRIED_S, _TRIED_S / 2, None, decoder, way)["rows_per_s"] for way in _WAYS}
    return {"decoder": decoder, "way": max(ways, key=ways.__getitem__), "tried": tried | ways}


def _decoded_per_s(images: list[bytes], read: Read) -> float:
    start, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(1)
    for image in images:
        read(image)
    torch.set_num_threads(threads)
    return len(images) / (time.perf_counter() - start)


def throughput(
    data: dict[str, Any], workers: int, seconds: float, warmup_s: float, apply: str | None = None,
    decoder: str = "", way: str = "file_descriptor",
) -> dict[str, Any]:  # fmt: skip
    """Rows a second of the DataLoader."""
    at = Data(**data)
    if way != "arrays":
        torch.multiprocessing.set_sharing_strategy(way)
    dataset, collate, values = _plan(at, apply, decoder, _arrays if way == "arrays" else _lists)
    loader = DataLoader(
        dataset,
        BATCH_SIZE,
        sampler=RandomSampler(dataset, num_samples=_EPOCHS * at.rows),
        num_workers=workers,
        prefetch_factor=PREFETCH_FACTORS[at.kind],
        persistent_workers=True,
        collate_fn=collate,
    )
    return asdict(measure(loader, at, apply, values=values, seconds=seconds, warmup_s=warmup_s, burst=workers))


def _plan(data: Data, apply: str | None, decoder: str, lists: Any) -> tuple[Any, Any, Callable[[Any], Any]]:
    """A dataset, how its samples become a batch, and what of a batch is counted."""
    if data.kind == "text":
        return MappedText(data), tokenize if apply else list, _itself
    if data.kind == "photos":
        _open_many_files()
        return ImageFiles(data.files(), data.labels(), _read(decoder, apply)), None if apply else lists, _first
    if data.kind == "jpeg":
        return ImageFiles(data.files(), data.labels(), _pixels), None, _first
    return MappedRows(data), None, _itself


def _pixels(encoded: bytes) -> torch.Tensor:
    """Height, width, channels, by the decoder that we use."""
    return torch.from_numpy(simplejpeg.decode_jpeg(encoded))


def _read(decoder: str, apply: str | None) -> Read:
    return partial(_cropped, DECODERS[decoder]) if apply else DECODERS[decoder]


def _cropped(decode: Callable[[Any], torch.Tensor], encoded: bytes) -> torch.Tensor:
    return crop(decode(encoded))


def _lists(samples: list[tuple[torch.Tensor, int]]) -> tuple[list[torch.Tensor], torch.Tensor]:
    images, labels = zip(*samples, strict=True)
    return list(images), torch.tensor(labels)


def _arrays(samples: list[tuple[torch.Tensor, int]]) -> tuple[list[Any], torch.Tensor]:
    images, labels = _lists(samples)
    return [image.numpy() for image in images], labels


def _open_many_files() -> None:
    """Each tensor of a list that comes from a worker holds a file."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _first(batch: Any) -> Any:
    return batch[0]


def _itself(batch: Any) -> Any:
    return batch


if __name__ == "__main__":
    answer(settings, throughput)
