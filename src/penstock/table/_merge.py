"""Merge another branch: a three-way merge by row id and field id.

The result has the rows that either side added, lacks those that either side deleted, and has each value from the side
that changed it. If both sides changed the same thing differently, that is a conflict. A column that one side added is
null, or has its fill value, in rows that only the other side added.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidInputError, MergeConflictError
from penstock.format import Field, Fragment
from penstock.format.kinds import Linked
from penstock.history import AddField, DropField, MakeNullable, RenameField
from penstock.table._append import FileWriter, FragmentWriter
from penstock.table._compact import ExistingRowIds
from penstock.table._diff import diff
from penstock.table._gather import fill_values, read_columns, take
from penstock.table._pages import Int64Array, rows_by_fragment
from penstock.table._read import Reader
from penstock.table._rows import delete_rows, update_rows
from penstock.table._stage import Stage
from penstock.table._update import update_fragments

Side = Literal["ours", "theirs"]


@dataclass(frozen=True)
class Conflict:
    """One thing that the two branches changed differently."""

    type: Literal["value", "deleted by us", "deleted by them", "column"]
    """A value that both changed; a row that one side deleted and the other changed; or a column."""
    column: str | None
    row_id: int | None
    base: Any = None
    ours: Any = None
    theirs: Any = None

    def __str__(self) -> str:
        if self.type == "column":
            return f"column {self.column!r}: ours {self.ours}, theirs {self.theirs}"
        if self.type == "value":
            return f"row {self.row_id}, column {self.column!r}: ours {_short(self.ours)}, theirs {_short(self.theirs)}"
        return f"row {self.row_id}: ours {self.ours}, theirs {self.theirs}"


OnConflict = Literal["raise", "ours", "theirs"] | Callable[[Conflict], Any]
_MAX_SHOWN = 5
_EMPTY = np.zeros(0, np.int64)


def merge(stage: Stage, base: Reader, theirs: Reader, on_conflict: OnConflict) -> int:
    """Stage the changes of `theirs` since `base`; returns the number of conflicts that `on_conflict` resolved.

    Raises `MergeConflictError` for conflicts with `on_conflict="raise"`.
    """
    if on_conflict not in ("raise", "ours", "theirs") and not callable(on_conflict):
        raise InvalidInputError(f"on_conflict must be raise, ours, theirs or a function, not {on_conflict!r}")
    return _Merge(stage, base, theirs, on_conflict).run()


class _Merge:
    def __init__(self, stage: Stage, base: Reader, theirs: Reader, on_conflict: OnConflict) -> None:
        self.stage, self.base, self.theirs, self.on_conflict = stage, base, theirs, on_conflict
        self.our_diff, self.their_diff = diff(base, stage.reader), diff(base, theirs)
        self.conflicts: list[Conflict] = []

    def run(self) -> int:
        fields = self._merge_schema()
        updates, decisions, deletes, restored = self._resolve_rows(fields)
        if self.conflicts and self.on_conflict == "raise":
            shown = "; ".join(map(str, self.conflicts[:_MAX_SHOWN]))
            more = f"; and {len(self.conflicts) - _MAX_SHOWN} more" if len(self.conflicts) > _MAX_SHOWN else ""
            raise MergeConflictError(
                f"{len(self.conflicts)} conflicts: {shown}{more}. Pass on_conflict='ours', 'theirs' or a function",
                tuple(self.conflicts),
            )
        stage = self.stage
        new_containers = {
            n: u for n, u in self.theirs.snapshot.containers.items() if n not in stage.snapshot.containers
        }
        stage.update_snapshot(stage.snapshot.nodes, stage.snapshot.schema, new_containers)
        stage.containers.declared.update(new_containers)
        stage.add_sources(self.theirs.snapshot.sources)
        stage.row_ids.claims = max(stage.row_ids.claims, self.theirs.snapshot.claims)
        if len(deletes):
            delete_rows(stage, stage.reader.positions_of(deletes))
        with FileWriter(stage.store) as files:
            for known in fields:
                self._update(files, known, updates.get(known.id, _EMPTY))
                if decisions.get(known.id):
                    self._apply_decisions(known, decisions[known.id])
            self._append(files, np.union1d(self.their_diff.added, restored))
        updated = np.unique(np.concatenate([_EMPTY, *updates.values(), *map(_ids, decisions.values())]))
        counts = {"added": len(self.their_diff.added) + len(restored), "updated": len(updated), "deleted": len(deletes)}
        stage.changes.operations, stage.changes.counts = ["merge"], counts
        return len(self.conflicts)

    def _merge_schema(self) -> list[Field]:
        """Merge the columns; returns those whose values may have to be merged."""
        base, ours = self.base.snapshot.schema, self.stage.snapshot.schema
        base_fields = {known.id: known for known in base}
        our_fields = {known.id: known for known in ours}
        for known in self.theirs.snapshot.schema:
            if known.id in base_fields or known.id in our_fields:
                continue
            if known.name in self.stage.snapshot.schema:
                side = self._decide_column(known.name, "another column of this name was added", "added")
                if side == "ours":
                    continue
                mine = self.stage.snapshot.schema[known.name]
                self.stage.edit(DropField(mine.id, mine.name))
            lacks_values = len(self.our_diff.added) and known.fill is None and not known.nullable
            self.stage.edit(AddField(replace(known, nullable=True) if lacks_values else known))
        for known in self.our_diff.columns_added:
            if len(self.their_diff.added) and known.fill is None and not known.nullable and known.name in ours:
                self.stage.edit(MakeNullable(known.id))
        for id, known in base_fields.items():
            if id not in our_fields:
                if id in self.their_diff.updated:
                    self._decide_column(known.name, "dropped", "updated")  # either way it stays dropped
                continue
            theirs = next((other for other in self.theirs.snapshot.schema if other.id == id), None)
            if theirs is None:
                if id not in self.our_diff.updated or self._decide_column(known.name, "updated", "dropped") == "theirs":
                    self.stage.edit(DropField(id, our_fields[id].name))
            elif theirs.name not in (known.name, our_fields[id].name):
                outcomes = (f"renamed {our_fields[id].name!r}", f"renamed {theirs.name!r}")
                if our_fields[id].name == known.name or self._decide_column(known.name, *outcomes) == "theirs":
                    self._rename(id, our_fields[id].name, theirs.name)
        self.stage.snapshot = replace(
            self.stage.snapshot, schema=self.stage.snapshot.schema.with_dropped(self.theirs.snapshot.schema.fields)
        )
        merged = {known.id for known in self.stage.snapshot.schema}
        return [known for known in self.theirs.snapshot.schema if known.id in merged]

    def _rename(self, id: int, old: str, new: str) -> None:
        if new in self.stage.snapshot.schema:
            if self._decide_column(new, "another column has this name", f"renamed from {old!r}") == "ours":
                return
            self.stage.edit(DropField(self.stage.snapshot.schema[new].id, new))
        self.stage.edit(RenameField(id, old, new))

    def _resolve_rows(
        self, fields: Sequence[Field]
    ) -> tuple[dict[int, Int64Array], dict[int, dict[int, Any]], Int64Array, Int64Array]:
        """By field: row ids to update and values that the user decided; row ids to delete; row ids to restore."""
        ours, theirs = self.our_diff, self.their_diff
        updates, decisions = {}, {}
        deleted = np.intersect1d(ours.deleted, theirs.updated_rows)
        restored = np.array([id for id in deleted if self._decide_row(int(id), "deleted by us") == "theirs"], np.int64)
        deleted = np.intersect1d(theirs.deleted, ours.updated_rows)
        spared = np.array([id for id in deleted if self._decide_row(int(id), "deleted by them") == "ours"], np.int64)
        for known in fields:
            changed = np.setdiff1d(theirs.updated.get(known.id, _EMPTY), ours.deleted)
            both = np.intersect1d(changed, ours.updated.get(known.id, _EMPTY))
            skipped, decisions[known.id] = self._resolve_values(known, both) if len(both) else (_EMPTY, {})
            updates[known.id] = np.setdiff1d(changed, skipped)
        deletes = np.setdiff1d(np.setdiff1d(theirs.deleted, spared), ours.deleted)
        return updates, decisions, deletes, restored

    def _resolve_values(self, known: Field, ids: Int64Array) -> tuple[Int64Array, dict[int, Any]]:
        """For rows that both sides changed: row ids that keep our value, and the values that a function returned."""
        mine = self.stage.snapshot.schema.by_id(known.id)
        old = _values(self.base, self.base.snapshot.schema.by_id(known.id), ids)
        ours, theirs = _values(self.stage.reader, mine, ids), _values(self.theirs, known, ids)
        kept, decided = [], {}
        for id, base, our, their in zip(ids.tolist(), old, ours, theirs, strict=True):
            if _same(our, their):
                kept.append(id)
                continue
            conflict = Conflict("value", mine.name, id, base, our, their)
            self.conflicts.append(conflict)
            if callable(self.on_conflict):
                decided[id] = self.on_conflict(conflict)
            if self.on_conflict != "theirs":
                kept.append(id)
        return np.array(kept, np.int64), decided

    def _decide_row(self, id: int, type: Literal["deleted by us", "deleted by them"]) -> Side:
        ours, theirs = ("deleted", "changed") if type == "deleted by us" else ("changed", "deleted")
        return self._decide(Conflict(type, None, id, ours=ours, theirs=theirs))

    def _decide_column(self, name: str, ours: str, theirs: str) -> Side:
        return self._decide(Conflict("column", name, None, ours=ours, theirs=theirs))

    def _decide(self, conflict: Conflict) -> Side:
        self.conflicts.append(conflict)
        answer = self.on_conflict(conflict) if callable(self.on_conflict) else self.on_conflict
        if answer == "raise":
            return "ours"
        if answer not in ("ours", "theirs"):
            raise InvalidInputError(f"for {conflict} on_conflict must return 'ours' or 'theirs', not {answer!r}")
        side: Side = answer
        return side

    def _update(self, files: FileWriter, known: Field, changed: Int64Array) -> None:
        """Stage their values of a column: of the rows they changed, or of all rows if they added the column."""
        stage = self.stage
        ids = changed
        if known in self.their_diff.columns_added:
            theirs = self.their_diff.after
            ids = theirs.row_ids(np.arange(theirs.snapshot.live))
            ids = ids[~np.isin(ids, self.their_diff.added)]
        ids = ids[stage.reader.positions_of(ids) >= 0] if len(ids) else ids
        if not len(ids):
            return
        mine = stage.snapshot.schema.by_id(known.id)
        arrays = _read_stored(self.theirs, [known], ids)
        stage.replace(update_fragments(stage, files, stage.reader.positions_of(ids), [mine], arrays), {})

    def _apply_decisions(self, known: Field, decided: dict[int, Any]) -> None:
        name = self.stage.snapshot.schema.by_id(known.id).name
        positions = self.stage.reader.positions_of(_ids(decided))
        update_rows(self.stage, positions, {name: list(decided.values())})

    def _append(self, files: FileWriter, ids: Int64Array) -> None:
        """Stage rows that only they have: whole fragments are shared, other rows are copied with their ids."""
        stage = self.stage
        remaining = set(ids.tolist())
        shared: list[Fragment] = []
        for fragment in self.theirs.tree.fragments(self.theirs.snapshot.nodes):
            mine = fragment.all_row_ids[fragment.live_rows].tolist()
            if mine and remaining.issuperset(mine):
                shared.append(fragment)
                remaining.difference_update(mine)
        fields = list(stage.snapshot.schema)
        if remaining:
            rest = np.array(sorted(remaining), np.int64)
            writer = FragmentWriter(files, fields, ExistingRowIds(rest))
            writer.write(self._columns(fields, rest))
            writer.close_fragment()
            shared += writer.fragments
        if shared:
            stage.changes.appended += shared
            stage.update_snapshot(stage.tree.append(stage.snapshot.nodes, shared), stage.snapshot.schema, {})

    def _columns(self, fields: Sequence[Field], ids: Int64Array) -> dict[int, pa.Array]:
        theirs = {known.id for known in self.theirs.snapshot.schema.fields}
        arrays = _read_stored(self.theirs, [known for known in fields if known.id in theirs], ids)
        return {**{known.id: fill_values(known, len(ids)) for known in fields}, **arrays}


def _read_stored(reader: Reader, fields: Sequence[Field], ids: Int64Array) -> dict[int, pa.Array]:
    """Columns of rows as stored, in the order of the row ids; blob references by negative field id."""
    positions = reader.positions_of(ids)
    order = np.argsort(positions)
    inverse = np.argsort(order)
    selection = rows_by_fragment(reader.tree, reader.snapshot.nodes, positions[order])
    schema = reader.snapshot.schema
    mine = [schema.by_id(known.id) for known in fields]
    arrays = read_columns(reader.store, schema, mine, selection, max_workers=8)
    return {id: take(array, inverse) for id, array in arrays.items()}


def _ids(decided: dict[int, Any]) -> Int64Array:
    return np.array(list(decided), np.int64)


def _values(reader: Reader, known: Field, ids: Int64Array) -> list[Any]:
    """The values that a conflict shows; links as their targets, which need no permission to be read."""
    if isinstance(known.kind, Linked):
        return list(known.kind.to_values(_read_stored(reader, [known], ids)[known.id]))
    column = reader.columns([known.name], [reader.positions_of(ids)])[0][known.name]
    return [column.item(index) for index in range(len(ids))]


def _same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other) if not isinstance(one, np.ndarray) else np.array_equal(one, other)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 40 else text[:37] + "…"
