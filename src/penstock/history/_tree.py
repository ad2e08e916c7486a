"""The tree of manifests: find fragments, and change them by path copying.

The top of the tree is a short list in the snapshot. Appends fill the last leaf; when the top has more than `FANOUT`
nodes of one level, the oldest of them move under a new node. Nothing is changed in place, so versions share all common
nodes, and an uncommitted change is another top.
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
from penstock.format import Fragment, Manifest, Node, decode_manifest, encode_manifest, new_id, node_for, open_manifest
from penstock.storage import Store, thread_map

LEAF_FRAGMENTS = 32
FANOUT = 32
_CACHE_BYTES = 128 << 20
_MAX_CACHED_LEAVES = 64
_SAVERS, _LOADERS = 8, 64

Part = TypeVar("Part", Node, Fragment)

_trees: "WeakSet[Tree]" = WeakSet()


class Tree:
    """Loads manifests by their nodes with an LRU cache, and holds new manifests in memory until they are saved.

    Thread-safe for reads.
    """

    def __init__(self, store: Store, new_id: Callable[[], str] = new_id) -> None:
        self._store, self._new_id = store, new_id
        # By node and not by its id: what a parent says about a manifest was checked for that parent only.
        self._cache: OrderedDict[Node, tuple[Manifest, int]] = OrderedDict()
        self._cache_bytes = 0
        self._leaf_cache: OrderedDict[Node, pa.RecordBatch] = OrderedDict()
        self._unsaved: dict[str, Manifest] = {}
        self._saved: dict[str, Node] = {}
        self._lock = Lock()
        _trees.add(self)

    def __reduce__(self) -> tuple[object, ...]:
        if self._unsaved:
            raise InvalidInputError("another process cannot see uncommitted changes; commit them first")
        return Tree, (self._store,)

    def derived(self, store: Store, new_id: Callable[[], str]) -> "Tree":
        """A tree with the manifests of this one, unsaved ones included, on a store that has the saved ones too.

        Its new manifests get their ids from `new_id`.
        """
        tree = Tree(store, new_id)
        with self._lock:
            tree._cache, tree._cache_bytes = self._cache.copy(), self._cache_bytes
            tree._leaf_cache = self._leaf_cache.copy()
            tree._unsaved, tree._saved = dict(self._unsaved), dict(self._saved)
        return tree

    def load(self, node: Node) -> Manifest:
        """The manifest of a node; raises `NotFoundError` for changes that were rolled back."""
        with self._lock:
            if node.id in self._unsaved:
                return self._unsaved[node.id]
            node = self._saved.get(node.id, node)
            if node in self._cache:
                self._cache.move_to_end(node)
                return self._cache[node][0]
        if node.length == 0:
            raise NotFoundError("these rows were never committed: their changes were rolled back")
        manifest = decode_manifest(node, self._store.get(node.key), f"{self._store.uri}/{node.key}")
        self._add_to_cache(node, manifest)
        return manifest

    def leaf(self, node: Node) -> pa.RecordBatch | Manifest:
        """A leaf as stored, from which single fragments can be decoded; an unsaved leaf as its manifest."""
        if node.id in self._unsaved or not node.length:
            return self.load(node)
        with self._lock:
            known = self._leaf_cache.pop(node, None)
        if known is None:
            known = open_manifest(node, self._store.get(node.key), f"{self._store.uri}/{node.key}")
        with self._lock:
            self._leaf_cache[node] = known
            if len(self._leaf_cache) > _MAX_CACHED_LEAVES:
                self._leaf_cache.popitem(last=False)
        return known

    def add(self, manifest: Manifest) -> Node:
        """Add a new manifest without storing it."""
        id = self._new_id()
        self._unsaved[id] = manifest
        return node_for(id, manifest)

    def save(self, top: Sequence[Node]) -> tuple[Node, ...]:
        """Store the unsaved manifests below these nodes, children before parents; returns the nodes as stored."""
        unsaved = [node for node in self._below(top) if node.id in self._unsaved and node.id not in self._saved]
        for level in sorted({node.level for node in unsaved}):
            for node in thread_map(self._save, [n for n in unsaved if n.level == level], max_workers=_SAVERS):
                self._saved[node.id] = node
        return tuple(self._saved.get(node.id, node) for node in top)

    def clear_unsaved(self) -> None:
        """Drop the unsaved manifests, after a commit or a rollback."""
        self._unsaved.clear()

    def leaves(self, top: Sequence[Node]) -> list[Node]:
        """The nodes of all leaves, in row order; manifests of one level are loaded together."""
        nodes = list(top)
        while inner := [node for node in nodes if node.level]:
            loaded = iter(thread_map(self.load, inner, max_workers=_LOADERS))
            nodes = [leaf for node in nodes for leaf in (next(loaded).nodes if node.level else (node,))]
        return nodes

    def fragments(self, top: Sequence[Node]) -> Iterator[Fragment]:
        """All fragments, in row order."""
        for node in top:
            manifest = self.load(node)
            yield from manifest.fragments
            yield from self.fragments(manifest.nodes)

    def fragments_at(
        self, top: Sequence[Node], positions: npt.NDArray[np.int64], start: int = 0
    ) -> Iterator[tuple[Fragment, int, npt.NDArray[np.int64]]]:
        """Fragments that hold ascending positions: each with the position of its first live row, and its positions."""
        for part, before, inside in _split_positions(top, positions, start):
            manifest = self.load(part)
            yield from self.fragments_at(manifest.nodes, inside, before)
            yield from _split_positions(manifest.fragments, inside, before)

    def fragments_with_ids(
        self, top: Sequence[Node], ids: npt.NDArray[np.int64], start: int = 0
    ) -> Iterator[tuple[Fragment, int]]:
        """Fragments that may hold ascending row ids: each with the position of its first live row."""
        for node in top:
            if _any_between(ids, node.first_id, node.end_id):
                manifest = self.load(node)
                yield from self.fragments_with_ids(manifest.nodes, ids, start)
                before = start
                for fragment in manifest.fragments:
                    if any(_any_between(ids, run.start, run.end) for run in fragment.row_ids):
                        yield fragment, before
                    before += fragment.live
            start += node.live

    def append(self, top: Sequence[Node], fragments: Sequence[Fragment]) -> tuple[Node, ...]:
        """Append fragments."""
        nodes = list(top)
        new = list(fragments)
        if nodes and nodes[-1].level == 0 and nodes[-1].fragments < LEAF_FRAGMENTS:
            new = [*self.load(nodes.pop()).fragments, *new]
        for first in range(0, len(new), LEAF_FRAGMENTS):
            nodes.append(self.add(Manifest(0, fragments=tuple(new[first : first + LEAF_FRAGMENTS]))))
        return self._rebalance(nodes)

    def replace(self, top: Sequence[Node], changed: Mapping[int, Fragment]) -> tuple[Node, ...]:
        """Replace fragments by id."""
        firsts = np.sort(np.array([fragment.row_ids[0].start for fragment in changed.values()], np.int64))
        return self._map(
            top,
            lambda fragment: changed.get(fragment.id, fragment),
            lambda node: _any_between(firsts, node.first_id, node.end_id),
        )

    def splice(
        self, top: Sequence[Node], groups: Sequence[tuple[Sequence[Fragment], Sequence[Fragment]]]
    ) -> tuple[Node, ...]:
        """Replace groups of consecutive fragments; small leaves that result are joined."""
        firsts = {old[0].id: new for old, new in groups}
        gone = {fragment.id for old, _ in groups for fragment in old}
        parts: list[Node | list[Fragment]] = []
        for leaf in self.leaves(top):
            manifest = self.load(leaf)
            if not any(fragment.id in gone for fragment in manifest.fragments):
                parts.append(leaf)
                continue
            fragments: list[Fragment] = []
            for fragment in manifest.fragments:
                if fragment.id in firsts:
                    fragments.extend(firsts[fragment.id])
                elif fragment.id not in gone:
                    fragments.append(fragment)
            last = parts[-1] if parts else None
            if isinstance(last, list) and len(last) + len(fragments) <= LEAF_FRAGMENTS:
                last.extend(fragments)
            elif fragments:
                parts.append(fragments)
        return self._rebalance([self.add(Manifest(0, tuple(p))) if isinstance(p, list) else p for p in parts])

    def _map(
        self, top: Sequence[Node], change: Callable[[Fragment], Fragment], affected: Callable[[Node], bool]
    ) -> tuple[Node, ...]:
        nodes = []
        for node in top:
            if affected(node):
                manifest = self.load(node)
                changed = replace(
                    manifest,
                    fragments=tuple(map(change, manifest.fragments)),
                    nodes=self._map(manifest.nodes, change, affected),
                )
                node = node if _same(manifest, changed) else self.add(changed)
            nodes.append(node)
        return tuple(nodes)

    def _rebalance(self, nodes: list[Node]) -> tuple[Node, ...]:
        level = 0
        while level <= max((node.level for node in nodes), default=-1):
            same_level = [index for index, node in enumerate(nodes) if node.level == level]
            if len(same_level) > FANOUT:
                first = same_level[0]
                group = tuple(nodes[first : first + FANOUT])
                nodes[first : first + FANOUT] = [self.add(Manifest(level + 1, nodes=group))]
            else:
                level += 1
        return tuple(nodes)

    def _below(self, top: Sequence[Node]) -> Iterator[Node]:
        """These nodes and all unsaved nodes below them."""
        for node in top:
            yield node
            if node.id in self._unsaved:
                yield from self._below(self._unsaved[node.id].nodes)

    def _save(self, node: Node) -> Node:
        manifest = self._unsaved[node.id]
        manifest = replace(manifest, nodes=tuple(self._saved.get(child.id, child) for child in manifest.nodes))
        stored, data = encode_manifest(node.id, manifest)
        self._store.put(stored.key, data)
        self._add_to_cache(stored, manifest)
        return stored

    def _add_to_cache(self, node: Node, manifest: Manifest) -> None:
        size = _memory_bytes(manifest)
        with self._lock:
            self._cache_bytes += size - self._cache.pop(node, (manifest, 0))[1]
            self._cache[node] = manifest, size
            while self._cache_bytes > _CACHE_BYTES and len(self._cache) > 1:
                self._cache_bytes -= self._cache.popitem(last=False)[1][1]


def _reset_locks() -> None:
    """In a forked child: a thread that held a lock does not exist there."""
    for tree in _trees:
        tree._lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_locks)


def _memory_bytes(manifest: Manifest) -> int:
    """Approximate bytes of a manifest in memory."""
    files = (file for fragment in manifest.fragments for file in fragment.files)
    return 500 * (len(manifest.nodes) + len(manifest.fragments)) + sum(
        2000 + 60 * len(file.page_rows) for file in files
    )


def _same(before: Manifest, after: Manifest) -> bool:
    return all(a is b for a, b in zip(before.fragments, after.fragments, strict=True)) and before.nodes == after.nodes


def _any_between(sorted_ids: npt.NDArray[np.int64], start: int, end: int) -> bool:
    first, last = sorted_ids.searchsorted((start, end))
    return bool(first < last)


def _split_positions(
    parts: Sequence[Part], positions: npt.NDArray[np.int64], start: int
) -> Iterator[tuple[Part, int, npt.NDArray[np.int64]]]:
    """Split ascending positions among the parts that hold them."""
    bounds = start + np.concatenate([[0], np.cumsum([part.live for part in parts], dtype=np.int64)])
    cuts = np.searchsorted(positions, bounds)
    for index, part in enumerate(parts):
        if cuts[index] < cuts[index + 1]:
            yield part, int(bounds[index]), positions[cuts[index] : cuts[index + 1]]
