"""WebDataset: tar shards, shuffled by shard and through a buffer, batched in the workers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import webdataset

from benchmarks.loader.workloads import Workload

PACKAGE = "webdataset"
SHARD_BYTES = 64e6
MIN_SHARDS = 16
BUFFER_ROWS = 1000
"""What its documentation shuffles through."""


def write(workload: Workload, folder: Path) -> None:
    folder.mkdir(parents=True)
    number = 0
    with webdataset.ShardWriter(
        str(folder / "%05d.tar"), maxsize=SHARD_BYTES, maxcount=-(-workload.rows // MIN_SHARDS), verbose=0
    ) as out:
        for chunk in workload.chunks():
            for row in range(len(chunk[workload.column])):
                value = chunk[workload.column][row]
                files = {"bin": value if isinstance(value, bytes) else value.tobytes()}
                if workload.has_label:
                    files["cls"] = str(chunk["label"][row]).encode()
                out.write({"__key__": f"{number:09d}"} | files)
                number += 1


def loader(workload: Workload, folder: Path, workers: int) -> webdataset.WebLoader:
    def read(files: Mapping[str, bytes]) -> dict[str, Any]:
        if workload.name == "jpeg":
            value = simplejpeg.decode_jpeg(files["bin"])
        else:
            value = np.frombuffer(files["bin"], workload.dtype).reshape(workload.shape)
        return {workload.column: value} | ({"label": int(files["cls"])} if workload.has_label else {})

    shards = sorted(map(str, folder.glob("*.tar")))
    ds = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(BUFFER_ROWS)
    ds = ds.map(read).batched(workload.batch_size)
    return webdataset.WebLoader(ds, batch_size=None, num_workers=workers, persistent_workers=workers > 0)


LOADERS = {"webdataset": loader}
