"""What operations answer."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.server.running import RunningServer, running

DROPPED = ("dropped_at_millis", "purge_at_millis")


@pytest.fixture
def table(server: RunningServer, request: pytest.FixtureRequest) -> str:
    """The name of a new table in the workspace default."""
    name = f"t{abs(hash(request.node.name)) % 10**9}-{time.monotonic_ns()}"
    server.post(f"/v1/table/{name}/declare")
    return name


def test_a_table_lives_and_dies(server: RunningServer, table: str) -> None:
    described = server.post(f"/v1/table/default${table}/describe")
    assert described["table"] == table
    assert described["namespace"] == ["default"]
    assert described["managed_versioning"] is False
    assert Path(described["location"]).is_absolute()
    assert table not in described["location"]
    assert server.post(f"/v1/table/{table}/exists") == {}
    renamed = f"{table}-new"
    assert server.post(f"/v1/table/{table}/rename", {"new_table_name": renamed})["id"] == ["default", renamed]
    assert server.post(f"/v1/table/{renamed}/describe")["location"] == described["location"]
    dropped = server.post(f"/v1/table/{renamed}/drop")
    assert abs(dropped["purge_at_millis"] / 1000 - time.time() - 7 * 86_400) < 3600
    missing = server.request("POST", f"/v1/table/{renamed}/describe", {}, key=server.admin_key)
    assert (missing.status, missing.document["code"]) == (404, 4)
    listed = server.get("/v1/namespace/default/table/list?dropped=true&details=true&limit=500")
    [detail] = [each for each in listed["details"] if each["name"] == renamed]
    assert [detail[name] for name in DROPPED] == [dropped[name] for name in DROPPED]
    assert described["created_at_millis"] <= dropped["dropped_at_millis"] < dropped["purge_at_millis"]
    assert server.post(f"/v1/table/{renamed}/undrop")["location"] == described["location"]
    assert server.post(f"/v1/table/{renamed}/deregister")["location"] == described["location"]
    assert server.request("POST", f"/v1/table/{renamed}/undrop", {}, key=server.admin_key).status == 404


def test_names_are_taken_once(server: RunningServer, table: str) -> None:
    again = server.request("POST", f"/v1/table/{table}/declare", {}, key=server.admin_key)
    assert (again.status, again.document["code"]) == (409, 5)
    other = f"{table}-b"
    server.post(f"/v1/table/{other}/declare")
    taken = server.request("POST", f"/v1/table/{other}/rename", {"new_table_name": table}, key=server.admin_key)
    assert (taken.status, taken.document["code"]) == (409, 5)


def test_a_misspelt_table_is_not_compared_with_all_others(server: RunningServer) -> None:
    """That would take the server's processor from everybody; clients find similar names by themselves."""
    server.post("/v1/table/robot_telemetry/declare")
    reply = server.request("POST", "/v1/table/robot_telemetri/describe", {}, key=server.admin_key)
    assert reply.status == 404
    assert "robot_telemetry" not in reply.document["error"]


def test_the_server_opens_a_table_for_clients_that_cannot(server: RunningServer, table: str) -> None:
    path = f"/v1/table/{table}/describe"
    declared = server.post(path, {"load_detailed_metadata": True})
    assert declared["is_only_declared"] is True
    assert "schema" not in declared
    dataset = penstock.create(declared["location"], {"x": penstock.Tensor("float32", (3,)), "name": penstock.Text()})
    dataset.append({"x": [[1, 2, 3], [4, 5, 6]], "name": ["a", "b"]})
    dataset.commit("rows")
    dataset.delete(positions=[0])
    dataset.commit("one row less")
    dataset.tags.create("first")
    found = server.post(path, {"load_detailed_metadata": True, "with_table_uri": True})
    assert found["version"] == 2
    assert (found["stats"]["num_rows"], found["stats"]["num_deleted_rows"]) == (1, 1)
    assert found["is_only_declared"] is False
    assert found["table_uri"] == f"file://{found['location']}"
    types = {field["name"]: field["type"]["type"] for field in found["schema"]["fields"]}
    assert types["name"] in ("utf8", "large_utf8")
    assert server.post(path, {"load_detailed_metadata": True, "tag": "first"})["version"] == 2
    assert server.post(path, {"load_detailed_metadata": True, "version": 0})["stats"]["num_rows"] == 0
    for missing in ({"version": 99}, {"tag": "no"}, {"branch": "no"}):
        reply = server.request("POST", path, {"load_detailed_metadata": True, **missing}, key=server.admin_key)
        assert (reply.status, reply.document["code"]) == (404, 11), missing
    assert server.post(path, {"check_declared": True})["is_only_declared"] is False
    assert server.post(path, {"tag": "first"})["properties"]["tag"] == "first"


