"""The messages of an MCAP file in time order, in bounded memory, with recovery past damaged chunks.

The `mcap` package parses the bodies of records. Framing and decompression are done here: its readers stop at the first
damaged chunk, sort a file without an index in memory, and decompress without a limit.
"""

import io
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidInputError
from penstock.ingest._reader import SourceReader
from penstock.ingest._source import Reject
from penstock.ingest.sources._limits import MAX_BLOCK_BYTES
from penstock.storage import ObjectInfo

_MAGIC = b"\x89MCAP0\r\n"
_FOOTER, _SCHEMA, _CHANNEL, _MESSAGE, _CHUNK, _CHUNK_INDEX, _STATISTICS, _DATA_END = 2, 3, 4, 5, 6, 8, 11, 15
_PARSERS = {
    _FOOTER: "Footer",
    _SCHEMA: "Schema",
    _CHANNEL: "Channel",
    _CHUNK: "Chunk",
    _CHUNK_INDEX: "ChunkIndex",
    _STATISTICS: "Statistics",
}
"""Opcodes to classes of `mcap.records`."""
_RECORD_HEADER = struct.Struct("<BQ")
_FOOTER_BYTES = 20
_END_BYTES = _RECORD_HEADER.size + _FOOTER_BYTES + len(_MAGIC)
_TAIL_BYTES = 64 << 10
_MESSAGE_OVERHEAD_BYTES = 256
_REORDER_NS = 1_000_000_000
_END_OF_TIME = 1 << 64
_SAMPLED_CHUNKS = 64


@dataclass(frozen=True)
class McapLimits:
    """Memory limits for one file."""

    chunk_bytes: int = MAX_BLOCK_BYTES
    """A larger chunk or message is rejected."""
    window_bytes: int = 128 << 20
    """Messages that are held until older ones are read; a message that is out of order by more is rejected."""
    summary_bytes: int = 128 << 20
    """A larger summary is ignored."""
    sample_bytes: int = 64 << 20
    """How much of a file without an index is read to discover its topics."""


@dataclass(frozen=True, eq=False)
class Channel:
    """A topic, and the encoding of the messages of one of its publishers."""

    topic: str
    encoding: str
    schema_name: str
    schema_encoding: str
    schema: bytes


class Message(NamedTuple):
    """One message with its log time."""

    time_ns: int
    channel: Channel
    data: bytes


@dataclass(frozen=True)
class McapSummary:
    """The summary section of a file."""

    channels: Mapping[int, Channel]
    counts: Mapping[int, int]
    """Messages by channel; empty if the file has no statistics."""
    chunks: npt.NDArray[np.uint64]
    """First message time, offset and length of each chunk, in file order."""
    first: Mapping[int, int]
    last: Mapping[int, int]
    """The first and the last chunk with messages of a channel."""

    @property
    def has_index(self) -> bool:
        return len(self.chunks) > 0 and len(self.channels) > 0

    def topics(self) -> dict[str, int]:
        """Message counts by topic; empty if the file has no statistics."""
        found: dict[str, int] = {}
        for number, channel in self.channels.items():
            if count := self.counts.get(number, 0):
                found[channel.topic] = found.get(channel.topic, 0) + count
        return found


class _InvalidRecordError(ValueError):
    """Bytes that violate the MCAP specification."""


_Read: TypeAlias = tuple[int, list[Message] | Reject]
"""A lower bound on the times of all later messages; and messages in any order, or what could not be read."""


