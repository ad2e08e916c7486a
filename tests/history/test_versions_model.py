"""Stateful test: branches, writers, merges, compactions and vacuums equal a model of dictionaries."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
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
from penstock.history import merge_base
from penstock.storage import open_store
from tests.history.maintenance import compact

BRANCHES = ("main", "red", "blue")
small = st.integers(0, 3)


@dataclass
class State:
    """A table at one version: columns by an id of their own, rows by row id."""

    columns: dict[int, str] = field(default_factory=dict)
    fills: dict[int, Any] = field(default_factory=dict)
    rows: dict[int, dict[int, Any]] = field(default_factory=dict)

    def named(self) -> list[dict[str, Any]]:
        return [{name: row[id] for id, name in self.columns.items()} for row in self.rows.values()]

    def changed(self, id: int, since: "State") -> set[int]:
        if id not in self.columns or id not in since.columns:
            return set()
        return {row for row in self.rows.keys() & since.rows.keys() if self.rows[row][id] != since.rows[row][id]}

    def changed_rows(self, since: "State") -> set[int]:
        return {row for id in self.columns for row in self.changed(id, since)}


def merged(base: State, ours: State, theirs: State, policy: str) -> tuple[State, int]:
    """The expected result of a three-way merge, and the number of conflicts."""
    conflicts = 0

    def decide() -> str:
        nonlocal conflicts
        conflicts += 1
        return policy

    result = deepcopy(ours)
    for id in theirs.columns.keys() - base.columns.keys() - ours.columns.keys():
        result.columns[id], result.fills[id] = theirs.columns[id], theirs.fills[id]
        for row in result.rows:
            result.rows[row][id] = theirs.rows[row][id] if row in theirs.rows else theirs.fills[id]
    for id, name in base.columns.items():
        if id not in ours.columns:
            if theirs.changed(id, base):
                decide()
        elif id not in theirs.columns:
            if not ours.changed(id, base) or decide() == "theirs":
                del result.columns[id]
        elif theirs.columns[id] not in (name, ours.columns[id]) and (ours.columns[id] == name or decide() == "theirs"):
            result.columns[id] = theirs.columns[id]
    deleted_by_us, deleted_by_them = base.rows.keys() - ours.rows.keys(), base.rows.keys() - theirs.rows.keys()
    restored = {row for row in sorted(deleted_by_us & theirs.changed_rows(base)) if decide() == "theirs"}
    spared = {row for row in sorted(deleted_by_them & ours.changed_rows(base)) if decide() == "ours"}
    for row in deleted_by_them - deleted_by_us - spared:
        del result.rows[row]
    for id in result.columns.keys() & theirs.columns.keys() & base.columns.keys():
        for row in theirs.changed(id, base) & result.rows.keys():
            both = row in ours.changed(id, base) and ours.rows[row][id] != theirs.rows[row][id]
            if not both or decide() == "theirs":
                result.rows[row][id] = theirs.rows[row][id]
    for row in [*(theirs.rows.keys() - base.rows.keys()), *restored]:
        source = theirs.rows[row]
        result.rows[row] = {id: source.get(id, result.fills.get(id)) for id in result.columns}
    return result, conflicts


@dataclass
class Writer:
    """An open dataset, its expected state, and the operations since its base."""

    ds: penstock.Dataset
    branch: str
    base: State
    state: State
    steps: list[Callable[[State], None]] = field(default_factory=list)
    only_appends: bool = True


class HistoryMachine(RuleBasedStateMachine):
    @initialize()
    def create(self) -> None:
        self.store = open_store("memory://")
        self.ids = iter(range(1, 10**6))
        columns = {next(self.ids): "a", next(self.ids): "b"}
        kind = Column(Tensor("int64"), nullable=True, file_bytes=64, page_bytes=32)
        ds = penstock.create(self.store, {"a": kind, "b": kind})
        first = State(columns, dict.fromkeys(columns))
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
        return data.draw(st.lists(st.sampled_from(sorted(writer.state.rows)), max_size=3, unique=True), "rows")

    def act(self, writer: Writer, step: Callable[[State], None], *, append: bool = False) -> None:
        step(writer.state)
        writer.steps.append(step)
        writer.only_appends &= append

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
        rows = {row: {id: values[id][n] for id in values} for n, row in enumerate(new)}
        fills = dict(writer.state.fills)

        def step(state: State) -> None:
            for row, cells in rows.items():
                state.rows[row] = {id: cells.get(id, state.fills.get(id, fills.get(id))) for id in state.columns}

        self.act(writer, step, append=True)

    @rule(data=st.data(), value=small | st.none())
    def update(self, data: st.DataObject, value: int | None) -> None:
        writer = self.draw_writer(data)
        if not writer.state.columns:
            return
        rows = self.rows(data, writer)
        id = data.draw(st.sampled_from(sorted(writer.state.columns)))
        value = 0 if value is None and id > 2 else value  # added columns are not nullable
        values = {writer.state.columns[id]: [value] * len(rows)}
        done = self.attempt(writer, lambda: writer.ds.update(self.positions(writer, rows), values))

        def step(state: State) -> None:
            for row in rows:
                if row in state.rows and id in state.columns:
                    state.rows[row][id] = value

        if rows and done:
            self.act(writer, step)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        writer = self.draw_writer(data)
        rows = self.rows(data, writer)
        done = self.attempt(writer, lambda: writer.ds.delete(self.positions(writer, rows)))
        if rows and done:

            def step(state: State) -> None:
                for row in rows:
                    state.rows.pop(row, None)

            self.act(writer, step)

    @rule(data=st.data(), fill=small, computed=st.booleans())
    def add_column(self, data: st.DataObject, fill: int, computed: bool) -> None:
        writer = self.draw_writer(data)
        if len(writer.state.columns) > 4:
            return
        id = next(self.ids)
        name = f"c{id}"
        computed = computed and bool(writer.state.rows)
        if computed:
            values = {row: n % 4 for n, row in enumerate(writer.state.rows)}
            if not self.attempt(writer, lambda: writer.ds.add_column(name, "int64", values=list(values.values()))):
                return
        else:
            values = {}
            writer.ds.add_column(name, "int64", fill=fill)

        def step(state: State) -> None:
            state.columns[id], state.fills[id] = name, None if computed else fill
            for row in state.rows:
                state.rows[row][id] = values.get(row, None if computed else fill)

        self.act(writer, step)

    @rule(data=st.data())
    def drop_or_rename_column(self, data: st.DataObject) -> None:
        writer = self.draw_writer(data)
        if not writer.state.columns:
            return
        id = data.draw(st.sampled_from(sorted(writer.state.columns)))
        if data.draw(st.booleans(), "drop") and len(writer.state.columns) > 1:
            writer.ds.drop_column(writer.state.columns[id])

            def drop(state: State) -> None:
                del state.columns[id]

            self.act(writer, drop)
            return
        name = f"n{next(self.ids)}"
        writer.ds.rename_column(writer.state.columns[id], name)
        self.act(writer, lambda state: state.columns.update({id: name}))

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.publish(self.draw_writer(data))

    def publish(self, writer: Writer) -> None:
        head = self.log[writer.branch][-1]
        if not writer.ds.summary().has_changes:
            return
        try:
            writer.ds.commit("step")
        except ConflictError:
            assert head is not writer.base, "no concurrent commit"
            assert not (writer.only_appends and head.columns == writer.base.columns), "appends never conflict"
            writer.ds.rollback()
            writer.state, writer.steps, writer.only_appends = deepcopy(writer.base), [], True
            return
        state = deepcopy(head)
        for step in writer.steps:
            step(state)
        self.log[writer.branch].append(state)
        writer.base, writer.state, writer.steps, writer.only_appends = state, deepcopy(state), [], True

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        writer = self.draw_writer(data)
        writer.ds.rollback()
        writer.state, writer.steps, writer.only_appends = deepcopy(writer.base), [], True

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
        at = merge_base(self.store, one, two)
        base = self.by_snapshot(at.snapshot.id)
        if base is None or self.is_expired(base):
            if at not in (one, two):
                with pytest.raises(SnapshotExpiredError):
                    ds.merge(other, on_conflict=policy)
            return
        ours = self.log[into][-1]
        expected, conflicts = merged(base, ours, self.log[other][-1], policy)
        if conflicts and policy == "raise":
            with pytest.raises(MergeConflictError) as error:
                ds.merge(other)
            assert len(error.value.conflicts) == conflicts
            assert ds.version == f"{into}@{len(self.log[into]) - 1}"
            return
        before = ds.version
        after = ds.merge(other, on_conflict=policy)
        if at == two:
            assert before == after
            return
        real = np.asarray(ds.select(["_row_id"]).to_numpy()["_row_id"]).tolist() if len(ds) else []
        assert sorted(real) == sorted(expected.rows)
        kept = [row for row in ours.rows if row in expected.rows]
        assert [row for row in real if row in set(kept)] == kept, "our rows keep their order"
        expected.rows = {row: expected.rows[row] for row in real}
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
        updated = {after.columns[id]: sorted(after.changed(id, before)) for id in after.columns}
        assert {name: ids.tolist() for name, ids in found.updated.items()} == {n: i for n, i in updated.items() if i}
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

    def by_snapshot(self, id: str) -> State | None:
        for branch, states in self.log.items():
            branch_id = penstock.load(self.store)._session.refs.branch(branch)
            for version, state in enumerate(states):
                if penstock.history.read_commit(self.store, branch_id, version).snapshot.id == id:
                    return state
        return self.deleted_snapshots.get(id)

    def same(self, ds: penstock.View, state: State) -> None:
        assert sorted(ds.schema.names) == sorted(state.columns.values())
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
            max_examples=300,
            stateful_step_count=50,
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes longer than finding
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
