"""What has been taken in from a source, and parts that are stored and wait for the commit.

Lists of what was taken are named by the snapshot, so they are as true as the version that names them: a reset forgets
them, a branch has its own, deleted rows stay known. Parts wait under a name made of the source and the settings; a run
that was killed finds them there and goes on. They count for five days, because a vacuum may remove files without a
commit after seven.
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
    Manifest,
    Schema,
    TakenList,
    crc32c,
    decode_fragments,
    encode_manifest,
    new_id,
)
from penstock.ingest._settings import Settings
from penstock.ingest._source import Reject
from penstock.storage import ObjectInfo, Store, run_all

_WAITS_S = 5 * 86400.0
_READERS = 16
_FILES = pa.schema([("key", pa.string()), ("size", pa.int64()), ("etag", pa.string())])

File = tuple[str, int, str | None]
"""What tells one state of an object from another."""


def identity(file: ObjectInfo) -> File:
    return file.key, file.size, file.etag


@dataclass(frozen=True)
class Plan:
    """What all parts of an ingest agree on."""

    source: str
    kind: str
    settings: Settings
    schema: Schema
    pictures: tuple[str, ...]
    containers: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "kind": self.kind,
            "settings": self.settings.to_json(),
            "schema": [field.to_json() for field in self.schema.fields],
            "pictures": list(self.pictures),
            "containers": dict(self.containers),
        }

    @property
    def digest(self) -> str:
        """The same for parts that can be put together."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:32]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Plan":
        return cls(
            document["source"],
            document["kind"],
            Settings.from_json(document["settings"]),
            Schema(tuple(Field.from_json(field) for field in document["schema"])),
            tuple(document["pictures"]),
            document["containers"],
        )


@dataclass(frozen=True)
class Done:
    """A part whose rows are stored."""

    files: tuple[File, ...]
    fragments: tuple[Fragment, ...]
    rejects: tuple[Reject, ...] = ()
    source_bytes: int = 0

    @property
    def rows(self) -> int:
        return sum(fragment.rows for fragment in self.fragments)


@dataclass(frozen=True)
class Waiting:
    """The parts of one ingest that wait for its commit."""

    store: Store
    prefix: str

    @staticmethod
    def of(store: Store, branch: str, source: str, kind: str, settings: Settings) -> "Waiting":
        told = json.dumps([branch, source, kind, settings.to_json()], sort_keys=True)
        return Waiting(store, f"ingest/waiting/{hashlib.sha256(told.encode()).hexdigest()[:32]}/")

    def plan(self) -> Plan | None:
        """What an earlier run settled."""
        try:
            return Plan.from_json(json.loads(bytes(self.store.get(f"{self.prefix}plan.json"))))
        except NotFoundError:
            return None

    def begin(self, plan: Plan) -> None:
        self.store.put(f"{self.prefix}plan.json", json.dumps(plan.to_json()).encode())

    def keep(self, plan: Plan, done: Done) -> None:
        """Store what a part has become; from now on it need not be done again."""
        _, fragments = encode_manifest("", Manifest(0, done.fragments))
        about = {"rejects": done.rejects, "source_bytes": done.source_bytes}
        self.store.put(self._key(plan, done.files), _encode_files(done.files, about, bytes(fragments)))

    def _key(self, plan: Plan, files: Sequence[File]) -> str:
        """One name for one part, so that a part that is done twice is there once."""
        return f"{self.prefix}{plan.digest}/{hashlib.sha256(repr(files).encode()).hexdigest()[:32]}.part"

    def parts(self, plan: Plan, now_s: float) -> list[Done]:
        """The parts of a plan that are there and not too old; no file is in two of them."""
        fresh = [
            item.key
            for item in self.store.list(f"{self.prefix}{plan.digest}/")
            if item.key.endswith(".part") and now_s - item.modified_s < _WAITS_S
        ]
        found: list[Done] = []
        seen: set[File] = set()
        for done in run_all(self._part, fresh, max_workers=_READERS):
            if done is not None and seen.isdisjoint(done.files):
                found.append(done)
                seen.update(done.files)
        return found

    def check(self, plan: Plan, kept: Sequence[Done]) -> None:
        """See that the files of parts from an earlier run are still there; a vacuum may have been faster."""
        gone = [done for done in kept if not all(run_all(self._is_there, _keys(done), max_workers=_READERS))]
        if gone:
            self.store.delete([self._key(plan, done.files) for done in gone])
            raise StorageError(
                f"{self.store.uri}: files that an earlier run had stored are gone, so nothing was committed;"
                " run it again: what is left is kept"
            )

    def _is_there(self, key: str) -> bool:
        try:
            self.store.head(key)
        except NotFoundError:
            return False
        return True

    def _part(self, key: str) -> Done | None:
        try:
            data = self.store.get(key)
        except NotFoundError:  # another run has committed it
            return None
        try:
            files, about, fragments = _decode_files(data)
            batch = pa.ipc.open_file(pa.py_buffer(fragments)).read_all().combine_chunks().to_batches()
            found = decode_fragments(batch[0]) if batch else ()
        except (pa.ArrowException, ValueError, KeyError) as error:
            raise CorruptError(
                f"{self.store.uri}/{key} is damaged: {error}; delete it and run the ingest again"
            ) from error
        return Done(files, found, tuple(Reject(*reject) for reject in about["rejects"]), about["source_bytes"])

    def clear(self) -> None:
        """Forget everything: it has been committed, or nobody wants it."""
        self.store.delete([item.key for item in self.store.list(self.prefix)])


def _keys(done: Done) -> list[str]:
    return [file.key for fragment in done.fragments for file in fragment.files]


def write_list(store: Store, plan: Plan, files: Iterable[File]) -> TakenList:
    """Store which objects were taken in, and how."""
    data = _encode_files(files, plan.to_json(), b"")
    taken = TakenList(new_id(), len(data), crc32c(data))
    store.put(taken.key, data)
    return taken


def read_list(store: Store, taken: TakenList) -> tuple[tuple[File, ...], Plan]:
    """The objects of a list, and how they were taken in."""
    data = store.get(taken.key)
    taken.check(data, f"{store.uri}/{taken.key}")
    files, about, _ = _decode_files(data)
    return files, Plan.from_json(about)


def taken_files(store: Store, lists: Sequence[TakenList]) -> dict[str, File]:
    """Every object that some lists have, by its key; the newest state of each."""
    read = run_all(partial(read_list, store), list(lists), max_workers=_READERS)
    return {file[0]: file for files, _ in read for file in files}


def _encode_files(files: Iterable[File], about: Mapping[str, Any], more: bytes) -> bytes:
    columns = list(zip(*files, strict=True)) or [(), (), ()]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(values, kind.type) for values, kind in zip(columns, _FILES, strict=True)], schema=_FILES
    )
    schema = _FILES.with_metadata({"about": json.dumps(about), "more": more})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _decode_files(data: memoryview) -> tuple[tuple[File, ...], dict[str, Any], bytes]:
    table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
    told = table.schema.metadata
    files = tuple(zip(*(table.column(name).to_pylist() for name in _FILES.names), strict=True))
    return files, json.loads(told[b"about"]), told[b"more"]
