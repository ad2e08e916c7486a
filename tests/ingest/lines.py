"""A minimal source for tests of ingest: text files with a row per line, where `!` is a bad line."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.format.kinds import Text
from penstock.ingest import Reject, Row, Source, SourceItem, SourceScan
from penstock.ingest._reader import SourceReader
from penstock.storage import ObjectInfo


class Lines(SourceScan):
    def __init__(self, files: Sequence[ObjectInfo]) -> None:
        self.files = [file for file in files if file.key.endswith(".lines")]
        self.columns = {"text": Text()}

    def rows(self, reader: SourceReader, files: Sequence[ObjectInfo]) -> Iterator[SourceItem]:
        for file, data in reader.read_many(files):
            if isinstance(data, Exception):
                yield Reject(file.key, str(data))
                continue
            if not data:
                yield Row(file.key, {"text": reader.value_or_link(file, ""), "number": 0})
                continue
            for number, line in enumerate(bytes(data).decode().splitlines()):
                if line == "!!":
                    yield Reject(file.key, "broken")
                elif line == "!":
                    yield Reject(f"{file.key}:{number}", "bad line")
                else:
                    yield Row(f"{file.key}:{number}", {"text": line, "number": None if line == "?" else len(line)})


LINES = Source(
    "lines",
    "lines of text",
    (".lines",),
    lambda listing: listing.has([".lines"]),
    lambda _, f: Lines(f),
    links=True,
)
SOURCES = {"lines": LINES}


def write(folder: Path, name: str, *lines: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))
