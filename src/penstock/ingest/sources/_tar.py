"""Walk through a tar file by its headers; nothing is extracted, and a member's name is only a label.

Python's tarfile keeps every member it has seen, reads extended headers of any size, and takes a file that ends too
early for one that ends; so only its parser of single headers is used.
"""

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace

from penstock.ingest._bucket import Bucket
from penstock.ingest.sources._expand import Damaged, Stream, read_exactly
from penstock.storage import ObjectInfo

_BLOCK = 512
_MAX_EXTENDED_BYTES = 1 << 20
_MAX_NAME = 4096
_FAR_BYTES = 1 << 20
_GLANCE_BYTES = 16 << 10
_NEAR_BYTES = 4 << 20

_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_EXTENDED = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_BARE = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE)
"""Types of which only a header is there, whatever size it gives."""


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a tar file."""

    name: str
    offset: int
    """Where its bytes begin."""
    size: int
    flaw: str | None = None
    """Why it must not be used."""


def members(stream: Stream, end: int | None) -> Iterator[Member]:
    """The files of a tar file in order; their bytes may be read meanwhile. `end` is its size, where known.

    A file that is cut off or broken raises `Damaged` at that place. Directories, links and devices are passed over.
    """
    at = whole = 0
    told: dict[str, str] = {}
    while True:
        if stream.seek(at) < whole:
            raise Damaged(f"is cut off in the member that ends at byte {whole}")
        block = stream.read(_BLOCK)
        if not block:
            raise Damaged(f"is cut off at byte {at}: the mark of its end is missing")
        if block == bytes(_BLOCK):
            return
        header = _header(block, at)
        data = at + _BLOCK
        if header.type in _BARE:
            at, whole, told = data, data, {}
            continue
        size = _size(header, told, at)
        whole = data + size
        at = data + -(-size // _BLOCK) * _BLOCK
        if end is not None and whole > end:
            if header.type in _FILES:  # its name tells that the sample before it is whole
                yield replace(_member(header, data, size, told), flaw="it is cut off")
            raise Damaged(f"is cut off: {header.name!r} should end at byte {whole}, and the file ends at {end}")
        if header.type in _EXTENDED:
            told |= _records(_extended(stream, size), data)
        elif header.type == tarfile.GNUTYPE_LONGNAME:
            told["path"] = _text(_extended(stream, size).rstrip(b"\0"))
        elif header.type == tarfile.GNUTYPE_SPARSE:
            raise Damaged(f"holds a sparse file, {header.name!r}, and those are refused with all that follows them")
        elif header.type in _FILES:
            yield _member(header, data, size, told)
            told = {}
        elif header.type not in (tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK):
            told = {}


class Glances:
    """A file of which only some places are wanted: those far apart are read for themselves, those near together."""

    def __init__(self, bucket: Bucket, file: ObjectInfo) -> None:
        self._bucket, self._file = bucket, file
        self._at = 0
        self._start, self._window = -2 * _FAR_BYTES, memoryview(b"")

    def read(self, size: int) -> bytes:
        """See `Stream`."""
        size = min(size, self._file.size - self._at)
        if size <= 0:
            return b""
        end = self._start + len(self._window)
        if not self._start <= self._at <= self._at + size <= end:
            step = _GLANCE_BYTES if abs(self._at - end) > _FAR_BYTES else _NEAR_BYTES
            self._window = self._bucket.read(self._file, self._at, min(max(size, step), self._file.size - self._at))
            self._start = self._at
        inside = self._at - self._start
        self._at += size
        return bytes(self._window[inside : inside + size])

    def seek(self, offset: int) -> int:
        """See `Stream`."""
        self._at = offset
        return offset

    def close(self) -> None:
        """See `Stream`."""
        self._window = memoryview(b"")


def _header(block: bytes, at: int) -> tarfile.TarInfo:
    if len(block) < _BLOCK:
        raise Damaged(f"is cut off in a header at byte {at}")
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "backslashreplace")
    except tarfile.HeaderError as error:
        raise Damaged(f"is no tar file from byte {at} on: {error}") from error


def _size(header: tarfile.TarInfo, told: dict[str, str], at: int) -> int:
    size = told.get("size", header.size) if header.type in _FILES else header.size
    if isinstance(size, str) and (not size.isdecimal() or len(size) > 19):
        raise Damaged(f"has a header without a proper size at byte {at}")
    if int(size) < 0:
        raise Damaged(f"has a header with a negative size at byte {at}")
    return int(size)


def _extended(stream: Stream, size: int) -> bytes:
    if size > _MAX_EXTENDED_BYTES:
        raise Damaged(f"has a header of {size} bytes; {_MAX_EXTENDED_BYTES} is the most")
    return read_exactly(stream, size)


def _records(data: bytes, at: int) -> dict[str, str]:
    """The lines of a pax header, each of which begins with its own length."""
    found: dict[str, str] = {}
    start = 0
    while start < len(data):
        digits = data[start : start + 8].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        name, equals, value = data[start + len(digits) + 1 : start + length].partition(b"=")
        if not equals or start + length > len(data) or value[-1:] != b"\n":
            raise Damaged(f"has a damaged extended header at byte {at}")
        found[_text(name)] = _text(value[:-1])
        start += length
    return found


def _member(header: tarfile.TarInfo, offset: int, size: int, told: dict[str, str]) -> Member:
    name = told.get("path", header.name)
    if len(name) > _MAX_NAME:
        raise Damaged(f"has a name of {len(name)} characters; {_MAX_NAME} is the most")
    flaw = None
    if name.startswith("/") or ".." in name.split("/"):
        flaw = "its name leads out of the archive"
    elif any(key.startswith("GNU.sparse") for key in told):
        flaw = "it is a sparse file, and those are refused"
    while name.startswith("./"):
        name = name[2:]
    return Member(name, offset, size, flaw)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
