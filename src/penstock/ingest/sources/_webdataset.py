"""WebDataset: tar files in which adjacent members with the same base name are a row and extensions are columns."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from operator import attrgetter
from typing import Any

from penstock.codecs import image_size, sniff
from penstock.errors import InvalidInputError, SampleError
from penstock.format import Column, ColumnLike
from penstock.format.kinds import Audio, Bytes, Image, Json, Kind, Label, Linked, Text, Video
from penstock.ingest._reader import MAX_VALUE_BYTES, SourceReader
from penstock.ingest._source import Reject, RejectedFileError, Row, Source, SourceItem, SourceScan
from penstock.ingest.sources._limits import DamagedFileError
from penstock.ingest.sources._streams import (
    ByteStream,
    DecompressedStream,
    codec_of,
    open_unpacked,
    read_exactly,
    with_compressions,
)
from penstock.ingest.sources._tar import SparseFile, TarMember, members
from penstock.ingest.sources._values import column_name, load_npy, parse_json, parse_text
from penstock.storage import ObjectInfo

_KEY = "key"
_SAMPLED_SAMPLES = 64
_SAMPLED_SHARDS = 16
_MAX_COLUMNS = 256
_ENDINGS = (*with_compressions(".tar"), ".tgz")


@dataclass(frozen=True)
class _Format:
    """How members with an extension are parsed."""

    kind: Kind | None
    """None if the kind depends on the values."""
    parse: Callable[[bytes], Any]
    in_place: bool = False
    """Whether the value is the bytes of the member, so that it can be linked."""


def _class_index(data: bytes) -> int:
    if not (match := re.fullmatch(rb"\s*([+-]?\d{1,18})\s*", data[:64])):
        raise SampleError(f"not a class index: {data[:64]!r}")
    return int(match[1])


def _image(data: bytes) -> bytes:
    image_size(data)
    return data


def _media(codec: str, data: bytes) -> bytes:
    found = sniff(data)
    if found != codec and not (codec == "mp3" and found is None):  # an mp3 has no reliable signature
        raise SampleError(f"expected {codec}, found {found or 'something else'}, {len(data)} bytes")
    return data


_IMAGES = {name: name for name in ("jpeg", "png", "webp", "gif", "bmp", "tiff")} | {"jpg": "jpeg", "tif": "tiff"}
_AUDIO = ("flac", "wav", "mp3", "ogg")
_VIDEO = {"mp4": "mp4", "m4v": "mp4", "webm": "webm", "avi": "avi"}
_FORMATS = {
    "cls": _Format(Label(), _class_index),
    "txt": _Format(Text(), parse_text),
    "json": _Format(Json(), parse_json),
    "npy": _Format(None, load_npy),
    **{ending: _Format(Image(codec), _image, in_place=True) for ending, codec in _IMAGES.items()},
    **{codec: _Format(Audio(codec), partial(_media, codec), in_place=True) for codec in _AUDIO},
    **{ending: _Format(Video(codec), partial(_media, codec), in_place=True) for ending, codec in _VIDEO.items()},
}
_RAW = _Format(Bytes(), bytes, in_place=True)


@dataclass(frozen=True)
class _SampleMember:
    """A tar member that belongs to a sample."""

    key: str
    ending: str
    member: TarMember


@dataclass(frozen=True)
class _Shards(SourceScan):
    files: Sequence[ObjectInfo]
    columns: Mapping[str, ColumnLike]
    names: Mapping[str, str]
    """Extension to column."""

    def rows(self, reader: SourceReader, files: Sequence[ObjectInfo]) -> Iterator[SourceItem]:
        for file in files:
            yield from self._shard(reader, file)

    def _shard(self, reader: SourceReader, file: ObjectInfo) -> Iterator[SourceItem]:
        rows, current = 0, None
        with closing(_open_stream(reader, file, sparse=reader.link)) as stream:
            try:
                for key, group in groupby(_sample_members(stream, file), attrgetter("key")):
                    current = f"{file.key}/{key}"
                    found = self._sample(reader, file, stream, key, group)
                    rows, current = rows + isinstance(found, Row), None
                    yield found
            except DamagedFileError as damage:
                if current is not None:
                    yield Reject(current, "its shard is damaged, and the sample may be incomplete")
                # The next run reads a rejected file again; not under this name, because its first rows are stored.
                yield Reject(f"{file.key}, after {rows} samples" if rows else file.key, str(damage))

    def _sample(
        self, reader: SourceReader, file: ObjectInfo, stream: ByteStream, key: str, members: Iterator[_SampleMember]
    ) -> Row | Reject:
        values: dict[str, Any] = {_KEY: key}
        seen: dict[str, int] = {}
        error: str | None = None
        for part in members:
            if error is not None:
                continue
            name = self.names.get(part.ending) or column_name(
                _underscored(part.ending), {*values, *self.names.values()}
            )
            if not reader.selects(name):
                continue
            try:
                _check(part, seen)
                seen[part.ending] = part.member.size
                values[name] = _value(reader, file, stream, part)
            except DamagedFileError:
                raise
            except SampleError as failure:
                error = f".{part.ending}: {failure}"
        name = f"{file.key}/{key}"
        return (
            Reject(name, error)
            if error is not None
            else Row(name, {_KEY: key} | dict.fromkeys(self.names.values()) | values)
        )


def _check(part: _SampleMember, seen: Mapping[str, int]) -> None:
    """Raise `SampleError` for a member that cannot be added to a sample."""
    if part.member.error is not None:
        raise SampleError(part.member.error)
    if part.ending in seen:
        raise SampleError("the sample has two members with this extension")
    if len(seen) >= _MAX_COLUMNS:
        raise SampleError(f"the sample has more than {_MAX_COLUMNS} members")
    if sum(seen.values()) + part.member.size > MAX_VALUE_BYTES:
        raise SampleError(f"the sample is larger than {MAX_VALUE_BYTES} bytes")


def _value(reader: SourceReader, file: ObjectInfo, stream: ByteStream, part: _SampleMember) -> Any:
    member, format = part.member, _format_of(part.ending)
    if reader.link and format.in_place:
        if not member.size:
            raise SampleError("the member is empty, so there is nothing to link to")
        return reader.value_or_link(file, b"", member.offset, member.size)
    stream.seek(member.offset)
    return format.parse(read_exactly(stream, member.size))


def _format_of(ending: str) -> _Format:
    return _FORMATS.get(ending.rpartition(".")[2], _RAW)


def _underscored(ending: str) -> str:
    return ending.replace(".", "_")


def _sample_members(stream: ByteStream, file: ObjectInfo) -> Iterator[_SampleMember]:
    """The members that belong to samples; members without an extension, hidden ones and metadata (`__…__`) do not."""
    for member in members(stream, file.size if codec_of(file.key) is None else None):
        folder, slash, name = member.name.rpartition("/")
        stem, dot, ending = name.partition(".")
        if stem and dot and ending and not (name.startswith("__") and name.endswith("__")):
            yield _SampleMember(folder + slash + stem, ending.lower(), member)
    if isinstance(stream, DecompressedStream):
        stream.drain()


def _open_stream(reader: SourceReader, file: ObjectInfo, *, sparse: bool) -> ByteStream:
    return SparseFile(reader, file) if sparse and codec_of(file.key) is None else open_unpacked(reader, file)


def _open(reader: SourceReader, files: Sequence[ObjectInfo]) -> SourceScan:
    shards = [file for file in files if file.key.lower().endswith(_ENDINGS)]
    if not shards:
        raise InvalidInputError(f"{reader.store.uri} has no .tar files, plain or compressed, which WebDataset needs")
    compressed = next((file for file in shards if codec_of(file.key) is not None), None)
    if reader.link and compressed is not None:
        raise InvalidInputError(
            f"{reader.uri(compressed.key)} is compressed, so its values cannot be linked;"
            " decompress it to .tar, or ingest without links"
        )
    samples, endings = _sample_endings(reader, shards)
    names = _names(list(endings))
    columns: dict[str, ColumnLike] = {_KEY: Text()}
    for ending, count in endings.items():
        format = _format_of(ending)
        if format.kind is not None:
            kind = Linked(format.kind) if reader.link and format.in_place else format.kind
            columns[names[ending]] = Column(kind, nullable=count < samples)
    return _Shards(shards, columns, names)


def _sample_endings(reader: SourceReader, shards: Sequence[ObjectInfo]) -> tuple[int, dict[str, int]]:
    """The number of samples inspected, and of those with each extension, in the first shard that has samples."""
    for file in shards[:_SAMPLED_SHARDS]:
        samples, endings = 0, dict[str, int]()
        with closing(_open_stream(reader, file, sparse=True)) as stream:
            try:
                for _, group in islice(groupby(_sample_members(stream, file), attrgetter("key")), _SAMPLED_SAMPLES):
                    first = islice(group, _MAX_COLUMNS + 1)
                    found = dict.fromkeys(part.ending for part in first if part.member.error is None)
                    endings |= {ending: endings.get(ending, 0) + 1 for ending in found}
                    samples += bool(found)
                    if len(endings) > _MAX_COLUMNS:
                        raise InvalidInputError(
                            f"the samples of {reader.uri(file.key)} have more than {_MAX_COLUMNS} different extensions;"
                            " they are not rows of one table"
                        )
            except (DamagedFileError, RejectedFileError):
                pass  # reported by `rows`
        if samples:
            return samples, endings
    raise InvalidInputError(
        f"no sample in the first {len(shards[:_SAMPLED_SHARDS])} tar files of {reader.store.uri}: members named"
        " NAME.EXTENSION, those of one NAME adjacent; check that they are WebDataset shards"
    )


def _names(endings: Sequence[str]) -> dict[str, str]:
    """The column of each extension: `label` for cls, `image` for the image if there is one image extension."""
    images = [ending for ending in endings if ending in _IMAGES]
    special = {"cls": "label"} | ({images[0]: "image"} if len(images) == 1 else {})
    names: dict[str, str] = {}
    for ending in endings:
        names[ending] = column_name(special.get(ending, _underscored(ending)), {_KEY, *names.values()})
    return names


WEBDATASET = Source(
    name="webdataset",
    about="WebDataset tar shards: adjacent members with the same base name are a row",
    extensions=_ENDINGS,
    recognise=lambda listing: listing.has(_ENDINGS),
    open=_open,
    links=True,
)
