"""Migrations: they give the tables that the queries expect, and a newer database is refused."""

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

import penstock.catalog.registry
from penstock.catalog.registry import Registry, _migrations, _schema
from penstock.errors import NotFoundError, StorageError, UnsupportedFormatError


def differences(connection: sa.Connection, metadata: sa.MetaData) -> list[object]:
    found = compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), metadata)
    return [each for each in found if "tables_live_name" not in str(each) and "purge" not in str(each)]


def test_migrations_and_queries_agree(registry: Registry) -> None:
    with registry._control.engine.connect() as connection:
        assert differences(connection, _schema.control) == []
    workspace = registry._workspaces.open(registry._workspaces.find("team"))
    with workspace.engine.connect() as connection:
        assert differences(connection, _schema.workspace) == []


def test_migrating_again_changes_nothing(registry: Registry) -> None:
    registry.workspace("team").declare("robots", "s3://bucket/1")
    registry.migrate()
    assert registry.workspace("team").find("robots").location == "s3://bucket/1"


@pytest.mark.parametrize(
    "statement", ["UPDATE alembic_version SET version_num = 'c9999'", "UPDATE workspaces SET revision = 'w9999'"]
)
def test_a_newer_database_is_refused(registry: Registry, url: str, statement: str) -> None:
    with registry._control.transaction() as connection:
        connection.exec_driver_sql(statement)
    older = Registry(url)
    try:
        with pytest.raises(UnsupportedFormatError, match=r"newer Penstock \(revision [cw]9999.*upgrade"):
            older.migrate()
    finally:
        older.close()


def test_a_workspace_behind_is_migrated(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A workspace that lacks everything stands for one that lacks the last migration."""
    workspace = registry.workspace("team")
    key = registry._workspaces.find("team")
    control = registry._control
    postgresql = control.is_postgresql
    own = control if postgresql else registry._workspaces.open(key)
    with own.transaction() as connection:
        for table in ("tables", "audit", "alembic_version"):
            connection.exec_driver_sql(f"DROP TABLE {f'ws_{key.id}.' if postgresql else ''}{table}")
    with pytest.raises(NotFoundError):
        workspace.tables()
    with control.transaction() as connection:
        connection.exec_driver_sql("UPDATE workspaces SET revision = ''")
    monkeypatch.setattr(_migrations, "check_known", lambda *_, **__: None)
    registry.migrate()
    workspace.declare("robots", "s3://bucket/1")
    revisions = control.read(sa.text("SELECT revision FROM workspaces"))
    assert [revision for (revision,) in revisions] == [_migrations.head(_migrations.WORKSPACE)]


def test_an_empty_database_says_that_it_needs_migrations(url: str) -> None:
    registry = Registry(url)
    try:
        with pytest.raises((NotFoundError, StorageError), match=r"migrate|cannot be opened"):
            registry.workspaces()
    finally:
        registry.close()


def test_migrations_are_files_of_the_package() -> None:
    folder = Path(penstock.catalog.registry.__file__).parent
    assert sorted(path.name for path in folder.glob("*_migrations/*.py"))[0].startswith("c0001")
    assert [_migrations.head(tree) for tree in (_migrations.CONTROL, _migrations.WORKSPACE)] == ["c0002", "w0001"]
