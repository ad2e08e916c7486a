"""Generators of sources of a given size and number of files."""

import io
import json
import os
import tarfile
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import simplejpeg
import torch
from mcap.writer import CompressionType, Writer
from safetensors.numpy import save_file

ROW_BYTES = 1 << 20
_DATA = pa.schema([("data", pa.binary())])


def noise(number: int, size: int = ROW_BYTES) -> bytes:
    """Random bytes of a row, which start with its number."""
    return number.to_bytes(8, "little") + np.random.default_rng(number % 8).bytes(size - 8)


def numpy(folder: Path, numbers: range) -> None:
    with open(folder / f"data_{numbers.start:06}.npy", "wb") as file:
        shape = (len(numbers), ROW_BYTES)
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for number in numbers:
            file.write(noise(number))


def webdataset(folder: Path, numbers: range) -> None:
    with tarfile.open(folder / f"{numbers.start:06}.tar", "w") as tar:
        for number in numbers:
            info = tarfile.TarInfo(f"{number:06}.bin")
            info.size = ROW_BYTES
            tar.addfile(info, io.BytesIO(noise(number)))


def parquet(folder: Path, numbers: range) -> None:
    place = folder / f"{numbers.start:06}.parquet"
    with pq.ParquetWriter(place, _DATA, compression="none", use_dictionary=False) as writer:
        for number in numbers:
            writer.write_batch(pa.record_batch([pa.array([noise(number)], pa.binary())], schema=_DATA))


def arrow(folder: Path, numbers: range) -> None:
    with pa.ipc.new_file(folder / f"{numbers.start:06}.arrow", _DATA) as writer:
        for number in numbers:
            writer.write_batch(pa.record_batch([pa.array([noise(number)], pa.binary())], schema=_DATA))


def jsonl(folder: Path, numbers: range) -> None:
    with open(folder / f"{numbers.start:06}.jsonl", "w") as file:
        for number in numbers:
            file.write(f'{{"data": "{number:08}{"x" * ROW_BYTES}"}}\n')


def csv(folder: Path, numbers: range) -> None:
    with open(folder / f"{numbers.start:06}.csv", "w") as file:
        file.write("number,data\n")
        for number in numbers:
            file.write(f"{number},{number:08}{'x' * ROW_BYTES}\n")


def safetensors(folder: Path, numbers: range) -> None:
    for start in range(numbers.start, numbers.stop, 32):  # the library holds a file in memory
        part = range(start, min(start + 32, numbers.stop))
        values = np.frombuffer(b"".join(map(noise, part)), np.uint8).reshape(len(part), ROW_BYTES)
        save_file({"data": values}, folder / f"{start:06}.safetensors")


def images(folder: Path, numbers: range) -> None:
    """One image of 1.5 MB, hard-linked under many names."""
    first = folder / "cat" / "first.jpg"
    if not first.exists():
        first.parent.mkdir()
        pixels = np.random.default_rng(0).integers(0, 255, (1024, 1024, 3), np.uint8)
        first.write_bytes(simplejpeg.encode_jpeg(pixels, quality=95))
    for number in numbers:
        os.link(first, folder / "cat" / f"{number:06}.jpg")


def torch_files(folder: Path, numbers: range) -> None:
    for start in range(numbers.start, numbers.stop, 8):  # each file is loaded as a whole
        part = range(start, min(start + 8, numbers.stop))
        values = np.frombuffer(bytearray(b"".join(map(noise, part))), np.uint8).reshape(len(part), ROW_BYTES)
        torch.save({"data": torch.from_numpy(values)}, folder / f"{start:06}.pt")


def mds(folder: Path, numbers: range) -> None:
    """A shard in the layout of MosaicML: count, offsets, then samples with their sizes."""
    name, size = f"shard.{numbers.start:06}.mds", 4 + ROW_BYTES
    first = 4 * (len(numbers) + 2)
    with open(folder / name, "wb") as file:
        file.write(np.uint32(len(numbers)).tobytes())
        file.write((first + size * np.arange(len(numbers) + 1)).astype(np.uint32).tobytes())
        for number in numbers:
            file.write(np.uint32(ROW_BYTES).tobytes() + noise(number))
        raw_data = {"basename": name, "bytes": file.tell(), "hashes": {}}
    index = folder / "index.json"
    shards = json.loads(index.read_text())["shards"] if index.exists() else []
    columns = {"column_names": ["data"], "column_encodings": ["bytes"], "column_sizes": [None]}
    shards.append(
        columns | {"format": "mds", "version": 2, "samples": len(numbers), "compression": None, "hashes": []}
        | {"raw_data": raw_data, "zip_data": None, "size_limit": None}
    )  # fmt: skip
    index.write_text(json.dumps({"version": 2, "shards": shards}))


def mcap(folder: Path, numbers: range) -> None:
    """A log with one camera topic."""
    pixels = np.random.default_rng(0).integers(0, 255, (720, 1024, 3), np.uint8)
    image = simplejpeg.encode_jpeg(pixels, quality=95)
    data = json.dumps({"format": "jpeg", "data": b64encode(image).decode()}).encode()
    with open(folder / f"{numbers.start:06}.mcap", "wb") as file:
        writer = Writer(file, compression=CompressionType.NONE)
        writer.start()
        camera = writer.register_channel("/camera", "json", writer.register_schema("camera", "jsonschema", b"{}"))
        for number in numbers:
            time_ns = number * 33_000_000
            writer.add_message(camera, log_time=time_ns, data=data, publish_time=time_ns)
        writer.finish()  # type: ignore[no-untyped-call]


_MAKERS = (numpy, webdataset, parquet, arrow, jsonl, csv, safetensors, images, mds, mcap)
MAKERS: dict[str, Callable[[Path, range], None]] = {
    "torch": torch_files,
    **{maker.__name__: maker for maker in _MAKERS},
}


def make(kind: str, folder: Path, *, total_bytes: int, files: int) -> int:
    """Write a source; returns its number of rows."""
    folder.mkdir()
    rows = -(-total_bytes // ROW_BYTES)
    step = -(-rows // files)
    for start in range(0, rows, step):
        MAKERS[kind](folder, range(start, min(start + step, rows)))
    return rows + (kind == "images")
