"""Read a whole table back and name everything that is not as it was written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import TypeVar

from penstock.errors import CorruptError, NotFoundError, PenstockError
from penstock.format import (
    BLOB_BLOCK,
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
    verify_block,
    verify_frame,
    verify_pages,
)
from penstock.format.kinds import Linked
from penstock.history import condemned
from penstock.storage import Store, run_all
from penstock.table._blobs import as_blob
from penstock.table._links import Containers
from penstock.table._pages import file_column
from penstock.types import Buffer, ByteRange

T = TypeVar("T")

_WORKERS = 8


@dataclass
class Report:
    """What a verification has found so far."""

    objects: int = 0
    bytes: int = 0
    damaged: list[str] = field(default_factory=list)
    """A sentence for each thing that is damaged or missing."""


class Verifier:
    """Walks every version of a table from its log down to the last byte; each object is read once."""

    def __init__(self, store: Store, *, links: Containers | None, progress: Callable[[Report], None]) -> None:
        """`links`: containers to follow links into, or None to leave linked objects alone."""
        self._store, self._links, self._progress = store, links, progress
        self._report = Report()
        self._lock = Lock()

    def run(self) -> Report:
        """Read everything; damage is reported, and only a store that does not answer is raised."""
        info = self._check(TABLE_KEY, TableInfo.decode)
        self._check_all([item.key for item in self._store.list("ids/")], Claim.decode)
        keys = [item.key for item in self._store.list(LOG_PREFIX)]
        self._check_all([key for key in keys if key.endswith("/HINT")], decode_hint)
        commits = self._check_all([key for key in keys if not key.endswith("/HINT")], Commit.decode)
        if info is not None:
            self._check_no_gaps(info, keys)
        self._check_all([item.key for prefix in ("refs/", "vacuums/") for item in self._store.list(prefix)], unseal)
        gone = condemned(self._store) - {item.key.rpartition("/")[2] for item in self._store.list("snapshots/")}
        refs = {commit.snapshot.id: commit.snapshot for commit in commits if commit.snapshot.id not in gone}
        self._check_files(*self._check_snapshots(list(refs.values())))
        return self._report

    def _check_snapshots(self, refs: Sequence[SnapshotRef]) -> tuple[Schema, dict[str, Node]]:
        """Check snapshots; returns a schema of all fields that any of them knows, and the nodes at their tops."""
        fields, nodes, lists = {}, {}, {}
        for snapshot in run_all(
            lambda ref: self._check(ref.key, lambda data, where: decode_snapshot(ref, data, where)),
            refs,
            max_workers=_WORKERS,
        ):
            if snapshot is not None:
                fields.update({known.id: known for known in snapshot.schema.fields})
                nodes.update({node.id: node for node in snapshot.nodes})
                lists.update({taken.id: taken for some in snapshot.sources.values() for taken in some})
                if self._links is not None:
                    self._links.declared.update(snapshot.containers)
        run_all(lambda taken: self._check(taken.key, taken.check), list(lists.values()), max_workers=_WORKERS)
        return _AllFields(tuple(fields.values())), nodes

    def _check_files(self, schema: Schema, nodes: dict[str, Node]) -> None:
        """Check manifests level by level, then the files they name."""
        files: dict[str, DataFile] = {}
        seen = set(nodes)
        while nodes:
            manifests = run_all(self._manifest, list(nodes.values()), max_workers=_WORKERS)
            below = [manifest for manifest in manifests if manifest is not None]
            nodes = {node.id: node for manifest in below for node in manifest.nodes if node.id not in seen}
            seen |= set(nodes)
            files.update({f.id: f for manifest in below for fragment in manifest.fragments for f in fragment.files})
        run_all(lambda file: self._file(file, schema), list(files.values()), max_workers=_WORKERS)

    def _manifest(self, node: Node) -> Manifest | None:
        return self._check(node.key, lambda data, where: decode_manifest(node, data, where))

    def _file(self, file: DataFile, schema: Schema) -> None:
        data = self._check(file.key, lambda data, where: self._file_parts(file, data, where))
        if data is None:
            return
        columns = [file_column(schema, id) for id in file.fields]
        blobs = [n for n, column in enumerate(columns) if column.references]
        links = [n for n, column in enumerate(columns) if isinstance(column.field.kind, Linked)]
        if not blobs and not (links and self._links):
            return
        known = arrow_schema(columns)
        for page in range(len(file.page_rows)):
            at = file.page_range(page)
            batch = decode_page(known, data[at.start : at.end])
            for n in blobs:
                for reference in batch.column(n).to_pylist():
                    if reference is not None:
                        self._blob(as_blob(reference))
            for n in links if self._links else []:
                try:
                    assert self._links is not None
                    self._links.read(columns[n].field.kind.to_values(batch.column(n)))
                except PenstockError as error:
                    self._say(str(error))

    def _file_parts(self, file: DataFile, data: Buffer, where: str) -> memoryview:
        view = memoryview(data)
        if len(view) != file.length:
            raise CorruptError(f"{where} is damaged: it has {len(view)} bytes and not {file.length}")
        for page in range(len(file.page_rows)):
            at = file.page_range(page)
            try:
                verify_pages(file, page, page + 1, view[at.start : at.end], where)
            except CorruptError as error:
                self._say(str(error))
        verify_frame(file, view[: file.page_offsets[0]], view[file.page_offsets[-1] :], where)
        return view

    def _blob(self, blob: Blob) -> None:
        where = f"{self._store.uri}/{blob.key}"
        try:
            checksums = blob.checksums(self._store.get(blob.key, byte_range=blob.checksums_range), where)
            size = self._store.head(blob.key).size
            if size != blob.checksums_range.end:
                raise CorruptError(f"{where} is damaged: it has {size} bytes and not {blob.checksums_range.end}")
        except (CorruptError, NotFoundError) as error:
            self._say(str(error))
            return
        for block in range(len(checksums)):
            at = ByteRange(block * BLOB_BLOCK, min((block + 1) * BLOB_BLOCK, blob.length))
            try:
                verify_block(blob, block, self._store.get(blob.key, byte_range=at), checksums, where)
            except CorruptError as error:
                self._say(str(error))
        self._count(blob.length)

    def _check_no_gaps(self, info: TableInfo, keys: Sequence[str]) -> None:
        """Versions count up from 0: a hole means that a commit was removed."""
        prefix = f"{LOG_PREFIX}{info.main}/"
        mine = sorted(key for key in keys if key.startswith(prefix) and not key.endswith("/HINT"))
        expected = [commit_key(info.main, version) for version in range(len(mine))]
        for key in sorted(set(expected) - set(mine)) or ([commit_key(info.main, 0)] if not mine else []):
            self._say(f"{self._store.uri}/{key} is missing. Restore it from a copy of the table")

    def _check_all(self, keys: Sequence[str], decode: Callable[[Buffer, str], T]) -> list[T]:
        found = run_all(lambda key: self._check(key, decode), keys, max_workers=_WORKERS)
        return [value for value in found if value is not None]

    def _check(self, key: str, decode: Callable[[Buffer, str], T]) -> T | None:
        """Read and decode one object; None if it is damaged or missing."""
        try:
            data = self._store.get(key)
            self._count(len(data))
            return decode(data, f"{self._store.uri}/{key}")
        except CorruptError as error:
            self._say(str(error))
        except NotFoundError:
            self._say(f"{self._store.uri}/{key} is missing. Restore it from a copy of the table")
        return None

    def _say(self, sentence: str) -> None:
        with self._lock:
            self._report.damaged.append(sentence)

    def _count(self, size: int) -> None:
        with self._lock:
            self._report.objects += 1
            self._report.bytes += size
            self._progress(self._report)


class _AllFields(Schema):
    """Fields of many versions, among which one name may stand for several."""

    def __post_init__(self) -> None:
        pass
