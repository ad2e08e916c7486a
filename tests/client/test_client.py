"""The client on the embedded catalog and on a server: the same calls, the same results."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from torch.utils.data import DataLoader

import penstock
from penstock import Client
from penstock.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from tests.server.running import RunningServer


@pytest.fixture(params=["embedded", "server"])
def client(request: pytest.FixtureRequest) -> Client:
    request.getfixturevalue("home" if request.param == "embedded" else "workspace")
    return Client()


def test_the_calls_of_the_mission(client: Client) -> None:
    client.ingest("robot_telemetry", {"joint_angles": [[float(i), 0.5] for i in range(200)], "step": range(200)})
    ds = client.open_table("robot_telemetry")
    assert type(ds) is penstock.Dataset
    loader = DataLoader(ds.pytorch(), batch_size=64, shuffle=True, num_workers=2)
    seen = [int(step) for batch in loader for step in batch["step"]]
    assert sorted(seen) == list(range(200))
    assert seen != list(range(200))


def test_a_table_is_created_opened_and_named(client: Client) -> None:
    ds = client.create_table("numbers", {"x": int}, message="first")
    with pytest.raises(AlreadyExistsError):
        client.create_table("numbers", {"x": int})
    ds.append({"x": [1, 2, 3]})
    ds.commit("rows")
    ds.tags.create("v1")
    ds.append({"x": [4]})
    ds.commit()
    address = f"penstock://{client.workspace}/numbers"
    assert ds.address == address
    assert repr(ds).startswith(f"Dataset({address!r}, main@2, 4 rows")
    assert len(client.open_table("numbers", version=1)) == 3
    assert len(client.open_table("numbers", tag="v1")) == 3
    assert len(client.open_table(f"{client.workspace}/numbers", branch="main")) == 4
    assert len(client.open_table(address, as_of="2200-01-01")) == 4
    assert client.open_table("numbers", access="read")["x"][:].tolist() == [1, 2, 3, 4]
    assert len(penstock.load(address)) == 4  # the configured catalog is the client's
    ds.where("x > 2").save_view("large")
    assert client.open_table("numbers", view="large")["x"][:].tolist() == [3, 4]
    with pytest.raises(InvalidInputError, match="version of its own"):
        client.open_table("numbers", view="large", version=1)  # type: ignore[call-overload]


def test_tables_are_listed_described_dropped_restored_and_renamed(client: Client) -> None:
    client.ingest("b", {"x": [1, 2]})
    client.create_table("a")
    assert [info.name for info in client.list_tables()] == ["a", "b"]
    info = client.describe_table("b")
    assert (info.rows, info.version, info.schema and info.schema.names) == (2, "main@1", ["x"])
    assert info.address == f"penstock://{client.workspace}/b"
    assert penstock.exists(info.uri)
    dropped = client.drop_table("b")
    assert dropped.restorable_until is not None
    assert dropped.dropped is not None
    assert dropped.restorable_until > dropped.dropped > info.created
    assert [info.name for info in client.list_tables()] == ["a"]
    assert [info.name for info in client.list_tables(dropped=True)] == ["b"]
    with pytest.raises(NotFoundError, match="was dropped; bring it back with `penstock restore"):
        client.open_table("b")
    client.restore_table("b")
    with pytest.raises(AlreadyExistsError):
        client.rename_table("b", "a")
    assert client.rename_table("b", "c").uri == info.uri
    assert client.open_table("c")["x"][:].tolist() == [1, 2]
    assert client.workspace in client.workspaces()


def test_an_unknown_table_suggests_others(client: Client) -> None:
    client.create_table("robot_telemetry")
    calls = (client.open_table, client.describe_table, client.drop_table, lambda name: client.query(f"FROM {name}"))
    for call in calls:
        with pytest.raises(NotFoundError, match=rf"did you mean penstock://{client.workspace}/robot_telemetry\?"):
            call("robot_telemetri")
    with pytest.raises(NotFoundError):
        client.restore_table("robot_telemetri")
    with pytest.raises(InvalidInputError, match="lower case"):
        client.open_table("Robot")


def test_sql_names_tables(client: Client) -> None:
    client.ingest("robot-telemetry", {"episode": [1, 2, 2], "x": [1.0, 2.0, 3.0]})
    client.ingest("labels", {"episode": [1, 2], "label": ["grasp", "push"]})
    client.ingest("params", {"episode": [2]})  # the name of a parameter of penstock.sql
    answer = client.query(
        'WITH best AS (SELECT episode FROM params) SELECT x, label FROM "robot-telemetry" r JOIN Labels USING (episode)'
        " WHERE episode IN (FROM best) AND x > ? ORDER BY x",
        [2.5],
    )
    assert answer.to_arrow().to_pylist() == [{"x": 3.0, "label": "push"}]
    assert client.query(f'SELECT count(*) AS n FROM "{client.workspace}/labels"').to_arrow()["n"].to_pylist() == [2]
    assert len(client.query("SELECT 1 AS one", timeout_s=60)) == 1
    with pytest.raises(InvalidInputError, match="parsed"):
        client.query("SELEC")


def test_rows_files_and_sources_are_ingested(client: Client, tmp_path: Path) -> None:
    first = client.ingest("t", pa.table({"x": [1, 2]}), message="arrow")
    assert (first.rows, first.version, first.kind) == (2, "main@1", "rows")
    assert first.written_bytes > 0
    paths = []
    for number in (3, 4):
        paths.append(tmp_path / f"{number}.jsonl")
        paths[-1].write_text(f'{{"x": {number}}}\n')
    result = client.ingest("t", files=paths)
    assert (result.rows, result.files.taken, result.version) == (2, 2, "main@3")
    assert client.ingest("t", files=paths).rows == 0  # they are in the table
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"x": 5}\n')
    assert client.ingest("t", source=folder, num_workers=1).rows == 1
    assert client.ingest("new", source=folder, message="made").version == "main@1"
    assert client.open_table("t")["x"][:].tolist() == [1, 2, 3, 4, 5]
    wrong: list[dict[str, Any]] = [
        {}, {"data": {"x": [1]}, "source": folder}, {"files": []}, {"data": {"x": [1]}, "kind": "images"},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(InvalidInputError):
            client.ingest("t", **options)


def test_a_failed_ingest_of_a_source_leaves_the_name_free(client: Client, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError):
        client.ingest("t", source=tmp_path / "empty")
    assert client.list_tables() == []


def test_delete_removes_the_objects_and_the_name(client: Client) -> None:
    client.ingest("t", {"x": [1]})
    info = client.describe_table("t")
    penstock.delete(info.address)
    assert client.list_tables() == []
    assert not penstock.exists(info.uri)
    assert not [name for _, _, names in os.walk(info.uri) for name in names]
    client.ingest("t", {"y": [1]})
    assert client.open_table("t").schema.names == ["y"]


def test_existing_tables_are_registered(home: Path) -> None:
    penstock.create(home / "somewhere", {"x": int})
    client = Client(workspace="org")
    client.register_table("t", home / "somewhere")
    assert client.open_table("t").schema.names == ["x"]
    assert Client().list_tables() == []
    assert Client().open_table("org/t").schema.names == ["x"]


def test_the_admin_of_a_server_registers_tables(server: RunningServer, workspace: str) -> None:
    location = server.folder / "elsewhere" / "t"
    penstock.create(location, {"x": int})
    admin = Client(api_key=server.admin_key)
    admin.register_table("t", location)
    assert Client().open_table("t").schema.names == ["x"]
    with pytest.raises(AccessDeniedError, match="--location"):
        admin.register_table("u", server.folder / "secret")
    with pytest.raises(AccessDeniedError, match="only the server's admin"):
        Client().register_table("u", location)


def test_errors_say_what_to_do(server: RunningServer, workspace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Client().create_table("t", {"x": int})
    reader = Client(api_key=server.new_key(workspace, "rita", "reader"))
    assert len(reader.open_table("t")) == 0
    for call in (
        lambda: reader.create_table("u"),
        lambda: reader.drop_table("t"),
        lambda: reader.rename_table("t", "u"),
    ):
        with pytest.raises(AccessDeniedError, match=r"needs the role writer, and rita is a reader.*request \w+"):
            call()
    with pytest.raises(AccessDeniedError, match=r"no rights in elsewhere.*PENSTOCK_WORKSPACE"):
        Client(workspace="elsewhere").open_table("t")
    key = os.environ["PENSTOCK_API_KEY"]
    wrong = key[:20] + ("a" if key[20] != "a" else "b") + key[21:]
    monkeypatch.setenv("PENSTOCK_API_KEY", wrong)
    with pytest.raises(InvalidInputError, match="PENSTOCK_API_KEY: the checksum"):
        Client()
    monkeypatch.delenv("PENSTOCK_API_KEY")
    with pytest.raises(AccessDeniedError, match=r"PENSTOCK_API_URL names the server .*penstock keys create"):
        Client()
    with pytest.raises(AccessDeniedError, match="PENSTOCK_API_URL names the server"):
        penstock.load(f"penstock://{workspace}/t")


def test_a_revoked_key_is_refused(server: RunningServer, workspace: str) -> None:
    key = server.new_key(workspace, "rita", "reader")
    server.post(f"/v1/namespace/{workspace}/key/{key.split('_')[1]}/revoke")
    with pytest.raises(
        AccessDeniedError, match=r"expired or revoked.*from the argument api_key.*penstock login"
    ) as error:
        Client(api_key=key).list_tables()
    assert key not in str(error.value)


def test_a_server_that_is_away(home: Path, server: RunningServer) -> None:
    client = Client(api_key=server.admin_key, api_url="http://127.0.0.1:1")
    with pytest.raises(
        StorageError, match=r"127.0.0.1:1 \(from the argument api_url\) does not answer.*penstock serve"
    ):
        client.open_table("t")
    assert server.admin_key not in repr(client)


def test_importing_penstock_imports_neither_http_nor_the_server() -> None:
    heavy = ("http.client", "urllib.request", "sqlalchemy", "starlette", "uvicorn", "pydantic", "duckdb")
    program = f"import sys, penstock; print(*(name for name in {heavy} if name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "\n"
