"""The sealed JSON objects: `penstock.json`, commits, claims of row ids, and the hint."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from penstock.errors import UnsupportedFormatError
from penstock.format._layout import decoding
from penstock.format._sealed import decode_sealed, from_json, seal, unseal
from penstock.format._snapshot import Features, SnapshotRef
from penstock.types import Buffer

FORMAT_VERSION = 1
SINGLE_WRITER = "single-writer"


@dataclass(frozen=True)
class TableInfo:
    """The content of `penstock.json`, written once when the table is created."""

    id: str
    main: str
    """Id of the branch called main."""
    features: Features = field(default_factory=Features)

    @property
    def single_writer(self) -> bool:
        """Whether the store lacks an atomic create, so that concurrent writers are unsafe."""
        return SINGLE_WRITER in self.features.write

    def encode(self) -> bytes:
        features = self.features.to_json()
        return seal({"penstock": FORMAT_VERSION, "features": features, "table": self.id, "main": self.main})

    @staticmethod
    def decode(data: Buffer, where: str) -> "TableInfo":
        document = unseal(data, where)
        with decoding(where):
            if document["penstock"] != FORMAT_VERSION:
                raise UnsupportedFormatError(
                    f"{where}: unsupported table format {document['penstock']!r}; upgrade Penstock"
                )
            info = from_json(TableInfo, {**document, "id": document["table"]})
            info.features.check_readable(where)
            return info


@dataclass(frozen=True)
class CommitRef:
    """A version of a branch."""

    branch: str
    version: int


@dataclass(frozen=True)
class Commit:
    """One version of a branch."""

    branch: str
    """Id of the branch, not its name."""
    version: int
    write_id: str
    """Random id, by which a writer recognises its own commit after a lost response."""
    parent: CommitRef | None
    snapshot: SnapshotRef
    time_us: int
    """Microseconds since 1970; always later than the parent's, regardless of the clock."""
    operation: str
    message: str = ""
    author: str = ""
    rows: int = 0
    """Live rows at this version."""
    changes: Mapping[str, int] = field(default_factory=dict)
    """The number of rows added, updated and deleted."""
    merged: CommitRef | None = None
    """The version of another branch that this commit merges."""
    ancestors: Mapping[str, int] = field(default_factory=dict)
    """The newest version of each other branch, by branch id, that this version contains."""

    @property
    def time(self) -> datetime:
        """When it was committed, in UTC; never earlier than its parent."""
        return datetime.fromtimestamp(self.time_us / 1e6, UTC)

    @property
    def contains(self) -> Mapping[str, int]:
        """By branch id: the newest version that this commit is or descends from."""
        return {**self.ancestors, self.branch: self.version}

    def encode(self) -> bytes:
        """The bytes of the commit object."""
        return seal(asdict(self))

    @staticmethod
    def decode(data: Buffer, where: str) -> "Commit":
        """Inverse of `encode`; raises `CorruptError` that names `where` if the checksum does not match."""
        commit = decode_sealed(Commit, data, where)
        with decoding(where):
            _ = commit.time  # raises for a time after the year 9999
        return commit


@dataclass(frozen=True)
class Claim:
    """A range of row ids reserved by one writer."""

    start: int
    end: int
    write_id: str

    def encode(self) -> bytes:
        return seal(asdict(self))

    @staticmethod
    def decode(data: Buffer, where: str) -> "Claim":
        return decode_sealed(Claim, data, where)


def encode_hint(version: int) -> bytes:
    """The content of HINT."""
    return seal({"version": version})


def decode_hint(data: Buffer, where: str) -> int:
    return decode_sealed(_Hint, data, where).version


@dataclass(frozen=True)
class _Hint:
    version: int
