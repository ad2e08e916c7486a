"""Names are kept, found, and forgotten as a dictionary would."""

import pickle
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.catalog import Address, Catalog
from penstock.errors import AlreadyExistsError, NotFoundError

ADDRESS = Address("org", "imagenet")
ADDRESSES = st.builds(Address, st.sampled_from(["org", "lab"]), st.sampled_from(["a", "b", "c"]))
STORAGES = st.sampled_from(["/lake", "s3://bucket", "gs://bucket/lake"])
IDS = st.none() | st.sampled_from(["id-1", "id-2"])


def test_a_name_is_kept(tmp_path: Path) -> None:
    before_us = time.time_ns() // 1000
    entry = Catalog(tmp_path).place(ADDRESS)
    assert entry.address == ADDRESS
    assert entry.uri == str(tmp_path / "tables" / "org" / "imagenet")
    assert before_us <= entry.created_us <= time.time_ns() // 1000
    assert entry.table_id is None
    assert Catalog(tmp_path).find(ADDRESS) == entry
    assert Catalog(tmp_path / "other").tables() == []


def test_a_place_stays_when_the_storage_changes(tmp_path: Path) -> None:
    first = Catalog(tmp_path, storage="s3://one").place(ADDRESS)
    assert Catalog(tmp_path, storage="s3://two").place(ADDRESS) == first
    Catalog(tmp_path).remove(ADDRESS)
    assert Catalog(tmp_path, storage="s3://two").place(ADDRESS).uri == "s3://two/org/imagenet"


def test_a_name_is_for_one_place(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    entry = catalog.register(ADDRESS, "s3://bucket/a", table_id="id")
    assert catalog.register(ADDRESS, "s3://bucket/a/") == entry, "the same place, and the id is not lost"
    with pytest.raises(AlreadyExistsError, match="s3://bucket/a already; remove"):
        catalog.register(ADDRESS, "s3://bucket/b")
    assert catalog.find(ADDRESS) == entry


def test_a_table_may_have_two_names(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    for address in (ADDRESS, Address("org", "other")):
        assert catalog.register(address, tmp_path / "table").uri == str(tmp_path / "table")
    assert len(catalog.tables()) == 2


def test_removing_a_name_leaves_the_table(tmp_path: Path) -> None:
    table = tmp_path / "table"
    table.mkdir()
    (table / "penstock.json").write_text("{}")
    catalog = Catalog(tmp_path)
    entry = catalog.register(ADDRESS, table)
    assert catalog.remove(ADDRESS) == entry
    assert (table / "penstock.json").exists()
    with pytest.raises(NotFoundError, match="penstock://org/imagenet"):
        catalog.remove(ADDRESS)


def test_an_unknown_name_is_answered_with_near_ones(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    for text in ["org/imagenet", "org/robots", "lab/imagnet-22k", "lab/clips"]:
        catalog.place(Address(*text.split("/")))
    with pytest.raises(NotFoundError) as caught:
        catalog.find(Address("org", "imagnet"))
    assert "did you mean penstock://org/imagenet" in str(caught.value)
    assert "penstock://org/robots" not in str(caught.value)
    assert 'penstock.create("penstock://org/imagnet")' in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(NotFoundError, match="did you mean penstock://lab/clips"):
        catalog.find(Address("organisation", "clips"))
    with pytest.raises(NotFoundError) as caught:
        catalog.find(Address("x", "y"))
    assert "did you mean" not in str(caught.value)
    assert "register" in str(caught.value)


def test_a_catalog_travels_to_other_processes(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, storage="s3://bucket")
    entry = catalog.place(ADDRESS)
    copy: Catalog = pickle.loads(pickle.dumps(catalog))
    assert copy.find(ADDRESS) == entry
    assert copy.place(Address("org", "b")).uri == "s3://bucket/org/b"


class Names(RuleBasedStateMachine):
    """Each call by a new `Catalog`, against a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp())
        self.model: dict[Address, tuple[str, str | None]] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.home)

    @rule(address=ADDRESSES, storage=STORAGES)
    def place(self, address: Address, storage: str) -> None:
        self.model.setdefault(address, (f"{storage}/{address.workspace}/{address.table}", None))
        entry = Catalog(self.home, storage=storage).place(address)
        assert (entry.uri, entry.table_id) == self.model[address]

    @rule(address=ADDRESSES, root=STORAGES, table_id=IDS)
    def register(self, address: Address, root: str, table_id: str | None) -> None:
        uri = f"{root}/{address.workspace}/{address.table}"  # so that it meets what was placed
        known = self.model.get(address, (uri, None))
        if known[0] != uri:
            with pytest.raises(AlreadyExistsError):
                Catalog(self.home).register(address, uri, table_id=table_id)
            return
        self.model[address] = (uri, table_id or known[1])
        entry = Catalog(self.home).register(address, uri, table_id=table_id)
        assert (entry.uri, entry.table_id) == self.model[address]

    @rule(address=ADDRESSES)
    def remove(self, address: Address) -> None:
        if address not in self.model:
            with pytest.raises(NotFoundError):
                Catalog(self.home).remove(address)
            return
        entry = Catalog(self.home).remove(address)
        assert (entry.uri, entry.table_id) == self.model.pop(address)

    @rule(address=ADDRESSES)
    def find(self, address: Address) -> None:
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


TestNames = Names.TestCase
TestNames.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
