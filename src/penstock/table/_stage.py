"""The working state of a table: a snapshot with changes on top, which reads like any other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.format import Fragment, Node, Schema, TableInfo, TakenList
from penstock.history import Changes, Edit, Noticeboard, RowIds, Tree, Version, discard, with_sources
from penstock.storage import Store
from penstock.table._encode import Encoder
from penstock.table._links import AllowedLinks, Containers
from penstock.table._pages import Rows, Wanted, by_fragment
from penstock.table._read import Reader


class Stage:
    """What changes go onto; nothing of it is seen by others."""

    def __init__(self, store: Store, info: TableInfo, version: Version, links: AllowedLinks) -> None:
        self.store, self.info, self.version = store, info, version
        base = version.snapshot
        self.tree = Tree(store)
        self.containers = Containers(links, dict(base.containers))
        self.row_ids = RowIds(store, claims=base.claims, single_writer=info.single_writer)
        self.notice = Noticeboard(store)
        self.snapshot = base
        """The base with the changes on top."""
        self.changes = Changes(base)

    @property
    def reader(self) -> Reader:
        return Reader(self.store, self.tree, self.containers, self.snapshot, self.version.commit)

    def move_to(self, version: Version) -> None:
        """Stand at a version, without changes."""
        self.version, base = version, version.snapshot
        self.snapshot, self.changes = base, Changes(base)
        self.containers.declared = dict(base.containers)
        self.tree.release()
        self.notice.done()

    def encoder(self) -> Encoder:
        self.notice.at_work()
        return Encoder(self.store, self.containers, {}, [])

    def wanted(self, rows: Rows) -> list[Wanted]:
        """Rising positions as rows of fragments."""
        return by_fragment(self.tree.at(self.snapshot.nodes, rows))

    def edit(self, edit: Edit) -> None:
        """Change the schema."""
        self.snapshot = replace(self.snapshot, schema=edit.apply(self.snapshot.schema))
        self.changes.edits.append(edit)

    def replace(self, changed: Sequence[tuple[Fragment, Fragment]], containers: Mapping[str, str]) -> None:
        """Put fragments as they are now in the place of what they were."""
        nodes = self.tree.replace(self.snapshot.nodes, {after.id: after for _, after in changed})
        self.changes.replace(changed)
        self.put(nodes, self.snapshot.schema, containers)

    def put(self, nodes: tuple[Node, ...], schema: Schema, containers: Mapping[str, str]) -> None:
        """Take over a new tree and schema, and containers that were not there."""
        self.changes.containers.update(containers)
        self.snapshot = replace(
            self.snapshot, nodes=nodes, schema=schema, containers={**self.snapshot.containers, **containers}
        )

    def take_sources(self, sources: Mapping[str, tuple[TakenList, ...]]) -> None:
        """Note lists of what was taken in from elsewhere."""
        self.changes.sources = with_sources(self.changes.sources, sources)
        self.snapshot = replace(self.snapshot, sources=with_sources(self.snapshot.sources, sources))


@dataclass
class Undo:
    """Removes the blobs and forgets the containers of a call that failed: nothing refers to them."""

    store: Store
    encoder: Encoder

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        if error is None:
            return
        for name in self.encoder.new_containers:
            self.encoder.containers.declared.pop(name, None)
        if self.encoder.blobs:
            discard(self.store, [blob.key for blob in self.encoder.blobs])
