"""The messages of an Arrow stream, checked before Arrow unpacks them.

Arrow believes the lengths that a message gives, and takes as much memory as they say. They are found in FlatBuffers, of
which this reads the few fields it needs (`Message.fbs`): a message is a table with the type of its header, the header,
and the length of its body. The header of a record batch says where in the body the buffers are, and whether they are
compressed: each of them then begins with its length before that.
"""

import io
import struct
from collections import deque
from typing import Any, BinaryIO

from penstock.ingest.sources._expand import Damaged, read_exactly

MAX_BATCH_BYTES = 1 << 30
"""A record batch is held as a whole."""

_FILE_MAGIC = b"ARROW1\0\0"
_FEATHER_1_MAGIC = b"FEA1"
_CONTINUES = b"\xff\xff\xff\xff"
_MAX_HEADER_BYTES = 256 << 20
_DICTIONARY, _RECORD_BATCH = 2, 3


class CheckedMessages(io.RawIOBase):
    """An Arrow stream, or what is one inside an Arrow file, message by message; a message too large is `Damaged`."""

    def __init__(self, source: BinaryIO, size: int) -> None:
        """`size` is that of the whole source."""
        self._source, self._size, self._ended = source, size, False
        self._pieces: deque[bytes] = deque()
        head = source.read(len(_FILE_MAGIC))
        if head[:4] == _FEATHER_1_MAGIC:
            raise Damaged("is a Feather file of version 1; read it with pandas and write it anew")
        self._is_file = head == _FILE_MAGIC
        if not self._is_file:
            source.seek(0)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """So many bytes of the stream, or fewer at its end."""
        found: list[bytes] = []
        while size > 0 and (self._pieces or not self._ended):
            if not self._pieces:
                self._pieces.extend(self._next())
                continue
            piece = self._pieces.popleft()
            if len(piece) > size:
                self._pieces.appendleft(piece[size:])
                piece = piece[:size]
            found.append(piece)
            size -= len(piece)
        return found[0] if len(found) == 1 else b"".join(found)

    def _next(self) -> list[bytes]:
        """One message in pieces, with what comes before it."""
        head = start = self._source.read(4)
        if head == _CONTINUES:
            head = self._exactly(4)
            start += head
        if not head and self._is_file:  # a stream may end anywhere, but this has more to come
            raise Damaged("is cut off: nothing says that this was the last batch")
        length = int.from_bytes(head, "little")
        if not length:
            self._ended = True
            return [start]
        if len(head) < 4 or length > _MAX_HEADER_BYTES:
            raise Damaged("is no Arrow stream: what should be the length of a message is not")
        header = self._exactly(length)
        try:
            size, compressed = _sizes(header)
        except (struct.error, ValueError) as error:
            raise Damaged(f"holds a message that cannot be understood: {error}") from error
        _check_size(size)
        body = self._exactly(size)
        lengths = (int.from_bytes(body[place : place + 8], "little", signed=True) for place in compressed)
        _check_size(sum(max(0, length) for length in lengths))  # -1 is a buffer that is not compressed after all
        return [start, header, body]

    def _exactly(self, size: int) -> bytes:
        left = self._size - self._source.tell()
        if size > left:  # asked for anyway, it would take the memory before it finds out
            raise Damaged(f"is cut off: {size:,} bytes should follow where only {left:,} do")
        return read_exactly(self._source, size)


def _check_size(size: int) -> None:
    if not 0 <= size <= MAX_BATCH_BYTES:
        raise Damaged(
            f"holds a record batch of {size:,} bytes, and {MAX_BATCH_BYTES:,} are the most that is held at once;"
            " write it anew with smaller batches"
        )


def _sizes(header: bytes) -> tuple[int, list[int]]:
    """The length of a message's body, and where in it compressed buffers begin."""
    message = _Table(header, _unsigned(header, 0))
    size = int(message.number(3, "<q"))
    kind = message.number(1, "<B")
    if kind not in (_DICTIONARY, _RECORD_BATCH):
        return size, []
    batch = message.table(2)
    if kind == _DICTIONARY and batch is not None:
        batch = batch.table(1)
    if batch is None or batch.table(3) is None:
        return size, []
    return size, [place for place, length in batch.pairs(2) if length]


class _Table:
    """A FlatBuffers table: its fields are found by their numbers."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - _signed(data, at)
        if not 0 <= self._fields < len(data):
            raise ValueError("a table lies outside of it")
        self._size: int = struct.unpack_from("<H", data, self._fields)[0]

    def number(self, field: int, form: str) -> Any:
        place = self._place(field)
        return 0 if place is None else struct.unpack_from(form, self._data, place)[0]

    def table(self, field: int) -> "_Table | None":
        place = self._place(field)
        return None if place is None else _Table(self._data, place + _unsigned(self._data, place))

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """A vector of structs of two long numbers."""
        place = self._place(field)
        if place is None:
            return []
        vector = place + _unsigned(self._data, place)
        count = _unsigned(self._data, vector)
        if vector + 4 + 16 * count > len(self._data):
            raise ValueError("a vector lies outside of it")
        return [struct.unpack_from("<qq", self._data, vector + 4 + 16 * number) for number in range(count)]

    def _place(self, field: int) -> int | None:
        entry = 4 + 2 * field
        if entry >= self._size:
            return None
        offset = struct.unpack_from("<H", self._data, self._fields + entry)[0]
        return self._at + offset if offset else None


def _unsigned(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def _signed(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<i", data, at)[0])
