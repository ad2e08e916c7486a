"""Sources of a given size, quickly made: so many files, and how many rows they have together."""

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import simplejpeg
from safetensors.numpy import save_file

ROW_BYTES = 1 << 20
_DATA = pa.schema([("data", pa.binary())])


def noise(number: int, size: int = ROW_BYTES) -> bytes:
    """One of a few rows, told apart by its first bytes."""
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
    for start in range(numbers.start, numbers.stop, 32):  # the library writes a file from memory
        part = range(start, min(start + 32, numbers.stop))
        values = np.frombuffer(b"".join(map(noise, part)), np.uint8).reshape(len(part), ROW_BYTES)
        save_file({"data": values}, folder / f"{start:06}.safetensors")


def images(folder: Path, numbers: range) -> None:
    """Pictures of a megabyte and a half: one, under many names."""
    first = folder / "cat" / "first.jpg"
    if not first.exists():
        first.parent.mkdir()
        pixels = np.random.default_rng(0).integers(0, 255, (1024, 1024, 3), np.uint8)
        first.write_bytes(simplejpeg.encode_jpeg(pixels, quality=95))
    for number in numbers:
        os.link(first, folder / "cat" / f"{number:06}.jpg")


MAKERS: dict[str, Callable[[Path, range], None]] = {
    maker.__name__: maker for maker in (numpy, webdataset, parquet, arrow, jsonl, csv, safetensors, images)
}


def make(kind: str, folder: Path, *, total_bytes: int, files: int) -> int:
    """Write a source; returns how many rows it has."""
    folder.mkdir()
    rows = -(-total_bytes // ROW_BYTES)
    step = -(-rows // files)
    for start in range(0, rows, step):
        MAKERS[kind](folder, range(start, min(start + step, rows)))
    return rows + (kind == "images")
