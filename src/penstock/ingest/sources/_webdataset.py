"""WebDataset: tar files in which neighbours with one name are a row, and the endings of their names its columns."""

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
from penstock.ingest._bucket import MAX_VALUE_BYTES, Bucket
from penstock.ingest._source import Found, Reading, Reject, Row, Source
from penstock.ingest.sources._expand import Damaged, Expanded, Stream, read_exactly
from penstock.ingest.sources._tar import Glances, Member, members
from penstock.ingest.sources._values import column_name, load_npy, parse_json, parse_text
from penstock.storage import ObjectInfo

_KEY = "key"
_SURVEYED_SAMPLES = 64
_SURVEYED_SHARDS = 16
_MAX_COLUMNS = 256
_PACKED = (".tar.gz", ".tgz")
_ENDINGS = (".tar", *_PACKED)


@dataclass(frozen=True)
class _Meaning:
    """What members with some ending are."""

    kind: Kind | None
    """None where only the values tell."""
    parse: Callable[[bytes], Any]
    in_place: bool = False
    """Whether the member's bytes are the value, so that it can be linked."""


def _class_number(data: bytes) -> int:
    if not (match := re.fullmatch(rb"\s*([+-]?\d{1,18})\s*", data[:64])):
        raise SampleError(f"not the number of a class: {data[:64]!r}")
    return int(match[1])


def _picture(data: bytes) -> bytes:
    image_size(data)
    return data


def _recording(codec: str, data: bytes) -> bytes:
    found = sniff(data)
    if found != codec and not (codec == "mp3" and found is None):  # an mp3 may begin with anything
        raise SampleError(f"expected {codec}, found {found or 'something else'}, {len(data)} bytes")
    return data


_IMAGES = {name: name for name in ("jpeg", "png", "webp", "gif", "bmp", "tiff")} | {"jpg": "jpeg", "tif": "tiff"}
_SOUNDS = ("flac", "wav", "mp3", "ogg")
_FILMS = {"mp4": "mp4", "m4v": "mp4", "webm": "webm", "avi": "avi"}
_MEANINGS = {
    "cls": _Meaning(Label(), _class_number),
    "txt": _Meaning(Text(), parse_text),
    "json": _Meaning(Json(), parse_json),
    "npy": _Meaning(None, load_npy),
    **{ending: _Meaning(Image(codec), _picture, in_place=True) for ending, codec in _IMAGES.items()},
    **{codec: _Meaning(Audio(codec), partial(_recording, codec), in_place=True) for codec in _SOUNDS},
    **{ending: _Meaning(Video(codec), partial(_recording, codec), in_place=True) for ending, codec in _FILMS.items()},
}
_ANYTHING = _Meaning(Bytes(), bytes, in_place=True)


@dataclass(frozen=True)
class _Piece:
    """A member as a part of a sample."""

    key: str
    ending: str
    member: Member


@dataclass(frozen=True)
class _Shards(Reading):
    files: Sequence[ObjectInfo]
    columns: Mapping[str, ColumnLike]
    names: Mapping[str, str]
    """Ending to column."""

    def rows(self, bucket: Bucket, files: Sequence[ObjectInfo]) -> Iterator[Found]:
        for file in files:
            yield from self._shard(bucket, file)

    def _shard(self, bucket: Bucket, file: ObjectInfo) -> Iterator[Found]:
        rows, current = 0, None
        with closing(_opened(bucket, file, glance=bucket.link)) as stream:
            try:
                for key, pieces in groupby(_pieces(stream, file), attrgetter("key")):
                    current = f"{file.key}/{key}"
                    found = self._sample(bucket, file, stream, key, pieces)
                    rows, current = rows + isinstance(found, Row), None
                    yield found
            except Damaged as damage:
                if current is not None:
                    yield Reject(current, "its shard is damaged, and what is there of the sample may not be all")
                # A file that bears the reject's name is read again by the next run, and this one's first rows are in.
                yield Reject(f"{file.key}, after {rows} samples" if rows else file.key, str(damage))

    def _sample(
        self, bucket: Bucket, file: ObjectInfo, stream: Stream, key: str, pieces: Iterator[_Piece]
    ) -> Row | Reject:
        values: dict[str, Any] = {_KEY: key}
        seen: dict[str, int] = {}
        flaw: str | None = None
        for piece in pieces:
            if flaw is not None:
                continue
            try:
                _check(piece, seen)
                seen[piece.ending] = piece.member.size
                name = self.names.get(piece.ending) or column_name(
                    _plain(piece.ending), {*values, *self.names.values()}
                )
                values[name] = _value(bucket, file, stream, piece)
            except Damaged:
                raise
            except SampleError as error:
                flaw = f".{piece.ending}: {error}"
        name = f"{file.key}/{key}"
        return (
            Reject(name, flaw)
            if flaw is not None
            else Row(name, {_KEY: key} | dict.fromkeys(self.names.values()) | values)
        )