def test_pages_of_tables_are_complete_and_sorted(server: RunningServer) -> None:
    server.post("/v1/namespace/pages/create")
    names = [f"t{number:02}" for number in range(7)]
    for name in reversed(names):
        server.post(f"/v1/table/pages${name}/declare")
    found: list[str] = []
    token = ""
    while True:
        page = server.get(f"/v1/namespace/pages/table/list?limit=3{token}")
        assert len(page["tables"]) <= 3
        found += page["tables"]
        if "page_token" not in page:
            break
        token = f"&page_token={page['page_token']}"
    assert found == names


def test_workspaces_come_and_go(server: RunningServer) -> None:
    server.post("/v1/namespace/brief/create")
    again = server.request("POST", "/v1/namespace/brief/create", {}, key=server.admin_key)
    assert (again.status, again.document["code"]) == (409, 2)
    server.post("/v1/table/brief$one/declare")
    full = server.request("POST", "/v1/namespace/brief/drop", {}, key=server.admin_key)
    assert (full.status, full.document["code"]) == (409, 3)
    assert "brief" in server.get("/v1/namespace/$/list")["namespaces"]
    server.post("/v1/table/brief$one/deregister")
    server.post("/v1/namespace/brief/drop")
    gone = server.request("POST", "/v1/namespace/brief/describe", {}, key=server.admin_key)
    assert (gone.status, gone.document["code"]) == (404, 1)
    unknown = server.request("POST", "/v1/table/brief$one/describe", {}, key=server.admin_key)
    assert (unknown.status, unknown.document["code"]) == (404, 1)


def test_the_root_is_what_each_operation_says(server: RunningServer) -> None:
    server.post("/v1/namespace/rooted/create")
    key = server.new_key("rooted", "rob", "admin")
    server.post("/v1/table/mine/declare", key=key)
    assert server.get("/v1/namespace/$/list", key=key)["namespaces"] == ["rooted"]
    assert server.get("/v1/namespace/%24/table/list", key=key)["tables"] == ["mine"]
    assert server.request("GET", "/v1/namespace/$/key/list", key=key).status == 403
    assert server.get("/v1/namespace/$/key/list")["keys"][0]["key_id"]
    assert server.request("GET", "/v1/namespace/$/member/list", key=server.admin_key).status == 400
    another = server.post("/v1/namespace/$/key/create", {"member": "second"})
    assert server.get("/v1/whoami", key=another["key"])["server_admin"] is True


def test_whose_key_it_is(server: RunningServer) -> None:
    server.post("/v1/namespace/who/create")
    key = server.new_key("who", "wanda@example.org", "writer", note="laptop")
    for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}, {"authorization": f"bearer {key}"}):
        found = server.request("GET", "/v1/whoami", headers=headers).document
        expected = {"member": "wanda@example.org", "workspace": "who", "role": "writer", "server_admin": False}
        assert found == {**expected, "key_id": key.split("_")[1]}
    server.post("/v1/namespace/who/member/wanda@example.org/remove")
    deadline = time.monotonic() + 60
    while server.request("GET", "/v1/whoami", key=key).status != 401:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_credentials_of_a_folder_are_empty(server: RunningServer, table: str) -> None:
    found = server.get(f"/v1/table/{table}/credentials")
    assert found == {"table": table, "access": "write", "storage_options": {}, "storage-credentials": []}
    assert "storage_options" not in server.post(f"/v1/table/{table}/describe", {"vend_credentials": False})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"[]", "the request"),
        (b"{", "the request"),
        (b'{"version": "1"}', "version"),
        (b'{"version": -1}', "version"),
        (b'{"access": "delete"}', "access"),
        (b'{"tag": "a", "version": 1}', "tag"),
        (b'{"vend_credentials": 1}', "vend_credentials"),
    ],
)
def test_wrong_requests_name_the_field(server: RunningServer, table: str, body: bytes, field: str) -> None:
    reply = server.request("POST", f"/v1/table/{table}/describe", body, key=server.admin_key)
    assert (reply.status, reply.document["code"]) == (400, 13)
    assert field in reply.document["error"]


def test_unknown_fields_are_ignored(server: RunningServer, table: str) -> None:
    body = {"id": ["default", table], "identity": {}, "context": {}, "novelty": 1}
    assert server.post(f"/v1/table/{table}/describe", body)["table"] == table
    assert server.request("POST", f"/v1/table/{table}/describe", None, key=server.admin_key).status == 200


