"""Verify a whole table: read every byte and report damaged and missing objects."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TypeVar

import pyarrow as pa

from penstock.errors import CorruptError, NotFoundError, PenstockError, StorageError, UnsupportedFormatError
from penstock.format import (
    BLOB_BLOCK_BYTES,
    LOG_PREFIX,
    TABLE_KEY,
    Blob,
    Claim,
    Commit,
    DataFile,
    IndexEntry,
    IndexObject,
    IngestManifest,
    Manifest,
    Node,
    PageDecoder,
    QuarantineRef,
    Schema,
    Snapshot,
    SnapshotRef,
    TableInfo,
    commit_key,
    corrupt_error,
    decode_hint,
    decode_index_header,
    decode_manifest,
    decode_quarantine,
    decode_saved_view,
    decode_sealed,
    decode_snapshot,
    decoding,
    search_index_key,
    verify_blob_block,
    verify_frame,
    verify_pages,
)
from penstock.format.kinds import Linked
from penstock.history import (
    Intent,
    Lease,
    Ref,
    Refs,
    Tree,
    VacuumRecord,
    ViewRef,
    check_older,
    list_objects,
    read_snapshot,
)
from penstock.storage import Store, thread_map
from penstock.table._blobs import decode_reference
from penstock.table._gather import dense_kind
from penstock.table._links import LinkContainers
from penstock.table._pages import decode_page, page_decoder
from penstock.table._quarantine import quarantined_rows
from penstock.table._read import Reader
from penstock.types import Buffer, ByteRange

T = TypeVar("T")

_WORKERS = 8
_DAMAGE = (CorruptError, NotFoundError, UnsupportedFormatError)


@dataclass
class VerifyReport:
    """Progress and findings of a verification."""

    objects: int = 0
    bytes: int = 0
    damaged: list[str] = field(default_factory=list)
    """One sentence per damaged or missing object."""
    quarantined: dict[str, dict[int, str]] = field(default_factory=dict)
    """By branch, of its newest version: the reasons of quarantined rows, by row id."""


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
        self._check_all(self._keys("ids/"), Claim.decode)
        logged = self._keys(LOG_PREFIX)
        keys = [key for key in logged if not key.endswith("/HINT")]
        self._check_all([key for key in logged if key.endswith("/HINT")], decode_hint)
        commits = self._check_all(keys, _decode_commit)
        self._check_log(info, keys, commits)
        self._check_refs(info, set(keys))
        for prefix, cls in (("leases/", Lease), ("intents/", Intent)):
            self._check_all(self._keys(prefix), partial(decode_sealed, cls), may_be_gone=True)
        vacuums = self._check_all(self._keys("vacuums/"), partial(decode_sealed, VacuumRecord))
        expired = {id for record in vacuums for id in record.snapshots}
        gone = expired - {key.rpartition("/")[2] for key in self._keys("snapshots/")}
        self._check_files(*self._check_snapshots([c.snapshot for c in commits if c.snapshot.id not in gone]))
        if info is not None:
            self._report.quarantined = _quarantined_by_branch(self._store, info, commits)
        return self._report

    def _keys(self, prefix: str) -> list[str]:
        return [item.key for item in list_objects(self._store, prefix)]

    def _check_refs(self, info: TableInfo | None, keys: set[str]) -> None:
        """Check that branches, tags and saved views refer to versions that exist, and the objects of saved views."""
        for prefix, decode in (("refs/branches/", Ref.decode), ("refs/tags/", Ref.decode), ("views/", ViewRef.decode)):
            found = [key for key in self._keys(prefix) if key.endswith(".json")]
            for ref in self._check_all(found, decode):
                if ref.branch is None:
                    continue
                with self._reporting():
                    key = commit_key(ref.branch, ref.version or 0)
                    if info is not None and key not in keys:
                        raise CorruptError(f"{self._store.uri}/{key} is missing, and {prefix[:-1]} refer to it")
        with self._reporting():
            for view in Refs(self._store, info).views().values() if info is not None else ():
                self._check_list(view)

    def _check_snapshots(self, refs: Sequence[SnapshotRef]) -> tuple[Schema, list[Node]]:
        """Check snapshots; returns a schema of all their fields, and their top nodes."""
        fields, nodes, indexes = {}, {}, {}
        lists: set[IngestManifest | QuarantineRef] = set()
        for snapshot in thread_map(self._check_snapshot, list(dict.fromkeys(refs)), max_workers=_WORKERS):
            if snapshot is not None:
                fields.update({known.id: known for known in snapshot.schema.fields})
                nodes.update(dict.fromkeys(snapshot.nodes))
                lists.update(one for manifests in snapshot.sources.values() for one in manifests)
                lists.update(() if snapshot.quarantine is None else (snapshot.quarantine,))
                with self._reporting(), decoding(f"{self._store.uri}: the list of indexes of a snapshot"):
                    indexes.update({entry.key: entry for entry in IndexEntry.of_snapshot(snapshot.indexes)})
                if self._links is not None:
                    self._links.declared.update(snapshot.containers)
        thread_map(self._check_list, list(lists), max_workers=_WORKERS)
        checked: dict[str, IndexObject] = {}
        for entry in indexes.values():
            with self._reporting():
                header = self._check(entry.key, partial(decode_index_header, entry))
                found = [] if header is None else header.all_objects
                checked |= {search_index_key(entry.id, ref.id, "arrow"): ref for ref in found}
        thread_map(lambda one: self._check(one[0], one[1].verify), list(checked.items()), max_workers=_WORKERS)
        return _AllFields(tuple(fields.values())), list(nodes)

    def _check_list(self, listed: IngestManifest | QuarantineRef | ViewRef) -> None:
        with self._reporting():  # also of an id that is no name of an object
            decode: Callable[[Buffer, str], object]
            if isinstance(listed, ViewRef):
                decode = partial(decode_saved_view, length=listed.length, crc=listed.crc, rows=listed.rows)
            else:
                decode = listed.decode if isinstance(listed, IngestManifest) else partial(decode_quarantine, listed)
            self._check(listed.key, decode)

    def _check_snapshot(self, ref: SnapshotRef) -> Snapshot | None:
        with self._reporting():
            return self._check(ref.key, lambda data, where: decode_snapshot(ref, data, where))
        return None

    def _check_files(self, schema: Schema, nodes: list[Node]) -> None:
        """Check manifests level by level, then the data files they list."""
        files: dict[object, DataFile] = {}
        seen = set(nodes)
        while nodes:
            manifests = thread_map(self._check_manifest, nodes, max_workers=_WORKERS)
            below = [manifest for manifest in manifests if manifest is not None]
            nodes = [node for manifest in below for node in dict.fromkeys(manifest.nodes) if node not in seen]
            seen.update(nodes)
            for manifest in below:
                files.update({_identity(file): file for one in manifest.fragments for file in one.files})
        thread_map(lambda file: self._check_file(file, schema), list(files.values()), max_workers=_WORKERS)

    def _check_manifest(self, node: Node) -> Manifest | None:
        with self._reporting():
            return self._check(node.key, lambda data, where: decode_manifest(node, data, where))
        return None

    def _check_file(self, file: DataFile, schema: Schema) -> None:
        with self._reporting():  # also of an id that is no name of an object
            data = self._check(file.key, lambda data, where: _check_frame(file, data, where))
            if data is None:
                return
            decoder = page_decoder(schema, file)
            for column in decoder.columns:
                dense = None if column.references else dense_kind(column.field)
                if dense is not None:
                    file.values_at(column.field.id, dense[1])
            pages = [self._check_page(file, page, data, decoder) for page in range(len(file.page_rows))]
            if all(blobs is not None for blobs in pages):
                self._check_blobs(file, [blob for blobs in pages for blob in blobs or ()])

    def _check_page(self, file: DataFile, page: int, data: memoryview, decoder: PageDecoder) -> list[Blob] | None:
        """Check one page and what it links to; returns the blobs that it refers to, or None if it is damaged."""
        at = file.page_range(page)
        with self._reporting():
            verify_pages(file, page, page + 1, data[at.start : at.end], f"{self._store.uri}/{file.key}")
            batch = decode_page(decoder, file, page, data[at.start : at.end])
            columns = list(zip(decoder.columns, batch.columns, strict=True))
            for column, array in columns:
                if self._links is not None and isinstance(column.field.kind, Linked):
                    self._check_links(self._links, column.field.kind, array)
            rows = [array.to_pylist() for column, array in columns if column.references]
            return [decode_reference(row) for references in rows for row in references if row is not None]
        return None

    def _check_links(self, links: LinkContainers, kind: Linked, array: pa.Array) -> None:
        try:
            links.read(kind.to_values(array))
        except PenstockError as error:  # also an error of the store of a link, which is not the table's
            self._report_damage(str(error))

    def _check_blobs(self, file: DataFile, blobs: Sequence[Blob]) -> None:
        """Check the blobs of a file, and that its manifest lists them: vacuum removes a blob that is not listed."""
        if Counter((blob.id, blob.length) for blob in blobs) != Counter((use.id, use.length) for use in file.blobs):
            raise corrupt_error(
                f"{self._store.uri}/{file.key}", "its manifest does not list the blobs that it refers to"
            )
        for blob in blobs:
            with self._reporting():
                self._check_blob(blob)

    def _check_blob(self, blob: Blob) -> None:
        where = f"{self._store.uri}/{blob.key}"
        size = self._store.head(blob.key).size
        if size != blob.checksums_range.end:
            raise corrupt_error(where, f"it has {size} bytes and not {blob.checksums_range.end}")
        checksums = blob.checksums(self._store.get(blob.key, byte_range=blob.checksums_range), where)
        for block in range(len(checksums)):
            at = ByteRange(block * BLOB_BLOCK_BYTES, min((block + 1) * BLOB_BLOCK_BYTES, blob.length))
            with self._reporting():
                verify_blob_block(blob, block, self._store.get(blob.key, byte_range=at), checksums, where)
        self._count(blob.length)

    def _check_log(self, info: TableInfo | None, keys: Sequence[str], commits: Sequence[Commit]) -> None:
        """Version numbers are consecutive from 0: a gap means that a commit was deleted. Parents are older."""
        branches: dict[str, set[str]] = {} if info is None else {info.main: set()}
        for key in keys:
            branches.setdefault(key.split("/")[1], set()).add(key)
        for branch, mine in branches.items():
            with self._reporting():
                expected = {commit_key(branch, version) for version in range(max(1, len(mine)))}
                for key in sorted(expected - mine):
                    self._report_damage(f"{self._store.uri}/{key} is missing. Restore it from a copy of the table")
        by_key = {commit_key(commit.branch, commit.version): commit for commit in commits}
        for commit in commits:
            with self._reporting():
                if commit.parent is not None:
                    parent = by_key.get(commit_key(commit.parent.branch, commit.parent.version))
                    if parent is not None:  # else it is gone with its branch, or reported already
                        check_older(parent, commit, self._store.uri)

    def _check_all(
        self, keys: Sequence[str], decode: Callable[[Buffer, str], T], *, may_be_gone: bool = False
    ) -> list[T]:
        found = thread_map(lambda key: self._check(key, decode, may_be_gone=may_be_gone), keys, max_workers=_WORKERS)
        return [value for value in found if value is not None]

    def _check(self, key: str, decode: Callable[[Buffer, str], T], *, may_be_gone: bool = False) -> T | None:
        """Read and decode one object; None, and a report, if it is damaged or missing."""
        with self._reporting():
            try:
                data = self._store.get(key)
            except NotFoundError:
                if may_be_gone:  # deleted since it was listed
                    return None
                raise CorruptError(f"{self._store.uri}/{key} is missing. Restore it from a copy of the table") from None
            self._count(len(data))
            return decode(data, f"{self._store.uri}/{key}")
        return None

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Report damage instead of raising it; a store that does not respond is no damage."""
        try:
            yield
        except StorageError:
            raise
        except PenstockError as error:
            self._report_damage(str(error))

    def _report_damage(self, sentence: str) -> None:
        with self._lock:
            self._report.damaged.append(sentence)

    def _count(self, size: int) -> None:
        with self._lock:
            self._report.objects += 1
            self._report.bytes += size
            self._progress(self._report)


