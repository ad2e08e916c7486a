"""What a measurement reads, as a value that travels to its process: tables, what is made of them, and the loader."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock
from benchmarks.loader import nginx
from benchmarks.loader.pages import pages
from benchmarks.loader.tables import BUCKET
from benchmarks.semantics.data import ACTION_OFFSETS, IMAGE_OFFSETS, SEQUENCE
from benchmarks.semantics.tables import SHARES

WORKERS, BATCH_SIZE, DRAWN_SHARE = 2, 64, 0.1
ONE = "one"
"""The name of the table where there is only one."""


@dataclass(frozen=True)
class Spec:
    """Rows, a mixture, windows, packed sequences or a weighted draw of some tables."""

    kind: str
    uris: dict[str, str]
    columns: list[str] | None = None
    policy: str = "concat"
    storage_options: dict[str, str] | None = None

    def at(self, endpoint: str) -> "Spec":
        """The same by way of a server."""
        keys = {name: f"s3://{BUCKET}/{uri.rpartition('/')[2]}" for name, uri in self.uris.items()}
        return replace(self, uris=keys, storage_options=nginx.options(endpoint))

    def tables(self) -> dict[str, penstock.Dataset]:
        return {name: penstock.load(uri, storage_options=self.storage_options) for name, uri in self.uris.items()}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def open_view(spec: Spec) -> Any:
    """The view of a spec."""
    tables = spec.tables()
    if spec.kind == "mixture":
        return penstock.mix(tables, weights=SHARES)
    if spec.kind == "windows":
        offsets = {"image": IMAGE_OFFSETS, "action": ACTION_OFFSETS}
        return tables[ONE].windows(within="episode", order_by="step", offsets=offsets, ends="pad")
    if spec.kind == "packed":
        return tables[ONE].pack("tokens", SEQUENCE, "fit" if spec.policy == "fit" else "concat")
    return tables[ONE]


def open_loader(spec: Spec, view: Any, **options: Any) -> penstock.Loader:
    """A shuffled loader of a view with default options, but for the number of workers."""
    view = view if spec.columns is None else view.select(spec.columns)
    if spec.kind == "weighted":
        weights = page_weights(spec)
        view = view.weighted(weights, rows=round(weights.sum()))
    found: penstock.Loader = view.pytorch(
        batch_size=BATCH_SIZE, shuffle=penstock.Shuffle(seed=1), num_workers=WORKERS, **options
    )
    return found


def page_weights(spec: Spec) -> npt.NDArray[np.float64]:
    """1 for all rows of a random tenth of the pages of the heaviest column, 0 for others."""
    ds = spec.tables()[ONE]
    files = list(pages(ds).values())
    row_bytes = [(file.offsets[-1] - file.offsets[0]) / (file.rows[-1] - file.rows[0]) for file in files]
    heavy = [file for file, size in zip(files, row_bytes, strict=True) if size > max(row_bytes) / 2]
    starts = np.concatenate([file.rows[:-1] for file in heavy])
    ends = np.concatenate([file.rows[1:] for file in heavy])
    chosen = np.random.default_rng(0).permutation(len(starts))[: max(1, round(DRAWN_SHARE * len(starts)))]
    weights = np.zeros(len(ds))
    for page in chosen:
        weights[starts[page] : ends[page]] = 1.0
    return weights
