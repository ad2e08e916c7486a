"""Read a compressed object as what it unpacks to: forward only, piece by piece, and not without end."""

import io
from typing import Any, Protocol

import pyarrow as pa

from penstock.errors import SampleError
from penstock.ingest._bucket import Bucket
from penstock.storage import ObjectInfo

_PIECE_BYTES = 4 << 20
_MAX_RATIO = 200
_UNSUSPICIOUS_BYTES = 64 << 20
"""Up to here an object may unpack to any number of times its size."""


class Damaged(SampleError):
    """What follows in a file cannot be read, while what came before it was good."""


class Stream(Protocol):
    """What a reader of containers needs of a file."""

    def read(self, size: int, /) -> bytes:
        """That many bytes, or fewer at the end."""
        ...

    def seek(self, offset: int, /) -> int:
        """Go to a place further on; returns the place that was reached."""
        ...

    def close(self) -> None: ...


def read_exactly(stream: Stream, size: int) -> bytes:
    """As many bytes as asked for, or `Damaged`."""
    data = stream.read(size)
    if len(data) < size:
        raise Damaged(f"is cut off: {size} bytes should follow where only {len(data)} do")
    return data


def most_unpacked(size: int) -> int:
    """How many bytes an object of a size may unpack to before it is taken for a decompression bomb."""
    return max(_UNSUSPICIOUS_BYTES, _MAX_RATIO * size)


class Expanded:
    """A compressed object, unpacked while it is read."""

    def __init__(self, bucket: Bucket, file: ObjectInfo, codec: str) -> None:
        """`codec` is what Arrow calls it: gzip, zstd, bz2 or brotli."""
        self._source = bucket.open(file)
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._source, mode="r"), codec)
        self._at, self._limit = 0, most_unpacked(file.size)

    def read(self, size: int) -> bytes:
        """See `Stream`; memory is taken as the bytes come, not as `size` claims."""
        unpacked = io.BytesIO()
        while size > unpacked.tell() and (piece := self._next(size - unpacked.tell())):
            unpacked.write(piece)
        return unpacked.getvalue()

    def seek(self, offset: int) -> int:
        """See `Stream`."""
        while self._at < offset and self._next(offset - self._at):
            pass
        return self._at

    def finish(self) -> None:
        """Read to the end, where checksums are, so that damage is found."""
        while self._next(_PIECE_BYTES):
            pass

    def close(self) -> None:
        """See `Stream`."""
        self._stream.close()
        self._source.close()

    def _next(self, size: int) -> bytes:
        try:
            piece: Any = self._stream.read(min(size, _PIECE_BYTES))
        except (OSError, pa.ArrowException) as error:
            raise Damaged(f"cannot be unpacked after {self._at} bytes: {error}") from error
        self._at += len(piece)
        if self._at > self._limit:
            raise Damaged(f"unpacks to more than {self._limit} bytes, which looks like a decompression bomb")
        return bytes(piece)
