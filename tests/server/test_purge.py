"""Dropped tables whose time is over: their objects and entries go, and nothing else does."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.catalog import Access
from penstock.catalog.registry import Registry, TableRow, Workspace
from penstock.catalog.vending import make_vendor
from penstock.errors import StorageError
from penstock.server._metrics import Metrics
from penstock.server._purge import Purger
from penstock.storage import Credentials
from tests.server.running import LIMIT_S, running

DAY_S = 86_400.0
RETENTION_S = 7 * DAY_S


class Clock:
    """Seconds since 1970, as the test sets them."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class FolderVendor:
    """The vendor of a folder; counts what it removes, and fails for the locations that it is told to."""

    def __init__(self, folder: Path) -> None:
        self._vendor = make_vendor(str(folder), options={}, role_arn=None, lifetime_s=60.0, allow_shared=False)
        self.storage, self.narrow = self._vendor.storage, True
        self.server_options: dict[str, str] = {}
        self.removed: Counter[str] = Counter()
        self.failing: dict[str, Exception] = {}

    def new_location(self) -> str:
        return self._vendor.new_location()

    def check_location(self, location: str) -> None:
        self._vendor.check_location(location)

    def vend(self, location: str, access: Access) -> Credentials:
        return self._vendor.vend(location, access)

    def remove(self, location: str) -> None:
        self.removed[location] += 1
        if error := self.failing.get(location):
            raise error
        self._vendor.remove(location)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry(database: str, clock: Clock) -> Iterator[Registry]:
    found = Registry(database, clock=clock, retention_s=RETENTION_S)
    try:
        found.migrate()
        for name in ("red", "blue"):
            found.create_workspace(name)
        yield found
    finally:
        found.close()


@pytest.fixture
def vendor(tmp_path: Path) -> FolderVendor:
    return FolderVendor(tmp_path / "tables")


def new_table(workspace: Workspace, vendor: FolderVendor, name: str) -> Path:
    """The folder of a new table with an object in it."""
    location = Path(vendor.new_location())
    (location / "data").mkdir(parents=True)
    (location / "data" / "rows.bin").write_bytes(b"rows")
    workspace.declare(name, str(location))
    return location


def rows(workspace: Workspace) -> list[TableRow]:
    return [*workspace.tables(), *workspace.tables(dropped=True)]


def test_tables_are_deleted_when_their_time_is_over(registry: Registry, vendor: FolderVendor, clock: Clock) -> None:
    red, blue = registry.workspace("red"), registry.workspace("blue")
    gone = [new_table(red, vendor, "old"), new_table(blue, vendor, "old")]
    kept = [new_table(red, vendor, "live"), new_table(red, vendor, "late")]
    for workspace in (red, blue):
        workspace.drop("old")
    clock.now += 1
    red.drop("late")
    metrics = Metrics()
    purger = Purger(registry, vendor, metrics)
    clock.now += RETENTION_S - 1.5
    assert purger.purge() == 0
    assert all(folder.exists() for folder in gone)
    clock.now += 1
    assert purger.purge() == 2
    assert not any(folder.exists() for folder in gone)
    assert all((folder / "data" / "rows.bin").read_bytes() == b"rows" for folder in kept)
    assert sorted(row.name for row in rows(red)) == ["late", "live"]
    assert rows(blue) == []
    registry.drop_workspace("blue")  # nothing is left of the table
    assert red.restore("late").location == str(kept[1])
    clock.now += 10 * RETENTION_S
    assert purger.purge() == 0
    assert b"penstock_purged_tables_total 2.0" in metrics.text()


def test_tables_that_were_registered_are_only_forgotten(
    registry: Registry, vendor: FolderVendor, clock: Clock, tmp_path: Path
) -> None:
    red = registry.workspace("red")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    red.declare("guest", str(elsewhere), owned=False)
    red.drop("guest")
    clock.now += RETENTION_S + 1
    assert Purger(registry, vendor, Metrics()).purge() == 1
    assert elsewhere.exists()
    assert rows(red) == []
    assert not vendor.removed


