"""Vacuum: delete objects that no retained version needs.

The contract; if the code disagrees with this list, the code is wrong:

- Retained are: the newest version of every branch; every version that was the newest less than `older_than` ago; every
  version with a tag, a saved view or a lease. Commits themselves are always retained.
- Objects that some commit refers to, but no retained version, are deleted. Objects that no commit refers to may belong
  to an active writer; they are deleted when they are older than `ORPHAN_AGE_S` and older than every write intent.
- Two phases. First the versions to delete are marked as expired in the store; then leases, refs and the log are read
  again, and versions that they protect are unmarked. A process that carries objects of a version over (a ref, a reset,
  a merge) writes a lease first and reads the marks second, so that one of the two always sees the other; it deletes the
  lease after its ref or commit exists. Therefore vacuum reads leases before refs, and refs before the log.
- What the first phase retained is not deleted, even if its tag or lease has gone since: it was not marked.
- A marked version stays expired, even if the vacuum dies.
- Row indexes are derived from other objects, so no version needs them: those of deleted versions are deleted. The
  newest of a column remains while a retained version has the column, because it serves all versions with its files.
- All times are the store's.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from penstock.errors import CommitStateUnknownError, NotFoundError
from penstock.format import (
    LOG_PREFIX,
    Commit,
    CommitRef,
    IndexEntry,
    Manifest,
    Node,
    Snapshot,
    SnapshotRef,
    TableInfo,
    blob_key,
    decode_index_header,
    decode_sealed,
    decode_snapshot,
    new_id,
    seal,
    search_index_key,
)
from penstock.history._leases import ORPHAN_AGE_S, HeldLease, live_leases, oldest_intent_s, store_time
from penstock.history._listing import list_objects
from penstock.history._log import discard, expired_error, read_commit
from penstock.history._refs import Refs
from penstock.history._tree import Tree
from penstock.storage import Store, thread_map

_READERS = 16
_PREFIXES = (
    "snapshots/",
    "manifests/",
    "data/",
    "blobs/",
    "ingest/",
    "quarantine/",
    "index/building/",
    "index/search/",
    "views/",
)
_MARKS_PREFIX = "vacuums/"


@dataclass(frozen=True)
class VacuumResult:
    """What a vacuum deleted, or would delete."""

    objects: int
    bytes: int
    versions: tuple[CommitRef, ...]
    """Versions that can no longer be read."""


@dataclass(frozen=True)
class VacuumRecord:
    """The snapshots that a vacuum deleted or is about to delete, as stored."""

    snapshots: tuple[str, ...]


@dataclass
class Vacuum:
    """One vacuum of a table."""

    store: Store
    info: TableInfo
    older_than_s: float
    progress: Callable[[str], None] = field(default=lambda _: None)
    _commit_cache: dict[tuple[str, int], Commit] = field(default_factory=dict)
    _views: set[str] = field(default_factory=set)
    """Keys of the objects of saved views."""

    def run(self, *, dry_run: bool) -> VacuumResult:
        """Find unneeded objects and, unless `dry_run`, delete them."""
        now_s = store_time(self.store)
        self.progress("reading the log")
        commits, retained = self._versions(now_s)
        deleted_before = expired_snapshots(self.store) - self._stored_snapshots()
        expired = [commit for commit in commits.values() if commit.snapshot.id not in retained | deleted_before]
        if not dry_run and expired:
            key = f"{_MARKS_PREFIX}{new_id()}.json"
            self._mark_expired(key, expired)
            commits, retained_now = self._versions(now_s)
            retained |= retained_now
            expired = [commit for commit in expired if commit.snapshot.id not in retained]
            self._mark_expired(key, expired)
        self.progress("finding the objects in use")
        live = [commit for commit in commits.values() if commit.snapshot.id in retained]
        reachable = self._reachable(live) | self._views
        garbage = self._garbage(reachable, self._reachable(expired) - reachable, now_s) + self._stale_indexes(live)
        if not dry_run:
            self.progress(f"deleting {len(garbage)} objects")
            discard(self.store, [key for key, _ in garbage])
        versions = tuple(CommitRef(commit.branch, commit.version) for commit in expired)
        return VacuumResult(len(garbage), sum(size for _, size in garbage), versions)

    def _stored_snapshots(self) -> set[str]:
        return {item.key.rpartition("/")[2] for item in list_objects(self.store, "snapshots/")}

    def _mark_expired(self, key: str, commits: Iterable[Commit]) -> None:
        self.store.put(key, seal({"snapshots": sorted({commit.snapshot.id for commit in commits})}))

    def _versions(self, now_s: float) -> tuple[dict[tuple[str, int], Commit], set[str]]:
        """All commits by branch and version, and the ids of the retained snapshots."""
        cutoff_s = now_s - self.older_than_s
        retained = {held.snapshot for held in live_leases(self.store, now_s=now_s)}
        refs = Refs(self.store, self.info)
        live, deleted = set(refs.branches().values()), refs.deleted_branches()
        views = refs.views().values()
        self._views = {view.key for view in views}
        named = [*refs.tags().values(), *(view.commit for view in views if view.commit is not None)]
        written: dict[str, dict[int, float]] = {}
        for item in list_objects(self.store, LOG_PREFIX):
            _, branch, name = item.key.split("/")
            if name != "HINT":
                written.setdefault(branch, {})[int(name.removesuffix(".json"))] = item.modified_s
        commits = self._commits(written)
        for at in named:
            tagged = commits.get((at.branch, at.version)) or read_commit(self.store, at.branch, at.version)
            retained.add(tagged.snapshot.id)
        for branch, times in written.items():
            for version in times:
                end_s = times.get(
                    version + 1, now_s if branch in live else max(deleted.get(branch, 0.0), times[version])
                )
                if end_s > cutoff_s or (branch in live and version + 1 not in times):
                    retained.add(commits[branch, version].snapshot.id)
        return commits, retained

    def _commits(self, written: dict[str, dict[int, float]]) -> dict[tuple[str, int], Commit]:
        keys = [(branch, version) for branch, times in written.items() for version in times]
        new = [key for key in keys if key not in self._commit_cache]
        read = thread_map(lambda key: read_commit(self.store, *key), new, max_workers=_READERS)
        self._commit_cache.update(zip(new, read, strict=True))
        return self._commit_cache

    def _reachable(self, commits: Iterable[Commit]) -> set[str]:
        """Keys of all objects that these versions refer to, as far as their metadata still exists."""
        refs = {commit.snapshot for commit in commits}
        keys = {ref.key for ref in refs}
        tree = Tree(self.store)
        existing = self._snapshots(refs)
        keys.update(one.key for snapshot in existing for manifests in snapshot.sources.values() for one in manifests)
        keys.update(snapshot.quarantine.key for snapshot in existing if snapshot.quarantine is not None)
        indexes = {entry.key: entry for one in existing for entry in IndexEntry.of_snapshot(one.indexes)}
        for found in thread_map(self._index_keys, list(indexes.values()), max_workers=_READERS):
            keys.update(found)
        nodes = {node.id: node for snapshot in existing for node in snapshot.nodes}
        while nodes:
            below = {}
            for manifest in thread_map(lambda node: _load(tree, node), list(nodes.values()), max_workers=_READERS):
                if manifest is None:
                    continue
                below.update({node.id: node for node in manifest.nodes})
                for fragment in manifest.fragments:
                    for file in fragment.files:
                        keys.add(file.key)
                        keys.update(blob_key(blob.id) for blob in file.blobs)
            keys.update(node.key for node in nodes.values())
            nodes = {id: node for id, node in below.items() if node.key not in keys}
        return keys

    def _index_keys(self, entry: IndexEntry) -> list[str]:
        """Keys of the objects of a search index, as far as its header still exists."""
        with suppress(NotFoundError):
            header = decode_index_header(entry, self.store.get(entry.key), f"{self.store.uri}/{entry.key}")
            return [entry.key, *(search_index_key(entry.id, ref.id, "arrow") for ref in header.all_objects)]
        return []

    def _snapshots(self, refs: Iterable[SnapshotRef]) -> list[Snapshot]:
        """The snapshots that still exist."""
        found = thread_map(self._snapshot, list(refs), max_workers=_READERS)
        return [snapshot for snapshot in found if snapshot is not None]

    def _snapshot(self, ref: SnapshotRef) -> Snapshot | None:
        with suppress(NotFoundError):
            return decode_snapshot(ref, self.store.get(ref.key), f"{self.store.uri}/{ref.key}")
        return None

    def _garbage(self, reachable: set[str], expired: set[str], now_s: float) -> list[tuple[str, int]]:
        """Keys and sizes of the objects to delete."""
        orphaned_before_s = oldest_intent_s(self.store, now_s=now_s)
        return [
            (item.key, item.size)
            for prefix in _PREFIXES
            for item in list_objects(self.store, prefix)
            if item.key not in reachable
            and not _is_name_of_view(item.key)
            and (item.key in expired or item.modified_s < orphaned_before_s)
        ]

    def _stale_indexes(self, live: Sequence[Commit]) -> list[tuple[str, int]]:
        """Keys and sizes of the row indexes to delete."""
        refs = {commit.snapshot.id: commit.snapshot for commit in live}
        items = sorted(list_objects(self.store, "index/rows/"), key=lambda item: item.modified_s)
        stale = {item.key: item.size for item in items if _index_names(item.key)[1] not in refs}
        newest = {item.key.rpartition("/")[0]: item.key for item in items}
        if serving := stale.keys() & newest.values():
            columns = {f"{one.id:016x}" for snapshot in self._snapshots(refs.values()) for one in snapshot.schema}
            for key in serving:
                if _index_names(key)[0] in columns:
                    del stale[key]
        return list(stale.items())


@contextmanager
def protect_versions(store: Store, *commits: Commit) -> Iterator[None]:
    """Protect versions while objects of them are carried over to another version or a ref to them is created.

    Every such operation runs in this block, from before it reads the versions until its commit or ref exists. Raises
    `SnapshotExpiredError` if a vacuum was first.
    """
    held: list[HeldLease] = []
    try:
        held.extend(HeldLease(store, commit, seconds=ORPHAN_AGE_S) for commit in commits)
        check_not_expired(store, *commits)
        yield
    except CommitStateUnknownError:
        held.clear()  # the commit may still arrive: the leases stay until they expire
        raise
    finally:
        for one in held:
            one.release()


def expired_snapshots(store: Store) -> set[str]:
    """Ids of the snapshots that vacuums deleted or are about to delete."""
    keys = [item.key for item in list_objects(store, _MARKS_PREFIX)]
    records = thread_map(
        lambda key: decode_sealed(VacuumRecord, store.get(key), f"{store.uri}/{key}"), keys, max_workers=_READERS
    )
    return {id for record in records for id in record.snapshots}


def check_not_expired(store: Store, *commits: Commit) -> None:
    """Call after writing leases on versions; raises `SnapshotExpiredError` if a vacuum has marked one of them."""
    expired = expired_snapshots(store)
    for commit in commits:
        if commit.snapshot.id in expired:
            raise expired_error(store, commit)
        try:
            store.head(commit.snapshot.key)
        except NotFoundError:
            raise expired_error(store, commit) from None


def _is_name_of_view(key: str) -> bool:
    """Whether an object names a view; names are never deleted."""
    return key.startswith("views/") and key.endswith(".json")


def _index_names(key: str) -> tuple[str, str]:
    """The field id and the snapshot id in the key of a row index."""
    _, _, folder, name = key.split("/")
    return folder.partition("-")[0], name.removesuffix(".arrow")


def _load(tree: Tree, node: Node) -> Manifest | None:
    with suppress(NotFoundError):
        return tree.load(node)
    return None
