"""Commits, the table's birth certificate, and claims of row ids: the sealed JSON objects."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from penstock.errors import UnsupportedFormat
from penstock.format._features import Features
from penstock.format._sealed import known, seal, unseal
from penstock.format._snapshot import SnapshotRef
from penstock.types import Buffer

FORMAT_VERSION = 1
SINGLE_WRITER = "single-writer"


@dataclass(frozen=True)
class TableInfo:
    """What `penstock.json` says; written once, when the table is made."""

    id: str
    main: str
    """Id of the branch called main."""
    features: Features = field(default_factory=Features)

    @property
    def single_writer(self) -> bool:
        """Whether the store cannot keep two writers apart."""
        return SINGLE_WRITER in self.features.write

    def encode(self) -> bytes:
        features = self.features.to_json()
        return seal({"penstock": FORMAT_VERSION, "features": features, "table": self.id, "main": self.main})

    @staticmethod
    def decode(data: Buffer, where: str) -> "TableInfo":
        document = unseal(data, where)
        if document["penstock"] != FORMAT_VERSION:
            raise UnsupportedFormat(f"{where} says this table has format {document['penstock']}; upgrade Penstock")
        return TableInfo(document["table"], document["main"], Features.from_json(document["features"], where))


@dataclass(frozen=True)
class Parent:
    """The commit before."""

    branch: str
    version: int


@dataclass(frozen=True)
class Commit:
    """One step of a branch."""

    branch: str
    """Id of the branch, not its name."""
    version: int
    write_id: str
    """Drawn by the writer; how it recognises its own commit when an answer was lost."""
    parent: Parent | None
    snapshot: SnapshotRef
    time_us: int
    """Microseconds since the epoch; later than the parent's, whatever the clock says."""
    operation: str
    message: str = ""
    author: str = ""
    rows: int = 0
    """Rows of the table at this version."""
    changes: Mapping[str, int] = field(default_factory=dict)
    """How many rows were added, updated and deleted."""
    merged: Parent | None = None
    """The version of another branch that this one took in."""
    ancestors: Mapping[str, int] = field(default_factory=dict)
    """Of other branches, by id: the newest version that this one contains."""

    @property
    def time(self) -> datetime:
        return datetime.fromtimestamp(self.time_us / 1e6, UTC)

    def contains(self, branch: str) -> int:
        """The newest version of a branch that this one is or descends from; -1 for none."""
        return self.version if branch == self.branch else self.ancestors.get(branch, -1)

    def encode(self) -> bytes:
        return seal(asdict(self))

    @staticmethod
    def decode(data: Buffer, where: str) -> "Commit":
        document: dict[str, Any] = unseal(data, where)
        parent, snapshot = document["parent"], document["snapshot"]
        document["parent"] = None if parent is None else known(Parent, parent)
        document["snapshot"] = known(SnapshotRef, snapshot)
        merged = document.get("merged")
        document["merged"] = None if merged is None else known(Parent, merged)
        return known(Commit, document)


@dataclass(frozen=True)
class Claim:
    """A range of row ids that one writer took for itself."""

    start: int
    end: int
    write_id: str

    def encode(self) -> bytes:
        return seal(asdict(self))

    @staticmethod
    def decode(data: Buffer, where: str) -> "Claim":
        return known(Claim, unseal(data, where))


def encode_hint(version: int) -> bytes:
    """The content of HINT."""
    return seal({"version": version})


def decode_hint(data: Buffer, where: str) -> int:
    return int(unseal(data, where)["version"])
