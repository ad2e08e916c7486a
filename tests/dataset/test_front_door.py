"""Make, find and remove whole tables."""

from pathlib import Path

import pytest

import penstock
from penstock.errors import AlreadyExistsError, NotFoundError
from penstock.storage import open_store
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


def test_files_are_read_where_there_is_no_preadv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = penstock.create(tmp_path, {"x": int, "t": str})
    ds.append({"x": list(range(1000)), "t": ["text"] * 1000})
    ds.commit()
    monkeypatch.delattr("os.preadv")
    assert [int(x) for x in penstock.load(tmp_path)["x"][::100]] == list(range(0, 1000, 100))
