"""Plain text files (`.txt`), plain or compressed: each file is a row, or each line.

A file is a row with its text and its path, and folders are classes as for images (`pos/`, `neg/`). `--as lines` makes
each line that is not empty a row. Text is UTF-8; another encoding rejects the file, or the line.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from penstock.errors import SampleError, SourceChangedError
from penstock.format import ColumnLike
from penstock.format.kinds import Text
from penstock.ingest._path_columns import ClassFolders
from penstock.ingest._reader import SourceReader
from penstock.ingest._source import Reject, RejectedFileError, Row, Source, SourceItem, SourceScan
from penstock.ingest.sources._limits import DamagedFileError
from penstock.ingest.sources._streams import codec_of, line_rows, open_unpacked, with_compressions
from penstock.ingest.sources._tabular import all_end_in, data_files
from penstock.ingest.sources._values import parse_text
from penstock.storage import ObjectInfo

_TXT = with_compressions(".txt")
_MAX_TEXT_BYTES = 256 << 20
_BOM = "\ufeff"
_NOTE = "each text file is a row; --as lines (kind='lines') makes each line a row"


@dataclass(frozen=True)
class _Texts(SourceScan):
    files: Sequence[ObjectInfo]
    columns: Mapping[str, ColumnLike]
    folders: ClassFolders
    notes: Sequence[str] = (_NOTE,)

    def rows(self, reader: SourceReader, files: Sequence[ObjectInfo]) -> Iterator[SourceItem]:
        for file, data in reader.read_many(files, _is_read_whole):
            try:
                if isinstance(data, Exception):
                    raise data
                text = parse_text(data if _is_read_whole(file) else _unpack(reader, file)).removeprefix(_BOM)
            except (SampleError, SourceChangedError, RejectedFileError) as error:
                reason = error.reason if isinstance(error, RejectedFileError) else str(error)
                yield Reject(file.key, reason)
            else:
                yield Row(file.key, {"text": text, "path": file.key, **self.folders.values(file.key)})


def _is_read_whole(file: ObjectInfo) -> bool:
    return codec_of(file.key) is None and file.size <= _MAX_TEXT_BYTES


def _unpack(reader: SourceReader, file: ObjectInfo) -> bytes:
    """The bytes of a file that is compressed, or too large: raises `DamagedFileError` for the latter."""
    data, size = b"", file.size
    if codec_of(file.key) is not None:
        with closing(open_unpacked(reader, file)) as stream:
            data = stream.read(_MAX_TEXT_BYTES + 1)
        size = len(data)
    if size > _MAX_TEXT_BYTES:
        raise DamagedFileError(
            f"has more than {_MAX_TEXT_BYTES:,} bytes, the limit for one text; --as lines makes each line a row"
        )
    return data


@dataclass(frozen=True)
class _Lines(SourceScan):
    files: Sequence[ObjectInfo]
    columns: Mapping[str, ColumnLike]

    def rows(self, reader: SourceReader, files: Sequence[ObjectInfo]) -> Iterator[SourceItem]:
        return line_rows(reader, files, _line)


def _line(name: str, line: bytes) -> Row | Reject:
    try:
        return Row(name, {"text": parse_text(line.rstrip(b"\r\n"))})
    except SampleError as error:
        return Reject(name, f"is {error}")


def _open_texts(reader: SourceReader, files: Sequence[ObjectInfo]) -> SourceScan:
    found = data_files(reader, files, _TXT)
    folders = ClassFolders.of(file.key for file in found)
    return _Texts(found, {"text": Text(), "path": Text(), **folders.columns()}, folders)


def _open_lines(reader: SourceReader, files: Sequence[ObjectInfo]) -> SourceScan:
    return _Lines(data_files(reader, files, _TXT), {"text": Text()})


TEXT = Source(
    "text",
    "text files (.txt), plain or compressed: each file is a row, with a class per folder",
    _TXT,
    partial(all_end_in, endings=_TXT),
    _open_texts,
    may_be_empty=True,
)
LINES = Source(
    "lines",
    "text files (.txt), plain or compressed: each line is a row",
    _TXT,
    lambda _: False,
    _open_lines,
    may_be_empty=True,
)
