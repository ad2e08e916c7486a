"""Snapshots: what a table is at one version."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from penstock.format._checksum import crc32c
from penstock.format._features import Features
from penstock.format._layout import damaged, snapshot_key, taken_key
from penstock.format._manifest import Node
from penstock.format._schema import Field, Schema
from penstock.format._sealed import known
from penstock.types import Buffer

_NODE = tuple(member.name for member in fields(Node))


@dataclass(frozen=True, slots=True)
class TakenList:
    """A list of objects that were taken in from a source, as the snapshot sees it."""

    id: str
    length: int
    crc: int

    @property
    def key(self) -> str:
        return taken_key(self.id)

    def check(self, data: Buffer, where: str) -> None:
        """Refuse bytes that are not those of the list."""
        if len(data) != self.length or crc32c(data) != self.crc:
            raise damaged(where, "its checksum is not the one the snapshot has")


@dataclass(frozen=True)
class Snapshot:
    """A schema, the top of the tree of manifests, and what else belongs to a version."""

    schema: Schema
    nodes: tuple[Node, ...] = ()
    containers: Mapping[str, str] = field(default_factory=dict)
    """Where linked objects are: a short name and the URI of each bucket or folder."""
    claims: int = 0
    """At least this many ranges of row ids have been claimed; where to start looking for the newest."""
    features: Features = field(default_factory=Features)
    indexes: tuple[Mapping[str, Any], ...] = ()
    """Search indexes, as they are described; passed on by those who do not know them."""
    sources: Mapping[str, tuple[TakenList, ...]] = field(default_factory=dict)
    """Where rows were taken in from: the URI of each source, and the lists of what was taken."""

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
    """A snapshot as its commit sees it."""

    id: str
    length: int
    crc: int

    @property
    def key(self) -> str:
        return snapshot_key(self.id)


def encode_snapshot(id: str, snapshot: Snapshot) -> tuple[SnapshotRef, bytes]:
    """Serialise a snapshot, and describe it for its commit."""
    document: dict[str, Any] = {
        "schema": [field.to_json() for field in snapshot.schema.fields],
        "manifests": {name: [getattr(node, name) for node in snapshot.nodes] for name in _NODE},
        "containers": dict(snapshot.containers),
        "claims": snapshot.claims,
        "features": snapshot.features.to_json(),
        "indexes": list(snapshot.indexes),
        "sources": {uri: [asdict(taken) for taken in lists] for uri, lists in snapshot.sources.items()},
    }
    data = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return SnapshotRef(id, len(data), crc32c(data)), data


def decode_snapshot(ref: SnapshotRef, data: Buffer, where: str) -> Snapshot:
    """Verify and read a snapshot."""
    if len(data) != ref.length or crc32c(data) != ref.crc:
        raise damaged(where, "its checksum is not the one its commit has")
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
            uri: tuple(known(TakenList, taken) for taken in lists) for uri, lists in document.get("sources", {}).items()
        },
    )
