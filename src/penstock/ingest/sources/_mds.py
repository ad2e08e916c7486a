"""MosaicML's MDS: an index that names shards, and in each shard samples one after the other."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate, pairwise
from struct import unpack_from
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidInputError, SampleError
from penstock.format import ColumnLike
from penstock.ingest._bucket import Bucket
from penstock.ingest._source import Found, Listing, Reading, Reject, Row, Source
from penstock.ingest.sources._expand import Damaged, Expanded, Stream, most_unpacked, read_exactly
from penstock.ingest.sources._mds_encodings import Encoding, encoding_of
from penstock.ingest.sources._values import column_name
from penstock.storage import ObjectInfo

_INDEX = "index.json"
_VERSION = 2
_ARROW_CODECS = {"zstd": "zstd", "gz": "gzip", "bz2": "bz2", "br": "brotli"}
_MAX_INDEX_BYTES = 256 << 20
_MAX_SAMPLES = 1 << 26
_MAX_SNAPPY_BYTES = 1 << 30
"""Snappy unpacks whole shards only."""
_BLOCK_SAMPLES = 4096


@dataclass(frozen=True)
class _Layout:
    """The columns of a shard, as its index describes them."""

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]


@dataclass(frozen=True)
class _Shard:
    """A shard and the file that it is read from."""

    file: ObjectInfo
    layout: _Layout
    samples: int
    raw_bytes: int
    compression: str | None


@dataclass(frozen=True)
class _Shards(Reading):
    files: Sequence[ObjectInfo]
    columns: Mapping[str, ColumnLike]
    names: Sequence[str]
    """What the layout's columns are called in the table."""
    shards: Mapping[str, _Shard]

    def rows(self, bucket: Bucket, files: Sequence[ObjectInfo]) -> Iterator[Found]:
        for file in files:
            yield from self._shard(bucket, self.shards[file.key])

    def _shard(self, bucket: Bucket, shard: _Shard) -> Iterator[Found]:
        encodings = [encoding_of(encoding) for encoding in shard.layout.encodings]
        done = rows = 0
        key = shard.file.key
        try:
            with closing(_opened(bucket, shard)) as stream:
                for data in _samples(stream, shard):
                    found = self._sample(f"{key}, sample {done}", encodings, shard.layout, data)
                    done, rows = done + 1, rows + isinstance(found, Row)
                    yield found
        except Damaged as damage:
            # A file that bears the reject's name is read again by the next run, and this one's first rows are in.
            yield Reject(f"{key}, from sample {done} on" if rows else key, str(damage))

    def _sample(self, name: str, encodings: Sequence[Encoding], layout: _Layout, data: bytes) -> Row | Reject:
        values: dict[str, Any] = {}
        column = ""
        try:
            parts = _parts(layout.sizes, data)
            for column, encoding, part in zip(self.names, encodings, parts, strict=True):
                values[column] = encoding.read(part)
        except SampleError as error:
            return Reject(name, f"column {column!r}: {error}" if column else str(error))
        return Row(name, values)


def _samples(stream: Stream, shard: _Shard) -> Iterator[bytes]:
    offsets = _offsets(stream, shard)
    stream.seek(int(offsets[0]))
    for start in range(0, shard.samples, _BLOCK_SAMPLES):
        for begin, end in pairwise(offsets[start : start + _BLOCK_SAMPLES + 1].tolist()):
            if end > shard.raw_bytes:
                raise Damaged(f"is cut off: a sample should end at byte {end}, and it ends at {shard.raw_bytes}")
            yield read_exactly(stream, end - begin)
    if isinstance(stream, Expanded):
        stream.finish()


def _offsets(stream: Stream, shard: _Shard) -> npt.NDArray[np.uint32]:
    """Where each sample begins, and where the last one ends."""
    (count,) = unpack_from("<I", read_exactly(stream, 4))
    if count != shard.samples:
        raise Damaged(f"says that it has {count} samples, and its index says {shard.samples}")
    if count > _MAX_SAMPLES or 4 * (count + 2) > shard.raw_bytes:
        raise Damaged(f"cannot have {count} samples: it has {shard.raw_bytes} bytes, and {_MAX_SAMPLES} is the most")
    offsets = np.frombuffer(read_exactly(stream, 4 * (count + 1)), "<u4")
    if offsets[0] < 4 * (count + 2) or (offsets[1:] < offsets[:-1]).any():
        raise Damaged("has a damaged table of samples: they do not follow each other")
    return offsets


def _parts(sizes: Sequence[int | None], data: bytes) -> list[memoryview]:
    """The bytes of each column: first come the sizes of those that have none of their own, then all values."""
    varying = sum(size is None for size in sizes)
    if len(data) < 4 * varying:
        raise SampleError(f"its {len(data)} bytes are too few for the sizes of {varying} columns")
    told = iter(unpack_from(f"<{varying}I", data))
    lengths = [next(told) if size is None else size for size in sizes]
    if 4 * varying + sum(lengths) != len(data):
        raise SampleError(f"its columns should have {sum(lengths)} bytes and have {len(data) - 4 * varying}")
    view = memoryview(data)[4 * varying :]
    return [view[end - length : end] for end, length in zip(accumulate(lengths), lengths, strict=True)]


def _opened(bucket: Bucket, shard: _Shard) -> Stream:
    if shard.compression is None:
        return bucket.open(shard.file)
    if shard.raw_bytes > most_unpacked(shard.file.size):
        raise Damaged(f"would unpack to {shard.raw_bytes} bytes, which looks like a decompression bomb")
    if shard.compression == "snappy":
        return io.BytesIO(_unpack_snappy(bucket, shard))
    return Expanded(bucket, shard.file, _ARROW_CODECS[shard.compression])


