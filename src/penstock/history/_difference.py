"""Which fragments two versions do not share; the work grows with the difference, not with the table."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.format import Fragment, Node
from penstock.history._tree import Tree
from penstock.storage import run_all

_READERS = 8


@dataclass(frozen=True)
class Difference:
    """Fragments of two versions, less those that are the same in both."""

    old: dict[int, Fragment]
    """By fragment id: those that the new version has not, or has changed."""
    new: dict[int, Fragment]


def difference(tree: Tree, old: Sequence[Node], new: Sequence[Node]) -> Difference:
    """Compare two trees from the top: a node that both have is not opened."""
    one = {node.id: node for node in old}
    other = {node.id: node for node in new}
    while True:
        shared = one.keys() & other.keys()
        one = {id: node for id, node in one.items() if id not in shared}
        other = {id: node for id, node in other.items() if id not in shared}
        level = max((node.level for node in (*one.values(), *other.values())), default=0)
        if level == 0:
            break
        one, other = _opened(tree, one, level), _opened(tree, other, level)
    before, after = _fragments(tree, one), _fragments(tree, other)
    same = {id for id in before.keys() & after.keys() if before[id] == after[id]}
    return Difference(
        {id: fragment for id, fragment in before.items() if id not in same},
        {id: fragment for id, fragment in after.items() if id not in same},
    )


def _opened(tree: Tree, nodes: dict[str, Node], level: int) -> dict[str, Node]:
    """Nodes of the highest level replaced by those below them."""
    high = [node for node in nodes.values() if node.level == level]
    found = {id: node for id, node in nodes.items() if node.level < level}
    for manifest in run_all(tree.load, high, max_workers=_READERS):
        found.update({node.id: node for node in manifest.nodes})
    return found


def _fragments(tree: Tree, leaves: dict[str, Node]) -> dict[int, Fragment]:
    manifests = run_all(tree.load, list(leaves.values()), max_workers=_READERS)
    return {fragment.id: fragment for manifest in manifests for fragment in manifest.fragments}
