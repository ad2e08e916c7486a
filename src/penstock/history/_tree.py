"""The tree of manifests: find fragments in it, and change it by copying paths.

The top of the tree is a short list in the snapshot. Appends fill the last leaf; when a level has more than `FANOUT`
nodes at the top, the oldest of them move under a new node. Nothing is ever changed in place, so versions share all
that they have in common, and an uncommitted change is just another top.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import TypeVar
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidInputError, NotFoundError
from penstock.format import Fragment, Manifest, Node, decode_manifest, describe, encode_manifest, new_id, open_manifest
from penstock.storage import Store, run_all

LEAF_FRAGMENTS = 32
FANOUT = 32
_CACHED_BYTES = 128 << 20
_LEAVES_KEPT = 64
_SAVERS = 8

Part = TypeVar("Part", Node, Fragment)

_trees: "WeakSet[Tree]" = WeakSet()


class Tree:
    """Manifests by their nodes: loaded once, kept while used, and new ones held until they are saved."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loaded: OrderedDict[str, tuple[Manifest, int]] = OrderedDict()
        self._loaded_bytes = 0
        self._stored_leaves: OrderedDict[str, pa.RecordBatch] = OrderedDict()
        self._unsaved: dict[str, Manifest] = {}
        self._stored: dict[str, Node] = {}
        self._lock = Lock()
        _trees.add(self)

    def __reduce__(self) -> tuple[object, ...]:
        if self._unsaved:
            raise InvalidInputError("there are changes that are not committed: another process cannot see them")
        return Tree, (self._store,)

    def load(self, node: Node) -> Manifest:
        with self._lock:
            if node.id in self._unsaved:
                return self._unsaved[node.id]
            if node.id in self._loaded:
                self._loaded.move_to_end(node.id)
                return self._loaded[node.id][0]
            node = self._stored.get(node.id, node)
        if node.length == 0:
            raise NotFoundError("these rows were never committed: the changes they belong to were rolled back")
        manifest = decode_manifest(node, self._store.get(node.key), f"{self._store.uri}/{node.key}")
        self._keep(node.id, manifest)
        return manifest

    def leaf(self, node: Node) -> pa.RecordBatch | Manifest:
        """A leaf as it is stored, of which single fragments can be read; one that is not stored yet, as it is held."""
        if node.id in self._unsaved or not node.length:
            return self.load(node)
        with self._lock:
            known = self._stored_leaves.pop(node.id, None)
        if known is None:
            known = open_manifest(node, self._store.get(node.key), f"{self._store.uri}/{node.key}")
        with self._lock:
            self._stored_leaves[node.id] = known
            if len(self._stored_leaves) > _LEAVES_KEPT:
                self._stored_leaves.popitem(last=False)
        return known

    def hold(self, manifest: Manifest) -> Node:
        """Take a new manifest into the tree without storing it."""
        id = new_id()
        self._unsaved[id] = manifest
        return describe(id, manifest)

    def save(self, top: Sequence[Node]) -> tuple[Node, ...]:
        """Store what is new below these nodes, children before parents; returns the nodes as stored."""
        waiting = [node for node in self._below(top) if node.id in self._unsaved and node.id not in self._stored]
        for level in sorted({node.level for node in waiting}):
            for node in run_all(self._save, [n for n in waiting if n.level == level], max_workers=_SAVERS):
                self._stored[node.id] = node
        return tuple(self._stored.get(node.id, node) for node in top)

    def release(self) -> None:
        """Hold new manifests no longer: they have been committed, or rolled back."""
        self._unsaved.clear()

    def fragments(self, top: Sequence[Node]) -> Iterator[Fragment]:
        """Every fragment, in row order."""
        for node in top:
            manifest = self.load(node)
            yield from manifest.fragments
            yield from self.fragments(manifest.nodes)

    def at(
        self, top: Sequence[Node], positions: npt.NDArray[np.int64], start: int = 0
    ) -> Iterator[tuple[Fragment, int, npt.NDArray[np.int64]]]:
        """Fragments that hold sorted positions of live rows: each with the position of its first, and the positions."""
        for part, before, inside in _spread(top, positions, start):
            manifest = self.load(part)
            yield from self.at(manifest.nodes, inside, before)
            yield from _spread(manifest.fragments, inside, before)

    def with_ids(
        self, top: Sequence[Node], ids: npt.NDArray[np.int64], start: int = 0
    ) -> Iterator[tuple[Fragment, int]]:
        """Each fragment that may hold one of these sorted row ids, and the position of its first live row."""
        for node in top:
            if _any_between(ids, node.first_id, node.end_id):
                manifest = self.load(node)
                yield from self.with_ids(manifest.nodes, ids, start)
                before = start
                for fragment in manifest.fragments:
                    if any(_any_between(ids, run.start, run.end) for run in fragment.row_ids):
                        yield fragment, before
                    before += fragment.live
            start += node.live

    def append(self, top: Sequence[Node], fragments: Sequence[Fragment]) -> tuple[Node, ...]:
        """Put fragments behind the others."""
        nodes = list(top)
        new = list(fragments)
        if nodes and nodes[-1].level == 0 and nodes[-1].fragments < LEAF_FRAGMENTS:
            new = [*self.load(nodes.pop()).fragments, *new]
        for first in range(0, len(new), LEAF_FRAGMENTS):
            nodes.append(self.hold(Manifest(0, fragments=tuple(new[first : first + LEAF_FRAGMENTS]))))
        return self._settle(nodes)

    def replace(self, top: Sequence[Node], changed: Mapping[int, Fragment]) -> tuple[Node, ...]:
        """Put other fragments in the place of those that have the same ids."""
        firsts = np.sort(np.array([fragment.row_ids[0].start for fragment in changed.values()], np.int64))
        return self._map(
            top,
            lambda fragment: changed.get(fragment.id, fragment),
            lambda node: _any_between(firsts, node.first_id, node.end_id),
        )

    def splice(
        self, top: Sequence[Node], groups: Sequence[tuple[Sequence[Fragment], Sequence[Fragment]]]
    ) -> tuple[Node, ...]:
        """Put fragments in the place of others that follow each other; leaves that become small are joined."""
        firsts = {old[0].id: new for old, new in groups}
        gone = {fragment.id for old, _ in groups for fragment in old}
        kept: list[Node | list[Fragment]] = []
        for leaf in self._leaves(top):
            manifest = self.load(leaf)
            if not any(fragment.id in gone for fragment in manifest.fragments):
                kept.append(leaf)
                continue
            fragments: list[Fragment] = []
            for fragment in manifest.fragments:
                if fragment.id in firsts:
                    fragments.extend(firsts[fragment.id])
                elif fragment.id not in gone:
                    fragments.append(fragment)
            last = kept[-1] if kept else None
            if isinstance(last, list) and len(last) + len(fragments) <= LEAF_FRAGMENTS:
                last.extend(fragments)
            elif fragments:
                kept.append(fragments)
        return self._settle([self.hold(Manifest(0, tuple(p))) if isinstance(p, list) else p for p in kept])

    def _leaves(self, top: Sequence[Node]) -> Iterator[Node]:
        for node in top:
            if node.level:
                yield from self._leaves(self.load(node).nodes)
            else:
                yield node

    def _map(
        self, top: Sequence[Node], change: Callable[[Fragment], Fragment], wanted: Callable[[Node], bool]
    ) -> tuple[Node, ...]:
        nodes = []
        for node in top:
            if wanted(node):
                manifest = self.load(node)
                changed = replace(
                    manifest,
                    fragments=tuple(map(change, manifest.fragments)),
                    nodes=self._map(manifest.nodes, change, wanted),
                )
                node = node if _same(manifest, changed) else self.hold(changed)
            nodes.append(node)
        return tuple(nodes)

    def _settle(self, nodes: list[Node]) -> tuple[Node, ...]:
        level = 0
        while level <= max((node.level for node in nodes), default=-1):
            alike = [index for index, node in enumerate(nodes) if node.level == level]
            if len(alike) > FANOUT:
                first = alike[0]
                group = tuple(nodes[first : first + FANOUT])
                nodes[first : first + FANOUT] = [self.hold(Manifest(level + 1, nodes=group))]
            else:
                level += 1
        return tuple(nodes)

    def _below(self, top: Sequence[Node]) -> Iterator[Node]:
        """These nodes and all unsaved ones below them."""
        for node in top:
            yield node
            if node.id in self._unsaved:
                yield from self._below(self._unsaved[node.id].nodes)

    def _save(self, node: Node) -> Node:
        manifest = self._unsaved[node.id]
        manifest = replace(manifest, nodes=tuple(self._stored.get(child.id, child) for child in manifest.nodes))
        stored, data = encode_manifest(node.id, manifest)
        self._store.put(stored.key, data)
        self._keep(node.id, manifest)
        return stored

    def _keep(self, id: str, manifest: Manifest) -> None:
        weight = _weight(manifest)
        with self._lock:
            self._loaded_bytes += weight - self._loaded.pop(id, (manifest, 0))[1]
            self._loaded[id] = manifest, weight
            while self._loaded_bytes > _CACHED_BYTES and len(self._loaded) > 1:
                self._loaded_bytes -= self._loaded.popitem(last=False)[1][1]