def _check(piece: _Piece, seen: Mapping[str, int]) -> None:
    """Refuse what cannot be another member of a sample."""
    if piece.member.flaw is not None:
        raise SampleError(piece.member.flaw)
    if piece.ending in seen:
        raise SampleError("the sample has two members with this ending")
    if len(seen) >= _MAX_COLUMNS:
        raise SampleError(f"the sample has more than {_MAX_COLUMNS} members")
    if sum(seen.values()) + piece.member.size > MAX_VALUE_BYTES:
        raise SampleError(f"the sample is larger than {MAX_VALUE_BYTES} bytes")


def _value(bucket: Bucket, file: ObjectInfo, stream: Stream, piece: _Piece) -> Any:
    member, meaning = piece.member, _meaning(piece.ending)
    if bucket.link and meaning.in_place:
        if not member.size:
            raise SampleError("the member is empty, so there is nothing to link to")
        return bucket.value(file, b"", member.offset, member.size)
    stream.seek(member.offset)
    return meaning.parse(read_exactly(stream, member.size))


def _meaning(ending: str) -> _Meaning:
    return _MEANINGS.get(ending.rpartition(".")[2], _ANYTHING)


def _plain(ending: str) -> str:
    return ending.replace(".", "_")


def _pieces(stream: Stream, file: ObjectInfo) -> Iterator[_Piece]:
    """The members that belong to samples; those without an ending, hidden ones and notes (`__…__`) do not."""
    for member in members(stream, None if _is_packed(file.key) else file.size):
        folder, slash, name = member.name.rpartition("/")
        stem, dot, ending = name.partition(".")
        if stem and dot and ending and not (name.startswith("__") and name.endswith("__")):
            yield _Piece(folder + slash + stem, ending.lower(), member)
    if isinstance(stream, Expanded):
        stream.finish()


def _opened(bucket: Bucket, file: ObjectInfo, *, glance: bool) -> Stream:
    if _is_packed(file.key):
        return Expanded(bucket, file, "gzip")
    return Glances(bucket, file) if glance else bucket.open(file)


def _is_packed(key: str) -> bool:
    return key.lower().endswith(_PACKED)


def _open(bucket: Bucket, files: Sequence[ObjectInfo]) -> Reading:
    shards = [file for file in files if file.key.lower().endswith(_ENDINGS)]
    if not shards:
        raise InvalidInputError(f"{bucket.store.uri} has no .tar, .tar.gz or .tgz files, which WebDataset needs")
    packed = next((file for file in shards if _is_packed(file.key)), None)
    if bucket.link and packed is not None:
        raise InvalidInputError(
            f"{bucket.uri(packed.key)} is compressed, so nothing in it can be linked; unpack it to .tar, or do not link"
        )
    samples, endings = _survey(bucket, shards)
    names = _names(list(endings))
    columns: dict[str, ColumnLike] = {_KEY: Text()}
    for ending, count in endings.items():
        meaning = _meaning(ending)
        if meaning.kind is not None:
            kind = Linked(meaning.kind) if bucket.link and meaning.in_place else meaning.kind
            columns[names[ending]] = Column(kind, nullable=count < samples)
    return _Shards(shards, columns, names)


def _survey(bucket: Bucket, shards: Sequence[ObjectInfo]) -> tuple[int, dict[str, int]]:
    """How many samples were looked at, and how many of them have each ending; from the first shard with samples."""
    for file in shards[:_SURVEYED_SHARDS]:
        samples, endings = 0, dict[str, int]()
        with closing(_opened(bucket, file, glance=True)) as stream:
            try:
                for _, pieces in islice(groupby(_pieces(stream, file), attrgetter("key")), _SURVEYED_SAMPLES):
                    some = islice(pieces, _MAX_COLUMNS + 1)
                    found = dict.fromkeys(piece.ending for piece in some if piece.member.flaw is None)
                    endings |= {ending: endings.get(ending, 0) + 1 for ending in found}
                    samples += bool(found)
                    if len(endings) > _MAX_COLUMNS:
                        raise InvalidInputError(
                            f"the samples of {bucket.uri(file.key)} have more than {_MAX_COLUMNS} different endings;"
                            " they are not rows of one table"
                        )
            except Damaged:
                pass  # `rows` says so
        if samples:
            return samples, endings
    raise InvalidInputError(
        f"no sample is in the first {len(shards[:_SURVEYED_SHARDS])} tar files of {bucket.store.uri}: files called"
        " NAME.ENDING, those of one NAME next to each other; check that they are WebDataset shards"
    )


def _names(endings: Sequence[str]) -> dict[str, str]:
    """The column of each ending: `label` for cls, `image` for an image where there is one kind of them."""
    images = [ending for ending in endings if ending in _IMAGES]
    usual = {"cls": "label"} | ({images[0]: "image"} if len(images) == 1 else {})
    names: dict[str, str] = {}
    for ending in endings:
        names[ending] = column_name(usual.get(ending, _plain(ending)), {_KEY, *names.values()})
    return names


WEBDATASET = Source(
    name="webdataset",
    about="tar shards of WebDataset: neighbouring members with one name are a row",
    recognise=lambda listing: listing.has(_ENDINGS),
    open=_open,
    links=True,
)
