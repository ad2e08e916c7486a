"""Folders of images: a class per folder, or files beside them that describe them: CSV, JSON, JSONL, COCO.

Of an image only the header and, where the format marks it, the end are looked at: decoding all would take longer than
everything else. What describes images is read when the source is opened, and held in memory while it is taken in.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.codecs import MAX_PIXELS, image_size, sniff
from penstock.errors import InvalidInputError, SampleError
from penstock.format import Column, ColumnLike
from penstock.format.kinds import Image, Label, Linked, Text
from penstock.ingest._bucket import Bucket
from penstock.ingest._source import Found, Listing, Reading, Reject, Row, Source, suffix
from penstock.ingest.sources._images_tables import Described, read_tables
from penstock.storage import ObjectInfo

_CODECS = {
    ".jpg": "jpeg",
    ".jpeg": "jpeg",
    ".jpe": "jpeg",
    ".jfif": "jpeg",
    ".png": "png",
    ".webp": "webp",
    ".tif": "tiff",
    ".tiff": "tiff",
    ".bmp": "bmp",
    ".gif": "gif",
}
_MAX_IMAGE_BYTES = 1 << 30  # more than any picture within the limit of pixels needs
_SPLIT = re.compile(r"(train(ing)?|val(id(ation)?)?|dev|test(ing)?|eval)[-_]?[0-9]*", re.IGNORECASE)


@dataclass(frozen=True)
class _Folders:
    """What the folders on the way to an image say."""

    below: int
    """Depth at which classes begin: below folders called train, val, …, where every image is in such a one."""
    splits: bool
    classes: tuple[str, ...]
    all_classed: bool
    """Whether every image is in a folder that could be its class."""

    @classmethod
    def of(cls, keys: Iterable[str]) -> "_Folders":
        paths = [folder.split("/") if folder else [] for folder in {key.rpartition("/")[0] for key in keys}]
        common = range(min(map(len, paths)))
        at = next((depth for depth in common if all(_SPLIT.fullmatch(path[depth]) for path in paths)), None)
        below = 0 if at is None else at + 1
        splits = at is not None and len({path[at] for path in paths}) > 1
        classes = {path[-1] for path in paths if len(path) > below}
        all_classed = all(len(path) > below for path in paths)
        return cls(below, splits, tuple(sorted(classes)) if len(classes) > 1 else (), all_classed)

    def columns(self) -> dict[str, ColumnLike]:
        found: dict[str, ColumnLike] = {}
        if self.classes:
            found["label"] = Column(Label(self.classes), nullable=not self.all_classed)
        if self.splits:
            found["split"] = Text()
        return found

    def values(self, key: str) -> dict[str, Any]:
        path = key.split("/")[:-1]
        found: dict[str, Any] = {}
        if self.classes:
            found["label"] = path[-1] if len(path) > self.below else None
        if self.splits:
            found["split"] = path[self.below - 1]
        return found


@dataclass
class _Images(Reading):
    files: Sequence[ObjectInfo]
    columns: Mapping[str, ColumnLike]
    folders: _Folders
    described: Described

    def rows(self, bucket: Bucket, files: Sequence[ObjectInfo]) -> Iterator[Found]:
        for file, data in bucket.each(files, lambda file: self._unread(file) is None):
            if (reasons := self._unread(file)) is not None:
                yield from (Reject(file.key, reason) for reason in reasons)
            elif isinstance(data, Exception):
                yield Reject(file.key, str(data))
            elif not bucket.link and (flaw := _flaw(data)) is not None:
                yield Reject(file.key, flaw)
            else:
                told = {**self.folders.values(file.key), **self.described.values(file.key)}
                yield Row(file.key, {"image": bucket.value(file, data), "path": file.key, **told})

    def _unread(self, file: ObjectInfo) -> Sequence[str] | None:
        """Why a file need not be read: it is known what is wrong with it."""
        if file.key in self.described.flaws:
            return self.described.flaws[file.key]
        if self.described.tables and file.key not in self.described.places:
            return [f"no entry in {self.described.tables}"]
        if file.size > _MAX_IMAGE_BYTES:
            return [f"has {file.size} bytes; an image may have {_MAX_IMAGE_BYTES} at most"]
        return None


def _recognise(listing: Listing) -> bool:
    images = sum(len(sizes) for name, sizes in listing.sizes.items() if name in _CODECS)
    return 0 < len(listing.files) <= 2 * images


def _open(bucket: Bucket, files: Sequence[ObjectInfo]) -> Reading:
    codecs = [_CODECS.get(suffix(file.key)) for file in files]
    images = [file for file, codec in zip(files, codecs, strict=True) if codec is not None]
    if not images:
        raise InvalidInputError(f"there are no images in {bucket.store.uri}: no file ends in {', '.join(_CODECS)}")
    keys = [file.key for file in images]
    described = read_tables(bucket, [f for f, codec in zip(files, codecs, strict=True) if codec is None], keys)
    folders = _Folders.of(keys)
    if described.tables:  # folders are then how somebody keeps order, and no classes
        folders = replace(folders, classes=())
    kind = Image(Counter(filter(None, codecs)).most_common(1)[0][0])
    columns = {"image": Linked(kind) if bucket.link else kind, "path": Text()}
    flawed = [file for file in files if file.key in described.flaws] if described.flaws else []
    return _Images([*images, *flawed], {**columns, **folders.columns(), **described.columns}, folders, described)


IMAGES = Source(
    name="images",
    about="folders of images: a class per folder, or a CSV, JSON, JSONL or COCO file beside them",
    recognise=_recognise,
    open=_open,
    links=True,
)


def _flaw(data: memoryview) -> str | None:
    """What is wrong with the bytes of an image, as far as its header and its end tell."""
    try:
        height, width, _ = image_size(data)
    except SampleError as error:
        return str(error)
    if height * width > MAX_PIXELS:
        return f"claims {height} x {width} pixels; the limit is {MAX_PIXELS}"
    return None if _is_whole(data) else f"is cut off: its end is not among its {len(data)} bytes"


def _is_whole(data: memoryview) -> bool:
    kind = sniff(data)
    if kind == "jpeg":
        return _jpeg_is_whole(data)
    if kind == "png":
        end = b"IEND\xaeB`\x82"
        return data[-8:] == end or end in bytes(data)
    return kind != "webp" or int.from_bytes(data[4:8], "little") + 8 <= len(data)


def _jpeg_is_whole(data: memoryview) -> bool:
    """Whether the end marker is there; padding, or the film that a phone appends, may follow it."""
    end = b"\xff\xd9"
    if data[-2:] == end:
        return True
    at = 2  # a thumbnail before the scan has an end marker of its own
    while at + 4 <= len(data) and data[at] == 0xFF and data[at + 1] != 0xDA:
        at += 1 if data[at + 1] == 0xFF else 2 + (data[at + 2] << 8) + data[at + 3]
    return end in bytes(data[at:])
