"""The tables that are streamed, and the same rows as plain files for torch's DataLoader and the limits."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import penstock
from benchmarks.cores.data import BATCH_SIZE, Data
from benchmarks.loader.job import call
from benchmarks.loader.workloads import QUALITY, Workload

IMAGES, RAW_ROWS, TOKEN_ROWS, FEW_TOKEN_ROWS = 30_000, 20_000, 4_000_000, 300_000
"""Rows at scale 1: 0.6 GB of JPEG files, 3 GB of images, 8.2 GB of tokens, and a table of 614 MB."""
_MIN_ROWS = 1024
_NOISE_BYTES = 16 << 20


def build(folder: Path, name: str, *, scale: float, copies: int) -> Data:
    """The rows of that name under `folder`; made if they are not there."""
    if name == "jpeg":
        return _jpeg(folder / name, _scaled(IMAGES, scale), copies)
    kind, rows = {
        "images": ("images", RAW_ROWS),
        "tokens": ("tokens", TOKEN_ROWS),
        "few tokens": ("tokens", FEW_TOKEN_ROWS),
    }[name]
    return _raw(folder / name.replace(" ", "-"), kind, _scaled(rows, scale), plain=name != "few tokens")


def delete(folder: Path, name: str) -> None:
    """Free the memory or the disk of these rows."""
    shutil.rmtree(folder / name.replace(" ", "-"), ignore_errors=True)


def needed_bytes(scale: float) -> int:
    """Bytes that are used at most at a time: the tokens as a table and as a file, and the small table."""
    return int(scale * (2 * TOKEN_ROWS + FEW_TOKEN_ROWS) * Workload("tokens", 1).row_bytes)


def _scaled(rows: int, scale: float) -> int:
    return max(_MIN_ROWS, round(rows * scale))


def _jpeg(folder: Path, images: int, copies: int) -> Data:
    """JPEGs as files, and a table in which each of them occurs `copies` times.

    Copies make the table, and so the budget of the loader, large enough for batches of decoded images.
    """
    files, uri, rows = folder / "files", folder / "table", images * copies
    if not _complete(uri, rows) or len(list(files.glob("*.jpg"))) != images:
        shutil.rmtree(files, ignore_errors=True)
        files.mkdir(parents=True)
        call("images", "encode", json.dumps({"folder": str(files), "images": images}), package="benchmarks.cores")
        encoded = [path.read_bytes() for path in sorted(files.iterdir())]
        kind = penstock.Image(f"jpeg:{QUALITY}", shape=Workload("jpeg", rows).shape)
        _write(uri, {"image": kind, "label": "int64"}, _jpeg_batches(encoded, rows))
    return _data("jpeg", rows, uri, files)


def _raw(folder: Path, kind: str, rows: int, *, plain: bool) -> Data:
    """Rows of fixed shape as a table and, if `plain`, as one file."""
    uri, path, workload = folder / "table", folder / "rows.bin", Workload(kind, rows)
    if not _complete(uri, rows):
        folder.mkdir(parents=True, exist_ok=True)
        schema = {workload.column: penstock.Tensor(workload.dtype, workload.shape)}
        _write(uri, schema, (_raw_batch(workload, values) for values in _raw_chunks(workload)))
    if plain and not (path.exists() and path.stat().st_size == rows * workload.row_bytes):
        with open(path, "wb") as file:
            for values in _raw_chunks(workload):
                file.write(values.data)
    return _data(kind, rows, uri, path if plain else None)


def _data(kind: str, rows: int, uri: Path, plain: Path | None) -> Data:
    return Data(kind, rows, str(uri), penstock.load(uri).summary().bytes, str(plain or ""))


def _complete(uri: Path, rows: int) -> bool:
    return penstock.exists(uri) and len(penstock.load(uri)) == rows


def _write(uri: Path, schema: dict[str, Any], batches: Iterator[pa.RecordBatch]) -> None:
    shutil.rmtree(uri, ignore_errors=True)
    ds = penstock.create(uri, schema)
    ds.append(batches)
    ds.commit()


def _jpeg_batches(encoded: list[bytes], rows: int) -> Iterator[pa.RecordBatch]:
    labels = Workload("jpeg", rows).labels(np.arange(rows))
    for start in range(0, rows, BATCH_SIZE):
        images = [encoded[row % len(encoded)] for row in range(start, min(start + BATCH_SIZE, rows))]
        label = labels[start : start + len(images)]
        yield pa.RecordBatch.from_pydict({"image": pa.array(images), "label": pa.array(label)})


def _raw_batch(workload: Workload, values: npt.NDArray[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({workload.column: pa.FixedShapeTensorArray.from_numpy_ndarray(values)})


def _raw_chunks(workload: Workload) -> Iterator[npt.NDArray[Any]]:
    """Noise that differs from chunk to chunk, and is made faster than it is written."""
    rows = max(1, _NOISE_BYTES // workload.row_bytes)
    noise = np.random.default_rng(0).integers(0, np.iinfo(workload.dtype).max, (rows, *workload.shape), workload.dtype)
    for start in range(0, workload.rows, rows):
        yield noise[: workload.rows - start] ^ noise.dtype.type(start // rows % 251)
