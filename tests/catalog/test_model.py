"""Any history of changes leaves the catalog equal to a model of dictionaries and lists."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.catalog import Catalog, CatalogEntry, TableAddress
from penstock.errors import AlreadyExistsError, NotFoundError

ADDRESSES = st.builds(TableAddress, st.sampled_from(["org", "lab"]), st.sampled_from(["a", "b"]))
STORAGES = st.sampled_from(["/lake", "s3://bucket", "gs://bucket/lake"])
IDS = st.none() | st.sampled_from(["id-1", "id-2"])
FAR_FUTURE_US = 1 << 60


@dataclass
class Table:
    uri: str
    table_id: str | None
    owned: bool


class CatalogModel(RuleBasedStateMachine):
    """Each call on a new `Catalog`, compared with live tables by address, dropped ones in order, and expired ones."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp())
        self.live: dict[TableAddress, Table] = {}
        self.dropped: list[tuple[TableAddress, Table]] = []
        self.expired: list[Table] = []
        self.assigned: set[str] = set()

    def teardown(self) -> None:
        shutil.rmtree(self.home)

    def check(self, entry: CatalogEntry, table: Table) -> None:
        assert (entry.uri, entry.table_id, entry.owned) == (table.uri, table.table_id, table.owned)

    @rule(address=ADDRESSES, storage=STORAGES)
    def reserve(self, address: TableAddress, storage: str) -> None:
        entry = Catalog(self.home, storage=storage).reserve(address)
        if address not in self.live:
            assert entry.uri not in self.assigned, "a location is never assigned twice"
            assert entry.uri.startswith(f"{storage}/{address.workspace}/{address.table}-")
            self.assigned.add(entry.uri)
            self.live[address] = Table(entry.uri, None, owned=True)
        self.check(entry, self.live[address])

    @rule(address=ADDRESSES, root=STORAGES, table_id=IDS)
    def register(self, address: TableAddress, root: str, table_id: str | None) -> None:
        uri = f"{root}/registered-{address.workspace}-{address.table}"
        known = self.live.setdefault(address, Table(uri, None, owned=False))
        if known.uri != uri:
            with pytest.raises(AlreadyExistsError):
                Catalog(self.home).register(address, uri, table_id=table_id)
            return
        known.table_id = table_id or known.table_id
        self.check(Catalog(self.home).register(address, uri, table_id=table_id), known)

    @rule(address=ADDRESSES, new=ADDRESSES)
    def rename(self, address: TableAddress, new: TableAddress) -> None:
        if address not in self.live or (new in self.live and new != address):
            with pytest.raises(AlreadyExistsError if address in self.live else NotFoundError):
                Catalog(self.home).rename(address, new)
            return
        self.live[new] = self.live.pop(address)
        entry = Catalog(self.home).rename(address, new)
        assert entry.address == new
        self.check(entry, self.live[new])

    @rule(address=ADDRESSES)
    def drop(self, address: TableAddress) -> None:
        if address not in self.live:
            with pytest.raises(NotFoundError):
                Catalog(self.home).drop(address)
            return
        self.dropped.append((address, self.live.pop(address)))
        self.check(Catalog(self.home).drop(address), self.dropped[-1][1])

    @rule(address=ADDRESSES)
    def restore(self, address: TableAddress) -> None:
        numbers = [number for number, (other, _) in enumerate(self.dropped) if other == address]
        if not numbers or address in self.live:
            with pytest.raises(AlreadyExistsError if numbers else NotFoundError):
                Catalog(self.home).restore(address)
            return
        self.live[address] = self.dropped.pop(numbers[-1])[1]
        self.check(Catalog(self.home).restore(address), self.live[address])

    @rule(address=ADDRESSES)
    def remove(self, address: TableAddress) -> None:
        if address not in self.live:
            with pytest.raises(NotFoundError):
                Catalog(self.home).remove(address)
            return
        self.check(Catalog(self.home).remove(address), self.live.pop(address))

    @rule()
    def expire(self) -> None:
        self.expired += [table for _, table in self.dropped]
        self.dropped.clear()
        entries = Catalog(self.home).expire(FAR_FUTURE_US)
        assert sorted(entry.uri for entry in entries) == sorted(table.uri for table in self.expired)

    @rule()
    def forget(self) -> None:
        for entry in Catalog(self.home).expire(0):
            Catalog(self.home).forget(entry)
        self.expired.clear()

    @rule(address=ADDRESSES)
    def find(self, address: TableAddress) -> None:
        if address not in self.live:
            with pytest.raises(NotFoundError):
                Catalog(self.home).find(address)
            return
        self.check(Catalog(self.home).find(address), self.live[address])

    @invariant()
    def lists(self) -> None:
        catalog = Catalog(self.home)
        for workspace in (None, "org", "lab", "none"):
            entries = catalog.tables(workspace)
            assert [e.address for e in entries] == sorted(a for a in self.live if workspace in (None, a.workspace))
            for entry in entries:
                self.check(entry, self.live[entry.address])
        dropped = [(entry.address, entry.uri) for entry in catalog.tables(dropped=True)]
        last_first = self.dropped[::-1]
        expected = sorted(last_first, key=lambda pair: pair[0])
        assert dropped == [(address, table.uri) for address, table in expected]
        assert catalog.workspaces() == sorted({address.workspace for address in self.live})
        owned = [table.uri for table in self.live.values() if table.owned]
        assert len(owned) == len(set(owned)), "no two tables share a location"


TestCatalogModel = CatalogModel.TestCase
TestCatalogModel.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