def test_limits_of_a_request(server: RunningServer, table: str) -> None:
    path = f"/v1/table/{table}/describe"
    large = server.request("POST", path, b" " * 70_000, key=server.admin_key)
    assert large.status == 413
    text = server.request("POST", path, b"{}", key=server.admin_key, headers={"content-type": "text/plain"})
    assert text.status == 415
    for query in ("limit=0", "limit=501", "limit=x", "limit=1&limit=2", "dropped=yes", "page_token=A", "delimiter=."):
        reply = server.request("GET", f"/v1/namespace/default/table/list?{query}", key=server.admin_key)
        assert (reply.status, reply.document["code"]) == (400, 13), query


def test_every_error_has_one_shape_and_the_id_of_the_request(server: RunningServer) -> None:
    cases: list[tuple[str, str, Any]] = [
        ("GET", "/nothing", None), ("GET", "/v1/table/x/describe", None), ("PUT", "/health", None),
        ("POST", "/v1/table/X/describe", {}), ("POST", "/v1/table/x/describe", b" " * 70_000),
        ("GET", "/metrics", None),
    ]  # fmt: skip
    for method, path, body in cases:
        for given, pattern in (("my-request.1", "my-request.1"), ("bad id\t", None), (None, None)):
            headers = {"x-request-id": given} if given else {}
            reply = server.request(method, path, body, headers=headers)
            document = reply.document
            assert set(document) == {"error", "code", "detail", "instance"}, path
            assert document["instance"] == reply.headers["x-request-id"]
            assert pattern is None or document["instance"] == pattern
            assert given is None or pattern or document["instance"] != given
    wrong_method = server.request("GET", "/v1/table/x/describe")
    assert (wrong_method.status, wrong_method.headers["allow"]) == (405, "POST")


def test_headers_keep_credentials_out_of_caches_and_pages(server: RunningServer) -> None:
    for path in ("/v1/whoami", "/docs", "/health", "/nothing"):
        headers = server.request("GET", path, key=server.admin_key).headers
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert path != "/docs" or "default-src 'none'" in headers["content-security-policy"]
        assert "date" in headers
        assert "server" not in headers


def test_the_page_needs_nothing_else(server: RunningServer) -> None:
    page = server.request("GET", "/docs").body.decode()
    document = json.loads(server.request("GET", "/openapi.json").body)
    assert all(path.replace("{", "{") in page for path in document["paths"])
    assert "<script" not in page
    assert "http" not in page.replace("http, ", "")
    assert len(page) < 100_000


def test_health_is_open_and_metrics_are_not(server: RunningServer) -> None:
    assert server.request("GET", "/health").document["status"] == "ok"
    assert server.request("GET", "/metrics").status == 401
    text = server.request("GET", "/metrics", key=server.admin_key).body.decode()
    assert 'penstock_requests_total{method="GET",path="/health",status="200"}' in text
    assert "penstock_request_seconds_bucket" in text


def test_the_admin_registers_tables_in_allowed_locations_only(server: RunningServer, tmp_path: Path) -> None:
    reply = server.request("POST", "/v1/table/ext/register", {"location": str(tmp_path)}, key=server.admin_key)
    assert (reply.status, reply.document["code"]) == (403, 15)
    assert "--location" in reply.document["error"]


def test_a_table_in_an_allowed_location_is_registered_and_served(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    location = str(shared / "team" / "frames")
    dataset = penstock.create(location, {"x": "int64"})
    dataset.append({"x": [1, 2, 3]})
    dataset.commit("rows")
    with running(tmp_path, "--location", str(shared)) as server:
        admin = server.new_key("default", "ada", "admin")
        refused = server.request("POST", "/v1/table/frames/register", {"location": location}, key=admin)
        assert (refused.status, refused.document["code"]) == (403, 15)
        registered = server.post("/v1/table/frames/register", {"location": location, "properties": {"from": "team"}})
        assert registered["location"] == location
        found = server.post("/v1/table/frames/describe", {"load_detailed_metadata": True}, key=admin)
        assert (found["location"], found["stats"]["num_rows"]) == (location, 3)
        assert found["properties"]["from"] == "team"
        again = server.request("POST", "/v1/table/copy/register", {"location": location}, key=server.admin_key)
        assert (again.status, again.document["code"]) == (409, 5)
        for outside in (f"{shared}-2/frames", f"{shared}/../elsewhere", str(tmp_path)):
            reply = server.request("POST", "/v1/table/other/register", {"location": outside}, key=server.admin_key)
            assert reply.status == 403, outside
        server.post("/v1/table/frames/deregister", key=admin)
    assert len(penstock.load(location)) == 3
