"""`penstock://workspace/table` wherever an address is taken."""

from pathlib import Path

import pytest

import penstock
from penstock.errors import AlreadyExistsError, InvalidInputError, NotFoundError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PENSTOCK_STORAGE", str(tmp_path / "tables"))
    return tmp_path


def test_a_table_lives_and_goes_by_its_name(home: Path) -> None:
    name = "penstock://org/numbers"
    assert not penstock.exists(name)
    with pytest.raises(NotFoundError, match="org/numbers"):
        penstock.load(name)
    ds = penstock.create(name, {"x": int})
    ds.append({"x": [1, 2, 3]})
    ds.commit()
    assert penstock.exists(name)
    assert penstock.load(name)["x"][:].tolist() == [1, 2, 3]
    assert not penstock.verify(name).damaged
    assert penstock.exists(ds.uri)
    assert Path(ds.uri).parent == home / "tables" / "org"
    with pytest.raises(AlreadyExistsError):
        penstock.create(name, {"x": int})
    assert penstock.exists(name)
    penstock.delete(name)
    assert not penstock.exists(name)
    penstock.create(name, {"y": str})
    assert penstock.load(name).schema.names == ["y"]


def test_a_name_whose_table_could_not_be_made_is_free_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").write_text("no folder")
    monkeypatch.setenv("PENSTOCK_STORAGE", str(home / "file"))
    with pytest.raises(Exception, match="file"):
        penstock.create("penstock://org/t", {"x": int})
    monkeypatch.setenv("PENSTOCK_STORAGE", str(home / "tables"))
    assert Path(penstock.create("penstock://org/t", {"x": int}).uri).parent == home / "tables" / "org"


def test_two_catalogs_that_share_a_storage_do_not_share_locations(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    penstock.create("penstock://org/t", {"x": int})
    monkeypatch.setenv("PENSTOCK_HOME", str(home / "another"))
    assert not penstock.exists("penstock://org/t")
    penstock.create("penstock://org/t", {"y": int})
    assert penstock.load("penstock://org/t").schema.names == ["y"]
    monkeypatch.setenv("PENSTOCK_HOME", str(home / "home"))
    assert penstock.load("penstock://org/t").schema.names == ["x"]


def test_a_bad_name_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="penstock://"):
        penstock.load("penstock://Org/T")
