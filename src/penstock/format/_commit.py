"""Commits, the table's birth certificate, and claims of row ids: the sealed JSON objects."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from penstock.errors import UnsupportedFormat
from penstock.format._sealed import seal, unseal
from penstock.format._snapshot import SnapshotRef
from penstock.types import Buffer

FORMAT_VERSION = 1
KNOWN_FEATURES: frozenset[str] = frozenset({"single-writer"})


@dataclass(frozen=True)
class TableInfo:
    """What `penstock.json` says; written once, when the table is made."""

    id: str
    main: str
    """Id of the branch called main."""
    features: tuple[str, ...] = ()
    """What a reader or writer must know to handle this table."""

    def encode(self) -> bytes:
        return seal({"penstock": FORMAT_VERSION, "features": list(self.features), "table": self.id, "main": self.main})

    @staticmethod
    def decode(data: Buffer, where: str) -> "TableInfo":
        document = unseal(data, where)
        unknown = set(document["features"]) - KNOWN_FEATURES
        if document["penstock"] != FORMAT_VERSION or unknown:
            need = f"format {document['penstock']}" + (f" with {', '.join(sorted(unknown))}" if unknown else "")
            raise UnsupportedFormat(f"{where} says this table needs {need}; upgrade Penstock to read it")
        return TableInfo(document["table"], document["main"], tuple(document["features"]))


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

    @property
    def time(self) -> datetime:
        return datetime.fromtimestamp(self.time_us / 1e6, UTC)

    def encode(self) -> bytes:
        return seal(asdict(self))

    @staticmethod
    def decode(data: Buffer, where: str) -> "Commit":
        document: dict[str, Any] = unseal(data, where)
        parent = document.pop("parent")
        snapshot = SnapshotRef(**document.pop("snapshot"))
        known = {name.name for name in fields(Commit)} & set(document)  # later writers may say more
        return Commit(
            **{name: document[name] for name in known},
            snapshot=snapshot,
            parent=None if parent is None else Parent(**parent),
        )


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
        return Claim(**unseal(data, where))


def encode_hint(version: int) -> bytes:
    """The content of HINT."""
    return seal({"version": version})


def decode_hint(data: Buffer, where: str) -> int:
    return int(unseal(data, where)["version"])
