"""Snapshots: the state of a table at one version."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from penstock.errors import UnsupportedFormatError
from penstock.format._checksum import crc32c
from penstock.format._layout import corrupt_error, ingest_manifest_key, snapshot_key
from penstock.format._manifest import Node
from penstock.format._schema import Field, Schema
from penstock.format._sealed import from_members
from penstock.types import Buffer

_NODE = tuple(member.name for member in fields(Node))
_READ_FEATURES: frozenset[str] = frozenset()
_WRITE_FEATURES: frozenset[str] = frozenset({"single-writer"})


@dataclass(frozen=True)
class Features:
    """The features required to read, and those required only to write."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()

    def to_json(self) -> dict[str, list[str]]:
        return {"read": list(self.read), "write": list(self.write)}

    @staticmethod
    def from_json(described: Mapping[str, Sequence[str]], where: str) -> "Features":
        features = Features(tuple(described["read"]), tuple(described["write"]))
        features._check(features.read, _READ_FEATURES, where, "read")
        return features

    def check_writable(self, where: str) -> None:
        """Raise `UnsupportedFormatError` if this version cannot write the table correctly."""
        self._check(self.write, _WRITE_FEATURES, where, "change")

    def _check(self, required: Sequence[str], supported: frozenset[str], where: str, verb: str) -> None:
        if unknown := sorted(set(required) - supported):
            raise UnsupportedFormatError(f"{where} needs {', '.join(unknown)} to {verb} it; upgrade Penstock")


@dataclass(frozen=True, slots=True)
class IngestManifest:
    """A reference to a list of source objects that were ingested."""

    id: str
    length: int
    crc: int

    @property
    def key(self) -> str:
        return ingest_manifest_key(self.id)

    def verify(self, data: Buffer, where: str) -> None:
        """Raise `CorruptError` unless length and checksum match."""
        if len(data) != self.length or crc32c(data) != self.crc:
            raise corrupt_error(where, "its checksum does not match its snapshot")


@dataclass(frozen=True)
class Snapshot:
    """The schema, the root nodes of the manifest tree, and metadata of a version."""

    schema: Schema
    nodes: tuple[Node, ...] = ()
    containers: Mapping[str, str] = field(default_factory=dict)
    """Buckets and folders of linked objects: URIs by container name."""
    claims: int = 0
    """A lower bound of the number of row id claims; the search for the newest claim starts here."""
    features: Features = field(default_factory=Features)
    indexes: tuple[Mapping[str, Any], ...] = ()
    """Descriptions of search indexes; preserved unchanged by writers that do not know them."""
    sources: Mapping[str, tuple[IngestManifest, ...]] = field(default_factory=dict)
    """Ingest manifests by source URI."""

    @property
    def live(self) -> int:
        return sum(node.live for node in self.nodes)

    @property
    def bytes(self) -> int:
        return sum(node.bytes for node in self.nodes)

    @property
    def fragments(self) -> int:
        return sum(node.fragments for node in self.nodes)


@dataclass(frozen=True, slots=True)
class SnapshotRef:
    """A reference to a snapshot, as stored in its commit."""

    id: str
    length: int
    crc: int

    @property
    def key(self) -> str:
        """Key of the snapshot object."""
        return snapshot_key(self.id)


def encode_snapshot(id: str, snapshot: Snapshot) -> tuple[SnapshotRef, bytes]:
    """Encode a snapshot, and return the reference for its commit."""
    document: dict[str, Any] = {
        "schema": [field.to_json() for field in snapshot.schema.fields],
        "manifests": {name: [getattr(node, name) for node in snapshot.nodes] for name in _NODE},
        "containers": dict(snapshot.containers),
        "claims": snapshot.claims,
        "features": snapshot.features.to_json(),
        "indexes": list(snapshot.indexes),
        "sources": {uri: [asdict(manifest) for manifest in found] for uri, found in snapshot.sources.items()},
    }
    data = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return SnapshotRef(id, len(data), crc32c(data)), data


def decode_snapshot(ref: SnapshotRef, data: Buffer, where: str) -> Snapshot:
    """Verify and decode a snapshot; raises `CorruptError` or `UnsupportedFormatError`."""
    if len(data) != ref.length or crc32c(data) != ref.crc:
        raise corrupt_error(where, "its checksum does not match its commit")
    document = json.loads(bytes(data))
    columns = [document["manifests"][name] for name in _NODE]
    return Snapshot(
        schema=Schema(tuple(Field.from_json(described) for described in document["schema"])),
        nodes=tuple(Node(*row) for row in zip(*columns, strict=True)),
        containers=document["containers"],
        claims=document["claims"],
        features=Features.from_json(document["features"], where),
        indexes=tuple(document["indexes"]),
        sources={
            uri: tuple(from_members(IngestManifest, manifest) for manifest in found)
            for uri, found in document.get("sources", {}).items()
        },
    )
