"""Three-way merge by row id and field id: of another branch, and of staged changes with other writers' commits.

The result has the rows that either side added, lacks those that either side deleted, and has each value from the side
that changed it. It is a conflict if both sides changed the same value differently, or one deleted a row that the other
changed. A column that one side added is null, or has its fill value, in rows that only the other side has.

Work is proportional to what both sides changed: files that only one side replaced are shared, and only files that both
replaced are read, merged value by value, and written again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from penstock.errors import ConflictError, InvalidInputError, MergeConflictError
from penstock.format import Field, Fragment, Schema
from penstock.format.kinds import Linked
from penstock.history import Changes
from penstock.table._append import FileWriter, FragmentWriter
from penstock.table._compact import ExistingRowIds
from penstock.table._diff import Diff, diff
from penstock.table._gather import fill_values, read_columns, take
from penstock.table._indexes import merge_indexes
from penstock.table._pages import Int64Array, rows_by_fragment
from penstock.table._quarantine import merge_quarantine
from penstock.table._read import Reader
from penstock.table._rows import delete_rows, update_rows
from penstock.table._stage import Stage
from penstock.table._update import changed_masks, overlay, update_fragments
from penstock.table.merging._conflicts import Conflict, OnConflict, Resolver, describe
from penstock.table.merging._files import FileRows, adopt_files, all_files
from penstock.table.merging._schema import SchemaSide, merge_schemas
from penstock.types import cached_property

_EMPTY = np.zeros(0, np.int64)


def merge(stage: Stage, base: Reader, theirs: Reader, on_conflict: OnConflict) -> int:
    """Stage the changes of `theirs` since `base`; returns the number of conflicts that `on_conflict` resolved.

    Raises `MergeConflictError` for conflicts with `on_conflict="raise"`.
    """
    merging = _Merge(stage, base, theirs, Resolver(on_conflict))
    merging.run(allow_nulls=True)
    stage.add_sources(theirs.snapshot.sources)
    return len(merging.resolver.conflicts)


def rebase(stage: Stage, base: Reader, staged: Reader, changes: Changes) -> None:
    """Stage changes that were made on `base` on top of a newer version; raises `ConflictError`."""
    if changes.compacted:
        _rebase_compaction(stage, changes)
        merge_indexes(stage, base.snapshot, staged.snapshot)
        return
    for uri, manifests in changes.sources.items():
        if set(stage.snapshot.sources.get(uri, ())) - set(base.snapshot.sources.get(uri, ())) - set(manifests):
            raise ConflictError(f"another writer ingested objects of {uri} in the meantime; reload and run it again")
    merging = _Merge(stage, base, staged, Resolver("raise"))
    if changes.computed and (merging.our_diff.num_added or len(_changed_rows(merging.our_diff))):
        raise ConflictError(
            f"rows were added or updated while column {changes.computed[0]!r} was computed; reload, add it again"
        )
    try:
        merging.run(allow_nulls=False)
    except MergeConflictError as error:
        conflicts = [conflict.mirrored for conflict in error.conflicts if isinstance(conflict, Conflict)]
        raise ConflictError(
            f"another writer committed first: {describe(conflicts) if conflicts else error}."
            " Roll back, reload, and apply the changes again"
        ) from None
    stage.add_sources(changes.sources)


def _rebase_compaction(stage: Stage, changes: Changes) -> None:
    """Stage the compactions whose fragments are unchanged, and leave out the others."""
    current = {fragment.id: fragment for fragment in stage.tree.fragments(stage.snapshot.nodes)}
    unchanged = [group for group in changes.compacted if all(current.get(part.id) == part for part in group[0])]
    stage.update_snapshot(stage.tree.splice(stage.snapshot.nodes, unchanged), stage.snapshot.schema, {})


@dataclass(frozen=True)
class _RowPlan:
    """What becomes of the rows that the other side changed, by row id."""

    updates: dict[int, Int64Array]
    """By field: rows that take their value."""
    decisions: dict[int, dict[int, Any]]
    """By field and row: values that the caller's function returned."""
    deletes: Int64Array
    restored: Int64Array
    """Rows that we deleted and that come back."""
    spared: Int64Array
    """Rows that they deleted and that stay."""


