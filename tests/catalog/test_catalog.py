"""The catalog behaves like a dictionary of addresses."""

import pickle
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.catalog import Catalog, TableAddress
from penstock.errors import AlreadyExistsError, NotFoundError

ADDRESS = TableAddress("org", "imagenet")
ADDRESSES = st.builds(TableAddress, st.sampled_from(["org", "lab"]), st.sampled_from(["a", "b", "c"]))
STORAGES = st.sampled_from(["/lake", "s3://bucket", "gs://bucket/lake"])
IDS = st.none() | st.sampled_from(["id-1", "id-2"])


def test_reserve_creates_an_entry(tmp_path: Path) -> None:
    before_us = time.time_ns() // 1000
    entry = Catalog(tmp_path).reserve(ADDRESS)
    assert entry.address == ADDRESS
    assert entry.uri == str(tmp_path / "tables" / "org" / "imagenet")
    assert before_us <= entry.created_us <= time.time_ns() // 1000
    assert entry.table_id is None
    assert Catalog(tmp_path).find(ADDRESS) == entry
    assert Catalog(tmp_path / "other").tables() == []


def test_a_reserved_uri_survives_a_change_of_storage(tmp_path: Path) -> None:
    first = Catalog(tmp_path, storage="s3://one").reserve(ADDRESS)
    assert Catalog(tmp_path, storage="s3://two").reserve(ADDRESS) == first
    Catalog(tmp_path).remove(ADDRESS)
    assert Catalog(tmp_path, storage="s3://two").reserve(ADDRESS).uri == "s3://two/org/imagenet"


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
    assert copy.reserve(TableAddress("org", "b")).uri == "s3://bucket/org/b"


class CatalogModel(RuleBasedStateMachine):
    """Each call on a new `Catalog`, compared with a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp())
        self.model: dict[TableAddress, tuple[str, str | None]] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.home)

    @rule(address=ADDRESSES, storage=STORAGES)
    def reserve(self, address: TableAddress, storage: str) -> None:
        self.model.setdefault(address, (f"{storage}/{address.workspace}/{address.table}", None))
        entry = Catalog(self.home, storage=storage).reserve(address)
        assert (entry.uri, entry.table_id) == self.model[address]

    @rule(address=ADDRESSES, root=STORAGES, table_id=IDS)
    def register(self, address: TableAddress, root: str, table_id: str | None) -> None:
        uri = f"{root}/{address.workspace}/{address.table}"  # the same URI as `reserve` assigns
        known = self.model.get(address, (uri, None))
        if known[0] != uri:
            with pytest.raises(AlreadyExistsError):
                Catalog(self.home).register(address, uri, table_id=table_id)
            return
        self.model[address] = (uri, table_id or known[1])
        entry = Catalog(self.home).register(address, uri, table_id=table_id)
        assert (entry.uri, entry.table_id) == self.model[address]

    @rule(address=ADDRESSES)
    def remove(self, address: TableAddress) -> None:
        if address not in self.model:
            with pytest.raises(NotFoundError):
                Catalog(self.home).remove(address)
            return
        entry = Catalog(self.home).remove(address)
        assert (entry.uri, entry.table_id) == self.model.pop(address)

    @rule(address=ADDRESSES)
    def find(self, address: TableAddress) -> None:
        if address not in self.model:
            with pytest.raises(NotFoundError):
                Catalog(self.home).find(address)
            return
        entry = Catalog(self.home).find(address)
        assert (entry.address, (entry.uri, entry.table_id)) == (address, self.model[address])

    @invariant()
    def lists(self) -> None:
        catalog = Catalog(self.home)
        listed = [(entry.address, (entry.uri, entry.table_id)) for entry in catalog.tables()]
        assert listed == sorted(self.model.items())
        assert catalog.workspaces() == sorted({address.workspace for address in self.model})
        for workspace in ("org", "lab", "none"):
            wanted = [address for address in sorted(self.model) if address.workspace == workspace]
            assert [entry.address for entry in catalog.tables(workspace)] == wanted


TestCatalog = CatalogModel.TestCase
TestCatalog.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
