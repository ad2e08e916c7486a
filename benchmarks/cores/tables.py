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
from benchmarks.cores.data import BATCH_SIZE, Data, ends_of
from benchmarks.cores.functions import WORDS, word
from benchmarks.loader.job import call
from benchmarks.loader.workloads import QUALITY, Workload

ROWS = {
    "jpeg": 30_000, "photos": 8_000, "images": 20_000, "tokens": 4_000_000, "few tokens": 300_000, "text": 400_000,
}  # fmt: skip
"""Rows at full size: 0.6 and 0.8 GB of JPEG files, 3 GB of images, 8.2 GB and 614 MB of tokens, 1 GB of text."""
_MIN_ROWS = 1024
_NOISE_BYTES = 16 << 20
_TEXT_BYTES, _TEXT_CHUNK = (1500, 3500), 10_000


def build(folder: Path, name: str, *, size: float, copies: int) -> Data:
    """The rows of that name under `folder`; made if they are not there."""
    rows, place = max(_MIN_ROWS, round(ROWS[name] * size)), folder / name.replace(" ", "-")
    if name in ("jpeg", "photos"):
        return _jpeg(place, name, rows, copies)
    return _text(place, rows) if name == "text" else _raw(place, name.removeprefix("few "), rows)


def delete(folder: Path, name: str) -> None:
    """Free the memory or the disk of these rows."""
    shutil.rmtree(folder / name.replace(" ", "-"), ignore_errors=True)


def needed_bytes(size: float) -> int:
    """Bytes that are used at most at a time: the tokens as a table and as a file."""
    return int(2 * size * ROWS["tokens"] * Workload("tokens", 1).row_bytes)


def _jpeg(folder: Path, kind: str, images: int, copies: int) -> Data:
    """JPEGs as files, and a table in which each of them occurs `copies` times.

    Copies make the table, and so the budget of the loader, large enough for batches of decoded images.
    """
    files, uri, rows = folder / "files", folder / "table", images * copies
    if not _complete(uri, rows) or len(list(files.glob("*.jpg"))) != images:
        shutil.rmtree(files, ignore_errors=True)
        files.mkdir(parents=True)
        arguments = json.dumps({"folder": str(files), "images": images, "kind": kind})
        call("images", "encode", arguments, package="benchmarks.cores")
        encoded = [path.read_bytes() for path in sorted(files.iterdir())]
        shape = Workload("jpeg", rows).shape if kind == "jpeg" else None
        schema = {"image": penstock.Image(f"jpeg:{QUALITY}", shape=shape), "label": "int64"}
        _write(uri, schema, _jpeg_batches(encoded, rows))
    return _data(kind, rows, uri, files)


def _text(folder: Path, rows: int) -> Data:
    """Parts of one long text as a table and as one file."""
    uri, path = folder / "table", folder / "rows.txt"
    if not (_complete(uri, rows) and ends_of(path).exists()):
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        words = [word(number) for number in range(WORDS)]
        long = " ".join(map(words.__getitem__, rng.integers(1, WORDS, _NOISE_BYTES // 8).tolist()))
        starts, sizes = rng.integers(0, len(long) - _TEXT_BYTES[1], rows), rng.integers(*_TEXT_BYTES, rows)
        texts = [long[start : start + size] for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)]
        path.write_text("".join(texts))
        chunks = (texts[start : start + _TEXT_CHUNK] for start in range(0, rows, _TEXT_CHUNK))
        _write(uri, {"text": penstock.Text()}, (pa.RecordBatch.from_pydict({"text": chunk}) for chunk in chunks))
        np.save(ends_of(path), np.cumsum(sizes))
    return _data("text", rows, uri, path)


def _raw(folder: Path, kind: str, rows: int) -> Data:
    """Rows of fixed shape as a table and as one file."""
    uri, path, workload = folder / "table", folder / "rows.bin", Workload(kind, rows)
    if not _complete(uri, rows):
        folder.mkdir(parents=True, exist_ok=True)
        schema = {workload.column: penstock.Tensor(workload.dtype, workload.shape)}
        _write(uri, schema, (_raw_batch(workload, values) for values in _raw_chunks(workload)))
    if not (path.exists() and path.stat().st_size == rows * workload.row_bytes):
        with open(path, "wb") as file:
            for values in _raw_chunks(workload):
                file.write(values.data)
    return _data(kind, rows, uri, path)


def _data(kind: str, rows: int, uri: Path, plain: Path) -> Data:
    return Data(kind, rows, str(uri), penstock.load(uri).summary().bytes, str(plain))


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
