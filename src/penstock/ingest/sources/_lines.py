"""Lines of text files, plain or compressed, with a limit on their length."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, BinaryIO

from penstock.errors import SourceChangedError
from penstock.ingest._reader import SourceReader
from penstock.ingest._source import Reject, Row, SourceItem
from penstock.ingest.sources._streams import open_unpacked
from penstock.ingest.sources._tabular import UNREADABLE
from penstock.storage import ObjectInfo

BUFFER_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 20


class UnpackedFile(io.RawIOBase):
    """The bytes of an object, decompressed if it is compressed."""

    def __init__(self, reader: SourceReader, file: ObjectInfo) -> None:
        self.source = open_unpacked(reader, file)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self.source.close()
        super().close()

    def _read(self, size: int) -> bytes:
        return self.source.read(size)


def line_rows(
    reader: SourceReader, files: Sequence[ObjectInfo], make_row: Callable[[str, bytes], Row | Reject]
) -> Iterator[SourceItem]:
    """A row of each line that is not empty; `make_row` gets its name and bytes."""
    for file in files:
        number = 0
        try:
            for number, line in read_lines(reader, file):
                name = f"{file.key}:{number}"
                yield Reject(name, too_long()) if line is None else make_row(name, line)
        except SourceChangedError as error:
            if number:  # rows of the old version were yielded: the whole part must be retried
                raise
            yield Reject(file.key, str(error))
        except UNREADABLE as error:
            name = f"{file.key}:{number + 1}" if number else file.key
            yield Reject(name, f"cannot be read from this line on: {error}")


def too_long() -> str:
    """Why a line above the size limit is rejected."""
    return f"is longer than {MAX_LINE_BYTES:,} bytes"


def read_lines(reader: SourceReader, file: ObjectInfo) -> Iterator[tuple[int, bytes | None]]:
    """Line numbers and lines without empty ones; None for a line above the size limit."""
    with closing(io.BufferedReader(UnpackedFile(reader, file), BUFFER_BYTES)) as text:
        number = 0
        while line := text.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                _skip_line(text, line)
                yield number, None
                continue
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if line.strip():
                yield number, line


def _skip_line(text: BinaryIO, line: bytes) -> None:
    while line and not line.endswith(b"\n"):
        line = text.readline(BUFFER_BYTES)
