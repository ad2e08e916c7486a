"""Lance: random rows taken a batch at a time, in threads; or whole batches as they lie, in random order.

Its own PyTorch dataset shuffles only the order of batches, and its map-style one makes a dictionary of every row: the
fastest way to rows that are shuffled is to take batches of random ones.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import simplejpeg
import torch
from lance.sampler import ShardedBatchSampler
from lance.torch.data import LanceDataset

from benchmarks.loader.workloads import Workload

PACKAGE = "pylance"


def write(workload: Workload, folder: Path) -> None:
    fields = [pa.field(workload.column, _type(workload))] + [pa.field("label", pa.int64())] * workload.has_label
    schema = pa.schema(fields)
    batches = (
        pa.record_batch([_array(workload, chunk[workload.column]), *map(pa.array, list(chunk.values())[1:])], schema)
        for chunk in workload.chunks()
    )
    lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches), str(folder))


def _type(workload: Workload) -> pa.DataType:
    if workload.name == "jpeg":
        return pa.binary()
    return pa.list_(pa.from_numpy_dtype(workload.dtype), int(np.prod(workload.shape)))


def _array(workload: Workload, values: Any) -> pa.Array:
    if workload.name == "jpeg":
        return pa.array(values, pa.binary())
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type=_type(workload))


@dataclass(frozen=True)
class RandomRows:
    """An epoch of batches of random rows, read ahead in threads."""

    workload: Workload
    ds: lance.LanceDataset
    threads: int

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        order = np.random.default_rng().permutation(self.workload.rows)
        size = self.workload.batch_size
        with ThreadPoolExecutor(self.threads) as pool:
            ahead: deque[Future[dict[str, torch.Tensor]]] = deque()
            for start in range(0, self.workload.rows, size):
                ahead.append(pool.submit(self._read, order[start : start + size]))
                if len(ahead) > 2 * self.threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    def _read(self, rows: np.ndarray) -> dict[str, torch.Tensor]:
        return _tensors(self.workload, self.ds.take(rows).combine_chunks().to_batches()[0])


def random_rows(workload: Workload, folder: Path, workers: int) -> RandomRows:
    return RandomRows(workload, lance.dataset(str(folder)), 2 * workers)


def random_batches(workload: Workload, folder: Path, workers: int) -> LanceDataset:  # noqa: ARG001
    def tensors(batch: pa.RecordBatch, **_: Any) -> dict[str, torch.Tensor]:
        return _tensors(workload, batch)

    sampler = ShardedBatchSampler(0, 1, randomize=True)
    return LanceDataset(str(folder), workload.batch_size, to_tensor_fn=tensors, sampler=sampler)


LOADERS: dict[str, Callable[[Workload, Path, int], Any]] = {
    "lance": random_rows,
    "lance, batches in random order": random_batches,
}


def _tensors(workload: Workload, batch: pa.RecordBatch) -> dict[str, torch.Tensor]:
    column = batch[workload.column]
    if workload.name == "jpeg":
        values = np.empty((batch.num_rows, *workload.shape), np.uint8)
        for row, data in enumerate(column):
            simplejpeg.decode_jpeg(memoryview(data.as_buffer()).cast("B"), buffer=values[row])
    else:
        values = column.flatten().to_numpy().reshape(-1, *workload.shape)
    labels = {"label": torch.from_numpy(batch["label"].to_numpy())} if workload.has_label else {}
    return {workload.column: torch.from_numpy(values)} | labels
