"""Take another branch's changes in: a three-way merge by row id and field id.

What a careful person would expect: rows that either side added are there, rows that either side deleted are gone, and a
value is the one of the side that changed it. Where both sides changed the same thing differently there is a conflict.
A column that one side added is empty, or has its fill value, in rows that only the other side added.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidInputError, MergeConflict
from penstock.format import Field, Fragment
from penstock.format.kinds import Linked
from penstock.history import AddField, DropField, LoosenField, RenameField
from penstock.table._append import FileWriter, FragmentWriter
from penstock.table._compact import KnownIds
from penstock.table._diff import diff
from penstock.table._pages import Rows, Wanted, by_fragment, filled, stored_columns, take
from penstock.table._read import Reader
from penstock.table._rows import delete_rows, update_rows
from penstock.table._stage import Stage
from penstock.table._update import update_fragment

Side = Literal["ours", "theirs"]


@dataclass(frozen=True)
class Conflict:
    """One thing that both branches changed differently."""

    what: Literal["value", "deleted here", "deleted there", "column"]
    """A value that both changed; a row that one deleted and the other changed; or a column."""
    column: str | None
    row_id: int | None
    base: Any = None
    ours: Any = None
    theirs: Any = None

    def __str__(self) -> str:
        if self.what == "column":
            return f"column {self.column!r}: {self.ours} here, {self.theirs} there"
        if self.what == "value":
            return f"row {self.row_id}, column {self.column!r}: {_short(self.ours)} here, {_short(self.theirs)} there"
        return f"row {self.row_id}: {self.ours} here, {self.theirs} there"


OnConflict = Literal["raise", "ours", "theirs"] | Callable[[Conflict], Any]
_SHOWN = 5


def merge(stage: Stage, base: Reader, theirs: Reader, on_conflict: OnConflict) -> int:
    """Stage what `theirs` changed since `base` on top of what is there; says how many conflicts were settled."""
    if on_conflict not in ("raise", "ours", "theirs") and not callable(on_conflict):
        raise InvalidInputError(f"on_conflict is raise, ours, theirs or a function, not {on_conflict!r}")
    return _Merge(stage, base, theirs, on_conflict).run()


class _Merge:
    def __init__(self, stage: Stage, base: Reader, theirs: Reader, on_conflict: OnConflict) -> None:
        self.stage, self.base, self.theirs, self.on_conflict = stage, base, theirs, on_conflict
        self.here, self.there = diff(base, stage.reader), diff(base, theirs)
        self.conflicts: list[Conflict] = []

    def run(self) -> int:
        fields = self._merge_schema()
        updates, answers, deletes, revived = self._settle_rows(fields)
        if self.conflicts and self.on_conflict == "raise":
            shown = "; ".join(map(str, self.conflicts[:_SHOWN]))
            more = f"; and {len(self.conflicts) - _SHOWN} more" if len(self.conflicts) > _SHOWN else ""
            raise MergeConflict(
                f"{len(self.conflicts)} conflicts: {shown}{more}. Say on_conflict='ours', 'theirs' or a function",
                tuple(self.conflicts),
            )
        stage = self.stage
        new_containers = {
            n: u for n, u in self.theirs.snapshot.containers.items() if n not in stage.snapshot.containers
        }
        stage.put(stage.snapshot.nodes, stage.snapshot.schema, new_containers)
        stage.containers.declared.update(new_containers)
        stage.take_sources(self.theirs.snapshot.sources)
        stage.row_ids.claims = max(stage.row_ids.claims, self.theirs.snapshot.claims)
        if len(deletes):
            delete_rows(stage, stage.reader.positions_of(deletes))
        with FileWriter(stage.store) as files:
            for known in fields:
                self._update(files, known, updates.get(known.id, _NONE))
                if answers.get(known.id):
                    self._answer(known, answers[known.id])
            self._append(files, np.union1d(self.there.added, revived))
        updated = np.unique(np.concatenate([_NONE, *updates.values(), *map(_ids, answers.values())]))
        counts = {"added": len(self.there.added) + len(revived), "updated": len(updated), "deleted": len(deletes)}
        stage.changes.operations, stage.changes.counts = ["merge"], counts
        return len(self.conflicts)

    def _merge_schema(self) -> list[Field]:
        """Edit the columns; returns those whose values may have to be taken over."""
        base, ours = self.base.snapshot.schema, self.stage.snapshot.schema
        was = {known.id: known for known in base}
        have = {known.id: known for known in ours}
        for known in self.theirs.snapshot.schema:
            if known.id in was or known.id in have:
                continue
            if known.name in self.stage.snapshot.schema:
                side = self._decide_column(known.name, "another column of that name was added", "added")
                if side == "ours":
                    continue
                mine = self.stage.snapshot.schema[known.name]
                self.stage.edit(DropField(mine.id, mine.name))
            lacking = len(self.here.added) and known.fill is None and not known.nullable
            self.stage.edit(AddField(replace(known, nullable=True) if lacking else known))
        for known in self.here.columns_added:
            if len(self.there.added) and known.fill is None and not known.nullable and known.name in ours:
                self.stage.edit(LoosenField(known.id))
        for id, known in was.items():
            if id not in have:
                if id in self.there.updated:
                    self._decide_column(known.name, "dropped", "updated")  # a column that is gone stays gone
                continue
            theirs = next((other for other in self.theirs.snapshot.schema if other.id == id), None)
            if theirs is None:
                if id not in self.here.updated or self._decide_column(known.name, "updated", "dropped") == "theirs":
                    self.stage.edit(DropField(id, have[id].name))
            elif theirs.name not in (known.name, have[id].name):
                words = (f"renamed {have[id].name!r}", f"renamed {theirs.name!r}")
                if have[id].name == known.name or self._decide_column(known.name, *words) == "theirs":
                    self._rename(id, have[id].name, theirs.name)
        self.stage.snapshot = replace(
            self.stage.snapshot, schema=self.stage.snapshot.schema.knowing(self.theirs.snapshot.schema.fields)
        )
        here = {known.id for known in self.stage.snapshot.schema}
        return [known for known in self.theirs.snapshot.schema if known.id in here]

    def _rename(self, id: int, old: str, new: str) -> None:
        if new in self.stage.snapshot.schema:
            if self._decide_column(new, "there is another column of that name", f"renamed from {old!r}") == "ours":
                return
            self.stage.edit(DropField(self.stage.snapshot.schema[new].id, new))
        self.stage.edit(RenameField(id, old, new))

    def _settle_rows(self, fields: Sequence[Field]) -> tuple[dict[int, Rows], dict[int, dict[int, Any]], Rows, Rows]:
        """By field: rows to take over, and values that the user decided; rows to delete; rows to bring back."""
        here, there = self.here, self.there
        updates, answers = {}, {}
        both_lost = np.intersect1d(here.deleted, there.updated_rows)
        revived = np.array([id for id in both_lost if self._decide_row(int(id), "deleted here") == "theirs"], np.int64)
        clashing = np.intersect1d(there.deleted, here.updated_rows)
        spared = np.array([id for id in clashing if self._decide_row(int(id), "deleted there") == "ours"], np.int64)
        for known in fields:
            wanted = np.setdiff1d(there.updated.get(known.id, _NONE), here.deleted)
            twice = np.intersect1d(wanted, here.updated.get(known.id, _NONE))
            kept, decided = self._settle_values(known, twice) if len(twice) else (_NONE, {})
            updates[known.id] = np.setdiff1d(wanted, kept)
            answers[known.id] = decided
        deletes = np.setdiff1d(np.setdiff1d(there.deleted, spared), here.deleted)
        return updates, answers, deletes, revived

    def _settle_values(self, known: Field, ids: Rows) -> tuple[Rows, dict[int, Any]]:
        """Of rows that both changed: those not to take over, and the values that a function gave instead."""
        mine = self.stage.snapshot.schema.by_id(known.id)
        old = _values(self.base, self.base.snapshot.schema.by_id(known.id), ids)
        ours, theirs = _values(self.stage.reader, mine, ids), _values(self.theirs, known, ids)
        kept, decided = [], {}
        for id, was, one, other in zip(ids.tolist(), old, ours, theirs, strict=True):
            if _same(one, other):
                kept.append(id)
                continue
            conflict = Conflict("value", mine.name, id, was, one, other)
            self.conflicts.append(conflict)
            if callable(self.on_conflict):
                decided[id] = self.on_conflict(conflict)
            if self.on_conflict != "theirs":
                kept.append(id)
        return np.array(kept, np.int64), decided

    def _decide_row(self, id: int, what: Literal["deleted here", "deleted there"]) -> Side:
        words = ("deleted", "changed") if what == "deleted here" else ("changed", "deleted")
        return self._decide(Conflict(what, None, id, ours=words[0], theirs=words[1]))

    def _decide_column(self, name: str, ours: str, theirs: str) -> Side:
        return self._decide(Conflict("column", name, None, ours=ours, theirs=theirs))

    def _decide(self, conflict: Conflict) -> Side:
        self.conflicts.append(conflict)
        answer = self.on_conflict(conflict) if callable(self.on_conflict) else self.on_conflict
        if answer == "raise":
            return "ours"
        if answer not in ("ours", "theirs"):
            raise InvalidInputError(f"for {conflict} on_conflict must answer 'ours' or 'theirs', not {answer!r}")
        side: Side = answer
        return side

    def _update(self, files: FileWriter, known: Field, changed: Rows) -> None:
        """Take their values of a column over: of rows they changed, and of all rows where they added the column."""
        stage = self.stage
        ids = changed
        if known in self.there.columns_added:
            theirs = self.there.after
            ids = theirs.row_ids(np.arange(theirs.snapshot.live))
            ids = ids[~np.isin(ids, self.there.added)]
        ids = ids[stage.reader.positions_of(ids) >= 0] if len(ids) else ids
        if not len(ids):
            return
        mine = stage.snapshot.schema.by_id(known.id)
        arrays = _stored(self.theirs, [known], ids)
        spots = stage.reader.positions_of(ids)
        order = np.argsort(spots)
        arrays = {id: take(array, order) for id, array in arrays.items()}
        replaced, start = [], 0
        for want in stage.wanted(spots[order]):
            part = {id: array.slice(start, len(want.rows)) for id, array in arrays.items()}
            replaced.append(
                (want.fragment, update_fragment(stage.store, files, stage.snapshot.schema, want, [mine], part))
            )
            start += len(want.rows)
        stage.replace(replaced, {})

    def _answer(self, known: Field, decided: dict[int, Any]) -> None:
        name = self.stage.snapshot.schema.by_id(known.id).name
        spots = self.stage.reader.positions_of(_ids(decided))
        update_rows(self.stage, spots, {name: list(decided.values())})

    def _append(self, files: FileWriter, ids: Rows) -> None:
        """Rows that only they have: whole fragments are shared as they are, others are copied with their ids."""
        stage = self.stage
        waiting = set(ids.tolist())
        shared: list[Fragment] = []
        for fragment in self.theirs.tree.fragments(self.theirs.snapshot.nodes):
            mine = fragment.all_row_ids[fragment.live_rows].tolist()
            if mine and waiting.issuperset(mine):
                shared.append(fragment)
                waiting.difference_update(mine)
        fields = list(stage.snapshot.schema)
        if waiting:
            rest = np.array(sorted(waiting), np.int64)
            writer = FragmentWriter(files, fields, KnownIds(rest))
            writer.write(self._columns(fields, rest))
            writer.close_fragment()
            shared += writer.fragments
        if shared:
            stage.changes.appended += shared
            stage.put(stage.tree.append(stage.snapshot.nodes, shared), stage.snapshot.schema, {})

    def _columns(self, fields: Sequence[Field], ids: Rows) -> dict[int, pa.Array]:
        theirs = {known.id for known in self.theirs.snapshot.schema.fields}
        arrays = _stored(self.theirs, [known for known in fields if known.id in theirs], ids)
        return {**{known.id: filled(known, len(ids)) for known in fields}, **arrays}


_NONE = np.zeros(0, np.int64)


def _stored(reader: Reader, fields: Sequence[Field], ids: Rows) -> dict[int, pa.Array]:
    """Columns of rows as stored, in the order of the ids; references to blobs by minus the field id."""
    spots = reader.positions_of(ids)
    order = np.argsort(spots)
    back = np.argsort(order)
    wanted: list[Wanted] = by_fragment(reader.tree.at(reader.snapshot.nodes, spots[order]))
    schema = reader.snapshot.schema
    mine = [schema.by_id(known.id) for known in fields]
    arrays = stored_columns(reader.store, schema, mine, wanted, max_workers=8)
    return {id: take(array, back) for id, array in arrays.items()}


def _ids(decided: dict[int, Any]) -> Rows:
    return np.array(list(decided), np.int64)


def _values(reader: Reader, known: Field, ids: Rows) -> list[Any]:
    """What a conflict shows; of links the places, for which nobody needs to be allowed to follow them."""
    if isinstance(known.kind, Linked):
        return list(known.kind.to_values(_stored(reader, [known], ids)[known.id]))
    column = reader.columns([known.name], [reader.positions_of(ids)])[0][known.name]
    return [column.item(index) for index in range(len(ids))]


def _same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other) if not isinstance(one, np.ndarray) else np.array_equal(one, other)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 40 else text[:37] + "…"