def read_summary(reader: SourceReader, file: ObjectInfo, limits: McapLimits) -> McapSummary | None:
    """The summary at the end of a file; None if there is none or it is invalid."""
    if file.size < len(_MAGIC) + _END_BYTES:
        return None
    start = max(0, file.size - _TAIL_BYTES)
    tail = reader.read(file, start, file.size - start)
    header = _RECORD_HEADER.unpack_from(tail, len(tail) - _END_BYTES)
    if bytes(tail[-len(_MAGIC) :]) != _MAGIC or header != (_FOOTER, _FOOTER_BYTES):
        return None
    footer = _parse(header[0], bytes(tail[-_FOOTER_BYTES - len(_MAGIC) : -len(_MAGIC)]))
    begin, size = footer.summary_start, file.size - footer.summary_start
    if begin < len(_MAGIC) or not _END_BYTES <= size <= limits.summary_bytes:
        return None
    data = tail[begin - start :] if begin >= start else reader.read(file, begin, size)
    if footer.summary_crc and zlib.crc32(data[: -len(_MAGIC) - 4]) != footer.summary_crc:
        return None
    try:
        return _parse_summary(data[:-_END_BYTES], limits)
    except ValueError:
        return None


def read_messages(
    reader: SourceReader, file: ObjectInfo, *, last: str, limits: McapLimits
) -> Iterator[Message | Reject]:
    """All messages by log time; at equal times those of the topic `last` come after the others."""
    summary = read_summary(reader, file, limits)
    channels = _ChannelTable(limits.summary_bytes)
    with reader.open(file) as stream:
        if stream.read(len(_MAGIC)) != _MAGIC:
            yield Reject(file.key, "it is not an MCAP file: the magic bytes are missing")
            return
        found: Iterator[_Read]
        if summary is not None and summary.has_index:
            channels.by_id.update(summary.channels)
            order = np.argsort(summary.chunks[:, 0], kind="stable")
            found = _read_indexed(stream, file, summary.chunks[order], channels, limits)
        else:
            found = _read_sequential(stream, file, channels, limits)
        yield from _sorted_by_time(file, found, last, limits.window_bytes)
    for number in sorted(channels.undescribed):
        yield Reject(f"{file.key}, channel {number}", "it has messages, but no record describes the channel")


def sample_messages(
    reader: SourceReader, file: ObjectInfo, summary: McapSummary | None, limits: McapLimits
) -> Iterator[list[Message]]:
    """Messages of the first and the last chunk of each channel; the first ones of a file without an index."""
    channels = _ChannelTable(limits.summary_bytes)
    with reader.open(file) as stream:
        if stream.read(len(_MAGIC)) != _MAGIC:
            return
        found: Iterator[_Read]
        indexed = summary is not None and summary.has_index
        if summary is not None and indexed:
            channels.by_id.update(summary.channels)
            ends = [*dict.fromkeys([*summary.first.values(), *summary.last.values()])] or [*range(len(summary.chunks))]
            places = summary.chunks[sorted(ends[:_SAMPLED_CHUNKS])]
            found = _read_indexed(stream, file, places, channels, limits)
        else:
            found = _read_sequential(stream, file, channels, limits)
        for _, batch in found:
            if isinstance(batch, list):
                yield batch
            if not indexed and stream.tell() > limits.sample_bytes:
                return


def _sorted_by_time(
    file: ObjectInfo, found: Iterable[_Read], last: str, window_bytes: int
) -> Iterator[Message | Reject]:
    heap: list[tuple[int, bool, int, Message]] = []
    held_bytes = count = late = 0
    last_time = -1

    def release(floor: int) -> Iterator[Message]:
        nonlocal held_bytes, last_time
        while heap and (heap[0][0] < floor or held_bytes > window_bytes):
            last_time, _, _, message = heappop(heap)
            held_bytes -= len(message.data) + _MESSAGE_OVERHEAD_BYTES
            yield message

    for floor, batch in found:
        if isinstance(batch, Reject):
            yield batch
            continue
        for message in batch:
            if message.time_ns < last_time:
                late += 1
                continue
            heappush(heap, (message.time_ns, message.channel.topic == last, count, message))
            count += 1
            held_bytes += len(message.data) + _MESSAGE_OVERHEAD_BYTES
        yield from release(floor)
    yield from release(_END_OF_TIME)
    if late:
        yield Reject(
            f"{file.key}, late messages",
            f"{late} messages are too far out of order to be sorted; sort the file (mcap sort)",
        )


