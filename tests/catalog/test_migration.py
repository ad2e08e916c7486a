"""A catalog of an older release is read as it is, and migrated by the first change."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock.catalog import Catalog, TableAddress

TABLES = [("lab", "b", "s3://bucket/lab/b", 20, "id-b"), ("org", "a", "/lake/org/a", 10, None)]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The file that version 1 wrote."""
    file = tmp_path / "catalog.db"
    with closing(sqlite3.connect(file)) as db:
        db.execute("CREATE TABLE meta (key TEXT NOT NULL PRIMARY KEY, value NOT NULL)")
        db.execute("INSERT INTO meta VALUES ('version', 1)")
        db.execute(
            "CREATE TABLE tables (workspace TEXT NOT NULL, name TEXT NOT NULL, uri TEXT NOT NULL, "
            "created_us INTEGER NOT NULL, table_id TEXT, PRIMARY KEY (workspace, name))"
        )
        db.executemany("INSERT INTO tables VALUES (?, ?, ?, ?, ?)", TABLES)
        db.commit()
    return file


def rows(catalog: Catalog) -> list[tuple[str, str, str, int, str | None]]:
    return [(e.address.workspace, e.address.table, e.uri, e.created_us, e.table_id) for e in catalog.tables()]


def test_reading_does_not_change_an_old_file(old: Path) -> None:
    before, catalog = old.read_bytes(), Catalog(old.parent)
    assert rows(catalog) == TABLES
    assert catalog.find(TableAddress("org", "a")).uri == "/lake/org/a"
    assert catalog.tables(dropped=True) == []
    assert old.read_bytes() == before, "an older Penstock can still use it"


def test_a_change_migrates_an_old_file_and_keeps_its_entries(old: Path) -> None:
    catalog = Catalog(old.parent, storage="/lake")
    assert catalog.reserve(TableAddress("org", "a")).uri == "/lake/org/a", "existing entries keep their locations"
    assert rows(catalog) == TABLES
    with closing(sqlite3.connect(old)) as db:
        assert db.execute("SELECT value FROM meta WHERE key = 'version'").fetchall() == [(2,)]
    catalog.rename(TableAddress("org", "a"), TableAddress("org", "renamed"))
    assert catalog.reserve(TableAddress("org", "a")).uri != "/lake/org/a"


def test_tables_of_an_old_file_are_not_owned(old: Path) -> None:
    catalog = Catalog(old.parent)
    catalog.drop(TableAddress("org", "a"), recoverable=False)
    assert [entry.owned for entry in catalog.expire(1)] == [False], "they may have been registered, not created"
