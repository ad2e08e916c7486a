"""Byte streams over the objects of a source: decompressed while they are read, by line, or fetched by exact ranges."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

from penstock.errors import SourceChangedError
from penstock.ingest._reader import SourceReader
from penstock.ingest._source import COMPRESSIONS, Reject, RejectedFileError, Row, SourceItem, suffix
from penstock.ingest.sources._limits import UNREADABLE, DamagedFileError, check_unpacked
from penstock.storage import ObjectInfo
from penstock.table import RangeFile
from penstock.types import ByteRange

_READ_BYTES = 4 << 20
BUFFER_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 20
_STREAMED = (".gz", ".zst", ".zstd", ".bz2")
"""Compressions of text and tar files; the other ones are not streams, or are used by MDS alone."""


class ByteStream(Protocol):
    """The part of a file interface that container parsers use."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; fewer only at the end."""
        ...

    def seek(self, offset: int, /) -> int:
        """Move forward to an offset; returns the offset reached."""
        ...

    def close(self) -> None: ...


def read_exactly(stream: ByteStream, size: int) -> bytes:
    """Read `size` bytes; raises `DamagedFileError` if the stream ends before."""
    data = stream.read(size)
    if len(data) < size:
        raise DamagedFileError(f"is truncated: {size} bytes are expected and {len(data)} are left")
    return data


class DecompressedStream:
    """The decompressed bytes of an object, forward only, within the limit on expansion."""

    def __init__(self, reader: SourceReader, file: ObjectInfo, codec: str) -> None:
        """`codec` is Arrow's name: gzip, zstd, bz2 or brotli."""
        self._source = reader.open(file)
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._source, mode="r"), codec)
        self._offset, self._packed_bytes, self._key = 0, file.size, file.key

    def read(self, size: int) -> bytes:
        """See `ByteStream`; memory grows with the bytes that arrive, not with `size`."""
        unpacked = io.BytesIO()
        while size > unpacked.tell() and (data := self._next(size - unpacked.tell())):
            unpacked.write(data)
        return unpacked.getvalue()

    def seek(self, offset: int) -> int:
        while self._offset < offset and self._next(offset - self._offset):
            pass
        return self._offset

    def drain(self) -> None:
        """Read to the end, so that the checksums there are verified."""
        while self._next(_READ_BYTES):
            pass

    def close(self) -> None:
        self._stream.close()
        self._source.close()

    def _next(self, size: int) -> bytes:
        try:
            data: Any = self._stream.read(min(size, _READ_BYTES))
        except (OSError, pa.ArrowException) as error:
            raise DamagedFileError(f"cannot be decompressed after {self._offset} bytes: {error}") from error
        self._offset += len(data)
        try:
            check_unpacked(self._packed_bytes, self._offset)
        except DamagedFileError as error:
            raise RejectedFileError(self._key, str(error)) from None
        return bytes(data)


def codec_of(key: str) -> str | None:
    """Arrow's name of the codec that the name of a file ends in; None if it is not compressed."""
    return "gzip" if suffix(key) == ".tgz" else COMPRESSIONS.get(suffix(key))


def open_unpacked(reader: SourceReader, file: ObjectInfo) -> BinaryIO | DecompressedStream:
    """The bytes of an object, decompressed if it is compressed; prefetched, forward only."""
    codec = codec_of(file.key)
    return reader.open(file) if codec is None else DecompressedStream(reader, file, codec)


def with_compressions(*endings: str) -> tuple[str, ...]:
    """Some extensions, and those of such files that are compressed as a stream."""
    return (*endings, *(ending + compression for ending in endings for compression in _STREAMED))


class ExactFile(RangeFile):
    """An object as a file that fetches exactly the ranges read, without prefetch; for readers that seek."""

    def __init__(self, reader: SourceReader, file: ObjectInfo) -> None:
        super().__init__(file.size)
        self._reader, self._file = reader, file

    def _read(self, wanted: ByteRange, out: memoryview) -> None:
        out[: wanted.length] = self._reader.read(self._file, wanted.start, wanted.length)


class UnpackedFile(io.RawIOBase):
    """The bytes of an object, decompressed if it is compressed."""

    def __init__(self, reader: SourceReader, file: ObjectInfo) -> None:
        self.source = open_unpacked(reader, file)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self.source.close()
        super().close()

    def _read(self, size: int) -> bytes:
        return self.source.read(size)


def line_rows(
    reader: SourceReader, files: Sequence[ObjectInfo], make_row: Callable[[str, bytes], Row | Reject]
) -> Iterator[SourceItem]:
    """A row of each line that is not empty; `make_row` gets its name and bytes."""
    for file in files:
        number = 0
        try:
            for number, line in read_lines(reader, file):
                name = f"{file.key}:{number}"
                yield Reject(name, too_long()) if line is None else make_row(name, line)
        except SourceChangedError as error:
            if number:  # rows of the old version were yielded: the whole part must be retried
                raise
            yield Reject(file.key, str(error))
        except UNREADABLE as error:
            name = f"{file.key}:{number + 1}" if number else file.key
            yield Reject(name, f"cannot be read from this line on: {error}")


def too_long() -> str:
    """Why a line above the size limit is rejected."""
    return f"is longer than {MAX_LINE_BYTES:,} bytes"


def read_lines(reader: SourceReader, file: ObjectInfo) -> Iterator[tuple[int, bytes | None]]:
    """Line numbers and lines without empty ones; None for a line above the size limit."""
    with closing(io.BufferedReader(UnpackedFile(reader, file), BUFFER_BYTES)) as text:
        number = 0
        while line := text.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                _skip_line(text, line)
                yield number, None
                continue
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if line.strip():
                yield number, line


def _skip_line(text: BinaryIO, line: bytes) -> None:
    while line and not line.endswith(b"\n"):
        line = text.readline(BUFFER_BYTES)
