"""Iterate over the members of a tar file; nothing is extracted, and a member name is never used as a path.

`tarfile` accumulates every member in memory, reads extended headers of any size, and accepts a truncated file; so only
its parser of single headers is used.
"""

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace

from penstock.ingest._reader import SourceReader
from penstock.ingest.sources._limits import DamagedFileError
from penstock.ingest.sources._streams import ByteStream, read_exactly
from penstock.storage import ObjectInfo

_BLOCK = 512
_MAX_EXTENDED_BYTES = 1 << 20
_MAX_NAME = 4096
_MAX_GAP_BYTES = 1 << 20
_SPARSE_READ_BYTES = 16 << 10
_DENSE_READ_BYTES = 4 << 20

_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_EXTENDED = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_WITHOUT_DATA = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE)
"""Member types without data, whatever size the header declares."""


@dataclass(frozen=True, slots=True)
class TarMember:
    """A regular file in a tar file."""

    name: str
    offset: int
    """Offset of its data."""
    size: int
    error: str | None = None
    """Why it must not be used, or None."""


def members(stream: ByteStream, end: int | None) -> Iterator[TarMember]:
    """The regular files of a tar file in order; the caller may read their data in between. `end` is its size, if known.

    A truncated or damaged file raises `DamagedFileError` at that position. Directories, links and devices are skipped.
    """
    at = data_end = 0
    extended: dict[str, str] = {}
    while True:
        if stream.seek(at) < data_end:
            raise DamagedFileError(f"is truncated in the member that ends at byte {data_end}")
        block = stream.read(_BLOCK)
        if not block:
            raise DamagedFileError(f"is truncated at byte {at}: the end marker is missing")
        if block == bytes(_BLOCK):
            return
        header = _parse_header(block, at)
        data = at + _BLOCK
        if header.type in _WITHOUT_DATA:
            at, data_end, extended = data, data, {}
            continue
        size = _size(header, extended, at)
        data_end = data + size
        at = data + -(-size // _BLOCK) * _BLOCK
        if end is not None and data_end > end:
            if header.type in _FILES:  # its name shows that the sample before it is complete
                yield replace(_member(header, data, size, extended), error="it is truncated")
            raise DamagedFileError(f"is truncated: {header.name!r} ends at byte {data_end}, and the file at {end}")
        if header.type in _EXTENDED:
            extended |= _parse_pax(_read_extended(stream, size), data)
        elif header.type == tarfile.GNUTYPE_LONGNAME:
            extended["path"] = _text(_read_extended(stream, size).rstrip(b"\0"))
        elif header.type == tarfile.GNUTYPE_SPARSE:
            raise DamagedFileError(
                f"has a sparse file, {header.name!r}; sparse files and what follows them are not read"
            )
        elif header.type in _FILES:
            yield _member(header, data, size, extended)
            extended = {}
        elif header.type not in (tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK):
            extended = {}


class SparseFile:
    """A file of which only some ranges are read: distant ones by small requests, near ones by a larger one."""

    def __init__(self, reader: SourceReader, file: ObjectInfo) -> None:
        self._reader, self._file = reader, file
        self._at = 0
        self._start, self._buffer = -2 * _MAX_GAP_BYTES, memoryview(b"")

    def read(self, size: int) -> bytes:
        size = min(size, self._file.size - self._at)
        if size <= 0:
            return b""
        end = self._start + len(self._buffer)
        if not self._start <= self._at <= self._at + size <= end:
            step = _SPARSE_READ_BYTES if abs(self._at - end) > _MAX_GAP_BYTES else _DENSE_READ_BYTES
            self._buffer = self._reader.read(self._file, self._at, min(max(size, step), self._file.size - self._at))
            self._start = self._at
        start = self._at - self._start
        self._at += size
        return bytes(self._buffer[start : start + size])

    def seek(self, offset: int) -> int:
        self._at = offset
        return offset

    def close(self) -> None:
        self._buffer = memoryview(b"")


def _parse_header(block: bytes, at: int) -> tarfile.TarInfo:
    if len(block) < _BLOCK:
        raise DamagedFileError(f"is truncated in a header at byte {at}")
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "backslashreplace")
    except tarfile.HeaderError as error:
        raise DamagedFileError(f"is not a tar file from byte {at} on: {error}") from error


def _size(header: tarfile.TarInfo, extended: dict[str, str], at: int) -> int:
    size = extended.get("size", header.size) if header.type in _FILES else header.size
    if isinstance(size, str) and (not size.isdecimal() or len(size) > 19):
        raise DamagedFileError(f"has a header with an invalid size at byte {at}")
    if int(size) < 0:
        raise DamagedFileError(f"has a header with a negative size at byte {at}")
    return int(size)


def _read_extended(stream: ByteStream, size: int) -> bytes:
    if size > _MAX_EXTENDED_BYTES:
        raise DamagedFileError(f"has a header of {size} bytes; the limit is {_MAX_EXTENDED_BYTES}")
    return read_exactly(stream, size)


def _parse_pax(data: bytes, at: int) -> dict[str, str]:
    """The fields of a pax header, whose lines start with their length."""
    found: dict[str, str] = {}
    start = 0
    while start < len(data):
        digits = data[start : start + 8].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        name, equals, value = data[start + len(digits) + 1 : start + length].partition(b"=")
        if not equals or start + length > len(data) or value[-1:] != b"\n":
            raise DamagedFileError(f"has a damaged extended header at byte {at}")
        found[_text(name)] = _text(value[:-1])
        start += length
    return found


def _member(header: tarfile.TarInfo, offset: int, size: int, extended: dict[str, str]) -> TarMember:
    name = extended.get("path", header.name)
    if len(name) > _MAX_NAME:
        raise DamagedFileError(f"has a name of {len(name)} characters; the limit is {_MAX_NAME}")
    error = None
    if name.startswith("/") or ".." in name.split("/"):
        error = "its name points outside the archive"
    elif any(key.startswith("GNU.sparse") for key in extended):
        error = "it is a sparse file, which is not supported"
    while name.startswith("./"):
        name = name[2:]
    return TarMember(name, offset, size, error)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
