"""Records of ingested objects, and finished parts that are staged until the commit.

A snapshot names the manifests of the objects it ingested, so they follow its history: a reset drops them, a branch has
its own, and deleted rows stay recorded. Finished parts are staged under a prefix derived from the source and the
options; a run that was killed resumes from them. They expire after five days, because a vacuum may remove files without
a commit after seven. No parent stores their checksums, so each contains its own; a damaged one is ingested again.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.errors import CorruptError, NotFoundError, StorageError
from penstock.format import (
    Field,
    Fragment,
    IngestManifest,
    Manifest,
    Schema,
    crc32c,
    decode_fragments,
    decoding,
    encode_manifest,
    new_id,
    seal,
    unseal,
)
from penstock.ingest._options import IngestOptions
from penstock.ingest._source import Reject
from penstock.storage import ObjectInfo, Store, thread_map
from penstock.types import Buffer

_STAGED_LIFETIME_S = 5 * 86400.0
_MAX_CONCURRENCY = 16
_CHECKSUM_BYTES = 8
_FILES = pa.schema([("key", pa.string()), ("size", pa.int64()), ("etag", pa.string())])

FileId = tuple[str, int, str | None]
"""Key, size and ETag: identifies one state of an object."""


def file_id(file: ObjectInfo) -> FileId:
    return file.key, file.size, file.etag


@dataclass(frozen=True)
class Plan:
    """What all parts of an ingest have in common."""

    source: str
    kind: str
    options: IngestOptions
    schema: Schema
    images: tuple[str, ...]
    containers: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "kind": self.kind,
            "settings": self.options.to_json(),
            "schema": [field.to_json() for field in self.schema.fields],
            "images": list(self.images),
            "containers": dict(self.containers),
        }

    @property
    def digest(self) -> str:
        """Equal for plans whose parts can be committed together."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:32]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Plan":
        return cls(
            document["source"],
            document["kind"],
            IngestOptions.from_json(document["settings"]),
            Schema(tuple(Field.from_json(field) for field in document["schema"])),
            tuple(document["images"]),
            document["containers"],
        )


@dataclass(frozen=True)
class FinishedPart:
    """A part whose rows are stored."""

    files: tuple[FileId, ...]
    fragments: tuple[Fragment, ...]
    rejects: tuple[Reject, ...] = ()
    source_bytes: int = 0
    other_shapes: tuple[int, ...] = ()
    """Ids of the fields with an image of another shape than was inferred."""

    @property
    def rows(self) -> int:
        return sum(fragment.rows for fragment in self.fragments)


