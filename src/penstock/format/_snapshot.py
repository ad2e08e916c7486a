"""Snapshots: the state of a table at one version."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import UnsupportedFormatError
from penstock.format._checksum import crc32c
from penstock.format._layout import corrupt_error, decoding, ingest_manifest_key, quarantine_key, snapshot_key
from penstock.format._manifest import NODE_MEMBERS, Node, decode_nodes, with_statistics
from penstock.format._schema import Field, Schema
from penstock.format._sealed import from_json, load_json
from penstock.types import Buffer

INGEST_SCHEMA = pa.schema([("key", pa.string()), ("size", pa.int64()), ("etag", pa.string())])
"""The columns of an ingest manifest."""
_QUARANTINE_SCHEMA = pa.schema([("row_id", pa.int64()), ("reason", pa.string())])
_MAX_STATISTICS_BYTES = 64 << 10
"""Statistics of root nodes: every reader reads them with the snapshot."""
_READ_FEATURES: frozenset[str] = frozenset()
_QUARANTINE = "quarantine"
_WRITE_FEATURES: frozenset[str] = frozenset({"single-writer", _QUARANTINE})


@dataclass(frozen=True)
class Features:
    """The features required to read, and those required only to write."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()

    def to_json(self) -> dict[str, list[str]]:
        return {"read": list(self.read), "write": list(self.write)}

    def check_readable(self, where: str) -> None:
        """Raise `UnsupportedFormatError` if this version cannot read the table correctly."""
        self._check(self.read, _READ_FEATURES, where, "read")

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

    def decode(self, data: Buffer, where: str) -> tuple[list[tuple[str, int, str | None]], dict[str, Any]]:
        """Verify and decode: key, size and ETag of each object, and a description of the ingest.

        Raises `CorruptError`.
        """
        if len(data) != self.length or crc32c(data) != self.crc:
            raise corrupt_error(where, "its checksum does not match its snapshot")
        with decoding(where):
            table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
            table.validate(full=True)
            files = table.select(INGEST_SCHEMA.names).cast(INGEST_SCHEMA)
            if files["key"].null_count or files["size"].null_count:
                raise ValueError("an object has no key or no size")
            columns = (files[name].to_pylist() for name in INGEST_SCHEMA.names)
            return list(zip(*columns, strict=True)), load_json(table.schema.metadata[b"about"])


@dataclass(frozen=True, slots=True)
class QuarantineRef:
    """A reference to a quarantine list, as stored in a snapshot."""

    id: str
    length: int
    crc: int

    @property
    def key(self) -> str:
        return quarantine_key(self.id)


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
    quarantine: QuarantineRef | None = None
    """The list of rows that loaders leave out."""

    def with_quarantine(self, ref: QuarantineRef | None) -> "Snapshot":
        """This snapshot with another list; a writer that does not know lists must not write the next version."""
        write = tuple(name for name in self.features.write if name != _QUARANTINE)
        features = replace(self.features, write=write if ref is None else (*write, _QUARANTINE))
        return replace(self, quarantine=ref, features=features)

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
        "manifests": _encode_nodes(snapshot.nodes),
        "containers": dict(snapshot.containers),
        "claims": snapshot.claims,
        "features": snapshot.features.to_json(),
        "indexes": list(snapshot.indexes),
        "sources": {uri: [asdict(manifest) for manifest in found] for uri, found in snapshot.sources.items()},
    }
    if snapshot.quarantine is not None:
        document["quarantine"] = asdict(snapshot.quarantine)
    data = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return SnapshotRef(id, len(data), crc32c(data)), data


def _encode_nodes(nodes: Sequence[Node]) -> dict[str, list[Any]]:
    members: dict[str, list[Any]] = {name: [getattr(node, name) for node in nodes] for name in NODE_MEMBERS}
    statistics: list[list[Any]] = []
    left = _MAX_STATISTICS_BYTES
    for node in nodes:  # those of the largest subtrees come first
        found = [] if node.statistics is None else node.statistics.to_json()
        left -= len(json.dumps(found))
        statistics.append(found if left >= 0 else [])
    return {**members, "statistics": statistics} if any(statistics) else members


def decode_snapshot(ref: SnapshotRef, data: Buffer, where: str) -> Snapshot:
    """Verify and decode a snapshot; raises `CorruptError` or `UnsupportedFormatError`."""
    if len(data) != ref.length or crc32c(data) != ref.crc:
        raise corrupt_error(where, "its checksum does not match its commit")
    with decoding(where):
        document = load_json(bytes(data))
        features = from_json(Features, document["features"])
        features.check_readable(where)
        nodes = decode_nodes(document["manifests"])
        return Snapshot(
            schema=Schema(tuple(Field.from_json(described) for described in document["schema"])),
            nodes=with_statistics(nodes, _stored_statistics(document["manifests"], len(nodes))),
            features=features,
            **vars(from_json(_Members, document)),
        )


def _stored_statistics(members: Mapping[str, Any], count: int) -> list[list[Any]]:
    stored = members.get("statistics", [[]] * count)
    if not isinstance(stored, list) or any(not isinstance(each, list) for each in stored):
        raise ValueError("'statistics' has the wrong type")
    return stored


def encode_quarantine(id: str, reasons: Mapping[int, str]) -> tuple[QuarantineRef, bytes]:
    """Encode the reasons by row id, and return the reference for the snapshot."""
    ids = sorted(reasons)
    columns = [pa.array(ids, pa.int64()), pa.array([reasons[id] for id in ids], pa.string())]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, _QUARANTINE_SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_QUARANTINE_SCHEMA))
    data: bytes = sink.getvalue().to_pybytes()
    return QuarantineRef(id, len(data), crc32c(data)), data


def decode_quarantine(ref: QuarantineRef, data: Buffer, where: str) -> dict[int, str]:
    """Verify and decode: the reasons by row id, ascending. Raises `CorruptError`."""
    if len(data) != ref.length or crc32c(data) != ref.crc:
        raise corrupt_error(where, "its checksum does not match its snapshot")
    with decoding(where):
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        table.validate(full=True)
        rows = table.select(_QUARANTINE_SCHEMA.names).cast(_QUARANTINE_SCHEMA)
        if rows["row_id"].null_count or rows["reason"].null_count:
            raise ValueError("a row has no id or no reason")
        ids = rows["row_id"].to_numpy()
        if len(ids) and (ids[0] < 0 or (np.diff(ids) <= 0).any()):
            raise ValueError("row ids do not ascend from 0")
        return dict(zip(ids.tolist(), rows["reason"].to_pylist(), strict=True))


@dataclass(frozen=True)
class _Members:
    """The members of a snapshot that need no decoder of their own."""

    containers: Mapping[str, str]
    claims: int
    indexes: tuple[Mapping[str, Any], ...]
    sources: Mapping[str, tuple[IngestManifest, ...]] = field(default_factory=dict)
    quarantine: QuarantineRef | None = None
