"""Workspaces: creating, dropping, and finding them from several processes."""

import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.catalog.registry import AuditEvent, Registry, Workspace, _wall
from penstock.catalog.registry import _workspaces as workspaces_module
from penstock.errors import AlreadyExistsError, ConflictError, InvalidInputError, NotFoundError


def test_workspaces_are_created_listed_and_dropped(registry: Registry) -> None:
    registry.create_workspace("a.team")
    assert [info.name for info in registry.workspaces()] == ["a.team", "team"]
    with pytest.raises(AlreadyExistsError):
        registry.create_workspace("team")
    registry.drop_workspace("a.team")
    assert [info.name for info in registry.workspaces()] == ["team"]
    for call in (registry.workspace, registry.drop_workspace, registry.members, registry.keys):
        with pytest.raises(NotFoundError, match=r"no workspace 'a\.team'"):
            call("a.team")


def test_a_workspace_with_tables_is_not_dropped(registry: Registry) -> None:
    workspace = registry.workspace("team")
    workspace.declare("robots", "s3://bucket/1")
    with pytest.raises(ConflictError, match="has tables"):
        registry.drop_workspace("team")
    workspace.drop("robots")
    with pytest.raises(ConflictError, match="purged"):
        registry.drop_workspace("team")
    assert workspace.restore("robots").name == "robots"
    workspace.forget("robots")
    registry.drop_workspace("team")


def test_a_dropped_workspace_is_not_found_by_those_who_hold_it(registry: Registry, url: str) -> None:
    elsewhere = Registry(url)
    try:
        fresh, used = elsewhere.workspace("team"), registry.workspace("team")
        used.tables()
        connected = elsewhere.workspace("team")
        connected.tables()
        registry.drop_workspace("team")
        for held in (used, connected, fresh):
            with pytest.raises(NotFoundError):
                held.find("robots")
            with pytest.raises(NotFoundError):
                held.declare("robots", "s3://bucket/1")
            held.audit(AuditEvent(1, "r", "ann", "k", "describe", "t", 200), now=True)  # ends with the workspace
    finally:
        elsewhere.close()


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_the_files_of_a_dropped_workspace_are_removed(registry: Registry, url: str) -> None:
    registry.workspace("team").tables()
    registry.drop_workspace("team")
    with pytest.raises(NotFoundError):
        registry.workspace("team")
    assert not list(Path(url).glob("*ws_*"))


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_drop_that_was_interrupted_can_be_repeated(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    real = _wall.drop_if_empty

    def interrupted(*arguments: Any) -> int:
        real(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_wall, "drop_if_empty", interrupted)
        with pytest.raises(KeyboardInterrupt):
            registry.drop_workspace("team")
    assert [info.name for info in registry.workspaces()] == ["team"]
    registry.drop_workspace("team")
    registry.create_workspace("team")
    assert registry.workspace("team").tables() == []


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_workspace_that_is_idle_holds_one_connection(registry: Registry, url: str) -> None:
    def use(workspace: Workspace) -> None:
        together.wait(240)
        for _ in range(20):
            workspace.tables()

    names = [f"w{number}" for number in range(4)]
    for name in names:
        registry.create_workspace(name)
        together, workspace = threading.Barrier(4), registry.workspace(name)
        threads = [threading.Thread(target=use, args=(workspace,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with psycopg.connect(url) as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename <> current_user"
        deadline = time.monotonic() + 60
        while True:
            row = connection.execute(query).fetchone()
            if row == (len(names),) or time.monotonic() > deadline:
                break
            connection.rollback()  # for a new view of the statistics
            time.sleep(0.05)
    assert row == (len(names),)


def test_another_workspace_of_the_same_name_is_found_within_5_s(registry: Registry, url: str) -> None:
    elsewhere = Registry(url)
    try:
        elsewhere.workspace("team").tables()
        registry.drop_workspace("team")
        registry.create_workspace("team")
        registry.workspace("team").declare("robots", "s3://bucket/1")
        start = time.monotonic()
        while True:
            try:
                assert elsewhere.workspace("team").find("robots").location == "s3://bucket/1"
                break
            except NotFoundError:
                assert time.monotonic() - start < 5
                time.sleep(0.05)
    finally:
        elsewhere.close()


def test_a_few_databases_are_open_at_a_time(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspaces_module, "_MAX_OPEN", 2)
    for number in range(5):
        registry.create_workspace(f"w{number}")
        registry.workspace(f"w{number}").declare("robots", f"s3://bucket/{number}")
    assert len(registry._workspaces._open) == 2
    assert [registry.workspace(f"w{n}").find("robots").location for n in range(5)] == [
        f"s3://bucket/{n}" for n in range(5)
    ]
    assert len(registry._workspaces._open) == 2


@pytest.mark.parametrize(
    "url", ["mysql://root:water@host/db", "sqlite://", "postgresql://user:water@host:x/db", "s3://x"]
)
def test_a_bad_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Registry(url)
    assert "water" not in str(caught.value) + repr(caught.value.__cause__)


@pytest.mark.parametrize("place", ["folder", "file.db", "sqlite"])
def test_a_path_is_a_sqlite_database(tmp_path: Path, place: str) -> None:
    registry = Registry(f"sqlite:///{tmp_path}/file.db" if place == "sqlite" else str(tmp_path / place))
    try:
        registry.migrate()
        registry.check()
        assert (tmp_path / ("folder/registry.db" if place == "folder" else "file.db")).is_file()
    finally:
        registry.close()