@dataclass(frozen=True)
class StagedParts:
    """The finished parts of one ingest, stored until its commit."""

    store: Store
    prefix: str

    @staticmethod
    def of(store: Store, branch: str, source: str, kind: str, options: IngestOptions) -> "StagedParts":
        identity = json.dumps([branch, source, kind, options.to_json()], sort_keys=True)
        return StagedParts(store, f"ingest/waiting/{hashlib.sha256(identity.encode()).hexdigest()[:32]}/")

    def read_plan(self) -> Plan | None:
        """The plan of an earlier run; None if there is none. Raises `CorruptError` if it is damaged."""
        key = f"{self.prefix}plan.json"
        try:
            return Plan.from_json(unseal(self.store.get(key), f"{self.store.uri}/{key}"))
        except NotFoundError:
            return None

    def write_plan(self, plan: Plan) -> None:
        self.store.put(f"{self.prefix}plan.json", seal(plan.to_json()))

    def add(self, plan: Plan, part: FinishedPart) -> None:
        """Stage a finished part, so that a later run does not repeat it."""
        _, fragments = encode_manifest("", Manifest(0, part.fragments))
        metadata = {name: getattr(part, name) for name in ("rejects", "source_bytes", "other_shapes")}
        data = _encode_files(part.files, metadata, bytes(fragments))
        self.store.put(self._key(plan, part.files), data + _checksum(data))

    def _key(self, plan: Plan, files: Sequence[FileId]) -> str:
        """Derived from the files, so that a part that is run twice is staged once."""
        return f"{self.prefix}{plan.digest}/{hashlib.sha256(repr(files).encode()).hexdigest()[:32]}.part"

    def read_parts(self, plan: Plan, now_s: float) -> tuple[list[FinishedPart], int]:
        """The staged parts of a plan that have not expired, no file in two of them, and the number of damaged parts."""
        keys = [
            item.key
            for item in self.store.list(f"{self.prefix}{plan.digest}/")
            if item.key.endswith(".part") and now_s - item.modified_s < _STAGED_LIFETIME_S
        ]
        parts: list[FinishedPart] = []
        seen: set[FileId] = set()
        damaged = 0
        for part in thread_map(self._read_part, keys, max_workers=_MAX_CONCURRENCY):
            if isinstance(part, CorruptError):
                damaged += 1
            elif part is not None and seen.isdisjoint(part.files):
                parts.append(part)
                seen.update(part.files)
        return parts, damaged

    def check(self, plan: Plan, parts: Sequence[FinishedPart]) -> None:
        """Raise `StorageError` and unstage the parts whose data files are missing; a vacuum may have removed them."""
        missing = [
            part for part in parts if not all(thread_map(self._exists, _keys(part), max_workers=_MAX_CONCURRENCY))
        ]
        if missing:
            self.store.delete([self._key(plan, part.files) for part in missing])
            raise StorageError(
                f"{self.store.uri}: files that an earlier run had stored are gone, so nothing was committed;"
                " run the ingest again: it reuses the parts that remain"
            )

    def _exists(self, key: str) -> bool:
        try:
            self.store.head(key)
        except NotFoundError:
            return False
        return True

    def _read_part(self, key: str) -> FinishedPart | CorruptError | None:
        try:
            sealed = self.store.get(key)
        except NotFoundError:  # another run has committed it
            return None
        data = sealed[:-_CHECKSUM_BYTES]
        if sealed[-_CHECKSUM_BYTES:] != _checksum(data):
            return CorruptError(f"{self.store.uri}/{key} is damaged: its checksum does not match")
        files, metadata, encoded = _decode_files(data)
        batches = pa.ipc.open_file(pa.py_buffer(encoded)).read_all().combine_chunks().to_batches()
        fragments = decode_fragments(batches[0]) if batches else ()
        rejects = tuple(Reject(*reject) for reject in metadata["rejects"])
        return FinishedPart(files, fragments, rejects, metadata["source_bytes"], tuple(metadata["other_shapes"]))

    def clear(self) -> None:
        """Remove the plan and all parts."""
        self.store.delete([item.key for item in self.store.list(self.prefix)])


def _keys(part: FinishedPart) -> list[str]:
    return [file.key for fragment in part.fragments for file in fragment.files]


def write_manifest(store: Store, plan: Plan, files: Iterable[FileId]) -> IngestManifest:
    """Store which objects were ingested, and by which plan."""
    data = _encode_files(files, plan.to_json(), b"")
    manifest = IngestManifest(new_id(), len(data), crc32c(data))
    store.put(manifest.key, data)
    return manifest


def read_manifest(store: Store, manifest: IngestManifest) -> tuple[tuple[FileId, ...], Plan]:
    """The objects of a manifest and the plan that ingested them; raises `CorruptError` if it is damaged."""
    where = f"{store.uri}/{manifest.key}"
    files, metadata = manifest.decode(store.get(manifest.key), where)
    with decoding(where):
        return tuple(files), Plan.from_json(metadata)


def ingested_files(store: Store, manifests: Sequence[IngestManifest]) -> dict[str, FileId]:
    """Every object of some manifests by its key, in its newest state."""
    decoded = thread_map(partial(read_manifest, store), list(manifests), max_workers=_MAX_CONCURRENCY)
    return {file[0]: file for files, _ in decoded for file in files}


def _checksum(data: Buffer) -> bytes:
    return b"%08x" % crc32c(data)


def _encode_files(files: Iterable[FileId], metadata: Mapping[str, Any], extra: bytes) -> bytes:
    columns = list(zip(*files, strict=True)) or [(), (), ()]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, _FILES, strict=True)], schema=_FILES
    )
    schema = _FILES.with_metadata({"about": json.dumps(metadata), "more": extra})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _decode_files(data: memoryview) -> tuple[tuple[FileId, ...], dict[str, Any], bytes]:
    """Inverse of `_encode_files`."""
    table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
    metadata = table.schema.metadata
    files = tuple(zip(*(table.column(name).to_pylist() for name in _FILES.names), strict=True))
    return files, json.loads(metadata[b"about"]), metadata[b"more"]
