"""torch's DataLoader in its fastest plain form: a map-style dataset, persistent workers, an endless random order."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

from benchmarks.cores.data import BATCH_SIZE, Data
from benchmarks.cores.rate import measure
from benchmarks.loader.job import answer

PREFETCH_FACTOR = 4
_EPOCHS = 1000
"""Epochs drawn one after the other by the sampler, so that workers do not pause between them."""


class ImageFiles(Dataset[tuple[torch.Tensor, int]]):
    """JPEG files, decoded by the decoder that we use; each file is as many rows as the table has copies of it."""

    def __init__(self, files: list[Path], labels: list[int]) -> None:
        self._files, self._labels = [str(path) for path in files], labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        with open(self._files[row % len(self._files)], "rb") as file:
            return torch.from_numpy(simplejpeg.decode_jpeg(file.read())), self._labels[row]


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


def throughput(data: dict[str, Any], workers: int, seconds: float, warmup_s: float) -> dict[str, Any]:
    """Rows a second of the DataLoader."""
    at = Data(**data)
    dataset: Dataset[Any]
    if at.kind == "jpeg":
        dataset = ImageFiles(at.files(), at.workload.labels(np.arange(at.rows)).tolist())
    else:
        dataset = MappedRows(at)
    loader = DataLoader(
        dataset,
        BATCH_SIZE,
        sampler=RandomSampler(dataset, num_samples=_EPOCHS * at.rows),
        num_workers=workers,
        prefetch_factor=PREFETCH_FACTOR,
        persistent_workers=True,
    )
    first = (lambda batch: batch[0]) if at.kind == "jpeg" else (lambda batch: batch)
    return asdict(measure(loader, at.workload, seconds=seconds, warmup_s=warmup_s, burst=workers, values=first))


if __name__ == "__main__":
    answer(throughput)
