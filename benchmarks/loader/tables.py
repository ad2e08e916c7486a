"""The workloads as tables of ours, and how a measurement reaches one."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock
from benchmarks.loader import nginx
from benchmarks.loader.workloads import Workload

BUCKET = "bucket"
BUDGET_SHARE, MIN_BUDGET_BYTES = 8, 1 << 30  # the least is the default of the loader, which its window fits
"""The loader gets this part of the table as its memory."""


@dataclass(frozen=True)
class Place:
    """A table, where it is, and what a loader of it may use."""

    uri: str
    workload: Workload
    table_bytes: int
    options: dict[str, str] | None = None

    @property
    def budget_bytes(self) -> int:
        return max(self.table_bytes // BUDGET_SHARE, MIN_BUDGET_BYTES)

    @property
    def name(self) -> str:
        """Its last part, which is its key in the bucket too."""
        return self.uri.rpartition("/")[2]

    def at(self, endpoint: str) -> "Place":
        """The same table by way of a server."""
        return replace(self, uri=f"s3://{BUCKET}/{self.name}", options=nginx.options(endpoint))

    def open(self) -> penstock.Dataset:
        return penstock.load(self.uri, storage_options=self.options)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Place":
        return cls(**value | {"workload": Workload(**value["workload"])})


def build(root: Path, workload: Workload) -> Place:
    """The workload as a table under `root`, as a folder that is a bucket too; made if it is not there."""
    folder = root / BUCKET / f"{workload.name}-{workload.rows}"
    if not (penstock.exists(folder) and len(penstock.load(folder)) == workload.rows):
        if penstock.exists(folder):
            penstock.delete(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        ds = penstock.create(folder, _schema(workload))
        ds.append(_batch(workload, chunk) for chunk in workload.chunks())
        ds.commit()
    return Place(str(folder), workload, penstock.load(folder).summary().bytes)


def data_files(place: Place) -> dict[str, int]:
    """The files that hold the rows of a local table, and their sizes."""
    return {path.name: path.stat().st_size for path in sorted(Path(place.uri, "data").iterdir())}


def _schema(workload: Workload) -> dict[str, Any]:
    kind: Any = penstock.Tensor(workload.dtype, workload.shape)
    if workload.name == "jpeg":
        kind = penstock.Image("jpeg:90", shape=workload.shape)
    return {workload.column: kind} | ({"label": "int64"} if workload.has_label else {})


def _batch(workload: Workload, chunk: dict[str, Any]) -> pa.RecordBatch:
    columns = {name: pa.array(values) for name, values in chunk.items() if name == "label" or workload.name == "jpeg"}
    if workload.name != "jpeg":
        values: np.ndarray = chunk[workload.column]
        columns = {workload.column: pa.FixedShapeTensorArray.from_numpy_ndarray(values)} | columns
    return pa.RecordBatch.from_pydict(columns)
