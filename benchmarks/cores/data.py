"""Rows on disk as a table and as plain files, as the measurements find them; nothing here needs Penstock."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.loader.workloads import Workload, window_bytes

BATCH_SIZE = 256
BUDGET_SHARE = 8
"""The loader gets this part (1/n) of the table as its memory."""
MIN_BUDGET_BYTES = 1 << 20
SPREAD = 1.0
LISTED = {"photos": "image", "text": "text"}
"""Kinds of rows whose values differ in size, which batches hold as lists, and their column."""


@dataclass(frozen=True)
class Data:
    """Rows as a table of ours, and as plain files: one file for each image, or one file of all rows."""

    kind: str
    rows: int
    table: str
    table_bytes: int
    plain: str
    """A folder of JPEG files, or a file of raw rows or of text."""

    @property
    def workload(self) -> Workload:
        return Workload(self.kind, self.rows)

    @property
    def column(self) -> str:
        return LISTED.get(self.kind) or self.workload.column

    @property
    def budget_bytes(self) -> int:
        return max(MIN_BUDGET_BYTES, self.table_bytes // BUDGET_SHARE)

    @property
    def spread(self) -> float | None:
        """The spread of the shuffle; None for the default, whose window must leave half of the budget for batches."""
        return SPREAD if window_bytes(self.table_bytes) > self.budget_bytes // 2 else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def files(self) -> list[Path]:
        """The JPEG files."""
        return sorted(Path(self.plain).iterdir())

    def labels(self) -> list[int]:
        """Of the images."""
        found: list[int] = Workload("jpeg", self.rows).labels(np.arange(self.rows)).tolist()
        return found

    def ends(self) -> npt.NDArray[np.int64]:
        """Where each text ends in the file."""
        found: npt.NDArray[np.int64] = np.load(ends_of(self.plain))
        return found


def ends_of(plain: str | Path) -> Path:
    """Beside a file of text, where each row ends in it."""
    return Path(plain).with_suffix(".npy")
