"""Entries of the embedded catalog: reserved, registered, renamed, dropped, restored, removed."""

import pickle
import time
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.catalog import Catalog, TableAddress
from penstock.errors import AlreadyExistsError, NotFoundError

ADDRESS = TableAddress("org", "imagenet")
WEEK_US = 7 * 24 * 3600 * 1_000_000


def test_reserve_creates_an_entry(tmp_path: Path) -> None:
    before_us = time.time_ns() // 1000
    entry = Catalog(tmp_path).reserve(ADDRESS)
    assert entry.address == ADDRESS
    assert entry.uri.startswith(str(tmp_path / "tables" / "org" / "imagenet-"))
    assert entry.owned
    assert before_us <= entry.created_us <= time.time_ns() // 1000
    assert entry.table_id is None
    assert Catalog(tmp_path).find(ADDRESS) == entry
    assert Catalog(tmp_path / "other").tables() == []


def test_a_reserved_uri_survives_a_change_of_storage(tmp_path: Path) -> None:
    first = Catalog(tmp_path, storage="s3://one").reserve(ADDRESS)
    assert Catalog(tmp_path, storage="s3://two").reserve(ADDRESS) == first
    Catalog(tmp_path).remove(ADDRESS)
    assert Catalog(tmp_path, storage="s3://two").reserve(ADDRESS).uri.startswith("s3://two/org/imagenet-")


