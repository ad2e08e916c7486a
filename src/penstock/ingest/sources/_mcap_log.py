"""The messages of an MCAP file in the order of their times, in bounded memory, past the parts that are broken.

The container (https://mcap.dev/spec) is read here and not by the `mcap` package: its reader ends at the first broken
chunk, sorts a file that has no index in memory, and expands a chunk to whatever size it turns out to have.
"""

import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import BinaryIO, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.ingest._bucket import Bucket
from penstock.ingest._source import Reject
from penstock.storage import ObjectInfo

_MAGIC = b"\x89MCAP0\r\n"
_FOOTER, _SCHEMA, _CHANNEL, _MESSAGE, _CHUNK, _CHUNK_INDEX, _STATISTICS, _DATA_END = 2, 3, 4, 5, 6, 8, 11, 15
_RECORD = struct.Struct("<BQ")
_FOOTER_BODY = struct.Struct("<QQI")
_MESSAGE_HEAD = struct.Struct("<HIQQ")
_CHUNK_HEAD = struct.Struct("<QQQI")
_CHUNK_PLACE = struct.Struct("<QQQQ")
_COUNTS_AT = 42
_PAIRS = np.dtype([("channel", "<u2"), ("number", "<u8")])
_END_BYTES = _RECORD.size + _FOOTER_BODY.size + len(_MAGIC)
_TAIL_BYTES = 64 << 10
_PER_MESSAGE_BYTES = 256
_REORDER_NS = 1_000_000_000
_NEVER = 1 << 64
_SAMPLED_CHUNKS = 64


@dataclass(frozen=True)
class Limits:
    """How much memory a file may ask for."""

    chunk_bytes: int = 512 << 20
    """A larger chunk or message is left out."""
    window_bytes: int = 128 << 20
    """Messages that wait for older ones; what comes later than that is left out."""
    summary_bytes: int = 128 << 20
    """A file with a larger summary is read as one that has none."""
    sample_bytes: int = 64 << 20
    """How far a file that has no index is read to learn its topics."""


@dataclass(frozen=True, eq=False)
class Channel:
    """A topic, and how the messages of one of its writers are encoded."""

    topic: str
    encoding: str
    schema_name: str
    schema_encoding: str
    schema: bytes


class Message(NamedTuple):
    """One message as it was logged."""

    time_ns: int
    channel: Channel
    data: bytes


@dataclass(frozen=True)
class Summary:
    """What the end of a file says about the rest of it."""

    channels: Mapping[int, Channel]
    counts: Mapping[int, int]
    """Messages by channel; empty where the file does not say."""
    chunks: npt.NDArray[np.uint64]
    """The time of its first message, the place and the length of each chunk, in the order of the file."""
    first: Mapping[int, int]
    last: Mapping[int, int]
    """The first and the last chunk that holds messages of a channel."""

    @property
    def has_index(self) -> bool:
        return len(self.chunks) > 0 and len(self.channels) > 0

    def topics(self) -> dict[str, int]:
        """How many messages each topic has; none where the file does not say."""
        found: dict[str, int] = {}
        for number, channel in self.channels.items():
            if count := self.counts.get(number, 0):
                found[channel.topic] = found.get(channel.topic, 0) + count
        return found


class _Broken(ValueError):
    """Bytes that are not what the specification says."""


_Found: TypeAlias = tuple[int, list[Message] | Reject]
"""No message before this time follows; and messages in any order, or what could not be read."""


def read_summary(bucket: Bucket, file: ObjectInfo, limits: Limits) -> Summary | None:
    """The summary at the end of a file; None where there is none that can be trusted."""
    if file.size < len(_MAGIC) + _END_BYTES:
        return None
    start = max(0, file.size - _TAIL_BYTES)
    tail = bucket.read(file, start, file.size - start)
    footer = len(tail) - _END_BYTES
    if bytes(tail[-len(_MAGIC) :]) != _MAGIC or _RECORD.unpack_from(tail, footer) != (_FOOTER, _FOOTER_BODY.size):
        return None
    begin, _, checksum = _FOOTER_BODY.unpack_from(tail, footer + _RECORD.size)
    size = file.size - begin
    if begin < len(_MAGIC) or not _END_BYTES <= size <= limits.summary_bytes:
        return None
    data = tail[begin - start :] if begin >= start else bucket.read(file, begin, size)
    if checksum and zlib.crc32(data[: -len(_MAGIC) - 4]) != checksum:
        return None
    try:
        return _parse_summary(data[:-_END_BYTES], limits)
    except (ValueError, struct.error):
        return None


