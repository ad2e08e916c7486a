"""Remove what no version that is kept needs.

The contract; if the code disagrees with this list, the code is wrong:

- Kept are: the newest version of every branch; every version that was the newest less than `older_than` ago; every
  version that a tag names or a lease holds. Commits themselves are kept always.
- Objects that some commit refers to, and no kept version does, go. Objects that no commit refers to may belong to a
  writer at work; they go when they are older than a writer may be (see `ORPHAN_AGE_S`).
- Two phases. First the versions that will go are condemned in writing; then names and leases are read again, and what
  they hold is spared. Whoever makes a name or a lease writes it first and looks for condemnations second. So one of
  the two always sees the other. What was condemned and not spared stays so, even if the vacuum dies half-way.
- All times are the store's.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from penstock.errors import NotFoundError
from penstock.format import (
    LOG_PREFIX,
    Commit,
    Manifest,
    Node,
    Parent,
    Snapshot,
    SnapshotRef,
    TableInfo,
    decode_snapshot,
    new_id,
    seal,
    unseal,
)
from penstock.history._leases import lease, live_leases, oldest_notice, store_time
from penstock.history._log import discard, expired, read_commit
from penstock.history._refs import Refs
from penstock.history._tree import Tree
from penstock.storage import Store, run_all

_READERS = 16
_PREFIXES = ("snapshots/", "manifests/", "data/", "blobs/", "ingest/")
_CONDEMNED = "vacuums/"
_HOLD_S = 600.0


@dataclass(frozen=True)
class Vacuumed:
    """What a vacuum removed, or would remove."""

    objects: int
    bytes: int
    versions: tuple[Parent, ...]
    """Versions that can no longer be read."""


@dataclass
class Vacuum:
    """One run over a table."""

    store: Store
    info: TableInfo
    older_than_s: float
    progress: Callable[[str], None] = field(default=lambda _: None)
    _known: dict[tuple[str, int], Commit] = field(default_factory=dict)

    def run(self, *, dry_run: bool) -> Vacuumed:
        """Find what can go and, unless it is only asked for, remove it."""
        now_s = store_time(self.store)
        self.progress("reading the log")
        commits, kept = self._versions(now_s)
        gone_before = condemned(self.store) - self._stored_snapshots()
        expired = [commit for commit in commits.values() if commit.snapshot.id not in kept | gone_before]
        if not dry_run and expired:
            record = f"{_CONDEMNED}{new_id()}.json"
            self._condemn(record, expired)
            commits, kept = self._versions(now_s)
            expired = [commit for commit in expired if commit.snapshot.id not in kept]
            self._condemn(record, expired)
        self.progress("finding what is needed")
        keep = self._reachable(commit for commit in commits.values() if commit.snapshot.id in kept)
        gone = self._reachable(expired) - keep
        doomed = self._doomed(keep, gone, now_s)
        if not dry_run:
            self.progress(f"removing {len(doomed)} objects")
            discard(self.store, [key for key, _ in doomed])
        versions = tuple(Parent(commit.branch, commit.version) for commit in expired)
        return Vacuumed(len(doomed), sum(size for _, size in doomed), versions)

    def _stored_snapshots(self) -> set[str]:
        return {item.key.rpartition("/")[2] for item in self.store.list("snapshots/")}

    def _condemn(self, record: str, commits: Iterable[Commit]) -> None:
        self.store.put(record, seal({"snapshots": sorted({commit.snapshot.id for commit in commits})}))

    def _versions(self, now_s: float) -> tuple[dict[tuple[str, int], Commit], set[str]]:
        """Every commit there is, and the ids of the snapshots that are kept."""
        cutoff_s = now_s - self.older_than_s
        written: dict[str, dict[int, float]] = {}
        for item in self.store.list(LOG_PREFIX):
            _, branch, name = item.key.split("/")
            if name != "HINT":
                written.setdefault(branch, {})[int(name.removesuffix(".json"))] = item.modified_s
        commits = self._commits(written)
        refs = Refs(self.store, self.info)
        live = set(refs.branches().values())
        kept = {held.snapshot for held in live_leases(self.store, now_s=now_s)}
        for tag in refs.tags().values():
            kept.add(commits[tag.branch, tag.version].snapshot.id)
        given_up = refs.given_up()
        for branch, times in written.items():
            for version in times:
                end_s = times.get(version + 1, now_s if branch in live else given_up.get(branch, times[version]))
                if end_s > cutoff_s or (branch in live and version + 1 not in times):
                    kept.add(commits[branch, version].snapshot.id)
        return commits, kept

    def _commits(self, written: dict[str, dict[int, float]]) -> dict[tuple[str, int], Commit]:
        places = [(branch, version) for branch, times in written.items() for version in times]
        new = [place for place in places if place not in self._known]
        read = run_all(lambda at: read_commit(self.store, *at), new, max_workers=_READERS)
        self._known.update(zip(new, read, strict=True))
        return self._known

    def _reachable(self, commits: Iterable[Commit]) -> set[str]:
        """Keys of all that these versions refer to, as far as it is still there."""
        refs = {commit.snapshot.id: commit.snapshot for commit in commits}
        snapshots = run_all(self._snapshot, list(refs.values()), max_workers=_READERS)
        keys = {ref.key for ref in refs.values()}
        tree = Tree(self.store)
        there = [snapshot for snapshot in snapshots if snapshot is not None]
        keys.update(taken.key for snapshot in there for lists in snapshot.sources.values() for taken in lists)
        nodes = {node.id: node for snapshot in there for node in snapshot.nodes}
        while nodes:
            below = {}
            for manifest in run_all(lambda node: _load(tree, node), list(nodes.values()), max_workers=_READERS):
                if manifest is None:
                    continue
                below.update({node.id: node for node in manifest.nodes})
                for fragment in manifest.fragments:
                    for file in fragment.files:
                        keys.add(file.key)
                        keys.update(f"blobs/{blob.id}" for blob in file.blobs)
            keys.update(node.key for node in nodes.values())
            nodes = {id: node for id, node in below.items() if node.key not in keys}
        return keys

    def _snapshot(self, ref: SnapshotRef) -> Snapshot | None:
        with suppress(NotFoundError):
            return decode_snapshot(ref, self.store.get(ref.key), f"{self.store.uri}/{ref.key}")
        return None

    def _doomed(self, keep: set[str], gone: set[str], now_s: float) -> list[tuple[str, int]]:
        safe_s = oldest_notice(self.store, now_s=now_s)
        return [
            (item.key, item.size)
            for prefix in _PREFIXES
            for item in self.store.list(prefix)
            if item.key not in keep and (item.key in gone or item.modified_s < safe_s)
        ]


@contextmanager
def holding(store: Store, commit: Commit) -> Iterator[None]:
    """Keep a version while a name for it is made; `SnapshotExpired` if a vacuum has got there first."""
    with lease(store, commit, seconds=_HOLD_S):
        check_not_condemned(store, commit)
        yield


def condemned(store: Store) -> set[str]:
    """Ids of the snapshots that vacuums have removed, or are about to."""
    keys = [item.key for item in store.list(_CONDEMNED)]
    records = run_all(lambda key: unseal(store.get(key), f"{store.uri}/{key}"), keys, max_workers=_READERS)
    return {id for record in records for id in record["snapshots"]}


def check_not_condemned(store: Store, commit: Commit) -> None:
    """Called after a lease on a version was written: refuse it if a vacuum has condemned the version before."""
    if commit.snapshot.id in condemned(store):
        raise expired(store, commit)
    try:
        store.head(commit.snapshot.key)
    except NotFoundError:
        raise expired(store, commit) from None


def _load(tree: Tree, node: Node) -> Manifest | None:
    with suppress(NotFoundError):
        return tree.load(node)
    return None
