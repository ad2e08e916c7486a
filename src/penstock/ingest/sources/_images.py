"""Folders of images: a class per folder, or metadata files next to them: CSV, JSON, JSONL, COCO.

Only the header of an image and, if the format has one, its end marker are validated: decoding would dominate the cost.
Metadata files are read when the source is opened, and stay in memory during the ingest.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.codecs import MAX_PIXELS, image_size, sniff
from penstock.errors import InvalidInputError, SampleError
from penstock.format import ColumnLike
from penstock.format.kinds import Image, Linked, Text
from penstock.ingest._path_columns import ClassFolders
from penstock.ingest._reader import SourceReader
from penstock.ingest._source import Reject, Row, Source, SourceItem, SourceListing, SourceScan, suffix
from penstock.ingest.sources._images_tables import ImageMetadata, read_metadata
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
_MAX_IMAGE_BYTES = 1 << 30  # more than any image within the pixel limit needs


@dataclass
class _Images(SourceScan):
    files: Sequence[ObjectInfo]
    columns: Mapping[str, ColumnLike]
    folders: ClassFolders
    metadata: ImageMetadata
    described_by: Collection[str] = ()

    def rows(self, reader: SourceReader, files: Sequence[ObjectInfo]) -> Iterator[SourceItem]:
        for file, data in reader.read_many(files, lambda file: self._skip_reasons(file) is None):
            if (reasons := self._skip_reasons(file)) is not None:
                yield from (Reject(file.key, reason) for reason in reasons)
            elif isinstance(data, Exception):
                yield Reject(file.key, str(data))
            elif not reader.link and (error := _image_error(data)) is not None:
                yield Reject(file.key, error)
            else:
                values = {**self.folders.values(file.key), **self.metadata.values(file.key)}
                yield Row(file.key, {"image": reader.value_or_link(file, data), "path": file.key, **values})

    def _skip_reasons(self, file: ObjectInfo) -> Sequence[str] | None:
        """Why a file is rejected without being read, or None."""
        if file.key in self.metadata.errors:
            return self.metadata.errors[file.key]
        if self.metadata.tables and file.key not in self.metadata.indices:
            return [f"no entry in {self.metadata.table_names}"]
        if file.size > _MAX_IMAGE_BYTES:
            return [f"has {file.size} bytes; the limit is {_MAX_IMAGE_BYTES}"]
        return None


def _recognise(listing: SourceListing) -> bool:
    images = sum(len(sizes) for name, sizes in listing.sizes.items() if name in _CODECS)
    return 0 < len(listing.files) <= 2 * images


def _open(reader: SourceReader, files: Sequence[ObjectInfo]) -> SourceScan:
    codecs = [_CODECS.get(suffix(file.key)) for file in files]
    images = [file for file, codec in zip(files, codecs, strict=True) if codec is not None]
    if not images:
        raise InvalidInputError(f"there are no images in {reader.store.uri}: no file ends in {', '.join(_CODECS)}")
    keys = [file.key for file in images]
    metadata = read_metadata(reader, [f for f, codec in zip(files, codecs, strict=True) if codec is None], keys)
    folders = ClassFolders.of(keys)
    if metadata.tables:  # the metadata has the labels, so folders are not classes
        folders = replace(folders, classes=())
    kind = Image(Counter(filter(None, codecs)).most_common(1)[0][0])
    columns: dict[str, ColumnLike] = {"image": Linked(kind) if reader.link else kind, "path": Text()}
    with_errors = [file for file in files if file.key in metadata.errors] if metadata.errors else []
    columns |= {**folders.columns(), **metadata.columns}
    described_by = [key for key in metadata.tables if key not in metadata.errors]
    return _Images([*images, *with_errors], columns, folders, metadata, described_by)


IMAGES = Source(
    name="images",
    about="folders of images: a class per folder, or a CSV, JSON, JSONL or COCO file next to them",
    extensions=tuple(_CODECS),
    recognise=_recognise,
    open=_open,
    links=True,
)


def _image_error(data: memoryview) -> str | None:
    """Why the header or the end of an image is invalid, or None."""
    try:
        height, width, _ = image_size(data)
    except SampleError as error:
        return str(error)
    if height * width > MAX_PIXELS:
        return f"claims {height} x {width} pixels; the limit is {MAX_PIXELS}"
    return None if _is_whole(data) else f"is truncated: its {len(data)} bytes have no end marker"


def _is_whole(data: memoryview) -> bool:
    kind = sniff(data)
    if kind == "jpeg":
        return _jpeg_is_whole(data)
    if kind == "png":
        end = b"IEND\xaeB`\x82"
        return data[-8:] == end or end in bytes(data)
    return kind != "webp" or int.from_bytes(data[4:8], "little") + 8 <= len(data)


def _jpeg_is_whole(data: memoryview) -> bool:
    """Whether the end marker is present; padding or an appended video may follow it."""
    end = b"\xff\xd9"
    if data[-2:] == end:
        return True
    at = 2  # an embedded thumbnail before the scan has its own end marker
    while at + 4 <= len(data) and data[at] == 0xFF and data[at + 1] != 0xDA:
        at += 1 if data[at + 1] == 0xFF else 2 + (data[at + 2] << 8) + data[at + 3]
    return end in bytes(data[at:])
