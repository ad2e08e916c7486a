"""MosaicML's MDS: an index that lists shards, each a sequence of samples."""

import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
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
from penstock.ingest._reader import SourceReader
from penstock.ingest._source import Reject, Row, Source, SourceItem, SourceListing, SourceScan
from penstock.ingest.sources._limits import DamagedFileError, check_block, check_unpacked
from penstock.ingest.sources._mds_encodings import Encoding, encoding_of
from penstock.ingest.sources._streams import ByteStream, DecompressedStream, read_exactly
from penstock.ingest.sources._values import column_name
from penstock.storage import ObjectInfo

_INDEX = "index.json"
_VERSION = 2
_ARROW_CODECS = {"zstd": "zstd", "gz": "gzip", "bz2": "bz2", "br": "brotli"}
_MAX_INDEX_BYTES = 256 << 20
_MAX_SAMPLES = 1 << 26
_BLOCK_SAMPLES = 4096


@dataclass(frozen=True)
class _Layout:
    """The columns of a shard, as the index describes them."""

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]


@dataclass(frozen=True)
class _Shard:
    """A shard and the file that holds it."""

    file: ObjectInfo
    layout: _Layout
    samples: int
    raw_bytes: int
    compression: str | None


@dataclass(frozen=True)
class _Shards(SourceScan):
    files: Sequence[ObjectInfo]
    columns: Mapping[str, ColumnLike]
    names: Sequence[str]
    """The column names in the table, in the order of the layout."""
    shards: Mapping[str, _Shard]
    described_by: Collection[str] = ()

    def rows(self, reader: SourceReader, files: Sequence[ObjectInfo]) -> Iterator[SourceItem]:
        for file in files:
            yield from self._shard(reader, self.shards[file.key])

    def _shard(self, reader: SourceReader, shard: _Shard) -> Iterator[SourceItem]:
        encodings = [encoding_of(encoding) for encoding in shard.layout.encodings]
        index = rows = 0
        key = shard.file.key
        try:
            with closing(_open_shard(reader, shard)) as stream:
                for data in _samples(stream, shard):
                    found = self._sample(reader, f"{key}, sample {index}", encodings, shard.layout, data)
                    index, rows = index + 1, rows + isinstance(found, Row)
                    yield found
        except DamagedFileError as damage:
            # The next run reads a rejected file again; not under this name, because its first rows are stored.
            yield Reject(f"{key}, from sample {index} on" if rows else key, str(damage))

    def _sample(
        self, reader: SourceReader, name: str, encodings: Sequence[Encoding], layout: _Layout, data: bytes
    ) -> Row | Reject:
        values: dict[str, Any] = {}
        column = ""
        try:
            parts = _split_columns(layout.sizes, data)
            for column, encoding, part in zip(self.names, encodings, parts, strict=True):
                if reader.selects(column):
                    values[column] = encoding.read(part)
        except SampleError as error:
            return Reject(name, f"column {column!r}: {error}" if column else str(error))
        return Row(name, values)


def _samples(stream: ByteStream, shard: _Shard) -> Iterator[bytes]:
    offsets = _offsets(stream, shard)
    stream.seek(int(offsets[0]))
    for start in range(0, shard.samples, _BLOCK_SAMPLES):
        for begin, end in pairwise(offsets[start : start + _BLOCK_SAMPLES + 1].tolist()):
            if end > shard.raw_bytes:
                raise DamagedFileError(f"is truncated: a sample ends at byte {end}, and the shard at {shard.raw_bytes}")
            yield read_exactly(stream, end - begin)
    if isinstance(stream, DecompressedStream):
        stream.drain()


def _offsets(stream: ByteStream, shard: _Shard) -> npt.NDArray[np.uint32]:
    """The start of each sample, and the end of the last one."""
    (count,) = unpack_from("<I", read_exactly(stream, 4))
    if count != shard.samples:
        raise DamagedFileError(f"declares {count} samples, and its index {shard.samples}")
    if count > _MAX_SAMPLES or 4 * (count + 2) > shard.raw_bytes:
        raise DamagedFileError(
            f"cannot have {count} samples: it has {shard.raw_bytes} bytes, and the limit is {_MAX_SAMPLES} samples"
        )
    offsets = np.frombuffer(read_exactly(stream, 4 * (count + 1)), "<u4")
    if offsets[0] < 4 * (count + 2) or (offsets[1:] < offsets[:-1]).any():
        raise DamagedFileError("has damaged sample offsets: they do not increase")
    return offsets


def _split_columns(sizes: Sequence[int | None], data: bytes) -> list[memoryview]:
    """The bytes of each column: a sample holds the sizes of variable-size columns, then all values."""
    variable = sum(size is None for size in sizes)
    if len(data) < 4 * variable:
        raise SampleError(f"its {len(data)} bytes are too few for the sizes of {variable} columns")
    variable_sizes = iter(unpack_from(f"<{variable}I", data))
    lengths = [next(variable_sizes) if size is None else size for size in sizes]
    if 4 * variable + sum(lengths) != len(data):
        raise SampleError(f"its columns need {sum(lengths)} bytes, and it has {len(data) - 4 * variable}")
    view = memoryview(data)[4 * variable :]
    return [view[end - length : end] for end, length in zip(accumulate(lengths), lengths, strict=True)]


def _open_shard(reader: SourceReader, shard: _Shard) -> ByteStream:
    if shard.compression is None:
        return reader.open(shard.file)
    check_unpacked(shard.file.size, shard.raw_bytes)
    if shard.compression == "snappy":
        return io.BytesIO(_unpack_snappy(reader, shard))
    return DecompressedStream(reader, shard.file, _ARROW_CODECS[shard.compression])


