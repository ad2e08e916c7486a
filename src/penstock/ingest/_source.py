"""What a source of rows is: the one contract that every source in this room keeps.

A source is one file of this room with one `Source` in it. The contract; if a source disagrees with this list, the
source is wrong (`penstock.testing.SourceTests` is its exam):

- `recognise` is shown names and sizes only. Neither it nor `open` is shown hidden or empty files.
- `open` reads what describes the data (an index, a file of labels) and nothing more, and says which files hold rows.
- `rows` yields the rows of some of those files, in order, holding a bounded part of them in memory. It may be called
  for any files in any order, from several threads, and in another process: what it needs to know is in the `Reading`,
  which can be pickled.
- A row that cannot be read is yielded as a `Reject` and the rest goes on; only a file that cannot be read at all, or a
  store that does not answer, raises.
- Nothing is unpickled, extracted to disk, or expanded without a limit.
"""

import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from penstock.format import ColumnLike
from penstock.ingest._bucket import Bucket
from penstock.storage import ObjectInfo

T = TypeVar("T")

_NAMES_KEPT = 1 << 16
_HIDDEN = re.compile(r"(?:^|/)[._]")


class Row(NamedTuple):
    """One row, and what a person would call it: the name of its file, or a place inside it."""

    name: str
    values: Mapping[str, Any]


class Reject(NamedTuple):
    """Something that is not in the table, and why."""

    name: str
    reason: str


class Rows(NamedTuple):
    """Many rows of one file as Arrow data."""

    name: str
    batch: pa.RecordBatch


Found: TypeAlias = Row | Rows | Reject


class Reading(ABC):
    """How one source is read."""

    files: Sequence[ObjectInfo]
    """The files that hold rows, in the order in which the table has them."""
    columns: Mapping[str, ColumnLike]
    """The columns whose kinds are known; the others are inferred from the first rows."""

    @abstractmethod
    def rows(self, bucket: Bucket, files: Sequence[ObjectInfo]) -> Iterator[Found]:
        """The rows of some of the files."""


@dataclass(frozen=True)
class Source:
    """A kind of data that can be taken in."""

    name: str
    """What follows `--as`."""
    about: str
    """One line for people."""
    recognise: Callable[["Listing"], bool]
    """Whether files look like this kind of data."""
    open: Callable[[Bucket, Sequence[ObjectInfo]], Reading]
    links: bool = False
    """Whether its values lie in the files as they are, so that a table can link to them."""


class Listing:
    """The files of a source, and how large those are that end alike: looked at once, for all who may recognise them."""

    def __init__(self, files: Sequence[ObjectInfo]) -> None:
        self.files = files
        self.sizes: defaultdict[str, list[int]] = defaultdict(list)
        for file in files:
            self.sizes[ending(file.key)].append(file.size)

    def has(self, endings: Iterable[str]) -> bool:
        """Whether some file ends so."""
        return not self.sizes.keys().isdisjoint(endings)

    def are_most(self, endings: Iterable[str]) -> bool:
        """Whether files with these endings hold most of the bytes."""
        mine = sum(sum(self.sizes[name]) for name in endings if name in self.sizes)
        return self.has(endings) and 2 * mine >= sum(map(sum, self.sizes.values()))


def ending(key: str) -> str:
    """The suffix of a name; where it only says that the file is compressed, with the one before it."""
    last = suffix(key)
    return suffix(key.removesuffix(key[-len(last) :])) + last if last == ".gz" else last


@lru_cache(maxsize=_NAMES_KEPT)  # who opens the files asks again
def suffix(key: str) -> str:
    """The ending of a name in small letters, with its dot: `.jpg`."""
    name = key[key.rfind("/") + 1 :].lstrip(".")
    dot = name.rfind(".")
    return name[dot:].lower() if dot >= 0 else ""


def is_hidden(key: str) -> bool:
    """Whether a name, or a folder on the way to it, begins with a dot or an underscore: those are nobody's data.

    Except for JSON: some tools call their file of labels `_annotations.coco.json`.
    """
    if not _HIDDEN.search(key):
        return False
    *folders, name = key.split("/")
    if any(folder.startswith((".", "_")) for folder in folders):
        return True
    return name.startswith(".") or (name.startswith("_") and not name.endswith(".json"))


def spread(items: Sequence[T], count: int) -> list[T]:
    """So many items, from all over the sequence, the first and the last among them."""
    picks = np.unique(np.linspace(0, len(items) - 1, min(count, len(items))).astype(int))
    return [items[index] for index in picks.tolist()]
