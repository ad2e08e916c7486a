"""The tables of all figures, each made once under one folder, which is a bucket too."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock
from benchmarks.loader.tables import BUCKET
from benchmarks.loader.workloads import QUALITY, Workload
from benchmarks.semantics.data import ACTION, SEQUENCE, SIDE, STEPS, documents, episodes

SHARES = {"first": 0.5, "second": 0.3, "third": 0.2}
"""Tables of the mixture, and their weights, which are their shares of the rows too."""
IMAGE_ROWS, EPISODES, TOKENS = 12_000, 1_000, 200_000_000
"""At scale 1: 1.8 GB of raw images, 40,000 JPEGs, and 0.4 GB of tokens."""
_APPENDED_TOKENS = 1 << 23


def images(folder: Path, scale: float) -> dict[str, str]:
    """The tables of the mixture, by name, and `one` with as many rows as all of them."""
    rows = {name: round(share * _scaled(IMAGE_ROWS, scale, 100)) for name, share in SHARES.items()}
    return {
        name: _build(folder, f"images-{name}-{count}", _image_rows(count))
        for name, count in {**rows, "one": sum(rows.values())}.items()
    }


def episode_table(folder: Path, scale: float) -> str:
    count = _scaled(EPISODES, scale, 10)
    return _build(folder, f"episodes-{count}", lambda uri: _write(uri, _EPISODE_SCHEMA, _episode_batches(count)))


def token_tables(folder: Path, scale: float) -> dict[str, str]:
    """Documents, and rows of as many tokens as a packed sequence."""
    tokens = _scaled(TOKENS, scale, 64 * SEQUENCE)
    return {
        "documents": _build(folder, f"documents-{tokens}", lambda uri: _write_documents(uri, tokens)),
        "fixed": _build(folder, f"fixed-{tokens}", lambda uri: _write_fixed(uri, tokens)),
    }


def _scaled(count: int, scale: float, least: int) -> int:
    return max(least, round(count * scale))


def _build(folder: Path, name: str, write: Callable[[Path], None]) -> str:
    uri = folder / BUCKET / name
    complete = uri.with_suffix(".complete")
    if not complete.exists():
        shutil.rmtree(uri, ignore_errors=True)
        uri.parent.mkdir(parents=True, exist_ok=True)
        write(uri)
        complete.touch()
    return str(uri)


def _write(uri: Path, schema: dict[str, Any], batches: Iterable[Any]) -> None:
    ds = penstock.create(uri, schema)
    ds.append(batches)
    ds.commit()


def _image_rows(count: int) -> Callable[[Path], None]:
    workload = Workload("images", count)
    schema = {"image": penstock.Tensor(workload.dtype, workload.shape), "label": "int64"}

    def write(uri: Path) -> None:
        _write(
            uri, schema,
            (pa.RecordBatch.from_pydict({
                "image": pa.FixedShapeTensorArray.from_numpy_ndarray(chunk["image"]), "label": pa.array(chunk["label"]),
            }) for chunk in workload.chunks()),
        )  # fmt: skip

    return write


_EPISODE_SCHEMA = {
    "episode": "int64",
    "step": "int64",
    "image": penstock.Image(f"jpeg:{QUALITY}", shape=(SIDE, SIDE, 3)),
    "action": penstock.Tensor("float32", (ACTION,)),
}


def _episode_batches(count: int) -> Iterable[pa.RecordBatch]:
    for episode in episodes(count):
        yield pa.RecordBatch.from_pydict({
            "episode": pa.array(np.full(STEPS, episode.number)),
            "step": pa.array(np.arange(STEPS)),
            "image": pa.array(episode.images),
            "action": pa.FixedShapeTensorArray.from_numpy_ndarray(episode.actions),
        })  # fmt: skip


def _write_documents(uri: Path, tokens: int) -> None:
    values, bounds = documents(tokens)
    step = max(1, len(bounds) * _APPENDED_TOKENS // len(values))

    def batches() -> Iterable[pa.RecordBatch]:
        for first in range(0, len(bounds) - 1, step):
            edges = bounds[first : first + step + 1]
            part = pa.array(values[edges[0] : edges[-1]])
            yield pa.RecordBatch.from_pydict({"tokens": pa.LargeListArray.from_arrays(edges - edges[0], part)})

    _write(uri, {"tokens": penstock.Tensor("uint16", (None,))}, batches())


def _write_fixed(uri: Path, tokens: int) -> None:
    values, _ = documents(tokens)
    rows = values[: len(values) // SEQUENCE * SEQUENCE].reshape(-1, SEQUENCE)
    step = _APPENDED_TOKENS // SEQUENCE

    def batches() -> Iterable[pa.RecordBatch]:
        for first in range(0, len(rows), step):
            part = pa.FixedShapeTensorArray.from_numpy_ndarray(rows[first : first + step])
            yield pa.RecordBatch.from_pydict({"tokens": part})

    _write(uri, {"tokens": penstock.Tensor("uint16", (SEQUENCE,))}, batches())