def messages(bucket: Bucket, file: ObjectInfo, *, last: str, limits: Limits) -> Iterator[Message | Reject]:
    """All messages in the order of their log times, of equal ones those of the topic `last` after the others."""
    summary = read_summary(bucket, file, limits)
    directory = _Directory(limits.summary_bytes)
    with bucket.open(file) as stream:
        if stream.read(len(_MAGIC)) != _MAGIC:
            yield Reject(file.key, "it is not an MCAP file: its first bytes are others")
            return
        found: Iterator[_Found]
        if summary is not None and summary.has_index:
            directory.channels.update(summary.channels)
            order = np.argsort(summary.chunks[:, 0], kind="stable")
            found = _indexed(stream, file, summary.chunks[order], directory, limits)
        else:
            found = _linear(stream, file, directory, limits)
        yield from _in_order(file, found, last, limits.window_bytes)
    for number in sorted(directory.unknown):
        yield Reject(f"{file.key}, channel {number}", "there are messages on this channel, but no record describes it")


def sample(bucket: Bucket, file: ObjectInfo, summary: Summary | None, limits: Limits) -> Iterator[list[Message]]:
    """Messages of the first and the last chunk of each channel, or of a file without an index its first ones."""
    directory = _Directory(limits.summary_bytes)
    with bucket.open(file) as stream:
        if stream.read(len(_MAGIC)) != _MAGIC:
            return
        found: Iterator[_Found]
        indexed = summary is not None and summary.has_index
        if summary is not None and indexed:
            directory.channels.update(summary.channels)
            ends = [*dict.fromkeys([*summary.first.values(), *summary.last.values()])] or [*range(len(summary.chunks))]
            places = summary.chunks[sorted(ends[:_SAMPLED_CHUNKS])]
            found = _indexed(stream, file, places, directory, limits)
        else:
            found = _linear(stream, file, directory, limits)
        for _, some in found:
            if isinstance(some, list):
                yield some
            if not indexed and stream.tell() > limits.sample_bytes:
                return


def _in_order(file: ObjectInfo, found: Iterable[_Found], last: str, window_bytes: int) -> Iterator[Message | Reject]:
    heap: list[tuple[int, bool, int, Message]] = []
    waiting = count = late = 0
    clock = -1

    def leaving(floor: int) -> Iterator[Message]:
        nonlocal waiting, clock
        while heap and (heap[0][0] < floor or waiting > window_bytes):
            clock, _, _, message = heappop(heap)
            waiting -= len(message.data) + _PER_MESSAGE_BYTES
            yield message

    for floor, some in found:
        if isinstance(some, Reject):
            yield some
            continue
        for message in some:
            if message.time_ns < clock:
                late += 1
                continue
            heappush(heap, (message.time_ns, message.channel.topic == last, count, message))
            count += 1
            waiting += len(message.data) + _PER_MESSAGE_BYTES
        yield from leaving(floor)
    yield from leaving(_NEVER)
    if late:
        yield Reject(
            f"{file.key}, late messages",
            f"{late} messages lie too far behind newer ones in the file to be put in order; sort the file (mcap sort)",
        )


def _indexed(
    stream: BinaryIO, file: ObjectInfo, places: npt.NDArray[np.uint64], directory: "_Directory", limits: Limits
) -> Iterator[_Found]:
    for number, (_, offset, length) in enumerate(map(np.ndarray.tolist, places)):
        floor = int(places[number + 1][0]) if number + 1 < len(places) else _NEVER
        name = f"{file.key}, chunk at byte {offset}"
        if length > limits.chunk_bytes or offset + length > file.size:
            yield floor, Reject(name, f"its {length} bytes are more than the file has, or than may be held in memory")
            continue
        stream.seek(offset)
        record = memoryview(stream.read(length))
        try:
            if _RECORD.unpack_from(record) != (_CHUNK, length - _RECORD.size):
                raise _Broken("the index points to something that is not a chunk")
            some = _open_chunk(record[_RECORD.size :], directory, limits)
        except (ValueError, struct.error) as error:
            yield floor, Reject(name, f"it cannot be read: {error}")
        else:
            yield floor, some


def _linear(stream: BinaryIO, file: ObjectInfo, directory: "_Directory", limits: Limits) -> Iterator[_Found]:
    at, newest = len(_MAGIC), 0
    while True:
        stream.seek(at)
        head = stream.read(_RECORD.size)
        opcode, length = _RECORD.unpack(head) if len(head) == _RECORD.size else (0, 0)
        if opcode in (_DATA_END, _FOOTER):
            return
        name = f"{file.key}, record at byte {at}"
        at += _RECORD.size + length
        if opcode == 0 or at > file.size:
            yield _NEVER, Reject(name, "the file is cut off or damaged here; the rest of it cannot be read")
            return
        if opcode not in (_SCHEMA, _CHANNEL, _MESSAGE, _CHUNK):
            continue
        if length > limits.chunk_bytes:
            yield 0, Reject(name, f"its {length} bytes are more than may be held in memory ({limits.chunk_bytes})")
            continue
        body = memoryview(stream.read(length))
        try:
            some = _open_chunk(body, directory, limits) if opcode == _CHUNK else _one(opcode, body, directory)
        except (ValueError, struct.error) as error:
            yield 0, Reject(name, f"it cannot be read: {error}")
            continue
        if some:
            newest = max(newest, *(message.time_ns for message in some))
            yield newest - _REORDER_NS, some


