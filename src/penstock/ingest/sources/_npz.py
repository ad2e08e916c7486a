"""The arrays of a `.npz` archive, all of them decompressed side by side, and never more of them than is asked for."""

import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from struct import unpack
from typing import Any, TypeAlias
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy.typing as npt

from penstock.errors import SampleError
from penstock.format.kinds import Kind
from penstock.ingest._source import Found, Reject
from penstock.ingest.sources._arrays import PIECE_BYTES, Array, batch, check_fit
from penstock.types import Buffer

_DIRECTORY_BYTES = 1 << 20
_MAX_ARRAYS = 1024
_MAX_RATIO = 1000
_HARMLESS_BYTES = 16 << 20
"""An archive of so little is no bomb, however well it is compressed."""
_HEAD_BYTES = 16 << 10
_LEAST_STEP_BYTES = 64 << 10
_WHOLE_BYTES = 256 << 20
"""An array in Fortran order cannot be taken row by row from a stream, and is held as a whole up to this size."""

Fetch: TypeAlias = Callable[[int, int], memoryview]
"""Reads so many bytes from a place of the archive."""


class Member:
    """One array's bytes, in order."""

    def __init__(self, fetch: Fetch, info: ZipInfo, *, size: int, step_bytes: int) -> None:
        """`size` is that of the archive, of which at most `step_bytes` are held."""
        lengths = unpack("<HH", fetch(info.header_offset + 26, 4))
        self._at = info.header_offset + 30 + sum(lengths)
        self._end = self._at + info.compress_size
        if self._end > size:
            raise SampleError(f"{info.filename} reaches over the end of the archive")
        self._fetch, self._info, self._most = fetch, info, step_bytes
        self._step = _LEAST_STEP_BYTES
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS) if info.compress_type == ZIP_DEFLATED else None
        self._raw: Buffer = b""
        self._ready = bytearray()
        self._crc = 0

    def peek(self, size: int) -> bytes:
        """The next bytes, which will be read again."""
        self._ready = self._take(size)
        return bytes(self._ready)

    def skip(self, size: int) -> None:
        """Leave out bytes that were peeked at."""
        del self._ready[:size]

    def read(self, size: int) -> bytearray:
        """The next bytes."""
        ready, self._ready = self._ready[:size], self._ready[size:]
        return ready + self._take(size - len(ready)) if len(ready) < size else ready

    def check(self) -> None:
        """Refuse bytes that are not those that were stored; to be called after the last."""
        if self._crc != self._info.CRC:
            raise SampleError(f"the checksum of {self._info.filename} is wrong: its bytes were damaged")

    def _take(self, size: int) -> bytearray:
        taken = bytearray()
        while len(taken) < size:
            if not self._raw and self._at < self._end:
                length = min(self._step, self._end - self._at)
                self._raw = self._fetch(self._at, length)
                self._at += length
                self._step = min(2 * self._step, self._most)
            some = self._plain(size - len(taken))
            if not some and not self._raw and self._at >= self._end:
                raise SampleError(f"{self._info.filename} ends too early")
            taken += some
        self._crc = zlib.crc32(taken, self._crc)
        return taken

    def _plain(self, size: int) -> Buffer:
        if self._inflate is None:
            some, self._raw = self._raw[:size], self._raw[size:]
            return some
        try:
            inflated = self._inflate.decompress(self._raw, size)
        except zlib.error as error:
            raise SampleError(f"{self._info.filename} cannot be decompressed: {error}") from None
        self._raw = self._inflate.unconsumed_tail
        return inflated