def _unlock_all() -> None:
    """In a forked child: the thread that held a lock did not come along."""
    for tree in _trees:
        tree._lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_all)


def _weight(manifest: Manifest) -> int:
    """About how many bytes a manifest takes in memory."""
    files = (file for fragment in manifest.fragments for file in fragment.files)
    return 500 * (len(manifest.nodes) + len(manifest.fragments)) + sum(
        2000 + 60 * len(file.page_rows) for file in files
    )


def _same(before: Manifest, after: Manifest) -> bool:
    return all(a is b for a, b in zip(before.fragments, after.fragments, strict=True)) and before.nodes == after.nodes


def _any_between(sorted_ids: npt.NDArray[np.int64], start: int, end: int) -> bool:
    return bool(np.searchsorted(sorted_ids, start) < np.searchsorted(sorted_ids, end))


def _spread(
    parts: Sequence[Part], positions: npt.NDArray[np.int64], start: int
) -> Iterator[tuple[Part, int, npt.NDArray[np.int64]]]:
    """Deal sorted positions out to the parts whose live rows they are."""
    bounds = start + np.concatenate([[0], np.cumsum([part.live for part in parts], dtype=np.int64)])
    cuts = np.searchsorted(positions, bounds)
    for index, part in enumerate(parts):
        if cuts[index] < cuts[index + 1]:
            yield part, int(bounds[index]), positions[cuts[index] : cuts[index + 1]]
