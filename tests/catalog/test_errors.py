"""A catalog that is corrupt, foreign, too new, locked or inaccessible raises an error with the remedy."""

import multiprocessing
import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.catalog import Catalog, TableAddress
from penstock.catalog._database import Database
from penstock.errors import (
    AccessDeniedError,
    CorruptError,
    NotFoundError,
    PenstockError,
    StorageError,
    StorageTimeoutError,
    UnsupportedFormatError,
)

ADDRESS = TableAddress("org", "imagenet")
UNPRIVILEGED_UID = 65534
CALLS: dict[str, Callable[[Catalog], object]] = {
    "find": lambda catalog: catalog.find(ADDRESS),
    "reserve": lambda catalog: catalog.reserve(ADDRESS),
    "remove": lambda catalog: catalog.remove(ADDRESS),
    "tables": lambda catalog: catalog.tables(),
    "rename": lambda catalog: catalog.rename(ADDRESS, TableAddress("lab", "imagenet")),
    "drop": lambda catalog: catalog.drop(ADDRESS),
    "restore": lambda catalog: catalog.restore(ADDRESS),
    "expire": lambda catalog: catalog.expire(1),
    "dropped": lambda catalog: catalog.tables(dropped=True),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    catalog = Catalog(tmp_path)
    for number in range(50):
        catalog.reserve(TableAddress("org", f"table-{number}"))
    catalog.reserve(ADDRESS)
    return tmp_path / "catalog.db"


def change(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("damage", ["header", "body", "half", "text"])
def test_a_corrupt_file_is_named_and_not_modified(file: Path, damage: str, call: str) -> None:
    data = file.read_bytes()
    damaged = {
        "header": b"\0" * 100 + data[100:],
        "body": data[:4096] + b"\xa5" * (len(data) - 4096),
        "half": data[: len(data) // 2],
        "text": b"not a database at all\n" * 100,
    }
    file.write_bytes(damaged[damage])
    with pytest.raises(CorruptError, match=r"catalog\.db is damaged.*move it away") as caught:
        CALLS[call](Catalog(file.parent))
    assert str(file) in str(caught.value)
    assert file.read_bytes() == damaged[damage], "the file is not modified"


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_corruption_raises_only_penstock_errors(data: st.DataObject) -> None:
    home = Path(tempfile.mkdtemp())
    try:
        Catalog(home).reserve(ADDRESS)
        file = home / "catalog.db"
        body = bytearray(file.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            start = data.draw(st.integers(0, len(body) - 1))
            garbage = data.draw(st.binary(min_size=1, max_size=200))
            body[start : start + len(garbage)] = garbage
        file.write_bytes(body[: data.draw(st.integers(1, len(body)) | st.just(len(body)))])
        for call in CALLS.values():
            with suppress(PenstockError):
                call(Catalog(home))
    finally:
        shutil.rmtree(home)


def test_a_database_of_another_program_is_not_modified(tmp_path: Path) -> None:
    file = tmp_path / "catalog.db"
    change(file, "CREATE TABLE photos (name TEXT)")
    for call in CALLS.values():
        with pytest.raises(CorruptError, match=r"catalog\.db is a database, but not a Penstock catalog"):
            call(Catalog(tmp_path))
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("photos",)]


def test_a_missing_table_is_corruption(file: Path) -> None:
    change(file, "DROP TABLE tables")
    with pytest.raises(CorruptError, match="no such table"):
        Catalog(file.parent).tables()


def test_an_invalid_row_is_corruption(file: Path) -> None:
    change(file, "INSERT INTO tables VALUES ('..', 'x', '/x', 0, NULL, 0, NULL, NULL)")
    with pytest.raises(CorruptError, match="invalid row"):
        Catalog(file.parent).tables()


def test_a_newer_catalog_is_rejected_and_not_modified(file: Path) -> None:
    change(file, "UPDATE meta SET value = 3 WHERE key = 'version'")
    for call in CALLS.values():
        with pytest.raises(UnsupportedFormatError, match=r"catalog\.db was written by a newer Penstock .* upgrade"):
            call(Catalog(file.parent))
    change(file, "UPDATE meta SET value = 2 WHERE key = 'version'")
    assert len(Catalog(file.parent).tables()) == 51


def test_an_empty_file_is_a_new_catalog(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").touch()  # left by an interrupted creation
    with pytest.raises(NotFoundError):
        Catalog(tmp_path).find(ADDRESS)
    assert Catalog(tmp_path).reserve(ADDRESS) == Catalog(tmp_path).find(ADDRESS)


def test_a_locked_catalog_raises_after_the_busy_timeout(file: Path) -> None:
    database = Database(file, busy_timeout_s=0.2)
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        with (
            pytest.raises(StorageTimeoutError, match=r"catalog\.db was locked by another process for 0\.2 s"),
            database.transaction(),
        ):
            pass
        assert len(database.read("SELECT * FROM tables")) == 51, "a reader does not wait for a writer"
        db.execute("ROLLBACK")
    with database.transaction() as held:
        held.execute("DELETE FROM tables")
    assert database.read("SELECT * FROM tables") == []


def test_creation_waits_for_another_process_that_creates_the_catalog(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "catalog.db", isolation_level=None, check_same_thread=False)) as db:
        db.execute("BEGIN IMMEDIATE")
        assert Database(tmp_path / "catalog.db", busy_timeout_s=0.1).read("SELECT * FROM tables") == []
        timer = threading.Timer(0.3, db.execute, ["ROLLBACK"])
        timer.start()
        assert Catalog(tmp_path).reserve(ADDRESS).address == ADDRESS
        timer.join()


def test_an_error_rolls_back_the_transaction(file: Path) -> None:
    database = Database(file, busy_timeout_s=1)

    def fail_halfway() -> None:
        with database.transaction() as db:
            db.execute("DELETE FROM tables")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_halfway()
    assert len(database.read("SELECT * FROM tables")) == 51


def test_the_home_is_a_file(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("")
    with pytest.raises(StorageError, match="PENSTOCK_HOME"):
        Catalog(home).reserve(ADDRESS)
    with pytest.raises(StorageError, match="PENSTOCK_HOME"):
        Catalog(home / "below").reserve(ADDRESS)


def test_the_catalog_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").mkdir()
    for call in CALLS.values():
        with pytest.raises(StorageError, match=r"catalog\.db cannot be (opened|used)"):
            call(Catalog(tmp_path))


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that an unprivileged user can enter; pytest's own are private."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755)
    shutil.rmtree(folder)


def unprivileged(check: Callable[[Path], None], home: Path) -> None:
    if os.geteuid() == 0:  # root bypasses permissions
        os.setuid(UNPRIVILEGED_UID)
    check(home)


def run_unprivileged(check: Callable[[Path], None], home: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=unprivileged, args=(check, home))
    process.start()
    process.join()
    assert process.exitcode == 0


def check_read_only(home: Path) -> None:
    catalog = Catalog(home)
    assert [entry.address for entry in catalog.tables()] == [ADDRESS]
    assert catalog.find(ADDRESS).uri.startswith("s3://bucket/org/imagenet-")
    for write in (CALLS["remove"], CALLS["reserve"]):
        with pytest.raises(AccessDeniedError, match=r"catalog\.db cannot be opened or written .* PENSTOCK_HOME"):
            write(catalog)


def check_access_denied(home: Path) -> None:
    for call in CALLS.values():
        with pytest.raises(AccessDeniedError, match=r"catalog\.db cannot be opened or written .* PENSTOCK_HOME"):
            call(Catalog(home))


def check_cannot_be_created(home: Path) -> None:
    assert Catalog(home / "new").tables() == []
    with pytest.raises(AccessDeniedError, match=r"new/catalog\.db cannot be opened or written .* PENSTOCK_HOME"):
        Catalog(home / "new").reserve(ADDRESS)


def test_a_read_only_home_can_be_read(shared_folder: Path) -> None:
    Catalog(shared_folder, storage="s3://bucket").reserve(ADDRESS)
    (shared_folder / "catalog.db").chmod(0o444)
    shared_folder.chmod(0o555)
    run_unprivileged(check_read_only, shared_folder)


def test_a_read_only_file_can_be_read(shared_folder: Path) -> None:
    Catalog(shared_folder, storage="s3://bucket").reserve(ADDRESS)
    (shared_folder / "catalog.db").chmod(0o444)
    shared_folder.chmod(0o777)
    run_unprivileged(check_read_only, shared_folder)


def test_an_inaccessible_home(shared_folder: Path) -> None:
    Catalog(shared_folder).reserve(ADDRESS)
    shared_folder.chmod(0)
    run_unprivileged(check_access_denied, shared_folder)


def test_an_unreadable_file(shared_folder: Path) -> None:
    Catalog(shared_folder).reserve(ADDRESS)
    (shared_folder / "catalog.db").chmod(0)
    run_unprivileged(check_access_denied, shared_folder)


def test_a_home_that_cannot_be_created(shared_folder: Path) -> None:
    shared_folder.chmod(0o555)
    run_unprivileged(check_cannot_be_created, shared_folder)
