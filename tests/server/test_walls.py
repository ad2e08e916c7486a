"""Every operation of the OpenAPI page, with keys that must not work."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.server.running import Reply, RunningServer

OPEN = {"/health", "/openapi.json", "/docs"}
ABOVE_READER = {
    "declare_table", "register_table", "deregister_table", "drop_table", "undrop_table", "rename_table",
    "create_namespace", "drop_namespace", "list_audit", "list_members", "set_member", "remove_member", "list_keys",
    "create_key", "revoke_key", "metrics",
}  # fmt: skip
BODIES = {
    "register_table": {"location": "/elsewhere/table"},
    "rename_table": {"new_table_name": "other"},
    "set_member": {"role": "admin"},
    "create_key": {"member": "alice"},
}


@dataclass(frozen=True)
class Tenants:
    """Two workspaces with a table each, and keys."""

    server: RunningServer
    writer: str
    stranger: str
    """An admin of the other workspace."""
    reader: str
    expired: str
    revoked: str


@pytest.fixture(scope="module")
def tenants(server: RunningServer) -> Tenants:
    for workspace in ("red", "blue"):
        server.post(f"/v1/namespace/{workspace}/create")
    writer = server.new_key("red", "alice", "writer")
    server.post("/v1/table/red$tides/declare", key=writer)
    stranger = server.new_key("blue", "eve", "admin")
    server.post("/v1/table/blue$tides/declare", key=stranger)
    reader = server.new_key("red", "rita", "reader")
    expired = server.new_key("red", "otto", "admin", expires_in_s=1)
    revoked = server.new_key("red", "ruth", "admin")
    server.post(f"/v1/namespace/red/key/{key_id(revoked)}/revoke")
    time.sleep(5)  # longer than the lifetime of the expired key, and than a server may know a revoked one
    return Tenants(server, writer, stranger, reader, expired, revoked)


def key_id(key: str) -> str:
    return key.split("_")[1]


def operations(server: RunningServer) -> Iterator[tuple[str, str, dict[str, Any]]]:
    document = json.loads(server.request("GET", "/openapi.json").body)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def call(tenants: Tenants, method: str, path: str, operation: dict[str, Any], key: str | None) -> Reply:
    """The operation on what belongs to the workspace red."""
    filled = path.replace("{member}", "alice").replace("{key_id}", key_id(tenants.writer))
    filled = filled.replace("{id}", "red$tides" if path.startswith("/v1/table/") else "red")
    body = BODIES.get(operation["operationId"], {}) if method == "POST" else None
    return tenants.server.request(method, filled, body, key=key)


def state(tenants: Tenants) -> Any:
    """Everything that a caller can change, as the server's admin sees it, without times of last use."""
    found: dict[str, Any] = {"workspaces": tenants.server.get("/v1/namespace/$/list")}
    for workspace in ("red", "blue", "default"):
        at = f"/v1/namespace/{workspace}"
        keys = tenants.server.get(f"{at}/key/list")["keys"]
        found[workspace] = [
            tenants.server.get(f"{at}/table/list?details=true"),
            tenants.server.get(f"{at}/table/list?details=true&dropped=true"),
            tenants.server.get(f"{at}/member/list"),
            [{name: value for name, value in key.items() if name != "last_used_at_millis"} for key in keys],
        ]
    return found


@pytest.mark.parametrize("who", ["nobody", "garbage", "stranger", "reader", "expired", "revoked"])
def test_no_operation_works_with_a_key_that_has_no_right_to_it(tenants: Tenants, who: str) -> None:
    forged = tenants.writer[:-8] + "00000000"
    keys = {"nobody": None, "garbage": forged}
    key = keys[who] if who in keys else getattr(tenants, who)
    before, tried = state(tenants), 0
    for method, path, operation in operations(tenants.server):
        name = operation["operationId"]
        if path in OPEN or (who == "reader" and name not in ABOVE_READER):
            continue
        if who == "stranger" and name == "who_am_i":  # about the key itself
            continue
        reply = call(tenants, method, path, operation, key)
        expected = {403} if who in ("stranger", "reader") else {401}
        assert reply.status in expected, f"{method} {path}: {reply.status} {reply.body!r}"
        document = reply.document
        assert document["code"] == (15 if reply.status == 403 else 16)
        assert document["instance"] == reply.headers["x-request-id"]
        assert "storage_options" not in document
        tried += 1
    assert tried >= 15
    assert state(tenants) == before