def _unpack_snappy(bucket: Bucket, shard: _Shard) -> bytes:
    """A whole shard; it begins with its size, seven bits a byte, which Arrow does not compare with what we expect."""
    if shard.raw_bytes > _MAX_SNAPPY_BYTES:
        raise Damaged(f"unpacks to {shard.raw_bytes} bytes; of snappy, {_MAX_SNAPPY_BYTES} is the most")
    data = bucket.read(shard.file)
    size = sum((byte & 127) << 7 * place for place, byte in enumerate(_varint(data)))
    if size != shard.raw_bytes:
        raise Damaged(f"unpacks to {size} bytes, and its index says {shard.raw_bytes}")
    try:
        unpacked: bytes = pa.Codec("snappy").decompress(data, decompressed_size=size, asbytes=True)
    except (OSError, pa.ArrowException) as error:
        raise Damaged(f"cannot be unpacked: {error}") from error
    return unpacked


def _varint(data: memoryview) -> bytes:
    head = bytes(data[:5])
    last = next((place for place, byte in enumerate(head) if byte < 128), 4)
    return head[: last + 1]


def _recognise(listing: Listing) -> bool:
    names = [file.key.rpartition("/")[2] for file in listing.files] if listing.has([".json"]) else []
    return _INDEX in names and any(name.endswith(".mds") or ".mds." in name for name in names)


def _open(bucket: Bucket, files: Sequence[ObjectInfo]) -> Reading:
    there = {file.key: file for file in files}
    indexes = [file for file in files if file.key.rpartition("/")[2] == _INDEX]
    if not indexes:
        raise InvalidInputError(f"{bucket.store.uri} has no {_INDEX}, which MDS needs")
    shards: dict[str, _Shard] = {}
    # A merged index names shards that have indexes of their own below it; the order is that of the upper one.
    for index in sorted(indexes, key=lambda file: (file.key.count("/"), file.key)):
        for shard in _index(bucket, index, there):
            shards.setdefault(shard.file.key, shard)
    if not shards:
        raise InvalidInputError(f"the indexes in {bucket.store.uri} name no shards")
    first = next(iter(shards.values()))
    for shard in shards.values():
        if shard.layout != first.layout:
            raise InvalidInputError(
                f"{bucket.uri(shard.file.key)} has other columns than {bucket.uri(first.file.key)};"
                " they are rows of two tables, so ingest their folders one by one"
            )
    names: list[str] = []
    columns: dict[str, ColumnLike] = {}
    for name, encoding in zip(first.layout.names, first.layout.encodings, strict=True):
        names.append(column_name(name, names))
        if (kind := encoding_of(encoding).kind) is not None:
            columns[names[-1]] = kind
    return _Shards([shard.file for shard in shards.values()], columns, names, shards)


def _index(bucket: Bucket, index: ObjectInfo, there: Mapping[str, ObjectInfo]) -> list[_Shard]:
    where = bucket.uri(index.key)
    if index.size > _MAX_INDEX_BYTES:
        raise InvalidInputError(f"{where} has {index.size} bytes; an index has at most {_MAX_INDEX_BYTES}")
    try:
        document = json.loads(bytes(bucket.read(index)))
        if document["version"] != _VERSION:
            raise InvalidInputError(f"{where} is of version {document['version']}; only {_VERSION} can be read")
        folder = index.key.removesuffix(_INDEX)
        return [_shard(where, folder, told, there) for told in document["shards"]]
    except InvalidInputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInputError(f"{where} is not the index of an MDS dataset ({error!r})") from error


def _shard(where: str, folder: str, told: Mapping[str, Any], there: Mapping[str, ObjectInfo]) -> _Shard:
    if told["format"] != "mds":
        raise InvalidInputError(f"{where} names shards of the format {told['format']!r}; only mds can be read")
    raw = told["raw_data"]
    compression = (told["compression"] or "").partition(":")[0] or None
    file = there.get(folder + raw["basename"])
    if file is not None:
        compression = None
    elif compression is not None:
        file = there.get(folder + told["zip_data"]["basename"])
    if file is None:
        raise InvalidInputError(f"{where} names {raw['basename']!r}, which is not there; restore it, or mend the index")
    if compression not in (None, "snappy", *_ARROW_CODECS):
        raise InvalidInputError(f"{where}: shards compressed with {compression!r} cannot be read; write them with zstd")
    raw_bytes = file.size if compression is None else _whole(raw["bytes"])
    return _Shard(file, _layout(where, told), _whole(told["samples"]), raw_bytes, compression)


def _layout(where: str, told: Mapping[str, Any]) -> _Layout:
    names, encodings = tuple(map(str, told["column_names"])), tuple(map(str, told["column_encodings"]))
    sizes = tuple(_whole(size) if size else None for size in told["column_sizes"])
    for name, encoding, size in zip(names, encodings, sizes, strict=True):
        try:
            usual = encoding_of(encoding).size
        except InvalidInputError as error:
            raise InvalidInputError(f"{where}: column {name!r} {error}") from None
        if size != usual:
            raise InvalidInputError(f"{where}: column {name!r} has values of {size} bytes; {encoding} has {usual}")
    return _Layout(names, encodings, sizes)


def _whole(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"{number!r} is no size")
    return number


MDS = Source(
    name="mds",
    about="MosaicML streaming's MDS shards and their index.json",
    recognise=_recognise,
    open=_open,
)
