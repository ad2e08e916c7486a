"""Verify a whole table: read every byte and report damaged and missing objects."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import TypeVar

from penstock.errors import CorruptError, NotFoundError, PenstockError
from penstock.format import (
    BLOB_BLOCK_BYTES,
    LOG_PREFIX,
    TABLE_KEY,
    Blob,
    Claim,
    Commit,
    DataFile,
    Manifest,
    Node,
    Schema,
    SnapshotRef,
    TableInfo,
    arrow_schema,
    commit_key,
    decode_hint,
    decode_manifest,
    decode_page,
    decode_snapshot,
    unseal,
    verify_blob_block,
    verify_frame,
    verify_pages,
)
from penstock.format.kinds import Linked
from penstock.history import expired_snapshots
from penstock.storage import Store, thread_map
from penstock.table._blobs import decode_reference
from penstock.table._links import LinkContainers
from penstock.table._pages import file_column
from penstock.types import Buffer, ByteRange

T = TypeVar("T")

_WORKERS = 8


@dataclass
class VerifyReport:
    """Progress and findings of a verification."""

    objects: int = 0
    bytes: int = 0
    damaged: list[str] = field(default_factory=list)
    """One sentence per damaged or missing object."""


class Verifier:
    """Reads every version of a table, from its log down to data files; each object is read once."""

    def __init__(self, store: Store, *, links: LinkContainers | None, progress: Callable[[VerifyReport], None]) -> None:
        """`links`: the containers whose linked objects are verified too; None to skip links."""
        self._store, self._links, self._progress = store, links, progress
        self._report = VerifyReport()
        self._lock = Lock()

    def run(self) -> VerifyReport:
        """Verify everything; damage is reported, and `StorageError` raised only for a store that does not respond."""
        info = self._check(TABLE_KEY, TableInfo.decode)
        self._check_all([item.key for item in self._store.list("ids/")], Claim.decode)
        keys = [item.key for item in self._store.list(LOG_PREFIX)]
        self._check_all([key for key in keys if key.endswith("/HINT")], decode_hint)
        commits = self._check_all([key for key in keys if not key.endswith("/HINT")], Commit.decode)
        if info is not None:
            self._check_no_gaps(info, keys)
        self._check_all([item.key for prefix in ("refs/", "vacuums/") for item in self._store.list(prefix)], unseal)
        gone = expired_snapshots(self._store) - {item.key.rpartition("/")[2] for item in self._store.list("snapshots/")}
        refs = {commit.snapshot.id: commit.snapshot for commit in commits if commit.snapshot.id not in gone}
        self._check_files(*self._check_snapshots(list(refs.values())))
        return self._report

    def _check_snapshots(self, refs: Sequence[SnapshotRef]) -> tuple[Schema, dict[str, Node]]:
        """Check snapshots; returns a schema of all their fields, and their top nodes by id."""
        fields, nodes, ingests = {}, {}, {}
        for snapshot in thread_map(
            lambda ref: self._check(ref.key, lambda data, where: decode_snapshot(ref, data, where)),
            refs,
            max_workers=_WORKERS,
        ):
            if snapshot is not None:
                fields.update({known.id: known for known in snapshot.schema.fields})
                nodes.update({node.id: node for node in snapshot.nodes})
                ingests.update({one.id: one for manifests in snapshot.sources.values() for one in manifests})
                if self._links is not None:
                    self._links.declared.update(snapshot.containers)
        thread_map(lambda one: self._check(one.key, one.verify), list(ingests.values()), max_workers=_WORKERS)
        return _AllFields(tuple(fields.values())), nodes

    def _check_files(self, schema: Schema, nodes: dict[str, Node]) -> None:
        """Check manifests level by level, then the data files they list."""
        files: dict[str, DataFile] = {}
        seen = set(nodes)
        while nodes:
            manifests = thread_map(self._check_manifest, list(nodes.values()), max_workers=_WORKERS)
            below = [manifest for manifest in manifests if manifest is not None]
            nodes = {node.id: node for manifest in below for node in manifest.nodes if node.id not in seen}
            seen |= set(nodes)
            files.update({f.id: f for manifest in below for fragment in manifest.fragments for f in fragment.files})
        thread_map(lambda file: self._check_file(file, schema), list(files.values()), max_workers=_WORKERS)

    def _check_manifest(self, node: Node) -> Manifest | None:
        return self._check(node.key, lambda data, where: decode_manifest(node, data, where))

    def _check_file(self, file: DataFile, schema: Schema) -> None:
        data = self._check(file.key, lambda data, where: self._check_pages(file, data, where))
        if data is None:
            return
        columns = [file_column(schema, id) for id in file.fields]
        blobs = [n for n, column in enumerate(columns) if column.references]
        links = [n for n, column in enumerate(columns) if isinstance(column.field.kind, Linked)]
        if not blobs and not (links and self._links):
            return
        page_schema = arrow_schema(columns)
        for page in range(len(file.page_rows)):
            at = file.page_range(page)
            batch = decode_page(page_schema, data[at.start : at.end])
            for n in blobs:
                for reference in batch.column(n).to_pylist():
                    if reference is not None:
                        self._check_blob(decode_reference(reference))
            for n in links if self._links else []:
                try:
                    assert self._links is not None
                    self._links.read(columns[n].field.kind.to_values(batch.column(n)))
                except PenstockError as error:
                    self._report_damage(str(error))

    def _check_pages(self, file: DataFile, data: Buffer, where: str) -> memoryview:
        view = memoryview(data)
        if len(view) != file.length:
            raise CorruptError(f"{where} is damaged: it has {len(view)} bytes and not {file.length}")
        for page in range(len(file.page_rows)):
            at = file.page_range(page)
            try:
                verify_pages(file, page, page + 1, view[at.start : at.end], where)
            except CorruptError as error:
                self._report_damage(str(error))
        verify_frame(file, view[: file.page_offsets[0]], view[file.page_offsets[-1] :], where)
        return view

    def _check_blob(self, blob: Blob) -> None:
        where = f"{self._store.uri}/{blob.key}"
        try:
            checksums = blob.checksums(self._store.get(blob.key, byte_range=blob.checksums_range), where)
            size = self._store.head(blob.key).size
            if size != blob.checksums_range.end:
                raise CorruptError(f"{where} is damaged: it has {size} bytes and not {blob.checksums_range.end}")
        except (CorruptError, NotFoundError) as error:
            self._report_damage(str(error))
            return
        for block in range(len(checksums)):
            at = ByteRange(block * BLOB_BLOCK_BYTES, min((block + 1) * BLOB_BLOCK_BYTES, blob.length))
            try:
                verify_blob_block(blob, block, self._store.get(blob.key, byte_range=at), checksums, where)
            except CorruptError as error:
                self._report_damage(str(error))
        self._count(blob.length)

    def _check_no_gaps(self, info: TableInfo, keys: Sequence[str]) -> None:
        """Version numbers are consecutive from 0: a gap means that a commit was deleted."""
        prefix = f"{LOG_PREFIX}{info.main}/"
        mine = sorted(key for key in keys if key.startswith(prefix) and not key.endswith("/HINT"))
        expected = [commit_key(info.main, version) for version in range(len(mine))]
        for key in sorted(set(expected) - set(mine)) or ([commit_key(info.main, 0)] if not mine else []):
            self._report_damage(f"{self._store.uri}/{key} is missing. Restore it from a copy of the table")

    def _check_all(self, keys: Sequence[str], decode: Callable[[Buffer, str], T]) -> list[T]:
        found = thread_map(lambda key: self._check(key, decode), keys, max_workers=_WORKERS)
        return [value for value in found if value is not None]

    def _check(self, key: str, decode: Callable[[Buffer, str], T]) -> T | None:
        """Read and decode one object; None, and a report, if it is damaged or missing."""
        try:
            data = self._store.get(key)
            self._count(len(data))
            return decode(data, f"{self._store.uri}/{key}")
        except CorruptError as error:
            self._report_damage(str(error))
        except NotFoundError:
            self._report_damage(f"{self._store.uri}/{key} is missing. Restore it from a copy of the table")
        return None

    def _report_damage(self, sentence: str) -> None:
        with self._lock:
            self._report.damaged.append(sentence)

    def _count(self, size: int) -> None:
        with self._lock:
            self._report.objects += 1
            self._report.bytes += size
            self._progress(self._report)


class _AllFields(Schema):
    """Fields of many versions; names may repeat."""

    def __post_init__(self) -> None:
        pass
