"""Stateful test: branches, writers, merges, compactions and vacuums equal a model of dictionaries."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import penstock
from penstock import Column, Tensor
from penstock.errors import ConflictError, MergeConflictError, SnapshotExpiredError
from penstock.history import merge_bases
from penstock.storage import open_store
from tests.history.maintenance import compact

BRANCHES = ("main", "red", "blue")
small = st.integers(0, 3)
names = st.sampled_from(["a", "b", "c", "d"])
ADDED = st.sampled_from(["fill", "null", "computed"])


DROPPED: Any = object()
"""A value in a column that the side of its row had dropped, and the other side brings back: the old value, or null."""


@dataclass
class State:
    """A table at one version: columns by an id of their own, rows by row id."""

    columns: dict[int, str] = field(default_factory=dict)
    fills: dict[int, Any] = field(default_factory=dict)
    nullable: set[int] = field(default_factory=set)
    rows: dict[int, dict[int, Any]] = field(default_factory=dict)
    quarantine: dict[int, str] = field(default_factory=dict)

    def set_nullable(self) -> None:
        """A column is nullable if it has a null."""
        self.nullable |= {id for row in self.rows.values() for id in row if row[id] is None}
        self.nullable &= self.columns.keys()

    def observe(self, ds: penstock.View) -> None:
        """Take the order of the rows, and the values that a merge leaves open, from a table."""
        real = {row["_row_id"]: row for row in ds.select([*ds.schema.names, "_row_id"])}
        assert sorted(real) == sorted(self.rows)
        self.rows = {row: self.rows[row] for row in real}
        for row, cells in self.rows.items():
            cells.update({id: real[row][self.columns[id]] for id in cells if cells[id] is DROPPED})
        self.set_nullable()

    def named(self) -> list[dict[str, Any]]:
        return [{name: row[id] for id, name in self.columns.items()} for row in self.rows.values()]

    def changed(self, id: int, since: "State") -> set[int]:
        if id not in self.columns or id not in since.columns:
            return set()
        return {row for row in self.rows.keys() & since.rows.keys() if self.rows[row][id] != since.rows[row][id]}

    def changed_rows(self, since: "State") -> set[int]:
        return {row for id in self.columns for row in self.changed(id, since)}

    def changed_column(self, id: int, since: "State") -> bool:
        return self.columns[id] != since.columns[id] or bool(self.changed(id, since))


@dataclass
class Policy:
    """Decides conflicts, and counts them."""

    side: str
    conflicts: int = 0

    def decide(self) -> str:
        self.conflicts += 1
        return "theirs" if self.side == "theirs" else "ours"


def merged_columns(base: State, ours: State, theirs: State, policy: Policy) -> dict[int, str]:
    """The expected columns of a three-way merge."""
    names: dict[int, str] = {}
    for id in [*ours.columns, *(id for id in theirs.columns if id not in ours.columns)]:
        if id in ours.columns and id in theirs.columns:
            mine, other, old = ours.columns[id], theirs.columns[id], base.columns.get(id)
            if mine == other or other == old:
                names[id] = mine
            elif mine == old or policy.decide() == "theirs":
                names[id] = other
            else:
                names[id] = mine
            continue
        side, state = ("ours", ours) if id in ours.columns else ("theirs", theirs)
        if id not in base.columns or (state.changed_column(id, base) and policy.decide() == side):
            names[id] = state.columns[id]
    decided: dict[str, State] = {}
    while name := next((name for name in names.values() if list(names.values()).count(name) > 1), None):
        if name not in decided:
            decided[name] = theirs if policy.decide() == "theirs" else ours
        for id in [id for id in names if names[id] == name]:
            if id in decided[name].columns:
                names[id] = decided[name].columns[id]
            else:
                del names[id]
    return names


def merged_quarantine(base: State, ours: State, theirs: State) -> dict[int, str]:
    """The expected list: what one side changed, and where both did, ours unless we released the row."""
    found = {}
    for row in ours.quarantine.keys() | theirs.quarantine.keys():
        mine, other, old = (state.quarantine.get(row) for state in (ours, theirs, base))
        both = mine != old and other != old
        found[row] = (other if mine is None else mine) if both else mine if other == old else other
    return {row: reason for row, reason in found.items() if reason is not None}


def merged(base: State, ours: State, theirs: State, side: str) -> tuple[State, int]:
    """The expected result of a three-way merge, and the number of conflicts."""
    policy = Policy(side)
    columns = merged_columns(base, ours, theirs, policy)
    deleted_by_us, deleted_by_them = base.rows.keys() - ours.rows.keys(), base.rows.keys() - theirs.rows.keys()
    restored = {row for row in sorted(deleted_by_us & theirs.changed_rows(base)) if policy.decide() == "theirs"}
    spared = {row for row in sorted(deleted_by_them & ours.changed_rows(base)) if policy.decide() == "ours"}
    result = State(columns, {**theirs.fills, **ours.fills}, ours.nullable | theirs.nullable)
    kept = [row for row in ours.rows if row not in deleted_by_them - spared]
    for row in [*kept, *(theirs.rows.keys() - base.rows.keys()), *restored]:
        cells = result.rows[row] = {}
        for id in columns:
            mine, other, old = (state.rows.get(row, {}).get(id) for state in (ours, theirs, base))
            in_ours, in_theirs = (row in state.rows and id in state.columns for state in (ours, theirs))
            if in_ours and in_theirs and id in base.columns:
                cells[id] = other
                if mine != old and (other == old or (mine != other and policy.decide() == "ours")):
                    cells[id] = mine
            elif in_ours or in_theirs:
                cells[id] = mine if in_ours else other
            elif row in base.rows and id in base.columns:
                cells[id] = old
            else:
                dropped = id in (ours if row in ours.rows else theirs).fills
                cells[id] = DROPPED if dropped else result.fills[id]
    result.set_nullable()
    result.quarantine = merged_quarantine(base, ours, theirs)
    return result, policy.conflicts


@dataclass
class Writer:
    """An open dataset, its expected state, and what it did since its base."""

    ds: penstock.Dataset
    branch: str
    base: State
    state: State
    only_appends: bool = True
    computed: bool = False

    def move_to(self, state: State) -> None:
        self.base, self.state, self.only_appends, self.computed = state, deepcopy(state), True, False


class HistoryMachine(RuleBasedStateMachine):
    @initialize()
    def create(self) -> None:
        self.store = open_store("memory://")
        self.ids = iter(range(1, 10**6))
        columns = {next(self.ids): "a", next(self.ids): "b"}
        kind = Column(Tensor("int64"), file_bytes=64, page_bytes=32)
        ds = penstock.create(self.store, {"a": replace(kind, nullable=True), "b": kind})
        first = State(columns, dict.fromkeys(columns), {1})
        self.log: dict[str, list[State]] = {"main": [first]}
        self.deleted_branches: list[tuple[str, list[State]]] = []
        self.deleted_snapshots: dict[str, State] = {}
        self.tags: dict[str, State] = {}
        self.expired: list[State] = []
        self.writers = [Writer(ds, "main", first, deepcopy(first))]

    def open(self, branch: str) -> Writer:
        ds = penstock.load(self.store, branch=branch)
        state = self.log[branch][-1]
        return Writer(ds, branch, state, deepcopy(state))

    def draw_writer(self, data: st.DataObject) -> Writer:
        return data.draw(st.sampled_from(self.writers), "writer")

    def rows(self, data: st.DataObject, writer: Writer) -> list[int]:
        if not writer.state.rows:
            return []
        return data.draw(
            st.lists(st.sampled_from(sorted(writer.state.rows)), min_size=1, max_size=6, unique=True), "rows"
        )

    def attempt(self, writer: Writer, change: Callable[[], object]) -> bool:
        """Apply a change; False if it needs objects that a vacuum deleted, which must raise."""
        try:
            change()
        except SnapshotExpiredError:
            assert self.is_expired(writer.base)
            return False
        return True

    def positions(self, writer: Writer, rows: list[int]) -> list[int]:
        order = {row: position for position, row in enumerate(writer.state.rows)}
        return [order[row] for row in rows]

    @rule(data=st.data(), count=st.integers(1, 12))
    def append(self, data: st.DataObject, count: int) -> None:
        writer = self.draw_writer(data)
        if not writer.state.columns:
            return
        values = {id: data.draw(st.lists(small, min_size=count, max_size=count)) for id in writer.state.columns}
        before = len(writer.ds)
        columns = {writer.state.columns[id]: column for id, column in values.items()}
        if not self.attempt(writer, lambda: writer.ds.append(columns)):
            return
        new = np.asarray(writer.ds[before:].select(["_row_id"]).to_numpy()["_row_id"]).tolist()
        writer.state.rows.update({row: {id: values[id][n] for id in values} for n, row in enumerate(new)})

    @rule(data=st.data(), value=small | st.none())
    def update(self, data: st.DataObject, value: int | None) -> None:
        writer = self.draw_writer(data)
        if not writer.state.columns:
            return
        rows = self.rows(data, writer)
        id = data.draw(st.sampled_from(sorted(writer.state.columns)))
        value = 0 if value is None and id not in writer.state.nullable else value
        values = {writer.state.columns[id]: [value] * len(rows)}
        if rows and self.attempt(writer, lambda: writer.ds.update(positions=self.positions(writer, rows), data=values)):
            writer.only_appends = False
            for row in rows:
                writer.state.rows[row][id] = value

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        writer = self.draw_writer(data)
        rows = self.rows(data, writer)
        if rows and self.attempt(writer, lambda: writer.ds.delete(positions=self.positions(writer, rows))):
            writer.only_appends = False
            for row in rows:
                del writer.state.rows[row]

    @rule(data=st.data(), name=names, fill=small, how=ADDED)
    def add_column(self, data: st.DataObject, name: str, fill: int, how: str) -> None:
        writer = self.draw_writer(data)
        state = writer.state
        if name in state.columns.values() or (how == "computed" and not state.rows):
            return
        values = dict.fromkeys(state.rows, fill if how == "fill" else None)
        if how == "computed":
            values = {row: n % 4 for n, row in enumerate(state.rows)}
            if not self.attempt(writer, lambda: writer.ds.add_column(name, "int64", values=list(values.values()))):
                return
            writer.computed = True
        elif how == "null":
            writer.ds.add_column(name, Column(Tensor("int64"), nullable=True))
        else:
            writer.ds.add_column(name, "int64", fill=fill)
        writer.only_appends = False
        id = next(self.ids)
        state.columns[id], state.fills[id] = name, fill if how == "fill" else None
        state.nullable |= {id} if how == "null" else set()
        for row in state.rows:
            state.rows[row][id] = values[row]

    @rule(data=st.data())
    def drop_column(self, data: st.DataObject) -> None:
        writer = self.draw_writer(data)
        if len(writer.state.columns) > 1:
            id = data.draw(st.sampled_from(sorted(writer.state.columns)))
            writer.ds.drop_column(writer.state.columns.pop(id))
            writer.state.nullable.discard(id)
            writer.only_appends = False

    @rule(data=st.data(), name=names)
    def rename_column(self, data: st.DataObject, name: str) -> None:
        """Rename a column; if another has that name, they swap names."""
        writer = self.draw_writer(data)
        if not writer.state.columns:
            return
        id = data.draw(st.sampled_from(sorted(writer.state.columns)))
        columns = writer.state.columns
        old, other = columns[id], next((id for id in columns if columns[id] == name), None)
        if old == name:
            return
        if other is not None:
            writer.ds.rename_column(name, "between")
        writer.ds.rename_column(old, name)
        if other is not None:
            writer.ds.rename_column("between", old)
            columns[other] = old
        columns[id] = name
        writer.only_appends = False

    @rule(data=st.data())
    def make_nullable(self, data: st.DataObject) -> None:
        """What a merge does to a column that has no value for the rows of the other side."""
        writer = self.draw_writer(data)
        if not writer.state.columns:
            return
        id = data.draw(st.sampled_from(sorted(writer.state.columns)))
        session = writer.ds._session
        schema = session.snapshot.schema
        session.set_schema(schema.with_field(replace(schema[writer.state.columns[id]], nullable=True)))
        session.changes.record("update")
        writer.state.nullable.add(id)
        writer.only_appends = False

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """Commit: it meets others by the rules of a merge, except that no column becomes nullable."""
        writer = self.draw_writer(data)
        head = self.log[writer.branch][-1]
        if not writer.ds.summary().has_changes:
            return
        expected, conflicts = merged(writer.base, head, writer.state, "raise")
        outdated = writer.computed and (head.rows.keys() - writer.base.rows or head.changed_rows(writer.base))
        lacking = expected.nullable - head.nullable - writer.state.nullable
        left_open = {id for row in expected.rows.values() for id in row if row[id] is DROPPED} - expected.nullable
        try:
            writer.ds.commit("step")
        except ConflictError:
            assert conflicts or outdated or lacking or left_open
            assert not (writer.only_appends and head.columns == writer.base.columns), "appends never conflict"
            writer.ds.rollback()
            writer.move_to(writer.base)
            return
        except SnapshotExpiredError:
            assert self.is_expired(writer.base)
            assert not writer.only_appends
            writer.ds.rollback()
            writer.move_to(writer.base)
            return
        assert not conflicts
        assert not outdated
        assert not lacking
        expected.observe(writer.ds)
        kept = [row for row in head.rows if row in expected.rows]
        assert [row for row in expected.rows if row in head.rows] == kept, "their rows keep their order"
        self.log[writer.branch].append(expected)
        writer.move_to(expected)

    @rule(data=st.data(), reason=st.sampled_from(["blurred", "dark", None]))
    def quarantine(self, data: st.DataObject, reason: str | None) -> None:
        """Quarantine rows, or release some; unlike other changes it commits at once, and never conflicts."""
        writer = self.draw_writer(data)
        head, version = self.log[writer.branch][-1], writer.ds.version
        listed = {row: why for row, why in writer.state.quarantine.items() if row in writer.state.rows}
        known = sorted(writer.state.rows if reason else listed)
        if not known or writer.ds.summary().has_changes:
            return
        rows = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True), "rows")
        change = (
            (lambda: writer.ds.quarantine(row_ids=rows, reason=reason))
            if reason
            else (lambda: writer.ds.release(row_ids=rows))
        )
        if not self.attempt(writer, change) or writer.ds.version == version:
            return
        for row in rows:
            if reason is None:
                del writer.state.quarantine[row]
            else:
                writer.state.quarantine[row] = reason
        expected, conflicts = merged(writer.base, head, writer.state, "raise")
        assert not conflicts
        expected.observe(writer.ds)
        self.log[writer.branch].append(expected)
        writer.move_to(expected)

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        writer = self.draw_writer(data)
        writer.ds.rollback()
        writer.move_to(writer.base)

    @rule(data=st.data())
    def open_writer(self, data: st.DataObject) -> None:
        branch = data.draw(st.sampled_from(sorted(self.log)), "branch")
        self.writers = [*self.writers[-2:], self.open(branch)]

    @rule(data=st.data(), name=st.sampled_from(BRANCHES[1:]))
    def branch(self, data: st.DataObject, name: str) -> None:
        source = data.draw(st.sampled_from(sorted(self.log)), "from")
        at = data.draw(st.integers(0, len(self.log[source]) - 1), "at")
        state = self.log[source][at]
        ds = penstock.load(self.store)
        if name in self.log:
            with pytest.raises(penstock.errors.AlreadyExistsError):
                ds.branches.create(name, at=f"{source}@0" if not self.is_expired(self.log[source][0]) else source)
        elif self.is_expired(state):
            with pytest.raises(SnapshotExpiredError):
                ds.branches.create(name, at=f"{source}@{at}")
        else:
            new = ds.branches.create(name, at=f"{source}@{at}")
            self.log[name] = [state]
            self.writers = [*self.writers[-2:], Writer(new, name, state, deepcopy(state))]

    @precondition(lambda self: len(self.log) > 1)
    @rule(data=st.data())
    def delete_branch(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(set(self.log) - {"main"})))
        branch_id = penstock.load(self.store)._session.refs.branch(name)
        for version, state in enumerate(self.log[name]):  # branches that started here may be merged later
            self.deleted_snapshots[penstock.history.read_commit(self.store, branch_id, version).snapshot.id] = state
        penstock.load(self.store).branches.delete(name)
        self.deleted_branches.append((name, self.log.pop(name)))
        self.writers = [writer for writer in self.writers if writer.branch != name] or [self.open("main")]

    @rule(data=st.data(), name=st.sampled_from(["v1", "v2"]))
    def tag(self, data: st.DataObject, name: str) -> None:
        ds = penstock.load(self.store)
        if name in self.tags:
            ds.tags.delete(name)
            del self.tags[name]
            return
        branch = data.draw(st.sampled_from(sorted(self.log)))
        at = data.draw(st.integers(0, len(self.log[branch]) - 1))
        if self.is_expired(self.log[branch][at]):
            with pytest.raises(SnapshotExpiredError):
                ds.tags.create(name, at=f"{branch}@{at}")
        else:
            ds.tags.create(name, at=f"{branch}@{at}")
            self.tags[name] = self.log[branch][at]

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        branch = data.draw(st.sampled_from(sorted(self.log)))
        at = data.draw(st.integers(0, len(self.log[branch]) - 1))
        ds = penstock.load(self.store, branch=branch)
        if self.is_expired(self.log[branch][at]):
            with pytest.raises(SnapshotExpiredError):
                ds.reset(at)
        else:
            ds.reset(at)
            self.log[branch].append(self.log[branch][at])

    @precondition(lambda self: len(self.log) > 1)
    @rule(data=st.data(), policy=st.sampled_from(["raise", "ours", "theirs"]))
    def merge(self, data: st.DataObject, policy: Literal["raise", "ours", "theirs"]) -> None:
        into, other = data.draw(st.permutations(sorted(self.log)), "branches")[:2]
        ds, theirs = penstock.load(self.store, branch=into), penstock.load(self.store, branch=other)
        one, two = ds._session.version.commit, theirs._session.version.commit
        if one.contains.get(two.branch, -1) >= two.version:
            assert ds.merge(other, on_conflict=policy) == f"{into}@{len(self.log[into]) - 1}"
            return
        base = self.base_state(one.contains, two.contains)
        if base is None:
            with pytest.raises(SnapshotExpiredError):
                ds.merge(other, on_conflict=policy)
            return
        if any(cell is DROPPED for row in base.rows.values() for cell in row.values()):
            return  # the merge of several bases leaves it open
        ours = self.log[into][-1]
        expected, conflicts = merged(base, ours, self.log[other][-1], policy)
        if conflicts and policy == "raise":
            with pytest.raises(MergeConflictError) as error:
                ds.merge(other)
            assert len(error.value.conflicts) == conflicts, error.value
            assert ds.version == f"{into}@{len(self.log[into]) - 1}"
            return
        ds.merge(other, on_conflict=policy)
        expected.observe(ds)
        kept = [row for row in ours.rows if row in expected.rows]
        assert [row for row in expected.rows if row in ours.rows] == kept, "our rows keep their order"
        self.log[into].append(expected)
        self.same(ds, expected)

    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        branch = data.draw(st.sampled_from(sorted(self.log)))
        ds = penstock.load(self.store, branch=branch)
        if ds.version != compact(ds):
            self.log[branch].append(deepcopy(self.log[branch][-1]))

    @rule(dry_run=st.booleans())
    def vacuum(self, dry_run: bool) -> None:
        penstock.vacuum(self.store, older_than=timedelta(0), dry_run=dry_run)
        if not dry_run:
            retained = [*(states[-1] for states in self.log.values()), *self.tags.values()]
            all_states = [state for states in self.log.values() for state in states]
            all_states += [state for _, states in self.deleted_branches for state in states]
            self.expired += [state for state in all_states if not any(state is other for other in retained)]

    @rule(data=st.data())
    def diff(self, data: st.DataObject) -> None:
        ends = []
        for _ in range(2):
            branch = data.draw(st.sampled_from(sorted(self.log)))
            at = data.draw(st.integers(0, len(self.log[branch]) - 1))
            ends.append((f"{branch}@{at}", self.log[branch][at]))
        (old, before), (new, after) = ends
        ds = penstock.load(self.store)
        if self.is_expired(before) or self.is_expired(after):
            with pytest.raises(SnapshotExpiredError):
                ds.diff(old, new)
            return
        found = ds.diff(old, new)
        assert found._diff.added.tolist() == sorted(after.rows.keys() - before.rows.keys())
        assert found._diff.deleted.tolist() == sorted(before.rows.keys() - after.rows.keys())
        for id, name in after.columns.items():  # a value that was changed and changed back may be reported
            reported = set(found.updated[name].tolist()) if name in found.updated else set()
            assert after.changed(id, before) <= reported <= after.rows.keys() & before.rows.keys()
        assert set(found.quarantined.tolist()) == after.quarantine.keys() - before.quarantine.keys()
        assert set(found.released.tolist()) == before.quarantine.keys() - after.quarantine.keys()
        assert set(found.columns_added) == {after.columns[id] for id in after.columns.keys() - before.columns.keys()}
        assert set(found.columns_dropped) == {before.columns[id] for id in before.columns.keys() - after.columns.keys()}

    @rule(data=st.data())
    def read_older_version(self, data: st.DataObject) -> None:
        branch = data.draw(st.sampled_from(sorted(self.log)))
        at = data.draw(st.integers(0, len(self.log[branch]) - 1))
        if self.is_expired(self.log[branch][at]):
            with pytest.raises(SnapshotExpiredError):
                penstock.load(self.store, version=f"{branch}@{at}")
        else:
            self.same(penstock.load(self.store, version=f"{branch}@{at}"), self.log[branch][at])

    def is_expired(self, state: State) -> bool:
        return any(state is other for other in self.expired)

    def base_state(self, ours: Mapping[str, int], theirs: Mapping[str, int]) -> State | None:
        """The merge of all merge bases; None if one has expired."""
        newest, *others = merge_bases(self.store, ours, theirs)
        base, contains = self.retained(newest.snapshot.id), newest.contains
        for other in others:
            before = self.base_state(contains, other.contains)
            state = self.retained(other.snapshot.id)
            if before is None or state is None or base is None:
                return None
            base, _ = merged(before, base, state, "ours")
            contains = {
                id: max(contains.get(id, -1), other.contains.get(id, -1)) for id in {*contains, *other.contains}
            }
        return base

    def retained(self, snapshot_id: str) -> State | None:
        state = self.by_snapshot(snapshot_id)
        return None if state is None or self.is_expired(state) else state

    def by_snapshot(self, id: str) -> State | None:
        for branch, states in self.log.items():
            branch_id = penstock.load(self.store)._session.refs.branch(branch)
            for version, state in enumerate(states):
                if penstock.history.read_commit(self.store, branch_id, version).snapshot.id == id:
                    return state
        return self.deleted_snapshots.get(id)

    def same(self, ds: penstock.Dataset, state: State) -> None:
        assert ds.quarantined() == {row: why for row, why in state.quarantine.items() if row in state.rows}
        assert sorted(ds.schema.names) == sorted(state.columns.values())
        assert {known.name for known in ds.schema if known.nullable} == {state.columns[id] for id in state.nullable}
        assert list(ds) == state.named()
        assert [row["_row_id"] for row in ds.select(["_row_id"])] == list(state.rows), "a row keeps its id"

    @invariant()
    def every_writer_and_branch_equals_the_model(self) -> None:
        if not hasattr(self, "log"):
            return
        for writer in self.writers:
            if not self.is_expired(writer.base):
                self.same(writer.ds, writer.state)
        for branch, states in self.log.items():
            assert penstock.load(self.store, branch=branch).version == f"{branch}@{len(states) - 1}"
        for name, state in self.tags.items():
            self.same(penstock.load(self.store, tag=name), state)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            for branch, states in self.log.items():
                self.same(penstock.load(self.store, branch=branch), states[-1])
            assert penstock.verify(self.store).damaged == []


@pytest.mark.timeout(1200)
def test_any_sequence_of_version_operations_equals_the_model() -> None:
    run_state_machine_as_test(
        HistoryMachine,
        settings=settings(
            max_examples=50,
            stateful_step_count=50,
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes longer than finding
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


CHANGES: list[Callable[[HistoryMachine, st.DataObject], object]] = [
    lambda machine, data: machine.append(data, data.draw(st.integers(1, 4))),
    lambda machine, data: machine.update(data, data.draw(small | st.none())),
    lambda machine, data: machine.update(data, data.draw(small)),
    lambda machine, data: machine.update(data, data.draw(small)),
    lambda machine, data: machine.delete(data),
    lambda machine, data: machine.delete(data),
    lambda machine, data: machine.add_column(data, data.draw(names), data.draw(small), data.draw(ADDED)),
    lambda machine, data: machine.drop_column(data),
    lambda machine, data: machine.rename_column(data, data.draw(names)),
    lambda machine, data: machine.make_nullable(data),
    lambda machine, data: machine.quarantine(data, data.draw(st.sampled_from(["blurred", None]))),
]


@settings(
    max_examples=50,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes longer than finding
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data(), how=st.sampled_from(["raise", "ours", "theirs", "commit"]), compacted=st.booleans())
def test_any_changes_of_two_sides_merge_as_the_model_does(data: st.DataObject, how: Any, compacted: bool) -> None:
    """Rows and columns change on both sides, which then meet in a merge, or as two writers of one branch."""
    machine = HistoryMachine()
    machine.create()
    for name in ("a", "b"):
        machine.append(data, 6)
        if data.draw(st.booleans(), "add a column"):
            machine.add_column(data, name * 2, 1, data.draw(ADDED))
    machine.commit(data)
    if how != "commit":
        penstock.load(machine.store).branches.create("red")
        machine.log["red"] = [machine.log["main"][-1]]
    sides = [machine.open("main"), machine.open("main" if how == "commit" else "red")]
    for side in sides:
        machine.writers = [side]
        for _ in range(data.draw(st.integers(3, 8), "changes")):
            data.draw(st.sampled_from(CHANGES))(machine, data)
    for side in sides:
        machine.writers = [side]
        machine.commit(data)
        machine.every_writer_and_branch_equals_the_model()
        if compacted:
            machine.compact(data)
    if how != "commit":
        machine.merge(data, how)
    machine.teardown()
