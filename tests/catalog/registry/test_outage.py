"""A database that goes away: clear errors, no secrets, no loss of what can wait, and service when it is back."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from penstock.catalog.registry import Registry
from penstock.catalog.registry import _database as database_module
from penstock.errors import AccessDeniedError, CorruptError, StorageError, StorageTimeoutError
from tests.catalog.registry.test_audit import event, numbers
from tests.servers import postgres_url

on_postgresql = pytest.mark.parametrize("url", ["postgresql"], indirect=True)
on_sqlite = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


def as_superuser(statement: str) -> None:
    with psycopg.connect(postgres_url().replace("penstock:water", "root") + "/postgres", autocommit=True) as connection:
        connection.execute(statement)


def end_sessions(url: str) -> None:
    name = urlsplit(url).path[1:]
    as_superuser(f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = '{name}'")


@contextmanager
def away(url: str) -> Iterator[None]:
    """End all sessions of a database, and let nobody in."""
    name = urlsplit(url).path[1:]
    as_superuser(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    try:
        end_sessions(url)
        yield
    finally:
        as_superuser(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


@on_postgresql
def test_dead_connections_are_not_noticed(registry: Registry, url: str) -> None:
    text, _ = registry.create_key(None, "operator")
    workspace = registry.workspace("team")
    workspace.declare("robots", "s3://bucket/1")
    calls: list[Callable[[], object]] = [
        lambda: workspace.find("robots"),
        lambda: workspace.tables(),
        lambda: registry.check(),
        lambda: registry.authenticate(text),
        lambda: workspace.rename("robots", "robots"),
        lambda: registry.set_member("team", "ann", "reader"),
        lambda: workspace.audit(event(1), now=True),
    ]
    for call in calls:
        end_sessions(url)
        registry._keys.forget_verified()
        call()
    assert numbers(workspace.audit_events()) == [1]


@on_postgresql
def test_a_database_that_is_away_and_comes_back(registry: Registry, url: str) -> None:
    text, _ = registry.create_key(None, "operator")
    registry.authenticate(text)
    workspace = registry.workspace("team")
    workspace.declare("robots", "s3://bucket/1")
    with away(url):
        host = urlsplit(url).netloc.partition("@")[2]
        for call in (
            registry.check,
            lambda: workspace.find("robots"),
            lambda: workspace.drop("robots"),
            registry.migrate,
        ):
            with pytest.raises(StorageError, match=rf"at {host} .*check that it runs") as caught:
                call()
            assert "water" not in str(caught.value)
        workspace.audit(event(1))
        workspace.audit(event(2), now=True)
        with pytest.raises(StorageError):
            registry.flush()
    registry.check()
    assert workspace.find("robots").name == "robots"
    registry.flush()
    assert sorted(numbers(workspace.audit_events())) == [1, 2]
    [key] = registry.keys(None)
    assert key.last_used_us is not None


def test_an_address_where_nobody_listens() -> None:
    registry = Registry("postgresql://ann:water@127.0.0.1:1/lake")
    try:
        start = time.monotonic()
        with pytest.raises(StorageError, match=r"the database lake at 127.0.0.1:1 .*check that it runs") as caught:
            registry.check()
        assert "water" not in str(caught.value) + str(caught.value.__cause__)
        assert time.monotonic() - start < 60
    finally:
        registry.close()


def test_a_refused_login_says_what_to_check() -> None:
    registry = Registry(postgres_url().replace("penstock:water", "stranger:water") + "/postgres")
    try:
        with pytest.raises(StorageError, match=r"refused the login.*pg_hba.conf") as caught:
            registry.check()
        assert "water" not in str(caught.value)
        assert not isinstance(caught.value, AccessDeniedError), "which would be a client's fault"
    finally:
        registry.close()


@on_sqlite
def test_a_locked_file(registry: Registry, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "_BUSY_TIMEOUT_S", 0.1)
    other = Registry(url)
    holder = sqlite3.connect(Path(url, "registry.db"), isolation_level=None)
    try:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageTimeoutError, match="was locked for too long"):
            other.create_workspace("brief")
        assert [info.name for info in other.workspaces()] == ["team"], "a write-ahead log lets readers go on"
        holder.execute("ROLLBACK")
        other.create_workspace("brief")
    finally:
        holder.close()
        other.close()


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "registry.db").write_bytes(b"x" * 5000)
    registry = Registry(str(tmp_path / "registry.db"))
    try:
        with pytest.raises(CorruptError, match="restore it from a copy"):
            registry.migrate()
    finally:
        registry.close()
