"""Credentials that fit one table, on a store that enforces it; and no secret in logs, metrics or the audit log."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import penstock
from penstock.errors import StorageError
from penstock.storage import open_store
from tests.server.running import RunningServer, running
from tests.servers import new_database, sts_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose tables are in a bucket."""
    folder, store = tmp_path_factory.mktemp("server"), sts_server()
    options = [word for name, value in store.options.items() for word in ("--option", f"{name}={value}")]
    arguments = ("--storage", f"s3://{store.bucket}/team", "--role-arn", store.role_arn, *options)
    with running(folder, *arguments, PENSTOCK_DATABASE=new_database()) as started:
        yield started


def opened(described: dict[str, Any]) -> dict[str, str]:
    return {name: value for name, value in described["storage_options"].items() if name != "expires_at_millis"}


def test_a_writer_writes_and_a_reader_reads_one_table(server: RunningServer) -> None:
    writer = server.new_key("default", "walt", "writer")
    reader = server.new_key("default", "rita", "reader")
    made = server.post("/v1/table/flow/declare", key=writer)
    other = server.post("/v1/table/other/declare", key=writer)
    dataset = penstock.create(made["location"], {"x": penstock.Tensor("int64")}, storage_options=opened(made))
    dataset.append({"x": [1, 2, 3]})
    dataset.commit("rows")
    described = server.post("/v1/table/flow/describe", key=reader)
    assert int(described["storage_options"]["expires_at_millis"]) > 0
    assert len(penstock.load(described["location"], storage_options=opened(described))) == 3
    store = open_store(described["location"], options=opened(described))
    with pytest.raises(StorageError):
        store.put("x", b"x")
    stranger = open_store(other["location"], options=opened(described))
    with pytest.raises(StorageError):
        list(stranger.list())
    refreshed = server.get("/v1/table/flow/credentials?access=read", key=reader)
    [credentials] = refreshed["storage-credentials"]
    assert credentials["prefix"] == described["location"]
    assert credentials["config"]["s3.session-token"] == refreshed["storage_options"]["aws_session_token"]
    detailed = server.post("/v1/table/flow/describe", {"load_detailed_metadata": True}, key=reader)
    assert detailed["stats"]["num_rows"] == 3


def test_no_secret_is_written_anywhere(server: RunningServer) -> None:
    key = server.new_key("default", "walt", "writer")
    server.post("/v1/table/secretive/declare", key=key)
    described = server.post("/v1/table/secretive/describe", key=key)
    mistakes = [
        ("POST", f"/v1/table/{key}/describe", {"version": key}),
        ("GET", f"/v1/namespace/default/table/list?limit={key}", None),
        ("POST", "/v1/table/secretive/describe", {"version": "x"}),
        ("POST", "/v1/table/missing/describe", {}),
        ("GET", f"/v1/{key}", None),
    ]
    for method, path, body in mistakes:
        assert server.request(method, path, body, key=key).status in (400, 404)
    assert server.request("GET", "/v1/whoami", key=key[:-1] + "x").status == 401
    metrics = server.request("GET", "/metrics", key=server.admin_key).body.decode()
    audit = server.request("GET", "/v1/namespace/default/audit/list?limit=500", key=server.admin_key).body.decode()
    server.stop()  # writes all that is buffered
    log = server.log.read_text()
    password = urlsplit(server.environment["PENSTOCK_DATABASE"]).password
    secrets = [
        key.split("_")[2],
        server.admin_key.split("_")[2],
        f":{password}@",
        sts_server().options["secret_access_key"] + '"',
    ]
    options = described["storage_options"]
    secrets += [options["aws_session_token"], options["aws_secret_access_key"]]
    for secret in secrets:
        assert secret not in log
        assert secret not in metrics
        assert secret not in audit
    lines = [line for line in server.log_lines() if line["event"] == "request"]
    assert {line["path"] for line in lines} >= {"/v1/table/{id}/describe", "unknown", "/v1/namespace/{id}/table/list"}
    assert any(line["key_id"] == key.split("_")[1] and line["workspace"] == "default" for line in lines)
    expected = {
        "time",
        "level",
        "event",
        "request_id",
        "method",
        "path",
        "status",
        "duration_ms",
        "key_id",
        "workspace",
    }
    assert all(set(line) == expected for line in lines)


def test_credentials_are_not_shared_unless_it_is_allowed(tmp_path: Path) -> None:
    store = sts_server()
    options = [word for name, value in store.options.items() for word in ("--option", f"{name}={value}")]
    with running(
        tmp_path, "--storage", f"s3://{store.bucket}/shared", "--allow-shared-credentials", *options
    ) as server:
        made = server.post("/v1/table/flow/declare")
        assert made["storage_options"]["aws_secret_access_key"] == store.options["secret_access_key"]
        assert "expires_at_millis" not in made["storage_options"]
        assert "Warning" in server.log.read_text()