def _open_chunk(body: memoryview, directory: "_Directory", limits: Limits) -> list[Message]:
    _, _, size, checksum = _CHUNK_HEAD.unpack_from(body)
    compression, at = _text(body, _CHUNK_HEAD.size)
    [length] = struct.unpack_from("<Q", body, at)
    packed = body[at + 8 :]
    if length != len(packed):
        raise _Broken("its length is not that of its record")
    if size > limits.chunk_bytes:
        raise _Broken(f"it would take {size} bytes of memory; the limit is {limits.chunk_bytes}")
    plain = _expand(packed, compression, size)
    if checksum and zlib.crc32(plain) != checksum:
        raise _Broken("its checksum does not fit its bytes: they are damaged")
    found: list[Message] = []
    for opcode, record in _records(plain):
        found += _one(opcode, record, directory)
    return found


def _expand(packed: memoryview, compression: str, size: int) -> memoryview:
    if compression == "":
        plain = packed
    elif compression in ("lz4", "zstd"):
        try:
            expanding = pa.CompressedInputStream(pa.BufferReader(packed), compression)
            plain = memoryview(expanding.read(size + 1))
        except (OSError, pa.ArrowException) as error:
            raise _Broken(f"its {compression} data are damaged: {error}") from error
    else:
        raise _Broken(f"its compression {compression!r} is not known; lz4 and zstd are")
    if len(plain) != size:
        raise _Broken(f"its size is not the {size} bytes that it says")
    return plain


def _one(opcode: int, body: memoryview, directory: "_Directory") -> list[Message]:
    """What a record outside of a chunk, or in one, holds."""
    if opcode in (_SCHEMA, _CHANNEL):
        directory.learn(opcode, body)
    elif opcode == _MESSAGE:
        number, _, time_ns, _ = _MESSAGE_HEAD.unpack_from(body)
        channel = directory.channels.get(number)
        if channel is not None:
            return [Message(time_ns, channel, bytes(body[_MESSAGE_HEAD.size :]))]
        directory.unknown.add(number)
    return []


def _records(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    at = 0
    while at < len(data):
        opcode, length = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        if length > len(data) - at:
            raise _Broken("a record in it is longer than the rest of it")
        yield opcode, data[at : at + length]
        at += length


class _Directory:
    """The channels of a file, as far as it has described them; what was said first holds."""

    def __init__(self, limit_bytes: int) -> None:
        self.channels: dict[int, Channel] = {}
        self.unknown: set[int] = set()
        """Channels that have messages and were not described before them."""
        self._schemas: dict[int, tuple[str, str, bytes]] = {0: ("", "", b"")}
        self._left_bytes = limit_bytes

    def learn(self, opcode: int, body: memoryview) -> None:
        [number] = struct.unpack_from("<H", body)
        if number in (self._schemas if opcode == _SCHEMA else self.channels):
            return
        self._left_bytes -= len(body)
        if self._left_bytes < 0:
            raise _Broken("the descriptions of its topics take too much memory")
        if opcode == _SCHEMA:
            name, at = _text(body, 2)
            encoding, at = _text(body, at)
            self._schemas[number] = name, encoding, bytes(body[at + 4 :])
            return
        [schema] = struct.unpack_from("<H", body, 2)
        topic, at = _text(body, 4)
        encoding, _ = _text(body, at)
        if schema in self._schemas:  # else it was in a part that is broken
            self.channels[number] = Channel(topic, encoding, *self._schemas[schema])


def _text(body: memoryview, at: int) -> tuple[str, int]:
    """A string that is led by its length, and where it ends."""
    [length] = struct.unpack_from("<I", body, at)
    end = at + 4 + length
    if end > len(body):
        raise _Broken("a text in it is longer than its record")
    return str(body[at + 4 : end], "utf-8"), end


def _pairs(body: memoryview, at: int) -> npt.NDArray[np.void]:
    [length] = struct.unpack_from("<I", body, at)
    return np.frombuffer(body, _PAIRS, length // _PAIRS.itemsize, at + 4)


def _parse_summary(data: memoryview, limits: Limits) -> Summary:
    directory = _Directory(limits.summary_bytes)
    places = array("Q")
    counts: dict[int, int] = {}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for opcode, body in _records(data):
        if opcode in (_SCHEMA, _CHANNEL):
            directory.learn(opcode, body)
        elif opcode == _STATISTICS:
            counts = {int(channel): int(count) for channel, count in _pairs(body, _COUNTS_AT)}
        elif opcode == _CHUNK_INDEX:
            number = len(places) // 3
            start, _, offset, length = _CHUNK_PLACE.unpack_from(body)
            places.extend((start, offset, length))
            for channel in _pairs(body, _CHUNK_PLACE.size)["channel"].tolist():
                first.setdefault(channel, number)
                last[channel] = number
    chunks = np.array(places, np.uint64).reshape(-1, 3)
    return Summary(directory.channels, counts, chunks, first, last)
