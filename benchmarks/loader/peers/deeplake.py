"""Deep Lake 4: its PyTorch dataset in a standard DataLoader, as its documentation has it; or a view in random order.

Images are kept as bytes and decoded by simplejpeg, which is twice as fast as the image type.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deeplake
import numpy as np
import simplejpeg
import torch
from torch.utils.data import DataLoader

from benchmarks.loader.workloads import Workload

PACKAGE = "deeplake"


def write(workload: Workload, folder: Path) -> None:
    ds = deeplake.create(str(folder))
    kind = deeplake.types.Array(workload.dtype, shape=list(workload.shape))
    ds.add_column(workload.column, deeplake.types.Bytes() if workload.name == "jpeg" else kind)
    if workload.has_label:
        ds.add_column("label", "int64")
    for chunk in workload.chunks():
        ds.append(chunk)
    ds.commit()


def standard(workload: Workload, folder: Path, workers: int) -> DataLoader[Any]:
    ds = deeplake.open_read_only(str(folder)).pytorch(transform=_decode if workload.name == "jpeg" else None)
    return DataLoader(ds, workload.batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0)


def _decode(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"image": simplejpeg.decode_jpeg(row["image"]), "label": row["label"]}


@dataclass(frozen=True)
class RandomView:
    """An epoch of batches of a view in random order, in one process: it cannot be shared out to workers."""

    workload: Workload
    ds: Any

    def __iter__(self) -> Iterator[dict[str, Any]]:
        view = self.ds.query("select * order by random()")
        for batch in view.batches(self.workload.batch_size):
            values = batch[self.workload.column]
            if self.workload.name == "jpeg":
                values = np.stack([simplejpeg.decode_jpeg(data) for data in values])
            labels = {"label": torch.from_numpy(np.asarray(batch["label"]))} if self.workload.has_label else {}
            yield {self.workload.column: torch.from_numpy(np.asarray(values))} | labels


def random_view(workload: Workload, folder: Path, workers: int) -> RandomView:  # noqa: ARG001
    return RandomView(workload, deeplake.open_read_only(str(folder)))


LOADERS: dict[str, Callable[[Workload, Path, int], Any]] = {
    "deeplake": standard,
    "deeplake, random view": random_view,
}
