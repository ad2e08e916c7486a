"""The folder of the catalog, the URIs of new tables, and which URIs are accepted."""

import os
import re
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.catalog import Catalog, TableAddress
from penstock.catalog._locations import catalog_folder, checked_uri
from penstock.errors import InvalidInputError

ADDRESS = TableAddress("org", "imagenet")


def without_suffix(uri: str) -> str:
    """The location of a new table without the eight random digits that make it unique."""
    found = re.fullmatch(r"(.+)-[0-9a-f]{8}", uri)
    assert found, uri
    return found[1]


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("PENSTOCK_HOME", "PENSTOCK_STORAGE", "XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))


@pytest.mark.parametrize(
    ("platform", "environ", "expected"),
    [
        ("linux", {}, "user/.local/share/penstock"),
        ("linux", {"XDG_DATA_HOME": "{tmp}/data"}, "data/penstock"),
        ("linux", {"XDG_DATA_HOME": "relative"}, "user/.local/share/penstock"),
        ("linux", {"XDG_DATA_HOME": "", "PENSTOCK_HOME": ""}, "user/.local/share/penstock"),
        ("linux", {"XDG_DATA_HOME": "{tmp}/data", "PENSTOCK_HOME": "{tmp}/own"}, "own"),
        ("linux", {"PENSTOCK_HOME": "~/own"}, "user/own"),
        ("darwin", {"XDG_DATA_HOME": "{tmp}/data"}, "user/Library/Application Support/penstock"),
        ("darwin", {"PENSTOCK_HOME": "{tmp}/own"}, "own"),
        ("win32", {"LOCALAPPDATA": "{tmp}/local"}, "local/penstock"),
        ("win32", {}, "user/AppData/Local/penstock"),
        ("win32", {"LOCALAPPDATA": "{tmp}/local", "PENSTOCK_HOME": "{tmp}/own"}, "own"),
    ],
)
def test_the_catalog_folder_by_platform(platform: str, environ: dict[str, str], expected: str, tmp_path: Path) -> None:
    given = {key: value.format(tmp=tmp_path) for key, value in environ.items()}
    assert catalog_folder(given, platform) == tmp_path / expected


def test_a_relative_home_does_not_depend_on_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_HOME", "here")
    catalog = Catalog()
    monkeypatch.chdir("/")
    assert without_suffix(catalog.reserve(ADDRESS).uri) == str(tmp_path / "here" / "tables" / "org" / "imagenet")
    assert (tmp_path / "here" / "catalog.db").is_file()


def test_the_environment_sets_the_locations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "own"))
    assert without_suffix(Catalog().reserve(TableAddress("a", "b")).uri) == str(tmp_path / "own" / "tables" / "a" / "b")
    monkeypatch.setenv("PENSTOCK_STORAGE", "s3://bucket/lake/")
    assert without_suffix(Catalog().reserve(ADDRESS).uri) == "s3://bucket/lake/org/imagenet"
    assert [entry.address for entry in Catalog(tmp_path / "own").tables()] == [TableAddress("a", "b"), ADDRESS]


@pytest.mark.parametrize(
    ("storage", "expected"),
    [
        ("s3://bucket", "s3://bucket/org/imagenet"),
        ("gs://bucket/", "gs://bucket/org/imagenet"),
        ("az://container/a/b/", "az://container/a/b/org/imagenet"),
        ("file:///data/", "file:///data/org/imagenet"),
        ("/data", "/data/org/imagenet"),
        ("/data/x/../", "/data/org/imagenet"),
    ],
)
def test_the_uri_of_a_table_contains_its_address(storage: str, expected: str, tmp_path: Path) -> None:
    assert without_suffix(Catalog(tmp_path, storage=storage).reserve(ADDRESS).uri) == expected


def test_the_uri_of_a_new_table_was_never_assigned_before(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    assert catalog.reserve(ADDRESS) == catalog.reserve(ADDRESS)
    assert catalog.remove(ADDRESS).uri != catalog.reserve(ADDRESS).uri


def test_a_relative_storage_does_not_depend_on_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert without_suffix(Catalog("home", storage="lake").reserve(ADDRESS).uri) == str(
        tmp_path / "lake" / "org" / "imagenet"
    )


@pytest.mark.parametrize("storage", ["s4://bucket", "s3://", "memory://lake", "penstock://org/x", "s3://bucket//a"])
def test_an_invalid_storage_is_rejected_before_an_entry_is_created(storage: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="PENSTOCK_STORAGE"):
        Catalog(tmp_path, storage=storage).reserve(ADDRESS)
    assert without_suffix(Catalog(tmp_path, storage="/data").reserve(ADDRESS).uri) == "/data/org/imagenet"


@pytest.mark.parametrize(
    "uri",
    [
        "s3://SECRET:SECRET@bucket/table", "s3://SECRET@bucket", "az://container/table?sig=SECRET",
        "https://account.blob.core.windows.net/c?sig=SECRET", "s3://bucket?X-Amz-Signature=SECRET",
    ],
)  # fmt: skip
def test_a_secret_is_neither_stored_nor_repeated_in_the_error(uri: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Catalog(tmp_path).register(ADDRESS, uri)
    assert "SECRET" not in str(caught.value)
    assert not any(b"SECRET" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "uri",
    ["", "file://host/x", "memory://x", "penstock://org/other", "s3://b/../x", "/a\0b", "/a\udcff", "s3://b/a\udcff"],
)
def test_invalid_uris_are_rejected(uri: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError):
        Catalog(tmp_path).register(ADDRESS, uri)
    assert Catalog(tmp_path).tables() == []


@given(name=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30))
def test_checked_uri_is_idempotent(name: str) -> None:
    folder = checked_uri("/lake/" + name)
    assert os.path.isabs(folder) or "://" in folder
    assert checked_uri(folder) == folder


def test_the_catalog_folder_is_private(tmp_path: Path) -> None:
    Catalog(tmp_path / "deep" / "home").reserve(ADDRESS)
    assert stat.S_IMODE((tmp_path / "deep" / "home").stat().st_mode) == 0o700


def test_reading_creates_nothing(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "home")
    assert catalog.tables() == []
    assert catalog.workspaces() == []
    assert not (tmp_path / "home").exists()
