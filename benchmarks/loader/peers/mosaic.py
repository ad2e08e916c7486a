"""MosaicML Streaming: shards on the local disk, a StreamingDataset that knows its batch size, a DataLoader."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import simplejpeg
from torch.utils.data import DataLoader

from benchmarks.loader.workloads import Workload

# Ready-made datasets, which are not used here, import torchvision: where torch is a CPU build, the torchvision that pip
# finds beside it is one for CUDA and cannot be loaded.
for _name in ("streaming.multimodal", "streaming.text", "streaming.vision"):
    sys.modules[_name] = ModuleType(_name)

from streaming import MDSWriter, StreamingDataset  # noqa: E402

PACKAGE = "mosaicml-streaming"


class Decoded(StreamingDataset):  # type: ignore[misc]
    """Images decoded by the fastest decoder, which is not the package's own."""

    def __getitem__(self, at: Any) -> Any:
        row = super().__getitem__(at)
        return {"image": simplejpeg.decode_jpeg(row["image"]), "label": row["label"]}


def write(workload: Workload, folder: Path) -> None:
    shape = ",".join(map(str, workload.shape))
    columns = {workload.column: "bytes" if workload.name == "jpeg" else f"ndarray:{workload.dtype}:{shape}"}
    if workload.has_label:
        columns["label"] = "int64"
    with MDSWriter(columns=columns, out=str(folder)) as out:
        for chunk in workload.chunks():
            for row in zip(*chunk.values(), strict=True):
                out.write(dict(zip(chunk, row, strict=True)))


def loader(workload: Workload, folder: Path, workers: int) -> DataLoader[Any]:
    kind = Decoded if workload.name == "jpeg" else StreamingDataset
    ds = kind(local=str(folder), shuffle=True, batch_size=workload.batch_size)
    return DataLoader(ds, workload.batch_size, num_workers=workers, persistent_workers=workers > 0)


LOADERS = {"mosaic": loader}
