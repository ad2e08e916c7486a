"""LitData: chunks made by `optimize`, a StreamingDataset over them, its own loader."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import litdata
import simplejpeg
import torch

from benchmarks.loader.workloads import Workload

PACKAGE = "litdata"
CHUNK_BYTES = 64 << 20
"""What its documentation advises."""


def rows(index: int, *, workload: Workload) -> Iterator[Any]:
    chunk = workload.chunk(index)
    if workload.name == "tokens":
        yield torch.from_numpy(chunk["tokens"].reshape(-1))
    else:
        for image, label in zip(chunk["image"], chunk["label"], strict=True):
            yield {"image": image if workload.name == "jpeg" else torch.from_numpy(image), "label": int(label)}


def write(workload: Workload, folder: Path) -> None:
    tokens = workload.name == "tokens"
    litdata.optimize(
        partial(rows, workload=workload),
        list(range(workload.num_chunks)),
        str(folder),
        chunk_bytes=CHUNK_BYTES,
        item_loader=litdata.TokensLoader() if tokens else None,
        num_workers=1,
        keep_data_ordered=True,
        verbose=False,
    )


def loader(workload: Workload, folder: Path, workers: int) -> Any:
    tokens = workload.name == "tokens"
    ds = litdata.StreamingDataset(
        str(folder),
        shuffle=True,
        item_loader=litdata.TokensLoader(block_size=workload.shape[0]) if tokens else None,
        transform=decode if workload.name == "jpeg" else None,
    )
    found = litdata.StreamingDataLoader(
        ds, batch_size=workload.batch_size, num_workers=workers, persistent_workers=workers > 0
    )
    return Named(found) if tokens else found


def decode(row: dict[str, Any]) -> dict[str, Any]:
    return {"image": simplejpeg.decode_jpeg(row["image"]), "label": row["label"]}


class Named:
    """Batches of tokens, which come as bare tensors."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return ({"tokens": batch} for batch in self.loader)


LOADERS = {"litdata": loader}
