"""Concurrent processes and threads agree on the URI of an address, and no entry is lost."""

import json
import multiprocessing
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.synchronize import Barrier
from pathlib import Path

from penstock.catalog import Catalog, CatalogEntry, TableAddress
from penstock.errors import AlreadyExistsError, NotFoundError

PROCESSES, ROUNDS = 8, 6
SHARED = TableAddress("org", "shared")


def race(folder: Path, start: Barrier, process: int) -> None:
    """Each round uses a new catalog, so that its creation is raced too."""
    seen = []
    for number in range(ROUNDS):
        catalog = Catalog(folder / f"home-{number}", storage=folder / f"storage-{process}")
        own = TableAddress(f"workspace-{process}", "table")
        start.wait(240)
        shared = catalog.reserve(SHARED)
        assert catalog.find(SHARED) == shared
        assert catalog.reserve(own).uri.startswith(str(folder / f"storage-{process}" / own.workspace / "table-"))
        assert catalog.register(own, catalog.find(own).uri, table_id=f"id-{process}").table_id == f"id-{process}"
        brief = TableAddress("brief", f"table-{process}")
        catalog.reserve(brief)
        catalog.remove(brief)
        assert own in [entry.address for entry in catalog.tables()]
        seen.append([shared.uri, shared.created_us])
    (folder / f"{process}.json").write_text(json.dumps(seen))


def run_processes(target: Callable[[Path, Barrier, int], None], folder: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(PROCESSES)
    processes = [spawn.Process(target=target, args=(folder, start, number)) for number in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * PROCESSES


def shuffle_addresses(folder: Path, start: Barrier, process: int) -> None:
    """Rename, drop and restore the same few tables as other processes do, and add one."""
    catalog, choose = Catalog(folder), random.Random(process)
    addresses = [TableAddress("org", name) for name in "abc"]
    start.wait(240)
    for _ in range(30):
        one, other = choose.choice(addresses), choose.choice(addresses)
        changes = (
            lambda one=one, other=other: catalog.rename(one, other),
            lambda one=one: catalog.drop(one),
            lambda one=one: catalog.restore(one),
        )
        with suppress(NotFoundError, AlreadyExistsError):
            choose.choice(changes)()
    catalog.reserve(TableAddress("own", f"table-{process}"))


def test_no_table_is_lost_when_processes_rename_drop_and_restore(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    uris = [catalog.reserve(TableAddress("org", name)).uri for name in "abc"]
    run_processes(shuffle_addresses, tmp_path)
    left = [*catalog.tables("org"), *catalog.tables("org", dropped=True)]
    assert sorted(entry.uri for entry in left) == sorted(uris)
    assert len(catalog.tables("own")) == PROCESSES


def test_eight_processes_agree_on_uris(tmp_path: Path) -> None:
    run_processes(race, tmp_path)
    answers = [json.loads((tmp_path / f"{number}.json").read_text()) for number in range(PROCESSES)]
    assert all(answer == answers[0] for answer in answers), "every process got the same URI"
    own = [TableAddress(f"workspace-{number}", "table") for number in range(PROCESSES)]
    for number in range(ROUNDS):
        catalog = Catalog(tmp_path / f"home-{number}")
        assert [entry.address for entry in catalog.tables()] == sorted([SHARED, *own])
        assert [catalog.find(address).table_id for address in own] == [f"id-{n}" for n in range(PROCESSES)]
        shared = catalog.find(SHARED)
        assert [shared.uri, shared.created_us] == answers[0][number]


def test_threads_share_a_catalog(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    start = threading.Barrier(PROCESSES)
    entries: list[CatalogEntry] = []

    def reserve(number: int) -> None:
        start.wait(240)
        entries.append(catalog.reserve(SHARED))
        catalog.reserve(TableAddress("own", f"table-{number}"))

    threads = [threading.Thread(target=reserve, args=(number,)) for number in range(PROCESSES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert entries == [catalog.find(SHARED)] * PROCESSES
    assert len(catalog.tables("own")) == PROCESSES