def _decode_commit(data: Buffer, where: str) -> Commit:
    commit = Commit.decode(data, where)
    if not where.endswith(f"/{commit_key(commit.branch, commit.version)}"):
        raise corrupt_error(where, f"it is version {commit.version} of branch {commit.branch} by its content")
    return commit


def _quarantined_by_branch(store: Store, info: TableInfo, commits: Sequence[Commit]) -> dict[str, dict[int, str]]:
    """The rows that loaders of each branch leave out, as far as they can be read: damage is reported already."""
    newest = {commit.branch: commit for commit in sorted(commits, key=lambda commit: commit.version)}
    found = {}
    with suppress(*_DAMAGE):
        for name, branch in Refs(store, info).branches().items():
            if branch in newest and (rows := _quarantined_rows(store, newest[branch])):
                found[name] = rows
    return found


def _quarantined_rows(store: Store, commit: Commit) -> dict[int, str]:
    with suppress(*_DAMAGE):
        snapshot = read_snapshot(store, commit)
        return quarantined_rows(Reader(store, Tree(store), LinkContainers(False), snapshot, commit))
    return {}


def _check_frame(file: DataFile, data: Buffer, where: str) -> memoryview:
    view = memoryview(data)
    if len(view) != file.length:
        raise corrupt_error(where, f"it has {len(view)} bytes and not {file.length}")
    verify_frame(file, view[: file.page_offsets[0]], view[file.page_offsets[-1] :], where)
    return view


def _identity(file: DataFile) -> object:
    """Equal for entries that describe the same bytes; versions may describe one file differently, and one be wrong."""
    tables = (file.page_rows, file.page_offsets, file.page_crcs, file.value_starts)
    return file.id, file.length, file.frame_crc, file.fields, file.blobs, *(table.tobytes() for table in tables)


class _AllFields(Schema):
    """Fields of many versions; names may repeat."""

    def __post_init__(self) -> None:
        pass
