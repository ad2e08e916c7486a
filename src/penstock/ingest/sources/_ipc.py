"""The messages of an Arrow IPC stream, validated before Arrow decodes them.

Arrow allocates what a compressed buffer declares as its uncompressed length. pyarrow has no memory pool with a limit,
and its `MessageReader` does not expose where the buffers of a record batch are, so a decompression bomb can only be
refused by reading those fields of the FlatBuffers metadata (`Message.fbs`) here: the header type, the body length, and
the buffers of a record batch, each of which starts with its uncompressed length if the batch is compressed.
"""

import io
import struct
from collections import deque
from typing import Any, BinaryIO

from penstock.ingest.sources._limits import DamagedFileError, check_block
from penstock.ingest.sources._streams import read_exactly

_FILE_MAGIC = b"ARROW1\0\0"
_FEATHER_1_MAGIC = b"FEA1"
_CONTINUATION = b"\xff\xff\xff\xff"
_MAX_HEADER_BYTES = 256 << 20
_DICTIONARY, _RECORD_BATCH = 2, 3
_UNIT = "record batch"


class ValidatedMessages(io.RawIOBase):
    """The messages of an Arrow stream or file, as a file; an oversized message raises `DamagedFileError`."""

    def __init__(self, source: BinaryIO, size: int) -> None:
        """`size` is the size of the source in bytes."""
        self._source, self._size, self._ended = source, size, False
        self._chunks: deque[bytes] = deque()
        head = source.read(len(_FILE_MAGIC))
        if head[:4] == _FEATHER_1_MAGIC:
            raise DamagedFileError("is a Feather file of version 1; read it with pandas and write it again")
        self._is_file = head == _FILE_MAGIC
        if not self._is_file:
            source.seek(0)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes of the stream; fewer only at its end."""
        parts: list[bytes] = []
        while size > 0 and (self._chunks or not self._ended):
            if not self._chunks:
                self._chunks.extend(self._next_message())
                continue
            chunk = self._chunks.popleft()
            if len(chunk) > size:
                self._chunks.appendleft(chunk[size:])
                chunk = chunk[:size]
            parts.append(chunk)
            size -= len(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _next_message(self) -> list[bytes]:
        """One message: its length prefix, metadata and body."""
        length_bytes = prefix = self._source.read(4)
        if length_bytes == _CONTINUATION:
            length_bytes = self._exactly(4)
            prefix += length_bytes
        if not length_bytes and self._is_file:  # a stream may end here; a file has an end marker and an index
            raise DamagedFileError("is truncated: the end-of-stream marker is missing")
        length = int.from_bytes(length_bytes, "little")
        if not length:
            self._ended = True
            return [prefix]
        if len(length_bytes) < 4 or length > _MAX_HEADER_BYTES:
            raise DamagedFileError("is not an Arrow stream: the length of a message is invalid")
        metadata = self._exactly(length)
        try:
            body_bytes, compressed = _body_layout(metadata)
        except (struct.error, ValueError) as error:
            raise DamagedFileError(f"has a message whose metadata is invalid: {error}") from error
        check_block(body_bytes, _UNIT)
        body = self._exactly(body_bytes)
        lengths = (int.from_bytes(body[start : start + 8], "little", signed=True) for start in compressed)
        check_block(sum(max(0, length) for length in lengths), _UNIT)  # -1 marks a buffer stored uncompressed
        return [prefix, metadata, body]

    def _exactly(self, size: int) -> bytes:
        left = self._size - self._source.tell()
        if size > left:  # checked first: the read would allocate `size` bytes
            raise DamagedFileError(f"is truncated: {size:,} bytes are expected and {left:,} are left")
        return read_exactly(self._source, size)


def _body_layout(metadata: bytes) -> tuple[int, list[int]]:
    """The body length of a message, and the offsets of the compressed buffers in the body."""
    message = _Table(metadata, _uint32(metadata, 0))
    size = int(message.scalar(3, "<q"))
    kind = message.scalar(1, "<B")
    if kind not in (_DICTIONARY, _RECORD_BATCH):
        return size, []
    batch = message.table(2)
    if kind == _DICTIONARY and batch is not None:
        batch = batch.table(1)
    if batch is None or batch.table(3) is None:
        return size, []
    return size, [start for start, length in batch.int64_pairs(2) if length]


class _Table:
    """A FlatBuffers table, with fields by index."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._vtable = at - struct.unpack_from("<i", data, at)[0]
        if not 0 <= self._vtable < len(data):
            raise ValueError("a table is out of bounds")
        self._vtable_bytes: int = struct.unpack_from("<H", data, self._vtable)[0]

    def scalar(self, field: int, format: str) -> Any:
        at = self._offset(field)
        return 0 if at is None else struct.unpack_from(format, self._data, at)[0]

    def table(self, field: int) -> "_Table | None":
        at = self._offset(field)
        return None if at is None else _Table(self._data, at + _uint32(self._data, at))

    def int64_pairs(self, field: int) -> list[tuple[int, int]]:
        """A vector of structs of two int64."""
        at = self._offset(field)
        if at is None:
            return []
        vector = at + _uint32(self._data, at)
        count = _uint32(self._data, vector)
        if vector + 4 + 16 * count > len(self._data):
            raise ValueError("a vector is out of bounds")
        return [struct.unpack_from("<qq", self._data, vector + 4 + 16 * index) for index in range(count)]

    def _offset(self, field: int) -> int | None:
        entry = 4 + 2 * field
        if entry >= self._vtable_bytes:
            return None
        offset = struct.unpack_from("<H", self._data, self._vtable + entry)[0]
        return self._at + offset if offset else None


def _uint32(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])
