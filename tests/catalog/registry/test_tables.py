"""Tables of a workspace: any history of operations equals a dictionary's."""

import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from penstock.catalog.registry import Registry, TableRow
from penstock.errors import AlreadyExistsError, InvalidInputError, NotFoundError, PenstockError
from tests.catalog.registry.conftest import Clock
from tests.servers import new_database

WEEK_US = 7 * 24 * 3600 * 1_000_000
NAMES = st.sampled_from(["a", "b", "c-1"])
_COUNT = sa.text("SELECT count(*) FROM workspaces")


def test_a_declared_table_is_found(registry: Registry, clock: Clock) -> None:
    workspace = registry.workspace("team")
    row = workspace.declare("robots", "s3://bucket/1", properties={"owner": "ann"}, created_by="ann@example.org")
    assert workspace.find("robots") == row
    assert (row.name, row.location, row.owned, row.created_by) == ("robots", "s3://bucket/1", True, "ann@example.org")
    assert (row.properties, row.created_us, row.dropped_us) == ({"owner": "ann"}, int(clock.now * 1e6), None)
    assert workspace.declare("linked", "s3://bucket/2", owned=False).owned is False
    assert workspace.find("linked").owned is False


def test_pages_of_tables(registry: Registry) -> None:
    workspace = registry.workspace("team")
    for number in range(7):
        workspace.declare(f"t{number}", f"s3://bucket/{number}")
    assert [row.name for row in workspace.tables(limit=3)] == ["t0", "t1", "t2"]
    assert [row.name for row in workspace.tables("t2", 3)] == ["t3", "t4", "t5"]
    assert [row.name for row in workspace.tables("t5", 3)] == ["t6"]
    for number in range(7):
        workspace.drop(f"t{number}")
    first = workspace.tables(limit=4, dropped=True)
    rest = workspace.tables(first[-1].id, 4, dropped=True)
    assert sorted(row.name for row in first + rest) == [f"t{number}" for number in range(7)]
    for limit in (0, 1001):
        with pytest.raises(InvalidInputError):
            workspace.tables(limit=limit)
    with pytest.raises(InvalidInputError):
        workspace.tables("\ud800")


@pytest.mark.parametrize("name", ["", "Robots", "../x", "a/b", "a\0", "\ud800", "x" * 64, "a."])
def test_names_obey_the_grammar_of_addresses(registry: Registry, name: str) -> None:
    workspace = registry.workspace("team")
    workspace.declare("robots", "s3://bucket/1")
    calls: list[Callable[[], object]] = [
        lambda: workspace.declare(name, "s3://bucket/2"),
        lambda: workspace.rename("robots", name),
        lambda: workspace.find(name),
        lambda: workspace.drop(name),
        lambda: workspace.restore(name),
        lambda: workspace.forget(name),
        lambda: registry.create_workspace(name),
        lambda: registry.workspace(name),
        lambda: registry.members(name),
    ]
    for call in calls:
        with pytest.raises(InvalidInputError):
            call()


def test_a_location_belongs_to_one_table_even_if_dropped(registry: Registry) -> None:
    workspace = registry.workspace("team")
    workspace.declare("robots", "s3://bucket/1")
    workspace.drop("robots")
    with pytest.raises(AlreadyExistsError, match="belongs to table 'robots'"):
        workspace.declare("alias", "s3://bucket/1", owned=False)


def test_a_registered_location_belongs_to_one_workspace(registry: Registry) -> None:
    registry.create_workspace("other")
    team, other = registry.workspace("team"), registry.workspace("other")
    team.declare("robots", "/lake/a/robots", owned=False)
    for location in ("/lake/a/robots", "file:///lake/a/robots", "/lake/a/robots/inner", "/lake/a"):
        for workspace in (team, other):
            with pytest.raises(AlreadyExistsError):
                workspace.declare("stolen", location, owned=False)
    other.declare("near", "/lake/a/robots2", owned=False)
    team.forget("robots")
    other.declare("robots", "/lake/a/robots", owned=False)
    other.drop("robots", retention_s=0)
    with pytest.raises(AlreadyExistsError):
        team.declare("robots", "/lake/a/robots", owned=False)
    for row in other.expired():
        other.purge(row.id)
    team.declare("robots", "/lake/a/robots", owned=False)


def test_a_crash_while_a_table_is_registered_leaves_its_location_to_the_workspace(registry: Registry) -> None:
    registry.create_workspace("other")
    team, other = registry.workspace("team"), registry.workspace("other")
    with pytest.raises(KeyboardInterrupt), team._workspaces.claimed(team._key, "s3://lake/robots"):
        raise KeyboardInterrupt
    with pytest.raises(AlreadyExistsError):
        other.declare("robots", "s3://lake/robots", owned=False)
    team.declare("robots", "s3://lake/robots", owned=False)
    team.forget("robots")
    other.declare("robots", "s3://lake/robots", owned=False)


def test_threads_of_two_workspaces_register_one_location(registry: Registry) -> None:
    registry.create_workspace("other")
    workspaces = [registry.workspace(name) for name in ("team", "other")] * 2

    def register(number: int) -> bool:
        try:
            workspaces[number].declare(f"t{number}", "s3://lake/robots" + "/inner" * (number % 3), owned=False)
        except AlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(register, range(4))) == 1