def _unpack_snappy(reader: SourceReader, shard: _Shard) -> bytes:
    """A whole shard; its data starts with the size as a varint, which Arrow does not compare with the expected size."""
    check_block(shard.raw_bytes, "snappy shard")
    data = reader.read(shard.file)
    size = sum((byte & 127) << 7 * index for index, byte in enumerate(_varint(data)))
    if size != shard.raw_bytes:
        raise DamagedFileError(f"unpacks to {size} bytes, and its index declares {shard.raw_bytes}")
    try:
        unpacked: bytes = pa.Codec("snappy").decompress(data, decompressed_size=size, asbytes=True)
    except (OSError, pa.ArrowException) as error:
        raise DamagedFileError(f"cannot be decompressed: {error}") from error
    return unpacked


def _varint(data: memoryview) -> bytes:
    head = bytes(data[:5])
    last = next((index for index, byte in enumerate(head) if byte < 128), 4)
    return head[: last + 1]


def _recognise(listing: SourceListing) -> bool:
    names = [file.key.rpartition("/")[2] for file in listing.files] if listing.has([".json"]) else []
    return _INDEX in names and any(name.endswith(".mds") or ".mds." in name for name in names)


def _open(reader: SourceReader, files: Sequence[ObjectInfo]) -> SourceScan:
    listed = {file.key: file for file in files}
    indexes = [file for file in files if file.key.rpartition("/")[2] == _INDEX]
    if not indexes:
        raise InvalidInputError(f"{reader.store.uri} has no {_INDEX}, which MDS needs")
    shards: dict[str, _Shard] = {}
    # A merged index lists shards that nested indexes list too; the outer index decides the order.
    for index in sorted(indexes, key=lambda file: (file.key.count("/"), file.key)):
        for shard in _read_index(reader, index, listed):
            shards.setdefault(shard.file.key, shard)
    if not shards:
        raise InvalidInputError(f"the indexes in {reader.store.uri} name no shards")
    first = next(iter(shards.values()))
    for shard in shards.values():
        if shard.layout != first.layout:
            raise InvalidInputError(
                f"{reader.uri(shard.file.key)} has different columns than {reader.uri(first.file.key)};"
                " ingest their folders into separate tables"
            )
    names: list[str] = []
    columns: dict[str, ColumnLike] = {}
    for name, encoding in zip(first.layout.names, first.layout.encodings, strict=True):
        names.append(column_name(name, names))
        if (kind := encoding_of(encoding).kind) is not None:
            columns[names[-1]] = kind
    described_by = [index.key for index in indexes]
    return _Shards([shard.file for shard in shards.values()], columns, names, shards, described_by)


def _read_index(reader: SourceReader, index: ObjectInfo, listed: Mapping[str, ObjectInfo]) -> list[_Shard]:
    where = reader.uri(index.key)
    if index.size > _MAX_INDEX_BYTES:
        raise InvalidInputError(f"{where} has {index.size} bytes; the limit for an index is {_MAX_INDEX_BYTES}")
    try:
        document = json.loads(bytes(reader.read(index)))
        if document["version"] != _VERSION:
            raise InvalidInputError(f"{where} has version {document['version']}; only {_VERSION} is supported")
        folder = index.key.removesuffix(_INDEX)
        return [_parse_shard(where, folder, entry, listed) for entry in document["shards"]]
    except InvalidInputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInputError(f"{where} is not the index of an MDS dataset ({error!r})") from error


def _parse_shard(where: str, folder: str, entry: Mapping[str, Any], listed: Mapping[str, ObjectInfo]) -> _Shard:
    if entry["format"] != "mds":
        raise InvalidInputError(f"{where} lists shards of the format {entry['format']!r}; only mds is supported")
    raw = entry["raw_data"]
    compression = (entry["compression"] or "").partition(":")[0] or None
    file = listed.get(folder + raw["basename"])
    if file is not None:
        compression = None
    elif compression is not None:
        file = listed.get(folder + entry["zip_data"]["basename"])
    if file is None:
        raise InvalidInputError(f"{where} names {raw['basename']!r}, which is missing; restore it, or fix the index")
    if compression not in (None, "snappy", *_ARROW_CODECS):
        raise InvalidInputError(f"{where}: shards compressed with {compression!r} are not supported; use zstd")
    raw_bytes = file.size if compression is None else _size(raw["bytes"])
    return _Shard(file, _parse_layout(where, entry), _size(entry["samples"]), raw_bytes, compression)


def _parse_layout(where: str, entry: Mapping[str, Any]) -> _Layout:
    names, encodings = tuple(map(str, entry["column_names"])), tuple(map(str, entry["column_encodings"]))
    sizes = tuple(_size(size) if size else None for size in entry["column_sizes"])
    for name, encoding, size in zip(names, encodings, sizes, strict=True):
        try:
            expected = encoding_of(encoding).size
        except InvalidInputError as error:
            raise InvalidInputError(f"{where}: column {name!r} {error}") from None
        if size != expected:
            raise InvalidInputError(f"{where}: column {name!r} has values of {size} bytes; {encoding} has {expected}")
    return _Layout(names, encodings, sizes)


def _size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a size")
    return value


MDS = Source(
    name="mds",
    about="MosaicML streaming's MDS shards and their index.json",
    extensions=(".mds", *(f".mds.{name}" for name in ("snappy", *_ARROW_CODECS))),
    recognise=_recognise,
    open=_open,
)