class _Merge:
    """Merges `theirs` into the stage, whose snapshot is `ours`."""

    def __init__(self, stage: Stage, base: Reader, theirs: Reader, resolver: Resolver) -> None:
        self.stage, self.base, self.ours, self.theirs, self.resolver = stage, base, stage.reader, theirs, resolver
        self.their_diff = diff(base, theirs)

    @cached_property
    def our_diff(self) -> Diff:
        """Computed on demand: an append needs no comparison with what others changed."""
        return diff(self.base, self.ours)

    def run(self, *, allow_nulls: bool) -> None:
        """Stage the result.

        Where a column without nulls has rows without a value, it becomes nullable, or with `allow_nulls=False` that is
        a `ConflictError`.
        """
        stage, theirs = self.stage, self.theirs.snapshot
        schema = self._merge_schema()
        columns = _Columns(schema, self.base.snapshot.schema, self.ours.snapshot.schema, theirs.schema)
        plan = self._resolve_rows(columns)
        self.resolver.check()
        containers = {name: uri for name, uri in theirs.containers.items() if name not in stage.snapshot.containers}
        stage.update_snapshot(stage.snapshot.nodes, schema, containers)
        stage.containers.declared.update(containers)
        merge_quarantine(stage, self.base, self.theirs)
        merge_indexes(stage, self.base.snapshot, theirs)
        stage.row_ids.claims = max(stage.row_ids.claims, theirs.claims)
        with FileWriter(stage.store) as files:
            by_value = self._adopt_files(columns, plan)
            if len(plan.deletes):
                delete_rows(stage, stage.reader.positions_of(plan.deletes))
            self._update_values(files, columns, plan, by_value)
            for known in columns.common:
                if plan.decisions.get(known.id):
                    self._apply_decisions(known, plan.decisions[known.id])
            lacking = [*self._append(files, columns, plan), *self._lacking(columns.incoming, plan)]
            self._allow_nulls(list(filter(_needs_value, lacking)), allow=allow_nulls)
        updated = np.unique(np.concatenate([_EMPTY, *plan.updates.values(), *map(_ids, plan.decisions.values())]))
        added = self.their_diff.num_added + len(plan.restored)
        counts = {"added": added, "updated": len(updated), "deleted": len(plan.deletes)}
        stage.changes.operations, stage.changes.counts = ["merge"], counts

    def _allow_nulls(self, fields: Sequence[Field], *, allow: bool) -> None:
        """Make columns nullable; raises `MergeConflictError` if that is not possible or not allowed."""
        schema = self.stage.snapshot.schema
        for known in fields:
            if not allow:
                raise MergeConflictError(
                    f"column {known.name!r} was added on one side, and has no value for rows that the other side added"
                )
            try:
                schema = schema.with_field(replace(schema.by_id(known.id), nullable=True))
            except InvalidInputError as error:
                raise MergeConflictError(
                    f"column {known.name!r} has no value for rows of one side, and cannot become nullable: {error}"
                ) from None
        self.stage.set_schema(schema)

    def _merge_schema(self) -> Schema:
        before, ours, theirs = (reader.snapshot.schema for reader in (self.base, self.ours, self.theirs))
        mine, other = ({known.id for known in schema} for schema in (ours, theirs))
        dropped_by_us = [known.id for known in before if known.id in other - mine]
        dropped_by_them = [known.id for known in before if known.id in mine - other]
        updated_by_us = [id for id in dropped_by_them if len(_changed_values(self.our_diff, id))]
        updated_by_them = [id for id in dropped_by_us if len(_changed_values(self.their_diff, id))]
        sides = SchemaSide(ours, updated_by_us), SchemaSide(theirs, updated_by_them)
        return merge_schemas(before, *sides, self.resolver)

    def _resolve_rows(self, columns: "_Columns") -> _RowPlan:
        theirs = self.their_diff
        if not theirs.updated and not len(theirs.deleted):
            return _RowPlan({}, {}, _EMPTY, _EMPTY, _EMPTY)
        ours = self.our_diff
        updates, decisions = {}, {}
        restored = self._choose_rows(_changed_rows(theirs, ours.deleted), "deleted by us")
        spared = self._choose_rows(_changed_rows(ours, theirs.deleted), "deleted by them")
        for known in columns.common:
            changed = np.setdiff1d(theirs.updated.get(known.id, _EMPTY), ours.deleted)
            both = np.intersect1d(changed, ours.updated.get(known.id, _EMPTY))
            skipped, decisions[known.id] = self._resolve_values(known, both) if len(both) else (_EMPTY, {})
            updates[known.id] = np.setdiff1d(changed, skipped)
        deletes = np.setdiff1d(np.setdiff1d(theirs.deleted, spared), ours.deleted)
        return _RowPlan(updates, decisions, deletes, restored, spared)

    def _choose_rows(self, ids: Int64Array, type: Literal["deleted by us", "deleted by them"]) -> Int64Array:
        """Those of the rows that one side deleted and the other changed that the latter wins."""
        ours, theirs = ("deleted", "changed") if type == "deleted by us" else ("changed", "deleted")
        changed_by = "theirs" if type == "deleted by us" else "ours"
        conflicts = [Conflict(type, None, id, ours=ours, theirs=theirs) for id in ids.tolist()]
        won = [conflict.row_id for conflict in conflicts if self.resolver.choose(conflict) == changed_by]
        return np.array(won, np.int64)

    def _resolve_values(self, known: Field, ids: Int64Array) -> tuple[Int64Array, dict[int, Any]]:
        """For rows that both sides changed: row ids that keep our value, and the values that a function returned."""
        sides = (self.base, self.ours, self.theirs)
        mine = self.ours.snapshot.schema.by_id(known.id)
        kept, decided = [], {}
        for id, *values in zip(ids.tolist(), *(_values(reader, known.id, ids) for reader in sides), strict=True):
            old, our, their = values
            if _same(our, their) or _same(old, their):
                kept.append(id)
                continue
            if _same(old, our):
                continue
            side, value = self.resolver.choose_value(Conflict("value", mine.name, id, *values))
            if side is None:
                decided[id] = value
            if side != "theirs":
                kept.append(id)
        return np.array(kept, np.int64), decided

    def _adopt_files(self, columns: "_Columns", plan: _RowPlan) -> list[FileRows]:
        """Share the files that only they replaced; returns the files whose values must be merged one by one."""
        found = self.their_diff.fragments
        appended = {fragment.id for fragment in self.their_diff.appended}
        outgoing = {known.id for known in columns.outgoing}
        by_value, changed = [], []
        for id, theirs in found.new.items():
            if id in appended:
                continue
            base = found.old.get(id)
            ours = None if base is None else self._our_fragment(base)
            if base is None or ours is None:
                by_value += all_files(theirs)
            elif base.files != theirs.files:
                keep = ~ours.deleted_rows & theirs.deleted_rows
                keep[keep] = ~np.isin(ours.row_ids_at(np.flatnonzero(keep)), plan.deletes)
                after, rest = adopt_files(base, ours, theirs, keep=keep, keep_fields=outgoing)
                changed.append((ours, after))
                by_value += rest
        if changed:
            self.stage.replace(changed, {})
        return by_value

    def _our_fragment(self, base: Fragment) -> Fragment | None:
        """A fragment of the base as we have it; None if we rewrote it."""
        found = self.our_diff.fragments
        return found.new.get(base.id) if base.id in found.old else base

    def _update_values(
        self, files: FileWriter, columns: "_Columns", plan: _RowPlan, by_value: Sequence[FileRows]
    ) -> None:
        """Stage their values of the rows and columns that could not be shared."""
        groups: dict[bytes, tuple[Int64Array, list[Field]]] = {}
        for known in (*columns.common, *columns.incoming):
            incoming = known in columns.incoming
            if not incoming and not len(plan.updates.get(known.id, _EMPTY)):
                continue
            ids = np.concatenate([_EMPTY, *(part.row_ids() for part in by_value if known.id in part.fields)])
            if incoming:
                ids = np.union1d(ids, self._rewritten_rows(known))
            else:
                ids = np.intersect1d(ids, plan.updates[known.id])
            if len(ids):
                ids = ids[(self.stage.reader.positions_of(ids) >= 0) & (self.theirs.positions_of(ids) >= 0)]
            if len(ids):
                groups.setdefault(ids.tobytes(), (ids, []))[1].append(known)
        for ids, fields in groups.values():
            arrays = _read_stored(self.theirs, fields, ids)
            positions = self.stage.reader.positions_of(ids)
            self.stage.replace(update_fragments(self.stage, files, positions, fields, arrays), {})

    def _rewritten_rows(self, known: Field) -> Int64Array:
        """Rows whose value of a column that only they have is not in our files, because we wrote these without it."""
        stored = any(fragment.files_of(known.id) for fragment in self.their_diff.fragments.new.values())
        if not stored and all(before.id != known.id for before in self.base.snapshot.schema):
            return _EMPTY
        old, appended = self.our_diff.fragments.old, {fragment.id for fragment in self.our_diff.appended}
        rewritten = [
            part
            for id, part in self.our_diff.fragments.new.items()
            if id not in appended and (id not in old or part.files_of(known.id) != old[id].files_of(known.id))
        ]
        return np.concatenate([_EMPTY, *(part.row_ids_at(part.live_rows) for part in rewritten)])

    def _apply_decisions(self, known: Field, decided: dict[int, Any]) -> None:
        positions = self.stage.reader.positions_of(_ids(decided))
        update_rows(self.stage, positions, {known.name: list(decided.values())})

    def _append(self, files: FileWriter, columns: "_Columns", plan: _RowPlan) -> list[Field]:
        """Stage rows that only they have: whole fragments are shared, other rows are copied with their ids.

        Returns the columns that have no value for such a row.
        """
        stage = self.stage
        shared = [fragment for fragment in self.their_diff.appended if fragment.live]
        lacking = [known for known in columns.outgoing if not all(fragment.files_of(known.id) for fragment in shared)]
        ids = np.union1d(self.their_diff.other_added, plan.restored)
        if len(ids):
            fields = list(columns.schema)
            arrays = self._read_rows(columns, ids, plan.restored)
            lacking += [known for known in fields if _has_nulls(arrays, known.id)]
            writer = FragmentWriter(files, fields, ExistingRowIds(ids))
            writer.write(arrays)
            writer.close_fragment()
            shared += writer.fragments
        if shared:
            stage.update_snapshot(stage.tree.append(stage.snapshot.nodes, shared), stage.snapshot.schema, {})
        return lacking

    def _read_rows(self, columns: "_Columns", ids: Int64Array, restored: Int64Array) -> dict[int, pa.Array]:
        """Rows that only they have; a column that they dropped has its value of the base in the rows that come back."""
        theirs = {known.id for known in self.theirs.snapshot.schema.fields}
        before = {known.id for known in self.base.snapshot.schema}
        arrays = {known.id: fill_values(known, len(ids)) for known in columns.schema}
        arrays.update(_read_stored(self.theirs, [known for known in columns.schema if known.id in theirs], ids))
        dropped = [known for known in columns.outgoing if known.id in before]
        if dropped and len(restored):
            old = _read_stored(self.base, dropped, restored)
            arrays = overlay(arrays, old, np.searchsorted(ids, restored))
        return arrays

    def _lacking(self, incoming: Sequence[Field], plan: _RowPlan) -> list[Field]:
        """Columns that only they have, and that have no value for a row that only we have."""
        needed = [known for known in incoming if _needs_value(known)]
        if not needed:
            return []
        ours = self.our_diff
        if len(ours.other_added) or len(plan.spared):
            return needed
        return [known for known in needed if any(part.live and not part.files_of(known.id) for part in ours.appended)]


