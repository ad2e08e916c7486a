"""The fragments that two versions do not share; the cost grows with the difference, not with the table."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.format import Fragment, Node
from penstock.history._tree import Tree
from penstock.storage import thread_map

_READERS = 8


@dataclass(frozen=True)
class Difference:
    """Fragments of two versions without those that are equal in both."""

    old: dict[int, Fragment]
    """By fragment id: fragments that the new version lacks or has changed."""
    new: dict[int, Fragment]


def difference(tree: Tree, old: Sequence[Node], new: Sequence[Node]) -> Difference:
    """Compare two trees from the top: a node that both have is not loaded."""
    one = {node.id: node for node in old}
    other = {node.id: node for node in new}
    while True:
        shared = one.keys() & other.keys()
        one = {id: node for id, node in one.items() if id not in shared}
        other = {id: node for id, node in other.items() if id not in shared}
        level = max((node.level for node in (*one.values(), *other.values())), default=0)
        if level == 0:
            break
        one, other = _expand(tree, one, level), _expand(tree, other, level)
    before, after = _fragments(tree, one), _fragments(tree, other)
    same = {id for id in before.keys() & after.keys() if before[id] == after[id]}
    return Difference(
        {id: fragment for id, fragment in before.items() if id not in same},
        {id: fragment for id, fragment in after.items() if id not in same},
    )


def _expand(tree: Tree, nodes: dict[str, Node], level: int) -> dict[str, Node]:
    """Replace the nodes of one level by their children."""
    high = [node for node in nodes.values() if node.level == level]
    found = {id: node for id, node in nodes.items() if node.level < level}
    for manifest in thread_map(tree.load, high, max_workers=_READERS):
        found.update({node.id: node for node in manifest.nodes})
    return found


def _fragments(tree: Tree, leaves: dict[str, Node]) -> dict[int, Fragment]:
    manifests = thread_map(tree.load, list(leaves.values()), max_workers=_READERS)
    return {fragment.id: fragment for manifest in manifests for fragment in manifest.fragments}
