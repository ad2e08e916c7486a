"""The list of search indexes, when two versions meet."""

from dataclasses import replace

from penstock.format import Snapshot
from penstock.table._stage import Stage


def merge_indexes(stage: Stage, base: Snapshot, theirs: Snapshot) -> None:
    """Stage what another side changed in the list since the base, by name.

    Nothing conflicts: if both sides changed an index, ours is kept, because an index is derived from the rows.
    """
    before, our, their = (
        {str(entry.get("name")): entry for entry in one.indexes} for one in (base, stage.snapshot, theirs)
    )
    if before == their:
        return
    merged = dict(our)
    for name in before.keys() | their.keys():
        if before.get(name) != their.get(name) and our.get(name) == before.get(name):
            if name in their:
                merged[name] = their[name]
            else:
                merged.pop(name, None)
    stage.snapshot = replace(stage.snapshot, indexes=tuple(merged.values()))