def _read_indexed(
    stream: BinaryIO, file: ObjectInfo, places: npt.NDArray[np.uint64], channels: "_ChannelTable", limits: McapLimits
) -> Iterator[_Read]:
    for number, (_, offset, length) in enumerate(map(np.ndarray.tolist, places)):
        floor = int(places[number + 1][0]) if number + 1 < len(places) else _END_OF_TIME
        name = f"{file.key}, chunk at byte {offset}"
        if length > limits.chunk_bytes or offset + length > file.size:
            yield floor, Reject(name, f"its {length} bytes exceed the file or the memory limit")
            continue
        stream.seek(offset)
        header = stream.read(_RECORD_HEADER.size)
        try:
            if length < len(header) or _RECORD_HEADER.unpack(header) != (_CHUNK, length - len(header)):
                raise _InvalidRecordError("the index points to something that is not a chunk")
            batch = _read_chunk(stream.read(length - len(header)), channels, limits)
        except ValueError as error:
            yield floor, Reject(name, f"it cannot be read: {error}")
        else:
            yield floor, batch


def _read_sequential(
    stream: BinaryIO, file: ObjectInfo, channels: "_ChannelTable", limits: McapLimits
) -> Iterator[_Read]:
    at, newest = len(_MAGIC), 0
    while True:
        stream.seek(at)
        header = stream.read(_RECORD_HEADER.size)
        opcode, length = _RECORD_HEADER.unpack(header) if len(header) == _RECORD_HEADER.size else (0, 0)
        if opcode in (_DATA_END, _FOOTER):
            return
        name = f"{file.key}, record at byte {at}"
        at += _RECORD_HEADER.size + length
        if opcode == 0 or at > file.size:
            yield _END_OF_TIME, Reject(name, "the file is truncated or damaged here; the rest of it cannot be read")
            return
        if opcode not in (_SCHEMA, _CHANNEL, _MESSAGE, _CHUNK):
            continue
        if length > limits.chunk_bytes:
            yield 0, Reject(name, f"its {length} bytes exceed the memory limit of {limits.chunk_bytes}")
            continue
        body = stream.read(length)
        try:
            batch = _read_chunk(body, channels, limits) if opcode == _CHUNK else _handle(opcode, body, channels)
        except ValueError as error:
            yield 0, Reject(name, f"it cannot be read: {error}")
            continue
        if batch:
            newest = max(newest, *(message.time_ns for message in batch))
            yield newest - _REORDER_NS, batch


def _read_chunk(body: bytes, channels: "_ChannelTable", limits: McapLimits) -> list[Message]:
    chunk = _parse(_CHUNK, body)
    if chunk.uncompressed_size > limits.chunk_bytes:
        raise _InvalidRecordError(
            f"it would take {chunk.uncompressed_size} bytes of memory; the limit is {limits.chunk_bytes}"
        )
    data = _decompress(chunk.data, chunk.compression, chunk.uncompressed_size)
    if chunk.uncompressed_crc and zlib.crc32(data) != chunk.uncompressed_crc:
        raise _InvalidRecordError("its checksum does not match: its bytes are damaged")
    found: list[Message] = []
    for opcode, record in _split_records(data):
        found += _handle(opcode, record, channels)
    return found


def _decompress(packed: bytes, compression: str, size: int) -> memoryview:
    if compression == "":
        data = memoryview(packed)
    elif compression in ("lz4", "zstd"):
        try:
            stream = pa.CompressedInputStream(pa.BufferReader(packed), compression)
            data = memoryview(stream.read(size + 1))
        except (OSError, pa.ArrowException) as error:
            raise _InvalidRecordError(f"its {compression} data is damaged: {error}") from error
    else:
        raise _InvalidRecordError(f"its compression {compression!r} is unknown; lz4 and zstd are supported")
    if len(data) != size:
        raise _InvalidRecordError(f"it does not decompress to the {size} bytes that it declares")
    return data


