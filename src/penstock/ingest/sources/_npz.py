"""The arrays of `.npz` archives, read side by side through `zipfile` in bounded memory."""

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import numpy.typing as npt

from penstock.errors import PenstockError, SampleError
from penstock.format.kinds import Kind
from penstock.ingest._reader import SourceReader
from penstock.ingest._source import Reject, SourceItem
from penstock.ingest.sources._arrays import SLICE_BYTES, Array, check_fit, to_batch
from penstock.ingest.sources._limits import MAX_BLOCK_BYTES, check_zip
from penstock.ingest.sources._npy import read_npy_header
from penstock.ingest.sources._streams import ExactFile
from penstock.storage import ObjectInfo
from penstock.types import ByteRange

_BUFFER_BYTES = 64 << 10
_MAX_DIRECTORY_BYTES = 1 << 20
_MAX_ARRAYS = 1024
_MAX_FORTRAN_BYTES = 256 << 20
"""An array in Fortran order cannot be streamed row by row, and is read as a whole up to this size."""

Member = tuple[Array, IO[bytes]]
"""An array of an archive, and its bytes from the current row on."""


def open_archive(raw: io.RawIOBase | io.BytesIO, size: int) -> dict[str, Member]:
    """The arrays of an archive of `size` bytes by name, each at its first row; raises `SampleError`."""
    with _translated("it is not a .npz archive"):
        file = _BoundedFile(raw, _BUFFER_BYTES)
        archive = ZipFile(file)
    infos = archive.infolist()
    _check_members(infos, size)
    file.max_read_bytes = MAX_BLOCK_BYTES
    return {info.filename.removesuffix(".npy"): _open_member(archive, info) for info in infos}


def archive_rows(
    name: str, open: Callable[[], Mapping[str, Member]], kinds: Mapping[str, Kind]
) -> Iterator[SourceItem]:
    """The rows of an archive; an error ends it with a `Reject` that says from which row on."""
    start = end = 0
    try:
        archive = open()
        check_fit({column: array for column, (array, _) in archive.items()}, kinds)
        readers = {column: _row_reader(column, *member) for column, member in archive.items()}
        [rows] = {array.rows for array, _ in archive.values()}
        step = max(1, SLICE_BYTES // max(1, sum(array.row_bytes for array, _ in archive.values())))
        for start in range(0, rows, step):
            end = min(start + step, rows)
            yield to_batch(name, {column: read(start, end) for column, read in readers.items()}, kinds, start)
    except SampleError as error:
        if start == 0:
            yield Reject(name, str(error))
        else:
            yield Reject(f"{name}[{start}:]", f"{error}; the rows before it may be damaged too")


def read_member(name: str, member: IO[bytes], size: int) -> bytes:
    """The next `size` bytes of an array; `zipfile` verifies the checksum with the last ones. Raises `SampleError`."""
    with _translated(f"{name}.npy is damaged"):
        data = member.read(size) if size else b""
    if len(data) < size:
        raise SampleError(f"{name}.npy ends too early")
    return data


def _open_member(archive: ZipFile, info: ZipInfo) -> Member:
    name = info.filename.removesuffix(".npy")
    with _translated(f"{info.filename} cannot be read"):
        member = archive.open(info)
        array = read_npy_header(member)
    if not array.dtype.hasobject and array.start + array.nbytes != info.file_size:
        raise SampleError(f"{name} has {info.file_size:,} bytes, and its header declares {array.nbytes:,}")
    return array, member


def _row_reader(name: str, array: Array, member: IO[bytes]) -> Callable[[int, int], npt.NDArray[Any]]:
    if not (array.fortran and array.row_shape):
        return lambda start, end: replace(array, shape=(end - start, *array.row_shape)).from_bytes(
            read_member(name, member, (end - start) * array.row_bytes)
        )
    if array.nbytes > _MAX_FORTRAN_BYTES:
        raise SampleError(
            f"an array of {array.nbytes:,} bytes is in Fortran order, which cannot be read row by row from an archive;"
            " save np.ascontiguousarray of it"
        )
    whole = array.from_bytes(read_member(name, member, array.nbytes))
    return lambda start, end: whole[start:end]


def _check_members(infos: list[ZipInfo], size: int) -> None:
    if not 0 < len(infos) <= _MAX_ARRAYS:
        raise SampleError(f"it holds {len(infos):,} arrays; an archive must hold 1 to {_MAX_ARRAYS:,}")
    if len({info.filename for info in infos}) < len(infos):
        raise SampleError("it holds two arrays of the same name")
    for info in infos:
        if not info.filename.endswith(".npy"):
            raise SampleError(f"it holds {info.filename}, which is not an array")
        if info.flag_bits & 1 or info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            raise SampleError(f"{info.filename} is encrypted, or uses a compression that numpy does not")
    check_zip(infos, size)


@contextmanager
def _translated(problem: str) -> Iterator[None]:
    """The gate for errors of `zipfile`: on hostile bytes it raises almost any type of exception."""
    try:
        yield
    except (PenstockError, MemoryError):
        raise
    except Exception as error:
        raise SampleError(f"{problem}: {str(error) or type(error).__name__}") from error


class ArchiveFile(ExactFile):
    """An archive in a store, whose directory at the end is fetched with one request."""

    def __init__(self, reader: SourceReader, file: ObjectInfo) -> None:
        super().__init__(reader, file)
        self._tail_start = max(0, file.size - _MAX_DIRECTORY_BYTES)
        self._tail: memoryview | None = None

    def _read(self, wanted: ByteRange, out: memoryview) -> None:
        if wanted.start < self._tail_start:
            super()._read(wanted, out)
            return
        if self._tail is None:
            self._tail = self._reader.read(self._file, self._tail_start, self._file.size - self._tail_start)
        out[: wanted.length] = self._tail[wanted.start - self._tail_start : wanted.end - self._tail_start]


class _BoundedFile(io.BufferedReader):
    """Refuses reads above a limit: `zipfile` allocates whatever size the archive claims for its directory."""

    max_read_bytes = _MAX_DIRECTORY_BYTES

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > self.max_read_bytes:
            raise SampleError(f"it claims a read of {size:,} bytes; the limit is {self.max_read_bytes:,}")
        return super().read(size)
