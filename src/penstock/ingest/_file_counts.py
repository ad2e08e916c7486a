"""What becomes of each file of a source: it is taken, rejected or ignored."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from penstock.errors import InvalidInputError
from penstock.format import TABLE_KEY
from penstock.ingest._source import Reject, Source, SourceScan, extension, is_hidden
from penstock.storage import ObjectInfo, SkippedObject

_EMPTY = "is empty: it has 0 bytes"
_KNOWN, _CHANGED = "already in the table", "changed since they were ingested"
_MAX_EXTENSIONS = 8
LABELS = "labels or an index of other files"


@dataclass(frozen=True)
class FileCounts:
    """How many files a source has, and what became of them: `listed == taken + rejected + ignored`."""

    taken: int = 0
    """Files with rows in the table, or with labels, columns or an index of such rows."""
    rejected: int = 0
    """Files that cannot be read; `IngestResult.rejects` has the reasons."""
    ignored_reasons: Mapping[str, int] = field(default_factory=dict)
    """How many files were ignored for each reason: hidden, empty, already in the table, of another kind (`.txt`), …"""

    @property
    def ignored(self) -> int:
        """Files that are not data of this kind, or are in the table already."""
        return sum(self.ignored_reasons.values())

    @property
    def listed(self) -> int:
        """All files of the source."""
        return self.taken + self.rejected + self.ignored

    def __add__(self, other: "FileCounts") -> "FileCounts":
        reasons = Counter(self.ignored_reasons) + Counter(other.ignored_reasons)
        return FileCounts(self.taken + other.taken, self.rejected + other.rejected, dict(reasons))


@dataclass
class ListedFiles:
    """The files of a source, before its kind is known."""

    objects: list[ObjectInfo] = field(default_factory=list)
    """Files that may be data."""
    empty: list[ObjectInfo] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    """Objects that cannot be read under their names, and links that are not followed."""
    ignored: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, items: Iterable[ObjectInfo | SkippedObject], uri: str) -> "ListedFiles":
        """Sort what a source lists; raises `InvalidInputError` if the source is a Penstock table."""
        found = cls()
        for item in items:
            if is_hidden(item.key):
                found.ignored["hidden"] += 1
            elif isinstance(item, SkippedObject):
                found.rejects.append(Reject(*item))
            else:
                (found.objects if item.size else found.empty).append(item)
        markers = [item.key for item in found.objects if item.key.endswith(TABLE_KEY)]
        tables = tuple(key.removesuffix(TABLE_KEY) for key in markers if f"/{key}".endswith(f"/{TABLE_KEY}"))
        if "" in tables:
            raise InvalidInputError(f"{uri} is a Penstock table already; copy it, or load it")
        if tables:
            outside = [item for item in found.objects if not item.key.startswith(tables)]
            found.ignored["part of a Penstock table"] += len(found.objects) - len(outside)
            found.objects = outside
        return found

    def settle_empty(self, source: Source) -> None:
        """Reject or ignore empty files: those with the extension of a kind whose files are never empty are damaged."""
        for file in self.empty:
            if extension(file.key) in source.extensions and not source.may_be_empty:
                self.rejects.append(Reject(file.key, _EMPTY))
            else:
                self.ignored["empty"] += 1

    def ignored_by(self, scan: SourceScan, new: Collection[str], changed: Collection[str]) -> dict[str, int]:
        """How many files are ignored for each reason, given the keys of new and of changed files of a scan."""
        ignored, taken = self.ignored.copy(), used_files(scan, new)
        known = {file.key for file in scan.files}.difference(new)
        known = used_files(scan, known).difference(taken, changed)
        ignored.update({_CHANGED: len(changed), _KNOWN: len(known)})
        counted = taken.union(known, changed, scan.described_by)
        others = Counter(
            extension(item.key) or "without an extension" for item in self.objects if item.key not in counted
        )
        listed = dict(others.most_common(_MAX_EXTENSIONS))
        ignored.update(listed)
        ignored["other extensions"] += others.total() - sum(listed.values())
        return {reason: count for reason, count in ignored.items() if count}


def used_files(scan: SourceScan, keys: Iterable[str]) -> set[str]:
    """The keys of some files of a scan, and of the other files with values of their rows."""
    found = set(keys)
    found.update(*(scan.companions.get(key, ()) for key in list(found)) if scan.companions else ())
    return found