def test_every_operation_works_with_the_right_key(tenants: Tenants) -> None:
    """Else the refusals above would prove nothing."""
    for method, path, operation in operations(tenants.server):
        if operation["operationId"] in ("drop_namespace", "create_namespace", "register_table", "declare_table"):
            continue  # need another state, and have tests of their own
        if operation["operationId"] in ("drop_table", "deregister_table", "undrop_table", "rename_table"):
            continue
        if operation["operationId"] in ("remove_member", "revoke_key"):
            continue
        reply = call(tenants, method, path, operation, tenants.server.admin_key)
        assert reply.status == 200, f"{method} {path}: {reply.body!r}"


def test_a_foreign_workspace_is_refused_whether_it_exists_or_not(tenants: Tenants) -> None:
    messages = set()
    for workspace in ("red", "nowhere"):
        reply = tenants.server.request("POST", f"/v1/table/{workspace}$tides/describe", {}, key=tenants.stranger)
        assert reply.status == 403
        assert "PENSTOCK_WORKSPACE=blue (or --workspace)" in reply.document["error"]
        messages.add(reply.document["error"].replace(workspace, "…"))
    assert len(messages) == 1


def test_ids_cannot_leave_the_workspace_of_the_key(tenants: Tenants) -> None:
    tricks = ["blue%24tides", "red$blue$tides", "..$blue$tides", "red%2F..%2Fblue$tides", "RED$tides", "$tides", "red$"]
    tricks += ["blue$tides%00", "blue%2524tides", "red$../tides"]
    for trick in tricks:
        reply = tenants.server.request("POST", f"/v1/table/{trick}/describe", {}, key=tenants.reader)
        assert reply.status in (400, 403, 404), trick
        assert b"location" not in reply.body


def test_a_reader_gets_credentials_to_read_only(tenants: Tenants) -> None:
    path = "/v1/table/tides/describe"
    assert tenants.server.request("POST", path, {"access": "write"}, key=tenants.reader).status == 403
    assert tenants.server.request("GET", "/v1/table/tides/credentials?access=write", key=tenants.reader).status == 403
    assert tenants.server.request("POST", path, {"access": "read"}, key=tenants.reader).status == 200
    assert tenants.server.request("POST", path, {"access": "write"}, key=tenants.writer).status == 200


def test_members_revoke_their_own_keys_and_no_others(tenants: Tenants) -> None:
    server = tenants.server
    own = server.post("/v1/namespace/red/key/create", {"member": "rita"})
    other = server.post("/v1/namespace/red/key/create", {"member": "alice"})
    refused = server.request("POST", f"/v1/namespace/red/key/{other['key_id']}/revoke", {}, key=own["key"])
    assert refused.status == 403
    revoked = server.post(f"/v1/namespace/red/key/{own['key_id']}/revoke", key=own["key"])
    assert revoked["revoked_at_millis"] > 0
    deadline = time.monotonic() + 60
    while server.request("GET", "/v1/whoami", key=own["key"]).status != 401:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_keys_of_another_workspace_cannot_be_revoked_through_ones_own(tenants: Tenants) -> None:
    reply = tenants.server.request(
        "POST", f"/v1/namespace/blue/key/{key_id(tenants.writer)}/revoke", {}, key=tenants.stranger
    )
    assert reply.status == 404
    assert tenants.server.request("GET", "/v1/whoami", key=tenants.writer).status == 200


def test_refusals_are_in_the_audit_log_of_the_keys_own_workspace(tenants: Tenants) -> None:
    headers = {"x-request-id": "attempt-by-eve"}
    tenants.server.request("POST", "/v1/table/red$tides/drop", {}, key=tenants.stranger, headers=headers)
    deadline = time.monotonic() + 60
    while True:
        events = tenants.server.get("/v1/namespace/blue/audit/list?limit=500")["events"]
        found = [event for event in events if event["request_id"] == "attempt-by-eve"]
        if found or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    [event] = found
    assert (event["member"], event["operation"], event["target"], event["outcome"]) == (
        "eve",
        "drop_table",
        "red$tides",
        403,
    )
    red = tenants.server.get("/v1/namespace/red/audit/list?limit=500")["events"]
    assert "eve" not in {event["member"] for event in red}


def test_metrics_have_no_ids(tenants: Tenants) -> None:
    text = tenants.server.request("GET", "/metrics", key=tenants.server.admin_key).body.decode()
    assert re.search(
        r'penstock_requests_total\{method="POST",path="/v1/table/\{id\}/describe",status="403"\} [1-9]', text
    )
    assert "tides" not in text
