"""The working state of a table: a snapshot with uncommitted changes on top, readable like any other."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.format import Fragment, IngestManifest, Node, Schema, Snapshot, TableInfo
from penstock.history import Changes, RowIds, Tree, Version, WriteIntent, merge_sources
from penstock.storage import Store
from penstock.table._encode import Encoder
from penstock.table._links import AllowedLinks, LinkContainers
from penstock.table._pages import FragmentRows, Int64Array, rows_by_fragment
from penstock.table._read import Reader


class Stage:
    """Uncommitted changes on top of a version; invisible to other sessions."""

    def __init__(self, store: Store, info: TableInfo, version: Version, links: AllowedLinks) -> None:
        self.store, self.info = store, info
        base = version.snapshot
        self._state = version, base  # one attribute, so that a reader in another thread gets both of one moment
        self.tree = Tree(store)
        self.containers = LinkContainers(links, dict(base.containers))
        self.row_ids = RowIds(store, claims=base.claims, single_writer=info.single_writer)
        self.intent = WriteIntent(store)
        self.changes = Changes()

    @property
    def version(self) -> Version:
        """The base of the changes."""
        return self._state[0]

    @property
    def snapshot(self) -> Snapshot:
        """The base with the changes on top."""
        return self._state[1]

    @snapshot.setter
    def snapshot(self, snapshot: Snapshot) -> None:
        self._state = self.version, snapshot

    @property
    def reader(self) -> Reader:
        containers, (version, snapshot) = self.containers, self._state
        return Reader(self.store, self.tree, containers, snapshot, version.commit)

    def move_to(self, version: Version) -> None:
        """Make another version the base and drop all changes."""
        base = version.snapshot
        self.containers = self.containers.with_declared(base.containers)
        self._state, self.changes = (version, base), Changes()
        self.tree.clear_unsaved()
        self.intent.release()

    def encoder(self) -> Encoder:
        self.intent.renew()
        return Encoder(self.store, self.containers, {}, [])

    def locate(self, positions: Int64Array) -> list[FragmentRows]:
        """Ascending positions as rows of fragments."""
        return rows_by_fragment(self.tree, self.snapshot.nodes, positions)

    def at(self, version: Version) -> "Stage":
        """A stage without changes on another version, which shares manifests and row ids with this one."""
        other = Stage(self.store, self.info, version, self.containers.allowed)
        other.tree, other.row_ids, other.intent = self.tree, self.row_ids, self.intent
        return other

    def set_schema(self, schema: Schema) -> None:
        self.snapshot = replace(self.snapshot, schema=schema)

    def replace(self, changed: Sequence[tuple[Fragment, Fragment]], containers: Mapping[str, str]) -> None:
        """Replace fragments: pairs of before and after."""
        nodes = self.tree.replace(self.snapshot.nodes, {after.id: after for _, after in changed})
        self.update_snapshot(nodes, self.snapshot.schema, containers)

    def update_snapshot(self, nodes: tuple[Node, ...], schema: Schema, containers: Mapping[str, str]) -> None:
        """Set the tree and the schema, and add new link containers."""
        self.changes.containers.update(containers)
        self.snapshot = replace(
            self.snapshot, nodes=nodes, schema=schema, containers={**self.snapshot.containers, **containers}
        )

    def add_sources(self, sources: Mapping[str, tuple[IngestManifest, ...]]) -> None:
        """Record ingest manifests, by source URI."""
        self.changes.sources = merge_sources(self.changes.sources, sources)
        self.snapshot = replace(self.snapshot, sources=merge_sources(self.snapshot.sources, sources))