@pytest.mark.parametrize("error", [StorageError("the store is away"), RuntimeError("a mistake")])
def test_a_table_that_cannot_be_deleted_is_left_for_a_later_round(
    registry: Registry, vendor: FolderVendor, clock: Clock, error: Exception
) -> None:
    red, blue = registry.workspace("red"), registry.workspace("blue")
    folders = [new_table(red, vendor, f"t{number}") for number in range(3)] + [new_table(blue, vendor, "other")]
    for number in range(3):
        red.drop(f"t{number}")
    blue.drop("other")
    clock.now += RETENTION_S + 1
    vendor.failing = {str(folders[1]): error}
    purger = Purger(registry, vendor, Metrics())
    assert purger.purge() == 3
    assert [folder.exists() for folder in folders] == [False, True, False, False]
    vendor.failing = {}
    assert purger.purge() == 0  # it is claimed, and would be even if this process had died
    clock.now += 3600
    assert purger.purge() == 1
    assert not folders[1].exists()
    assert red.expired() == []


def test_the_thread_goes_on_after_a_failure(registry: Registry, vendor: FolderVendor, clock: Clock) -> None:
    red = registry.workspace("red")
    folder = new_table(red, vendor, "old")
    red.drop("old")
    clock.now += RETENTION_S + 1
    vendor.failing = {str(folder): StorageError("the store is away")}
    purger = Purger(registry, vendor, Metrics(), interval_s=0.05)
    purger.start()
    try:
        _wait_until(lambda: vendor.removed[str(folder)] == 1)
        vendor.failing = {}
        clock.now += 3600
        _wait_until(lambda: not folder.exists())
    finally:
        purger.stop()


def test_two_purgers_delete_each_table_once(
    registry: Registry, vendor: FolderVendor, clock: Clock, database: str
) -> None:
    red = registry.workspace("red")
    folders = [new_table(red, vendor, f"t{number}") for number in range(20)]
    for number in range(20):
        red.drop(f"t{number}")
    clock.now += RETENTION_S + 1
    other = Registry(database, clock=clock)
    try:
        together = threading.Barrier(2)

        def purge(found: Registry) -> int:
            purger = Purger(found, vendor, Metrics())
            together.wait()
            return purger.purge()

        with ThreadPoolExecutor(2) as pool:
            assert sum(pool.map(purge, [registry, other])) == 20
    finally:
        other.close()
    assert vendor.removed == {str(folder): 1 for folder in folders}
    assert not any(folder.exists() for folder in folders)


def test_a_purger_that_is_stopped_deletes_nothing_more(registry: Registry, vendor: FolderVendor, clock: Clock) -> None:
    red = registry.workspace("red")
    folder = new_table(red, vendor, "old")
    red.drop("old")
    clock.now += RETENTION_S + 1
    purger = Purger(registry, vendor, Metrics())
    purger.stop()
    assert purger.purge() == 0
    assert folder.exists()


def test_a_server_deletes_what_was_dropped_for_longer_than_its_retention(tmp_path: Path) -> None:
    retention_s = 1
    with running(tmp_path, "--retention-days", str(retention_s / DAY_S)) as server:
        location = server.post("/v1/table/old/declare")["location"]
        live = server.post("/v1/table/live/declare")["location"]
        for folder in (location, live):
            Path(folder, "data").mkdir(parents=True)
        before = time.time()
        dropped = server.post("/v1/table/old/drop")
        assert before + retention_s - 1 < dropped["purge_at_millis"] / 1000 < time.time() + retention_s + 1
        server.stop()
        time.sleep(retention_s)
        server.start()
        _wait_until(lambda: not os.path.exists(location))
        _wait_until(lambda: not server.get("/v1/namespace/default/table/list?dropped=true")["tables"])
        assert os.path.exists(live)
        assert server.request("POST", "/v1/table/old/undrop", {}, key=server.admin_key).status == 404
        [line] = [line for line in server.log_lines() if line["event"] == "purged"]
        assert (line["workspace"], line["table"], line["location"]) == ("default", "old", location)


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
