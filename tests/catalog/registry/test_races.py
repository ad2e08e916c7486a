"""Races of threads and of processes: unique constraints and locks choose one winner."""

import json
import multiprocessing
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TypeVar

import psycopg
import pytest
import sqlalchemy as sa

from penstock.catalog.registry import Registry, Workspace
from penstock.catalog.registry._database import Database, control_url, create_sqlite_file
from penstock.catalog.registry._errors import translated_errors
from penstock.errors import AlreadyExistsError, ConflictError, NotFoundError
from tests.catalog.registry.conftest import Clock

PROCESSES = 4
THREADS = 8
ROUNDS = 5
T = TypeVar("T")


def wins(call: Callable[..., object], *arguments: str) -> bool:
    try:
        call(*arguments)
    except (AlreadyExistsError, ConflictError, NotFoundError):
        return False
    return True


def process_main(url: str, file: str, start: Barrier, number: int) -> None:
    """What several servers do that start at once."""
    registry = Registry(url)
    try:
        start.wait()
        registry.migrate()
        key = registry.bootstrap()
        workspace = registry.workspace("default")
        won: dict[str, list[bool]] = {"create": [], "declare": [], "rename": [], "drop": [], "restore": []}
        for turn in range(ROUNDS):
            workspace.declare(f"own-{turn}-{number}", f"s3://bucket/own/{turn}/{number}")
            start.wait()
            won["create"].append(wins(registry.create_workspace, f"workspace-{turn}"))
            won["declare"].append(wins(workspace.declare, f"table-{turn}", f"s3://bucket/{turn}/{number}"))
            won["rename"].append(wins(workspace.rename, f"own-{turn}-{number}", f"renamed-{turn}"))
            start.wait()
            won["drop"].append(wins(workspace.drop, f"table-{turn}"))
            start.wait()
            won["restore"].append(wins(workspace.restore, f"table-{turn}"))
        Path(file).write_text(json.dumps([key, won]))
    except BaseException:
        start.abort()  # the others wait for this process
        raise
    finally:
        registry.close()


def test_processes_that_start_at_once(url: str, tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(PROCESSES)
    files = [str(tmp_path / f"{number}.json") for number in range(PROCESSES)]
    processes = [spawn.Process(target=process_main, args=(url, file, start, n)) for n, file in enumerate(files)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * PROCESSES

    answers = [json.loads(Path(file).read_text()) for file in files]
    [key] = [key for key, _ in answers if key is not None]
    for operation in answers[0][1]:
        for turn in range(ROUNDS):
            assert sum(won[operation][turn] for _, won in answers) == 1, operation
    registry = Registry(url)
    try:
        assert registry.bootstrap() is None
        assert registry.authenticate(key).is_server_admin
        assert len(registry.keys(None)) == 1
        names = [row.name for row in registry.workspace("default").tables()]
        assert len(names) == len(set(names)) == ROUNDS * (PROCESSES + 1)
    finally:
        registry.close()


def test_a_connection_waits_for_a_file_that_another_is_switching_to_wal(tmp_path: Path) -> None:
    url = control_url(str(tmp_path / "registry.db"))
    create_sqlite_file(url)
    other = sqlite3.connect(str(url.database), isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")  # a lock for which the switch of the other connection does not wait by itself
    release = threading.Timer(0.3, other.close)
    release.start()
    database = Database(url)
    try:
        assert database.read(sa.select(1)) == [(1,)]
    finally:
        release.join()
        database.close()


def at_once(call: Callable[[int], T]) -> list[T]:
    start = threading.Barrier(THREADS)

    def run(number: int) -> T:
        start.wait()
        return call(number)

    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(run, range(THREADS)))


def test_threads_create_workspaces_at_once(registry: Registry) -> None:
    def create(number: int) -> str:
        registry.create_workspace(f"w{number}")
        return registry.workspace(f"w{number}").declare("robots", f"s3://bucket/{number}").location

    assert at_once(create) == [f"s3://bucket/{number}" for number in range(THREADS)]
    assert sum(at_once(lambda _: wins(registry.create_workspace, "one"))) == 1


def test_threads_change_tables_at_once(registry: Registry) -> None:
    workspace = registry.workspace("team")
    assert sum(at_once(lambda n: wins(workspace.declare, "one", f"s3://bucket/one/{n}"))) == 1
    for number in range(THREADS):
        workspace.declare(f"own-{number}", f"s3://bucket/{number}")
    assert sum(at_once(lambda n: wins(workspace.rename, f"own-{n}", "two"))) == 1
    assert sum(at_once(lambda _: wins(workspace.drop, "one"))) == 1
    assert sum(at_once(lambda _: wins(workspace.restore, "one"))) == 1
    assert sum(at_once(lambda _: wins(workspace.forget, "one"))) == 1


def test_an_expired_table_is_claimed_once(registry: Registry, clock: Clock) -> None:
    workspace = registry.workspace("team")
    for number in range(20):
        workspace.declare("robots", f"s3://bucket/{number}")
        workspace.drop("robots", retention_s=0)
    claimed = [row.location for rows in at_once(lambda _: workspace.expired(clock.now + 1)) for row in rows]
    assert sorted(claimed) == sorted(f"s3://bucket/{number}" for number in range(20))


def test_a_workspace_is_dropped_or_gets_a_table_but_not_both(registry: Registry) -> None:
    for turn in range(5):
        name = f"brief-{turn}"
        registry.create_workspace(name)
        workspace = registry.workspace(name)

        def act(number: int, name: str = name, workspace: Workspace = workspace) -> bool:
            if number == 0:
                return wins(registry.drop_workspace, name)
            return wins(workspace.declare, f"t{number}", f"s3://bucket/{number}")

        dropped, *declared = at_once(act)
        assert dropped != any(declared)


def test_a_schema_that_is_dropped_while_a_statement_is_planned_is_not_found() -> None:
    # PostgreSQL looks at the rights on a schema without a lock on it
    with pytest.raises(NotFoundError, match="its workspace was dropped"), translated_errors("the database d"):
        raise psycopg.errors.InvalidSchemaName("schema with OID 20749 does not exist")


def test_members_and_keys_at_once(registry: Registry) -> None:
    at_once(lambda _: registry.set_member("team", "ann", "writer"))
    assert [member.name for member in registry.members("team")] == ["ann"]
    at_once(lambda _: registry.create_key("team", "ann"))
    assert len(registry.keys("team")) == THREADS
    assert sum(at_once(lambda _: wins(registry.remove_member, "team", "ann"))) == 1
    assert all(key.revoked_us is not None for key in registry.keys("team"))
