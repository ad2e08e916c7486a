"""The client of the Lance Namespace specification finds what it knows."""

import json
from importlib import import_module
from typing import Any

import pytest

import penstock
from tests.server.running import RunningServer

lance: Any = import_module("lance_namespace_urllib3_client")
errors: Any = import_module("lance_namespace_urllib3_client.exceptions")


def client(server: RunningServer, key: str) -> Any:
    return lance.ApiClient(lance.Configuration(host=server.url, access_token=key))


@pytest.fixture
def tables(server: RunningServer) -> Any:
    return lance.TableApi(client(server, server.admin_key))


@pytest.fixture
def namespaces(server: RunningServer) -> Any:
    return lance.NamespaceApi(client(server, server.admin_key))


def test_a_table_lives_and_dies(tables: Any, namespaces: Any) -> None:
    namespaces.create_namespace("lance", lance.CreateNamespaceRequest(mode="Create"))
    assert "lance" in namespaces.list_namespaces("$").namespaces
    namespaces.namespace_exists("lance", lance.NamespaceExistsRequest())
    assert namespaces.describe_namespace("lance", lance.DescribeNamespaceRequest()).properties == {}
    made = tables.declare_table("lance$tides", lance.DeclareTableRequest(properties={"owner": "ada"}))
    assert made.location
    described = tables.describe_table(
        "lance$tides", lance.DescribeTableRequest(vend_credentials=True, with_table_uri=True)
    )
    assert described.location == made.location
    assert described.properties == {"owner": "ada"}
    assert described.storage_options == {}
    assert described.managed_versioning is False
    penstock.create(made.location, {"x": penstock.Text(), "v": penstock.Embedding(8)})
    detailed = tables.describe_table("lance$tides", lance.DescribeTableRequest(load_detailed_metadata=True))
    assert detailed.stats.num_deleted_rows == 0
    assert [field.name for field in detailed.var_schema.fields] == ["x", "v"]
    tables.table_exists("lance$tides", lance.TableExistsRequest())
    assert tables.list_tables("lance", limit=10, delimiter="$").tables == ["tides"]
    tables.rename_table("lance$tides", lance.RenameTableRequest(new_table_name="ebb", new_namespace_id=["lance"]))
    dropped = tables.drop_table("lance$ebb")
    assert (dropped.id, dropped.location) == (["lance", "ebb"], made.location)
    again = tables.declare_table("lance$ebb", lance.DeclareTableRequest())
    assert again.location != made.location
    assert tables.deregister_table("lance$ebb", lance.DeregisterTableRequest()).location == again.location


def test_errors_have_the_codes_of_the_specification(server: RunningServer, tables: Any, namespaces: Any) -> None:
    name = "codes"
    namespaces.create_namespace(name, lance.CreateNamespaceRequest())
    tables.declare_table(f"{name}$t", lance.DeclareTableRequest())
    stranger = server.new_key(name, "sam", "reader")
    foreign = lance.TableApi(client(server, stranger))
    cases: list[Any] = [
        (errors.NotFoundException, 4, lambda: tables.describe_table(f"{name}$no", lance.DescribeTableRequest())),
        (errors.NotFoundException, 1, lambda: tables.describe_table("nowhere$t", lance.DescribeTableRequest())),
        (errors.NotFoundException, 1, lambda: namespaces.describe_namespace("no", lance.DescribeNamespaceRequest())),
        (errors.ConflictException, 5, lambda: tables.declare_table(f"{name}$t", lance.DeclareTableRequest())),
        (errors.ConflictException, 2, lambda: namespaces.create_namespace(name, lance.CreateNamespaceRequest())),
        (errors.ConflictException, 3, lambda: namespaces.drop_namespace(name, lance.DropNamespaceRequest())),
        (errors.BadRequestException, 13, lambda: tables.describe_table("Not$Valid", lance.DescribeTableRequest())),
        (errors.ForbiddenException, 15, lambda: foreign.describe_table("default$t", lance.DescribeTableRequest())),
        (errors.ForbiddenException, 15, lambda: foreign.drop_table(f"{name}$t")),
        (errors.UnauthorizedException, 16, lambda: lance.TableApi(client(server, "no-key")).drop_table("t")),
    ]  # fmt: skip
    for expected, code, act in cases:
        with pytest.raises(expected) as raised:
            act()
        document = json.loads(raised.value.body)
        assert document["code"] == code
        assert document["instance"] == raised.value.headers["x-request-id"]


def test_a_key_in_the_header_of_the_specification(server: RunningServer) -> None:
    api = lance.NamespaceApi(
        lance.ApiClient(lance.Configuration(host=server.url, api_key={"ApiKeyAuth": server.admin_key}))
    )
    assert "default" in api.list_namespaces("$").namespaces