def _handle(opcode: int, body: bytes, channels: "_ChannelTable") -> list[Message]:
    """The message of a record, if it is one; a schema or channel is added to the table."""
    if opcode in (_SCHEMA, _CHANNEL):
        channels.add(opcode, body)
    elif opcode == _MESSAGE:
        message = _parse(opcode, body)
        channel = channels.by_id.get(message.channel_id)
        if channel is not None:
            return [Message(message.log_time, channel, message.data)]
        channels.undescribed.add(message.channel_id)
    return []


def _split_records(data: memoryview) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        if len(data) - at < _RECORD_HEADER.size:
            raise _InvalidRecordError("it ends inside a record")
        opcode, length = _RECORD_HEADER.unpack_from(data, at)
        at += _RECORD_HEADER.size
        if length > len(data) - at:
            raise _InvalidRecordError("a record in it is longer than the rest of it")
        yield opcode, bytes(data[at : at + length])
        at += length


class _RecordBytes(io.BytesIO):
    """The body of a record; raises on a read beyond its end, which the parsers of `mcap` would return short."""

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        if size is not None and len(data) < size:
            raise _InvalidRecordError("a length in it exceeds its record")
        return data


def _parse(opcode: int, body: bytes) -> Any:
    """The record as an object of `mcap.records`; raises `ValueError` if it is invalid."""
    stream = _mcap().data_stream.ReadDataStream(_RecordBytes(body))
    if opcode == _MESSAGE:
        return _mcap().records.Message.read(stream, len(body))
    return getattr(_mcap().records, _PARSERS[opcode]).read(stream)


@cache
def _mcap() -> Any:
    try:
        import mcap.data_stream
        import mcap.opcode
        import mcap.records
    except ImportError as error:
        raise InvalidInputError('MCAP files need a package: pip install "penstock[mcap]"') from error
    return mcap


class _ChannelTable:
    """The channels of a file by id, as far as its records describe them; the first description is used."""

    def __init__(self, limit_bytes: int) -> None:
        self.by_id: dict[int, Channel] = {}
        self.undescribed: set[int] = set()
        """Channels with messages before any description."""
        self._schemas: dict[int, tuple[str, str, bytes]] = {0: ("", "", b"")}
        self._left_bytes = limit_bytes

    def add(self, opcode: int, body: bytes) -> None:
        """Add a schema or a channel; raises `ValueError` if it is invalid or the descriptions take too much memory."""
        record = _parse(opcode, body)
        is_schema = opcode == _SCHEMA
        if record.id in (self._schemas if is_schema else self.by_id):
            return
        self._left_bytes -= len(body)
        if self._left_bytes < 0:
            raise _InvalidRecordError("the schemas and channels take too much memory")
        if is_schema:
            self._schemas[record.id] = record.name, record.encoding, record.data
        elif record.schema_id in self._schemas:  # else the schema is in a damaged chunk
            self.by_id[record.id] = Channel(record.topic, record.message_encoding, *self._schemas[record.schema_id])


def _parse_summary(data: memoryview, limits: McapLimits) -> McapSummary:
    channels = _ChannelTable(limits.summary_bytes)
    places = array("Q")
    counts: dict[int, int] = {}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for opcode, body in _split_records(data):
        if opcode in (_SCHEMA, _CHANNEL):
            channels.add(opcode, body)
        elif opcode == _STATISTICS:
            counts = _parse(opcode, body).channel_message_counts
        elif opcode == _CHUNK_INDEX:
            number, index = len(places) // 3, _parse(opcode, body)
            places.extend((index.message_start_time, index.chunk_start_offset, index.chunk_length))
            for channel in index.message_index_offsets:
                first.setdefault(channel, number)
                last[channel] = number
    chunks = np.array(places, np.uint64).reshape(-1, 3)
    return McapSummary(channels.by_id, counts, chunks, first, last)
