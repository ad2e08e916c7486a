"""A create or a delete that fails never touches another table that has the name by now, in both catalogs."""

import pytest

import penstock
from penstock.catalog import TableAddress, TableCatalog, open_catalog
from penstock.dataset import _locations
from penstock.dataset._locations import ManagedTable, open_entry, reserved_location
from penstock.dataset._purge import delete_managed
from penstock.errors import ConflictError
from penstock.storage import Store
from tests.server.running import RunningServer

Named = tuple[TableCatalog, TableAddress]


@pytest.fixture(params=["embedded", "server"])
def named(request: pytest.FixtureRequest) -> Named:
    """A catalog, and an address that is free."""
    name = "home" if request.param == "embedded" else "workspace"
    found = request.getfixturevalue(name)
    return open_catalog(), TableAddress("org" if request.param == "embedded" else found, "t")


def test_a_failed_create_does_not_forget_the_table_of_another_process(named: Named) -> None:
    catalog, address = named
    with pytest.raises(ZeroDivisionError), reserved_location(str(address), None):  # noqa: PT012
        catalog.rename(address, TableAddress(address.workspace, "old"))
        penstock.create(str(address), {"x": int})
        raise ZeroDivisionError
    assert penstock.exists(str(address))


def test_a_failed_create_frees_the_name(named: Named) -> None:
    catalog, address = named
    with pytest.raises(ZeroDivisionError), reserved_location(str(address), None):
        raise ZeroDivisionError
    assert catalog.tables(address.workspace) == []


def test_a_table_whose_reservation_was_freed_meanwhile_gets_it_back(named: Named) -> None:
    catalog, address = named
    with pytest.raises(ZeroDivisionError), reserved_location(str(address), None):  # noqa: PT012
        other = reserved_location(str(address), None)
        store = other.__enter__()
        raise ZeroDivisionError
    assert not penstock.exists(str(address))
    penstock.create(store, {"x": int})
    other.__exit__(None, None, None)
    assert penstock.load(str(address)).uri == store.uri
    assert [entry.address for entry in catalog.tables(address.workspace)] == [address]


def test_a_table_that_is_made_while_a_failed_create_frees_its_name_keeps_it(
    named: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, address = named
    real = _locations.has_table
    calls: list[Store] = []

    def has_table(store: Store) -> bool:
        found = real(store)
        if not calls:  # between this look and the removal of the entry, another process creates the table
            calls.append(store)
            penstock.create(store, {"x": int})
        return found

    with pytest.raises(ZeroDivisionError), reserved_location(str(address), None):  # noqa: PT012
        monkeypatch.setattr(_locations, "has_table", has_table)
        raise ZeroDivisionError
    assert penstock.exists(str(address))


def test_a_table_whose_name_was_given_to_another_is_deleted_again(named: Named) -> None:
    catalog, address = named
    with pytest.raises(ConflictError, match="was deleted again"), reserved_location(str(address), None) as store:  # noqa: PT012
        catalog.drop(address)
        other = penstock.create(str(address), {"y": int})
        penstock.create(store, {"x": int})
    assert not penstock.exists(store)
    assert penstock.load(str(address)).uri == other.uri


def test_a_table_that_is_renamed_while_it_is_created_keeps_its_new_name(named: Named) -> None:
    catalog, address = named
    new = TableAddress(address.workspace, "new")
    with reserved_location(str(address), None) as store:
        catalog.rename(address, new)
        penstock.create(store, {"x": int})
    assert [entry.address for entry in catalog.tables(address.workspace)] == [new]
    assert penstock.exists(str(new))


def test_a_delete_does_not_drop_another_table_of_that_name(named: Named) -> None:
    catalog, address = named
    penstock.create(str(address), {"x": int})
    entry = ManagedTable(catalog, address).find()
    catalog.rename(address, TableAddress(address.workspace, "old"))
    penstock.create(str(address), {"y": int})
    with pytest.raises(ConflictError, match="another table by now"):
        delete_managed(catalog, entry, open_entry(entry, None))
    assert penstock.load(str(address)).schema.names == ["y"]
    assert catalog.tables(address.workspace, dropped=True) == []


def test_a_location_is_registered_in_one_workspace_and_never_where_new_tables_are(
    server: RunningServer, workspace: str
) -> None:
    def register(table: str, location: str) -> int:
        return server.request(
            "POST", f"/v1/table/{table}/register", {"location": location}, key=server.admin_key
        ).status

    managed = penstock.create(f"penstock://{workspace}/t", {"x": int}).uri
    for location in (managed, f"file://{managed}", f"{managed}/data"):
        assert register("default$stolen", location) == 403
    elsewhere = str(server.folder / "elsewhere" / workspace)
    assert register("default$one", elsewhere) == 200
    assert register(f"{workspace}$two", f"file://{elsewhere}") == 409
    assert register(f"{workspace}$two", f"{elsewhere}/inner") == 409
    assert register(f"{workspace}$two", f"file://{elsewhere}/%2e%2e/other") == 403
    server.post("/v1/table/default$one/deregister")
    assert register(f"{workspace}$two", f"file://{elsewhere}") == 200
