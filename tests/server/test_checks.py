"""`penstock serve check` and `/health?deep=1` find what does not work, on a store with a real token service."""

import json
from pathlib import Path

import pytest

from penstock import Client
from penstock.cli import main
from penstock.errors import StorageError
from tests.server.running import running
from tests.servers import moto_bucket, s3_options, sts_server


def options(settings: dict[str, str]) -> list[str]:
    return [part for name, value in settings.items() for part in ("--option", f"{name}={value}")]


def on_seaweedfs(*, role: str = "", bucket: str = "", **changes: str) -> list[str]:
    server = sts_server()
    storage = ["--storage", f"s3://{bucket or server.bucket}/checked", "--role-arn", role or server.role_arn]
    return [*storage, *options(server.options | changes)]


def failed(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> dict[str, str]:
    """The reasons of the checks that fail."""
    code = main(["serve", "check", "--json", "--database", str(folder / "database"), *arguments])
    found = json.loads(capsys.readouterr().out)
    reasons = {each["name"]: each["detail"] for each in found["checks"] if not each["ok"]}
    assert (code, found["ok"]) == ((1, False) if reasons else (0, True))
    return reasons


def test_what_works_is_said_to_work_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    assert failed(capsys, tmp_path, "--storage", str(folder)) == {}
    assert list(tmp_path.iterdir()) == [folder]
    assert list(folder.iterdir()) == []
    assert failed(capsys, tmp_path, *on_seaweedfs()) == {}


def test_each_thing_that_does_not_work_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = failed(capsys, tmp_path, *on_seaweedfs(bucket="no-such-bucket"))
    assert set(missing) == {"storage"}
    other_role = failed(capsys, tmp_path, *on_seaweedfs(role="arn:aws:iam::role/other"))
    assert "arn:aws:iam::role/other" in other_role.pop("credentials")
    assert other_role == {}
    assert set(failed(capsys, tmp_path, *on_seaweedfs(secret_access_key="wrong"))) == {"storage", "credentials"}
    (tmp_path / "database").mkdir()
    (tmp_path / "database" / "registry.db").write_bytes(b"x" * 5000)
    assert set(failed(capsys, tmp_path, "--storage", str(tmp_path / "tables"))) == {"database"}


def test_a_store_that_ignores_the_policy_of_a_reader_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = s3_options(moto_bucket("bucket"))
    arguments = ["--storage", "s3://bucket/checked", "--role-arn", "arn:aws:iam::123456789012:role/lake"]
    assert "issued to read" in failed(capsys, tmp_path, *arguments, *options(settings))["credentials"]


def test_a_role_that_cannot_be_assumed_is_no_reason_to_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_WORKSPACE", raising=False)
    with running(tmp_path, *on_seaweedfs(role="arn:aws:iam::role/other")) as server:
        server.post("/v1/table/tides/declare", {"vend_credentials": False})
        reply = server.request("POST", "/v1/table/tides/describe", {}, key=server.admin_key)
        assert (reply.status, reply.document["code"]) == (500, 18)
        assert "misconfigured" in reply.document["error"]
        assert "retry-after" not in reply.headers
        assert b"arn:" not in reply.body
        client = Client(api_key=server.admin_key, api_url=server.url)
        with pytest.raises(StorageError, match=r"misconfigured.*`penstock serve check`") as caught:
            client.open_table("tides")
        assert "; retry" not in str(caught.value)
        assert server.request("GET", "/health").status == 200
        deep = server.request("GET", "/health?deep=1")
        assert (deep.status, deep.document["code"]) == (503, 17)
        assert b"arn:" not in deep.body
        [line] = [line for line in server.log_lines() if line["event"] == "check failed"]
        assert line["check"] == "credentials"
        assert "arn:aws:iam::role/other" in line["reason"]
