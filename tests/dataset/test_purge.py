"""Deleting managed tables: interrupted, by several processes, and never those that were registered."""

import multiprocessing
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

import penstock
from penstock.catalog import Catalog, TableAddress
from penstock.dataset import purge
from penstock.errors import NotFoundError, StorageError
from penstock.storage import FolderStore

ADDRESS = TableAddress("org", "numbers")
PROCESSES = 4


@pytest.fixture(autouse=True)
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PENSTOCK_STORAGE", raising=False)
    return Catalog()


def new_table(location: object = ADDRESS) -> Path:
    dataset = penstock.create(str(location), {"x": int})
    dataset.append({"x": [1, 2, 3]})
    dataset.commit()
    return Path(dataset.uri)


def pass_a_week(monkeypatch: pytest.MonkeyPatch) -> None:
    later = time.time_ns() + 7 * 24 * 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)


def interrupt_deletion(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """The second call of `delete` raises: the key of the table is gone, and its objects are not."""
    calls, delete = [], FolderStore.delete

    def interrupted(store: FolderStore, keys: list[str]) -> None:
        calls.append(keys)
        if len(calls) == 2:
            raise error
        delete(store, keys)

    monkeypatch.setattr(FolderStore, "delete", interrupted)


def test_purge_deletes_dropped_tables_after_a_week(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table, kept = new_table(), new_table("penstock://org/kept")
    catalog.drop(ADDRESS)
    assert purge(catalog) == {}
    assert penstock.exists(table), "it can still be restored"
    pass_a_week(monkeypatch)
    assert purge(catalog) == {}
    assert not table.exists()
    assert penstock.load(kept)["x"][:].tolist() == [1, 2, 3]
    assert catalog.expire(0) == []


def test_purge_forgets_registered_tables_and_does_not_delete_them(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = new_table(tmp_path / "table")
    catalog.register(ADDRESS, table)
    catalog.drop(ADDRESS)
    pass_a_week(monkeypatch)
    assert purge(catalog) == {}
    assert catalog.tables(dropped=True) == []
    assert penstock.load(table)["x"][:].tolist() == [1, 2, 3]


def test_purge_deletes_no_file_that_is_not_of_the_table(catalog: Catalog) -> None:
    table = new_table()
    (table / "notes.txt").write_text("mine")
    catalog.drop(ADDRESS, recoverable=False)
    assert purge(catalog) == {}
    assert list(table.iterdir()) == [table / "notes.txt"]


@pytest.mark.parametrize("error", [StorageError("away"), KeyboardInterrupt()], ids=["store-away", "interrupted"])
def test_an_interrupted_purge_is_finished_by_the_next(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    table = new_table()
    catalog.drop(ADDRESS, recoverable=False)
    with monkeypatch.context() as patch:
        interrupt_deletion(patch, error)
        if isinstance(error, StorageError):
            assert purge(catalog) == {str(table): error}
        else:
            with pytest.raises(KeyboardInterrupt):
                purge(catalog)
    assert any(path.is_file() for path in table.rglob("*"))
    assert purge(catalog) == {}
    assert not table.exists()


def test_an_interrupted_delete_frees_the_address_and_is_finished_by_purge(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table()
    with monkeypatch.context() as patch:
        interrupt_deletion(patch, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            penstock.delete(str(ADDRESS))
    with pytest.raises(NotFoundError):
        catalog.restore(ADDRESS)
    new = new_table()
    assert new != table
    assert purge(catalog) == {}
    assert not table.exists()
    assert penstock.load(str(ADDRESS))["x"][:].tolist() == [1, 2, 3]


def purge_together(home: Path, start: Barrier) -> None:
    start.wait(240)
    assert purge(Catalog(home)) == {}


def test_several_processes_purge_at_once(catalog: Catalog) -> None:
    tables = [new_table(f"penstock://org/t{number}") for number in range(4)]
    for entry in catalog.tables():
        catalog.drop(entry.address, recoverable=False)
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(PROCESSES)
    processes = [spawn.Process(target=purge_together, args=(catalog.home, start)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    assert not any(table.exists() for table in tables)
    assert catalog.expire(0) == []