def test_a_table_is_restored_until_it_is_claimed_for_purging(registry: Registry, clock: Clock) -> None:
    workspace = registry.workspace("team")
    workspace.declare("robots", "s3://bucket/1")
    dropped = workspace.drop("robots")
    assert dropped.purge_us == int(clock.now * 1e6) + WEEK_US
    assert workspace.expired() == []
    clock.now += WEEK_US / 1e6 + 1
    workspace.restore("robots")  # its time is over, but its objects are still there
    workspace.drop("robots", retention_s=60)
    assert workspace.expired(clock.now + 59) == []
    [claimed] = workspace.expired(clock.now + 61)
    assert claimed.location == "s3://bucket/1"
    assert workspace.expired(clock.now + 62) == [], "claimed by whoever was first"
    assert workspace.tables(dropped=True) == []
    with pytest.raises(NotFoundError, match="purged"):
        workspace.restore("robots")
    assert workspace.expired(clock.now + 4000) == [claimed], "a cleaner that died leaves it to others"
    workspace.purge(claimed.id)
    workspace.purge(claimed.id)
    assert workspace.expired(clock.now + 99999) == []
    workspace.declare("robots", "s3://bucket/1")


def test_purging_removes_claimed_tables_only(registry: Registry) -> None:
    workspace = registry.workspace("team")
    row = workspace.declare("robots", "s3://bucket/1")
    workspace.purge(row.id)
    assert workspace.find("robots") == row
    workspace.drop("robots")
    workspace.purge(row.id)
    assert workspace.restore("robots") == row


class WorkspaceMachine(RuleBasedStateMachine):
    """A workspace and its model: live tables by name, and dropped ones in the order of their drops."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.folder = tempfile.mkdtemp()
        self.registry = Registry(self.url or self.folder, clock=self.clock)
        self.registry.migrate()
        name = f"w{self.registry._control.read(_COUNT)[0][0]}"
        self.registry.create_workspace(name)
        self.workspace = self.registry.workspace(name)
        self.live: dict[str, TableRow] = {}
        self.dropped: list[TableRow] = []
        self.locations = 0

    def teardown(self) -> None:
        self.registry.close()
        shutil.rmtree(self.folder)

    def outcome(self, call: Callable[..., TableRow], *arguments: Any) -> TableRow | type[PenstockError]:
        self.clock.now += 1
        try:
            return call(*arguments)
        except PenstockError as error:
            return type(error)

    @rule(name=NAMES)
    def declare(self, name: str) -> None:
        self.locations += 1
        found = self.outcome(self.workspace.declare, name, f"s3://bucket/{self.locations}")
        if name in self.live:
            assert found is AlreadyExistsError
        else:
            assert isinstance(found, TableRow)
            self.live[name] = found

    @rule(name=NAMES, new=NAMES)
    def rename(self, name: str, new: str) -> None:
        found = self.outcome(self.workspace.rename, name, new)
        if name not in self.live:
            assert found is NotFoundError
        elif new in self.live and new != name:
            assert found is AlreadyExistsError
        else:
            assert isinstance(found, TableRow)
            assert found.id == self.live.pop(name).id
            self.live[new] = found

    @rule(name=NAMES)
    def drop(self, name: str) -> None:
        found = self.outcome(self.workspace.drop, name)
        if name in self.live:
            assert isinstance(found, TableRow)
            assert found.id == self.live.pop(name).id
            self.dropped.append(found)
        else:
            assert found is NotFoundError

    @rule(name=NAMES)
    def restore(self, name: str) -> None:
        candidates = [row for row in self.dropped if row.name == name]
        found = self.outcome(self.workspace.restore, name)
        if name in self.live:
            assert found is AlreadyExistsError
        elif not candidates:
            assert found is NotFoundError
        else:
            assert isinstance(found, TableRow)
            assert found.id == candidates[-1].id
            self.dropped.remove(candidates[-1])
            self.live[name] = found

    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        found = self.outcome(self.workspace.forget, name)
        assert found == self.live.pop(name) if name in self.live else found is NotFoundError

    @precondition(lambda self: self.dropped)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        last = data.draw(st.sampled_from(self.dropped))
        assert last.purge_us is not None
        claimed = self.workspace.expired(last.purge_us / 1e6)
        gone = self.dropped[: self.dropped.index(last) + 1]
        assert sorted(row.id for row in claimed) == sorted(row.id for row in gone)
        self.dropped = self.dropped[len(gone) :]
        for row in claimed:
            self.workspace.purge(row.id)

    @invariant()
    def equal(self) -> None:
        assert self.workspace.tables() == [self.live[name] for name in sorted(self.live)]
        dropped = self.workspace.tables(dropped=True)
        assert sorted(row.id for row in dropped) == sorted(row.id for row in self.dropped)
        for row in self.live.values():
            assert self.workspace.find(row.name) == row


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_any_history_equals_a_dictionarys(kind: str) -> None:
    class Machine(WorkspaceMachine):
        url = new_database() if kind == "postgresql" else ""

    run_state_machine_as_test(Machine, settings=settings(max_examples=12, stateful_step_count=25, deadline=None))
