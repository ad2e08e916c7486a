"""A file that is damaged, foreign, too new, held or out of reach is an error that says which one, and what to do."""

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

from penstock.catalog import Address, Catalog
from penstock.catalog._database import Database
from penstock.errors import (
    AccessDenied,
    CorruptError,
    NotFoundError,
    PenstockError,
    StorageError,
    StorageTimeout,
    UnsupportedFormat,
)

ADDRESS = Address("org", "imagenet")
NOBODY = 65534
CALLS: dict[str, Callable[[Catalog], object]] = {
    "find": lambda catalog: catalog.find(ADDRESS),
    "place": lambda catalog: catalog.place(ADDRESS),
    "remove": lambda catalog: catalog.remove(ADDRESS),
    "tables": lambda catalog: catalog.tables(),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    catalog = Catalog(tmp_path)
    for number in range(50):
        catalog.place(Address("org", f"table-{number}"))
    catalog.place(ADDRESS)
    return tmp_path / "catalog.db"


def change(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("damage", ["header", "body", "half", "text"])
def test_a_damaged_file_is_named(file: Path, damage: str, call: str) -> None:
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
    assert file.read_bytes() == damaged[damage], "nothing is mended behind the user's back"


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_damage_lets_a_foreign_error_out(data: st.DataObject) -> None:
    home = Path(tempfile.mkdtemp())
    try:
        Catalog(home).place(ADDRESS)
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


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "catalog.db"
    change(file, "CREATE TABLE photos (name TEXT)")
    for call in CALLS.values():
        with pytest.raises(CorruptError, match=r"catalog\.db is a database, but not a catalog"):
            call(Catalog(tmp_path))
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("photos",)]


def test_a_missing_table_is_damage(file: Path) -> None:
    change(file, "DROP TABLE tables")
    with pytest.raises(CorruptError, match="no such table"):
        Catalog(file.parent).tables()


def test_a_row_that_is_not_ours_is_damage(file: Path) -> None:
    change(file, "INSERT INTO tables VALUES ('..', 'x', '/x', 0, NULL)")
    with pytest.raises(CorruptError, match="not ours"):
        Catalog(file.parent).tables()


def test_a_newer_catalog_is_refused_and_kept(file: Path) -> None:
    change(file, "UPDATE meta SET value = 2 WHERE key = 'version'")
    for call in CALLS.values():
        with pytest.raises(UnsupportedFormat, match=r"catalog\.db was written by a newer Penstock .* upgrade"):
            call(Catalog(file.parent))
    change(file, "UPDATE meta SET value = 1 WHERE key = 'version'")
    assert len(Catalog(file.parent).tables()) == 51


def test_an_empty_file_is_a_new_catalog(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").touch()  # what is left when making it was interrupted
    with pytest.raises(NotFoundError):
        Catalog(tmp_path).find(ADDRESS)
    assert Catalog(tmp_path).place(ADDRESS) == Catalog(tmp_path).find(ADDRESS)


def test_a_writer_that_hangs_is_waited_for_no_longer_than_promised(file: Path) -> None:
    database = Database(file, busy_timeout_s=0.2)
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        with (
            pytest.raises(StorageTimeout, match=r"catalog\.db was held by another process for 0\.2 s"),
            database.writing(),
        ):
            pass
        assert len(database.read("SELECT * FROM tables")) == 51, "a reader does not wait for a writer"
        db.execute("ROLLBACK")
    with database.writing() as held:
        held.execute("DELETE FROM tables")
    assert database.read("SELECT * FROM tables") == []


def test_a_new_catalog_waits_for_another_process_that_makes_it(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "catalog.db", isolation_level=None, check_same_thread=False)) as db:
        db.execute("BEGIN IMMEDIATE")
        assert Database(tmp_path / "catalog.db", busy_timeout_s=0.1).read("SELECT * FROM tables") == []
        timer = threading.Timer(0.3, db.execute, ["ROLLBACK"])
        timer.start()
        assert Catalog(tmp_path).place(ADDRESS).address == ADDRESS
        timer.join()


def test_an_error_takes_a_transaction_back(file: Path) -> None:
    database = Database(file, busy_timeout_s=1)

    def fail_halfway() -> None:
        with database.writing() as db:
            db.execute("DELETE FROM tables")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_halfway()
    assert len(database.read("SELECT * FROM tables")) == 51


def test_a_home_that_is_a_file(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("")
    with pytest.raises(StorageError, match="PENSTOCK_HOME"):
        Catalog(home).place(ADDRESS)
    with pytest.raises(StorageError, match="PENSTOCK_HOME"):
        Catalog(home / "below").place(ADDRESS)


def test_a_catalog_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").mkdir()
    for call in CALLS.values():
        with pytest.raises(StorageError, match=r"catalog\.db cannot be (opened|used)"):
            call(Catalog(tmp_path))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that a user without rights can enter; pytest's own are for their user alone."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755)
    shutil.rmtree(folder)


def without_rights(check: Callable[[Path], None], home: Path) -> None:
    if os.geteuid() == 0:  # root may write anywhere
        os.setuid(NOBODY)
    check(home)


def run_without_rights(check: Callable[[Path], None], home: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=without_rights, args=(check, home))
    process.start()
    process.join()
    assert process.exitcode == 0


def reads_but_does_not_write(home: Path) -> None:
    catalog = Catalog(home)
    assert [entry.address for entry in catalog.tables()] == [ADDRESS]
    assert catalog.find(ADDRESS).uri == "s3://bucket/org/imagenet"
    for write in (CALLS["remove"], CALLS["place"]):
        with pytest.raises(AccessDenied, match=r"catalog\.db cannot be opened or written .* PENSTOCK_HOME"):
            write(catalog)


def is_refused(home: Path) -> None:
    for call in CALLS.values():
        with pytest.raises(AccessDenied, match=r"catalog\.db cannot be opened or written .* PENSTOCK_HOME"):
            call(Catalog(home))


def cannot_be_made(home: Path) -> None:
    assert Catalog(home / "new").tables() == []
    with pytest.raises(AccessDenied, match=r"new/catalog\.db cannot be opened or written .* PENSTOCK_HOME"):
        Catalog(home / "new").place(ADDRESS)


def test_a_home_that_can_only_be_read_is_read(open_folder: Path) -> None:
    Catalog(open_folder, storage="s3://bucket").place(ADDRESS)
    (open_folder / "catalog.db").chmod(0o444)
    open_folder.chmod(0o555)
    run_without_rights(reads_but_does_not_write, open_folder)


def test_a_file_that_can_only_be_read_is_read(open_folder: Path) -> None:
    Catalog(open_folder, storage="s3://bucket").place(ADDRESS)
    (open_folder / "catalog.db").chmod(0o444)
    open_folder.chmod(0o777)
    run_without_rights(reads_but_does_not_write, open_folder)


def test_a_home_that_cannot_be_entered(open_folder: Path) -> None:
    Catalog(open_folder).place(ADDRESS)
    open_folder.chmod(0)
    run_without_rights(is_refused, open_folder)


def test_a_file_that_cannot_be_read(open_folder: Path) -> None:
    Catalog(open_folder).place(ADDRESS)
    (open_folder / "catalog.db").chmod(0)
    run_without_rights(is_refused, open_folder)


def test_a_home_that_cannot_be_made(open_folder: Path) -> None:
    open_folder.chmod(0o555)
    run_without_rights(cannot_be_made, open_folder)
