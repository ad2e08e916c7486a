"""The exam of a `TableCatalog`: a subclass gives the catalog."""

from pathlib import Path

import pytest

from penstock.catalog import TableAddress, TableCatalog
from penstock.errors import AlreadyExistsError, NotFoundError


class TableCatalogTests:
    """What every catalog does; `workspace` exists and is empty, and `location` may be registered."""

    catalog: TableCatalog
    workspace: str
    location: Path

    def address(self, table: str) -> TableAddress:
        return TableAddress(self.workspace, table)

    def names(self, *, dropped: bool = False) -> list[str]:
        return [entry.address.table for entry in self.catalog.tables(self.workspace, dropped=dropped)]

    def test_a_reserved_address_is_found_and_keeps_its_location(self) -> None:
        entry = self.catalog.reserve(self.address("b"))
        assert self.catalog.reserve(self.address("b")).uri == entry.uri
        other = self.catalog.reserve(self.address("a"))
        assert other.uri != entry.uri
        found = self.catalog.find(self.address("b"))
        assert (found.address, found.uri, found.created_us) == (entry.address, entry.uri, entry.created_us)
        assert self.catalog.find(self.address("b"), access="read").uri == entry.uri
        assert self.names() == ["a", "b"]
        assert self.workspace in self.catalog.workspaces()
        assert {each.address for each in self.catalog.tables()} >= {self.address("a"), self.address("b")}

    def test_an_unknown_address_suggests_similar_ones(self) -> None:
        self.catalog.reserve(self.address("telemetry"))
        wrong = self.address("telemetri")
        for call in (self.catalog.find, self.catalog.drop, self.catalog.remove):
            with pytest.raises(NotFoundError, match=rf"no table {wrong}; did you mean {self.address('telemetry')}\?"):
                call(wrong)
        with pytest.raises(NotFoundError, match="telemetri"):
            self.catalog.rename(wrong, self.address("new"))
        with pytest.raises(NotFoundError, match="telemetri"):
            self.catalog.restore(wrong)

    def test_a_dropped_table_is_restored(self) -> None:
        entry = self.catalog.reserve(self.address("t"))
        dropped = self.catalog.drop(self.address("t"))
        assert dropped.uri == entry.uri
        assert dropped.dropped_us is not None
        assert dropped.purge_us is not None
        assert entry.created_us <= dropped.dropped_us < dropped.purge_us
        assert (self.names(), self.names(dropped=True)) == ([], ["t"])
        with pytest.raises(NotFoundError, match="was dropped; bring it back with `penstock restore"):
            self.catalog.find(self.address("t"))
        restored = self.catalog.restore(self.address("t"))
        assert (restored.uri, restored.dropped_us, restored.purge_us) == (entry.uri, None, None)
        assert (self.names(), self.names(dropped=True)) == (["t"], [])

    def test_of_several_dropped_tables_the_last_is_restored(self) -> None:
        uris = []
        for _ in range(2):
            uris.append(self.catalog.reserve(self.address("t")).uri)
            self.catalog.drop(self.address("t"))
        assert len(set(uris)) == 2
        self.catalog.reserve(self.address("t"))
        with pytest.raises(AlreadyExistsError):
            self.catalog.restore(self.address("t"))
        self.catalog.remove(self.address("t"))
        assert self.catalog.restore(self.address("t")).uri == uris[1]

    def test_a_renamed_table_stays_where_it_is(self) -> None:
        entry = self.catalog.reserve(self.address("a"))
        self.catalog.reserve(self.address("b"))
        with pytest.raises(AlreadyExistsError):
            self.catalog.rename(self.address("a"), self.address("b"))
        assert self.catalog.rename(self.address("a"), self.address("c")).uri == entry.uri
        assert self.names() == ["b", "c"]
        assert self.catalog.reserve(self.address("a")).uri != entry.uri

    def test_an_existing_table_is_registered(self) -> None:
        entry = self.catalog.register(self.address("t"), self.location, table_id="id")
        assert (entry.uri, entry.table_id) == (str(self.location), "id")
        assert self.catalog.register(self.address("t"), self.location).uri == entry.uri
        with pytest.raises(AlreadyExistsError):
            self.catalog.register(self.address("t"), self.location.with_name("other"))
        assert self.catalog.find(self.address("t")).uri == str(self.location)

    def test_a_removed_table_is_gone(self) -> None:
        entry = self.catalog.reserve(self.address("t"))
        assert self.catalog.remove(self.address("t")).uri == entry.uri
        assert (self.names(), self.names(dropped=True)) == ([], [])
        with pytest.raises(NotFoundError):
            self.catalog.restore(self.address("t"))
