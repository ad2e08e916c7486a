"""The interface of a source of rows, and its contract.

A source is one file in `sources` that defines one `Source`. The contract; if a source disagrees with this list, the
source is wrong (`penstock.testing.SourceTests` checks it):

- `recognise` gets names and sizes only. Neither it nor `open` gets hidden or empty files.
- `open` reads only metadata (an index, a file of labels), and lists the files that hold rows, and those read for them:
  every listed file is taken, rejected or ignored, and counted once.
- `rows` yields the rows of some of those files, in order, in bounded memory. It may be called for any files in any
  order, from several threads, and in another process: its state is in the `SourceScan`, which can be pickled.
- A row that cannot be read is yielded as a `Reject`, and the scan continues. Only a store that does not respond, and a
  file that changes or expands too much after some of its rows were yielded, raise (`SourceChangedError`,
  `RejectedFileError`).
- Nothing is unpickled, extracted to disk, or decompressed without a limit.
"""

import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.format import ColumnLike
from penstock.ingest._reader import SourceReader
from penstock.storage import ObjectInfo

T = TypeVar("T")

COMPRESSIONS = {
    ".gz": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".bz2": "bz2",
    ".br": "brotli",
    ".snappy": "snappy",
}
"""Suffixes of compressed files to Arrow's name of the codec."""

_SUFFIX_CACHE_SIZE = 1 << 16
_HIDDEN = re.compile(r"(?:^|/)[._]")


class Row(NamedTuple):
    """One row, and a name for messages: the key of its file, or a location inside it."""

    name: str
    values: Mapping[str, Any]


class Reject(NamedTuple):
    """A row or file that is not ingested, and the reason."""

    name: str
    reason: str


class RejectedFileError(PenstockError):
    """A file must be rejected as a whole after some of its rows were yielded. Read the others again without it."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key} {reason}")
        self.key, self.reason = key, reason

    def __reduce__(self) -> tuple[type["RejectedFileError"], tuple[str, str]]:
        return RejectedFileError, (self.key, self.reason)


class RowBatch(NamedTuple):
    """Rows of one file as Arrow data."""

    name: str
    batch: pa.RecordBatch


SourceItem: TypeAlias = Row | RowBatch | Reject


class SourceScan(ABC):
    """Reads the rows of one opened source."""

    files: Sequence[ObjectInfo]
    """The files that hold rows, in the order of the table."""
    columns: Mapping[str, ColumnLike]
    """The columns with known kinds; the others are inferred from the first rows."""
    notes: Sequence[str] = ()
    """What the rows differ in from the files, a sentence each."""
    companions: Mapping[str, Collection[str]] = MappingProxyType({})
    """By the key of a file, the keys of the other files that are read for its rows."""
    described_by: Collection[str] = ()
    """Keys of files with labels or an index of the rows, read when the source is opened; none of `files`."""

    @abstractmethod
    def rows(self, reader: SourceReader, files: Sequence[ObjectInfo]) -> Iterator[SourceItem]:
        """The rows of some of the files."""


@dataclass(frozen=True)
class Source:
    """A kind of data that can be ingested."""

    name: str
    """The argument of `--as`."""
    about: str
    """One line of help text."""
    extensions: tuple[str, ...]
    """How the names of files with rows end, as `extension` gives it."""
    recognise: Callable[["SourceListing"], bool]
    """Whether files look like this kind of data."""
    open: Callable[[SourceReader, Sequence[ObjectInfo]], SourceScan]
    may_be_empty: bool = False
    """Whether a file of 0 bytes is a valid file without rows."""
    links: bool = False
    """Whether files store values as plain bytes, so that a table can link to them."""


class SourceListing:
    """The files of a source, with their sizes grouped by extension."""

    def __init__(self, files: Sequence[ObjectInfo]) -> None:
        self.files = files
        self.sizes: defaultdict[str, list[int]] = defaultdict(list)
        for file in files:
            self.sizes[extension(file.key)].append(file.size)

    def has(self, extensions: Iterable[str]) -> bool:
        """Whether any file has one of these extensions."""
        return not self.sizes.keys().isdisjoint(extensions)

    def has_mostly(self, extensions: Iterable[str]) -> bool:
        """Whether files with these extensions hold at least half of the bytes."""
        matching = sum(sum(self.sizes[name]) for name in extensions if name in self.sizes)
        return self.has(extensions) and 2 * matching >= sum(map(sum, self.sizes.values()))


def extension(key: str) -> str:
    """The suffix of a name; that of a compression (`.gz`, `.zst`) together with the suffix before it."""
    last = suffix(key)
    return suffix(key.removesuffix(key[-len(last) :])) + last if last in COMPRESSIONS else last


@lru_cache(maxsize=_SUFFIX_CACHE_SIZE)  # called again when the files are opened
def suffix(key: str) -> str:
    """The last suffix of a name in lower case, with its dot: `.jpg`."""
    name = key[key.rfind("/") + 1 :].lstrip(".")
    dot = name.rfind(".")
    return name[dot:].lower() if dot >= 0 else ""


def is_hidden(key: str) -> bool:
    """Whether a name, or a folder in its path, begins with a dot or an underscore.

    JSON files may begin with an underscore: some tools name their labels `_annotations.coco.json`.
    """
    if not _HIDDEN.search(key):
        return False
    *folders, name = key.split("/")
    if any(folder.startswith((".", "_")) for folder in folders):
        return True
    return name.startswith(".") or (name.startswith("_") and not name.endswith(".json"))


def evenly_spaced(items: Sequence[T], count: int) -> list[T]:
    """`count` items at even distances, including the first and the last."""
    indices = np.unique(np.linspace(0, len(items) - 1, min(count, len(items))).astype(int))
    return [items[index] for index in indices.tolist()]