def open_archive(fetch: Fetch, size: int, parse: Callable[[Buffer], Array]) -> dict[str, tuple[Array, Member]]:
    """The arrays of an archive by name, each at its first row; `SampleError` says what is wrong with it."""
    infos = _directory(fetch, size)
    step = max(_LEAST_STEP_BYTES, PIECE_BYTES // len(infos))
    opened: dict[str, tuple[Array, Member]] = {}
    for info in infos:
        member = Member(fetch, info, size=size, step_bytes=step)
        name = info.filename.removesuffix(".npy")
        head = member.peek(min(info.file_size, _HEAD_BYTES))
        try:
            array = parse(head)
        except SampleError as error:
            raise SampleError(f"{name}: {error}") from None
        if not array.dtype.hasobject and array.start + array.nbytes != info.file_size:
            raise SampleError(f"{name} has {info.file_size:,} bytes, and its header speaks of {array.nbytes:,}")
        member.skip(array.start)
        opened[name] = array, member
    return opened


def archive_rows(
    name: str, open: Callable[[], Mapping[str, tuple[Array, Member]]], kinds: Mapping[str, Kind]
) -> Iterator[Found]:
    """The rows of an archive; what goes wrong half-way ends it, with a word on where that was."""
    start = end = 0
    try:
        archive = open()
        check_fit({column: array for column, (array, _) in archive.items()}, kinds)
        takers = {column: _taker(*opened) for column, opened in archive.items()}
        [rows] = {array.rows for array, _ in archive.values()}
        step = max(1, PIECE_BYTES // max(1, sum(array.row_bytes for array, _ in archive.values())))
        for start in range(0, rows, step):
            end = min(start + step, rows)
            columns = {column: take(start, end) for column, take in takers.items()}
            if end == rows:
                for _, member in archive.values():
                    member.check()
            yield batch(name, columns, kinds, start)
    except SampleError as error:
        if start == 0:
            yield Reject(name, str(error))
        else:
            yield Reject(f"{name}[{start}:]", f"{error}; the rows before may be damaged too")


def _taker(array: Array, member: Member) -> Callable[[int, int], npt.NDArray[Any]]:
    if not (array.fortran and array.row_shape):
        return lambda start, end: replace(array, shape=(end - start, *array.row_shape)).of(
            member.read((end - start) * array.row_bytes)
        )
    if array.nbytes > _WHOLE_BYTES:
        raise SampleError(
            f"an array of {array.nbytes:,} bytes is in Fortran order, which cannot be read row by row from an archive;"
            " save np.ascontiguousarray of it"
        )
    whole = array.of(member.read(array.nbytes))
    return lambda start, end: whole[start:end]


def _directory(fetch: Fetch, size: int) -> list[ZipInfo]:
    """What an archive says it holds, if that can be true."""
    try:
        length = min(size, _DIRECTORY_BYTES)
        with ZipFile(io.BufferedReader(_End(fetch(size - length, length), size))) as archive:
            infos = archive.infolist()
    except Exception as error:  # zipfile takes a directory at its word, and one made to harm can fail in any way
        raise SampleError(f"it is not a .npz archive: {error}") from None
    if not 0 < len(infos) <= _MAX_ARRAYS:
        raise SampleError(f"it holds {len(infos):,} arrays; it can be 1 to {_MAX_ARRAYS:,}")
    if len({info.filename for info in infos}) < len(infos):
        raise SampleError("it holds two arrays of one name")
    if sum(info.compress_size for info in infos) > size:
        raise SampleError("its arrays overlap: together they are larger than the archive")
    for info in infos:
        _check(info, size)
    return infos


def _check(info: ZipInfo, size: int) -> None:
    name = info.filename
    if not name.endswith(".npy"):
        raise SampleError(f"it holds {name}, which is no array")
    if info.flag_bits & 1 or info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise SampleError(f"{name} is encrypted, or compressed in a way that numpy does not use")
    if not 0 <= info.header_offset <= size - 30:
        raise SampleError(f"{name} lies outside the archive")
    if info.file_size > _HARMLESS_BYTES and info.file_size > _MAX_RATIO * info.compress_size:
        raise SampleError(
            f"{name} would grow from {info.compress_size:,} to {info.file_size:,} bytes, as bombs do; if it is none,"
            " save it with np.savez, uncompressed"
        )


class _End(io.RawIOBase):
    """The last bytes of an object, as a file of its full length: a directory lies there."""

    def __init__(self, data: memoryview, size: int) -> None:
        self._data, self._size, self._at = data, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if at < 0:
            raise OSError("before the beginning")
        self._at = at
        return at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        start = self._at - (self._size - len(self._data))
        if start < 0:
            raise BadZipFile(f"its directory is larger than {_DIRECTORY_BYTES:,} bytes")
        some = self._data[start : start + len(buffer)]
        buffer[: len(some)] = some
        self._at += len(some)
        return len(some)