class _Columns:
    """The columns of the result, by where they come from."""

    def __init__(self, schema: Schema, base: Schema, ours: Schema, theirs: Schema) -> None:
        before, mine, other = ({known.id for known in side} for side in (base, ours, theirs))
        self.schema = schema
        self.common = [known for known in schema if known.id in before & mine & other]
        self.incoming = [known for known in schema if known.id not in mine]
        """Columns that only they have: added by them, or dropped by us."""
        self.outgoing = [known for known in schema if known.id not in other]
        """Columns that only we have."""


def _changed_values(found: Diff, field_id: int, among: Int64Array | None = None) -> Int64Array:
    """Rows, of all or of some, whose value differs; a diff also has those that were changed and changed back."""
    ids = found.updated.get(field_id, _EMPTY)
    ids = ids if among is None else np.intersect1d(ids, among)
    if not len(ids):
        return ids
    fields = [found.after.snapshot.schema.by_id(field_id)]
    before, after = (_read_stored(reader, fields, ids) for reader in (found.before, found.after))
    return ids[changed_masks(before, after, np.arange(len(ids)))[field_id]]


def _changed_rows(found: Diff, among: Int64Array | None = None) -> Int64Array:
    """Rows, of all or of some, with a value that differs."""
    return np.unique(np.concatenate([_EMPTY, *(_changed_values(found, id, among) for id in found.updated)]))


def _needs_value(known: Field) -> bool:
    return not known.nullable and known.fill is None


def _has_nulls(arrays: Mapping[int, pa.Array], id: int) -> bool:
    missing = np.asarray(arrays[id].is_null())
    return bool((missing & np.asarray(arrays[-id].is_null()) if -id in arrays else missing).any())


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


def _values(reader: Reader, field_id: int, ids: Int64Array) -> list[Any]:
    """The values that a conflict shows; links as their targets, which need no permission to be read."""
    known = reader.snapshot.schema.by_id(field_id)
    if isinstance(known.kind, Linked):
        return list(known.kind.to_values(_read_stored(reader, [known], ids)[known.id]))
    column = reader.columns([known.name], [reader.positions_of(ids)])[0][known.name]
    return [column.item(index) for index in range(len(ids))]


def _same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other) if not isinstance(one, np.ndarray) else np.array_equal(one, other)