def test_an_address_has_one_uri(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    entry = catalog.register(ADDRESS, "s3://bucket/a", table_id="id")
    assert catalog.register(ADDRESS, "s3://bucket/a/") == entry, "the same URI, and the id is not lost"
    with pytest.raises(AlreadyExistsError, match="s3://bucket/a already; remove"):
        catalog.register(ADDRESS, "s3://bucket/b")
    assert catalog.find(ADDRESS) == entry


def test_a_table_may_have_two_addresses(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    for address in (ADDRESS, TableAddress("org", "other")):
        assert catalog.register(address, tmp_path / "table").uri == str(tmp_path / "table")
    assert len(catalog.tables()) == 2


def test_remove_does_not_delete_the_table(tmp_path: Path) -> None:
    table = tmp_path / "table"
    table.mkdir()
    (table / "penstock.json").write_text("{}")
    catalog = Catalog(tmp_path)
    entry = catalog.register(ADDRESS, table)
    assert catalog.remove(ADDRESS) == entry
    assert (table / "penstock.json").exists()
    with pytest.raises(NotFoundError, match="penstock://org/imagenet"):
        catalog.remove(ADDRESS)


def test_an_unknown_address_suggests_similar_ones(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    for text in ["org/imagenet", "org/robots", "lab/imagnet-22k", "lab/clips"]:
        catalog.reserve(TableAddress(*text.split("/")))
    with pytest.raises(NotFoundError) as caught:
        catalog.find(TableAddress("org", "imagnet"))
    assert "did you mean penstock://org/imagenet" in str(caught.value)
    assert "penstock://org/robots" not in str(caught.value)
    assert 'penstock.create("penstock://org/imagnet")' in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(NotFoundError, match="did you mean penstock://lab/clips"):
        catalog.find(TableAddress("organisation", "clips"))
    with pytest.raises(NotFoundError) as caught:
        catalog.find(TableAddress("x", "y"))
    assert "did you mean" not in str(caught.value)
    assert "register" in str(caught.value)


def test_a_catalog_can_be_pickled(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, storage="s3://bucket")
    entry = catalog.reserve(ADDRESS)
    copy: Catalog = pickle.loads(pickle.dumps(catalog))
    assert copy.find(ADDRESS) == entry
    assert copy.reserve(TableAddress("org", "b")).uri.startswith("s3://bucket/org/b-")


def test_a_renamed_table_stays_where_it_is(tmp_path: Path) -> None:
    catalog, new = Catalog(tmp_path), TableAddress("lab", "pictures")
    entry = catalog.reserve(ADDRESS)
    assert catalog.rename(ADDRESS, new) == catalog.find(new) == replace(entry, address=new)
    assert catalog.rename(new, new).uri == entry.uri
    assert catalog.reserve(ADDRESS).uri != entry.uri, "a table of the old name is another one"
    with pytest.raises(AlreadyExistsError, match=f"{entry.uri} already"):
        catalog.rename(ADDRESS, new)
    with pytest.raises(NotFoundError, match="did you mean"):
        catalog.rename(TableAddress("org", "imagnet"), TableAddress("org", "other"))
    assert catalog.workspaces() == ["lab", "org"]


def test_a_dropped_table_can_be_restored_for_seven_days(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    entry = catalog.reserve(ADDRESS)
    before_us = time.time_ns() // 1000
    dropped = catalog.drop(ADDRESS)
    assert dropped.dropped_us is not None
    assert dropped.purge_us is not None
    assert before_us + WEEK_US <= dropped.purge_us <= time.time_ns() // 1000 + WEEK_US
    assert (catalog.tables(), catalog.workspaces(), catalog.tables(dropped=True)) == ([], [], [dropped])
    for call in (catalog.find, catalog.drop, catalog.remove):
        with pytest.raises(NotFoundError, match=r"was dropped; .* `penstock restore penstock://org/imagenet`"):
            call(ADDRESS)
    assert catalog.expire(dropped.purge_us - 1) == []
    assert catalog.restore(ADDRESS) == catalog.find(ADDRESS) == entry
    with pytest.raises(NotFoundError, match="no dropped table penstock://org/imagenet"):
        catalog.restore(ADDRESS)


def test_the_table_that_was_dropped_last_is_restored_first(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    entries = [catalog.reserve(ADDRESS)]
    first = catalog.drop(ADDRESS)
    entries.append(catalog.reserve(ADDRESS))
    second = catalog.drop(ADDRESS)
    assert catalog.tables("org", dropped=True) == [second, first]
    assert catalog.tables("lab", dropped=True) == []
    assert catalog.restore(ADDRESS) == entries[1]
    with pytest.raises(AlreadyExistsError, match="rename or drop that table first"):
        catalog.restore(ADDRESS)
    catalog.rename(ADDRESS, TableAddress("org", "second"))
    assert catalog.restore(ADDRESS) == entries[0]


def test_an_expired_table_cannot_be_restored_and_is_returned_until_it_is_forgotten(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    catalog.register(TableAddress("org", "registered"), "s3://bucket/a")
    catalog.reserve(ADDRESS)
    dropped = [catalog.drop(ADDRESS), catalog.drop(TableAddress("org", "registered"))]
    for _ in range(2):
        expired = catalog.expire(time.time_ns() // 1000 + WEEK_US)
        assert [(entry.address, entry.uri, entry.owned) for entry in expired] == [
            (ADDRESS, dropped[0].uri, True),
            (TableAddress("org", "registered"), "s3://bucket/a", False),
        ]
        assert catalog.tables(dropped=True) == []
        with pytest.raises(NotFoundError, match="no dropped table"):
            catalog.restore(ADDRESS)
    new = catalog.reserve(ADDRESS)
    catalog.forget(expired[0])
    assert [entry.uri for entry in catalog.expire(0)] == ["s3://bucket/a"], "those that were given up before"
    assert catalog.find(ADDRESS) == new, "only that very entry was forgotten"


@pytest.mark.parametrize("path", ["{}", "file://{}"])
def test_a_table_that_has_another_address_does_not_expire(tmp_path: Path, path: str) -> None:
    catalog, other = Catalog(tmp_path), TableAddress("lab", "pictures")
    uri = catalog.reserve(ADDRESS).uri
    catalog.drop(ADDRESS, recoverable=False)
    catalog.register(other, path.format(uri))
    assert catalog.expire(1) == []
    catalog.drop(other)
    assert catalog.expire(1) == [], "the other address can still be restored"
    catalog.remove(catalog.restore(other).address)
    assert [entry.uri for entry in catalog.expire(1)] == [uri]


def test_a_table_that_is_not_recoverable_cannot_be_restored(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    catalog.reserve(ADDRESS)
    dropped = catalog.drop(ADDRESS, recoverable=False)
    assert catalog.tables(dropped=True) == []
    with pytest.raises(NotFoundError):
        catalog.restore(ADDRESS)
    assert catalog.expire(0) == [dropped]


def test_a_clock_that_steps_back_does_not_mix_up_dropped_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog(tmp_path)
    uris = []
    for number in range(3):
        monkeypatch.setattr(time, "time_ns", lambda number=number: (10 - number) * 1_000_000_000)
        uris.append(catalog.reserve(ADDRESS).uri)
        catalog.drop(ADDRESS)
    assert [entry.uri for entry in catalog.tables(dropped=True)] == uris[::-1]
    assert catalog.restore(ADDRESS).uri == uris[-1]


def test_a_change_of_an_unknown_address_creates_no_catalog(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "home")
    for call in (catalog.drop, catalog.restore, catalog.remove):
        with pytest.raises(NotFoundError):
            call(ADDRESS)
    with pytest.raises(NotFoundError):
        catalog.rename(ADDRESS, TableAddress("lab", "new"))
    assert catalog.expire(1) == []
    assert not (tmp_path / "home").exists()
