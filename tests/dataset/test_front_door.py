"""Make, find and remove whole tables."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import penstock
from penstock.errors import AlreadyExistsError, CommitStateUnknownError, NotFoundError, PenstockWarning
from penstock.storage import open_store
from penstock.testing import Fault, FaultyStore
from tests.servers import StoreLocation


def test_a_table_is_made_found_and_removed_on_every_store(store_uri: StoreLocation) -> None:
    uri, options = store_uri.uri, store_uri.options
    assert not penstock.exists(uri, storage_options=options)
    with pytest.raises(NotFoundError, match="not a table"):
        penstock.load(uri, storage_options=options)
    ds = penstock.create(uri, {"x": int}, storage_options=options, message="begin")
    assert penstock.exists(uri, storage_options=options)
    assert [commit.message for commit in ds.log()] == ["begin"]
    with pytest.raises(AlreadyExistsError, match="already"):
        penstock.create(uri, {"x": int}, storage_options=options)
    ds.append({"x": [1]})
    ds.commit()
    ds.branches.create("b")
    ds.tags.create("t")
    penstock.delete(uri, storage_options=options)
    assert not penstock.exists(uri, storage_options=options)
    assert list(store_uri.open().list("")) == []
    assert len(penstock.create(uri, {"x": int}, storage_options=options)) == 0


def test_what_is_not_a_table_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("years of work")
    with pytest.raises(NotFoundError, match="not a table"):
        penstock.delete(tmp_path)
    assert (tmp_path / "data" / "thesis.txt").exists()


def test_files_beside_a_table_stay_when_it_is_removed(tmp_path: Path) -> None:
    penstock.create(tmp_path, {"x": int})
    (tmp_path / "notes.txt").write_text("mine")
    penstock.delete(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_two_creators_make_one_table() -> None:
    store = open_store("memory://")
    one = penstock.create(store, {"x": int})
    with pytest.raises(AlreadyExistsError):
        penstock.create(store, {"y": str})
    assert penstock.load(store).schema.names == one.schema.names


def test_repr_names_uncommitted_changes() -> None:
    ds = penstock.create("memory://", {"x": int})
    assert "uncommitted" not in repr(ds)
    ds.append({"x": [1, 2, 3]})
    assert "3 rows, 3 uncommitted rows: x" in repr(ds)
    ds.update(positions=[0], data={"x": 7})
    ds.delete(positions=[1])
    assert "2 rows, uncommitted changes (3 added, 1 updated, 1 deleted): x" in repr(ds)
    ds.commit()
    assert "uncommitted" not in repr(ds)
    ds.rename_column("x", "y")
    assert "uncommitted changes: y" in repr(ds)
    ds.rollback()
    assert "uncommitted" not in repr(ds)


def staged(count: int = 1) -> penstock.Dataset:
    ds = penstock.create("memory://", {"x": int})
    ds.append({"x": [1] * count})
    return ds


def test_a_dataset_that_is_dropped_with_staged_changes_warns() -> None:
    with pytest.warns(PenstockWarning, match="^3 uncommitted rows of memory:// were dropped.*commit"):
        del [staged(3)][0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ds = staged()
        ds.commit()
        ds = staged()
        ds.rollback()
        view = ds[:]
        del ds
        assert len(view) == 0
    assert not caught


@pytest.mark.parametrize("end", ["", "raise RuntimeError", "ds.commit()"])
def test_a_program_that_ends_with_staged_changes_warns_on_standard_error(end: str, tmp_path: Path) -> None:
    script = f"import penstock\nds = penstock.create({str(tmp_path)!r}, {{'x': int}})\nds.append({{'x': [1]}})\n{end}\n"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stderr.count("1 uncommitted row of") == (end != "ds.commit()"), found.stderr


def test_a_forked_child_does_not_warn_of_changes_of_its_parent(tmp_path: Path) -> None:
    script = f"""
import os, sys, penstock
ds = penstock.create({str(tmp_path)!r}, {{'x': int}})
ds.append({{'x': [1]}})
child = os.fork()
if child == 0:
    sys.exit()
os.waitpid(child, 0)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stderr.count("1 uncommitted row of") == 1, found.stderr


def test_a_with_block_commits_at_its_end_and_rolls_back_after_an_exception() -> None:
    store = open_store("memory://")
    with penstock.create(store, {"x": int}) as ds:
        ds.append({"x": [1]})
    assert ds.version == "main@1"

    def fail() -> None:
        with ds:
            ds.append({"x": [2]})
            raise RuntimeError

    ds = penstock.load(store)
    with pytest.raises(RuntimeError):
        fail()
    assert not ds.summary().has_changes
    with penstock.load(store) as ds:
        ds.append({"x": [3]})
        ds.commit("by hand")
    with penstock.load(store, version=1) as old:
        assert len(old) == 1
    assert [int(x) for x in penstock.load(store)["x"][:]] == [1, 3]


def test_a_with_block_reports_the_first_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.history._log._BACKOFF_S", 0.0)
    store = open_store("memory://")
    penstock.create(store, {"x": int})
    broken = FaultyStore(store)
    down = (Fault("fail_before", "create", "log/*", times=99), Fault("fail_before", "get", "log/*", times=99))
    ds = penstock.load(broken)

    def fail() -> None:
        with ds:
            ds.append({"x": [1]})
            broken.faults = down
            ds.commit()

    with pytest.raises(CommitStateUnknownError, match="may or may not exist"):
        fail()
    with pytest.raises(CommitStateUnknownError, match="first"):
        ds.append({"x": [2]})
    broken.faults = ()
    ds.commit()
    assert len(penstock.load(store)) == 1


def test_files_are_read_where_there_is_no_preadv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = penstock.create(tmp_path, {"x": int, "t": str})
    ds.append({"x": list(range(1000)), "t": ["text"] * 1000})
    ds.commit()
    monkeypatch.delattr("os.preadv")
    assert [int(x) for x in penstock.load(tmp_path)["x"][::100]] == list(range(0, 1000, 100))
