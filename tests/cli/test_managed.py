"""Commands that talk to a server: login, tables, keys, members, and addresses of its tables."""

import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from tests.cli.conftest import RunCommand
from tests.server.running import RunningServer, running

ADDRESS = "penstock://default/t"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("server")
    storage = ("--database", str(folder / "database"), "--storage", str(folder / "tables"))
    with running(folder, *storage, "--rate-limit", "1000000") as started:
        yield started


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("API_KEY", "API_URL", "WORKSPACE", "STORAGE"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def log_in(run: RunCommand, server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The server's admin is logged in."""
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{server.admin_key}\n"))
    assert run("login", "--url", server.url).code == 0
    return server.admin_key


def test_a_login_is_checked_stored_and_deleted(
    run: RunCommand, server: RunningServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = server.new_key("default", "anna", "writer")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{key}\n"))
    result = run("login", "--url", server.url, "--json")
    assert (result.code, result.err) == (0, "")
    assert result.document == {
        "url": server.url, "member": "anna", "role": "writer", "workspace": "default", "file": str(home / "login.json"),
    }  # fmt: skip
    assert stat.S_IMODE((home / "login.json").stat().st_mode) == 0o600
    assert penstock.Client().workspace == "default"
    run("create", ADDRESS)
    assert [entry["address"] for entry in run("ls", "--json").document["tables"]] == [ADDRESS]
    assert run("keys", "list").code == 1  # a writer
    assert "needs the role admin" in run("members", "list").err
    assert str(home / "login.json") in run("logout").out
    assert run("logout").out == "There is no stored API key.\n"
    assert run("ls").out == "no tables yet\n"  # of the embedded catalog
    penstock.Client(api_key=key, api_url=server.url).drop_table("t")


def test_a_key_that_is_refused_is_not_stored(
    run: RunCommand, server: RunningServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = server.new_key("default", "rita", "reader")
    server.post(f"/v1/namespace/default/key/{key.split('_')[1]}/revoke")
    for text, code, message in (
        (key, 1, "the input of `penstock login`"),
        (key[:-1], 2, "incomplete"),
        ("", 2, "no API key was given"),
    ):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        result = run("login", "--url", server.url)
        assert (result.code, result.out) == (code, "")
        assert message in result.err
        assert not text or text not in result.err
    assert not (home / "login.json").exists()
    result = run("login", "--key", key)
    assert result.code == 2
    assert key not in result.err
    monkeypatch.setattr("sys.stdin", io.StringIO(server.new_key("default", "rita", "reader")))
    assert "this key is of the workspace 'default'" in run("login", "--url", server.url, "--workspace", "lab").err


def test_a_terminal_does_not_echo_the_key(
    run: RunCommand, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("getpass.getpass", lambda _: server.admin_key)
    monkeypatch.setenv("PENSTOCK_API_URL", server.url)
    result = run("login")
    assert (result.code, result.err) == (0, "")
    assert "PENSTOCK_API_URL takes precedence" in result.out
    assert server.admin_key not in result.out


def test_members_and_keys_are_managed(run: RunCommand, log_in: str, server: RunningServer) -> None:
    assert run("members", "set", "bob@example.org", "reader").code == 0
    assert {"member": "bob@example.org", "role": "reader"} in run("members", "list", "--json").document["members"]
    assert "bob@example.org" in run("members", "list").out
    assert "there are reader, writer and admin" in run("members", "set", "bob@example.org", "owner").err
    made = run("keys", "create", "bob@example.org", "--expires", "90d", "--note", "laptop", "--json").document
    assert made["note"] == "laptop"
    assert made["expires_at_millis"] - made["created_at_millis"] == 90 * 86_400_000
    assert penstock.Client(api_key=made["key"], api_url=server.url).list_tables() is not None
    shown = run("keys", "create", "bob@example.org").out
    assert "shown only now" in shown
    assert "laptop" in run("keys", "list").out
    listed = run("keys", "list", "--json").out
    assert made["key_id"] in listed
    assert made["key"] not in listed
    assert run("keys", "revoke", made["key_id"]).code == 0
    assert run("members", "remove", "bob@example.org").code == 0
    assert "bob@example.org" not in run("members", "list").out
    assert "no key" in run("keys", "revoke", "0" * 12).err
    assert run("members", "list", "--workspace", "lab").code == 1


def test_workspaces_are_created_and_dropped_by_the_admin_of_the_server(
    run: RunCommand, log_in: str, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_API_URL", server.url)
    monkeypatch.setenv("PENSTOCK_API_KEY", server.admin_key)
    assert run("workspaces", "create", "arms").code == 0
    assert "arms" in run("workspaces", "list", "--json").document["workspaces"]
    assert run("members", "set", "bob", "admin", "--workspace", "arms").code == 0
    monkeypatch.setenv("PENSTOCK_API_KEY", server.new_key("arms", "bob", "admin"))
    assert "admin" in run("workspaces", "create", "legs").err
    monkeypatch.setenv("PENSTOCK_API_KEY", server.admin_key)
    assert run("workspaces", "drop", "arms").code == 0
    assert "arms" not in run("workspaces", "list").out


def test_the_embedded_catalog_has_no_members(run: RunCommand) -> None:
    for words in (["members", "list"], ["keys", "list"], ["keys", "create", "bob"]):
        result = run(*words)
        assert (result.code, result.out) == (2, "")
        assert "penstock login" in result.err


def test_addresses_are_those_of_the_server(run: RunCommand, log_in: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    assert run("create", ADDRESS, f"from-{tmp_path / 'a.jsonl'}").code == 0
    assert run("info", ADDRESS, "--json").document["rows"] == 1
    assert run("branch", ADDRESS, "new").code == 0
    assert run("tag", ADDRESS, "v1").code == 0
    doctor = run("doctor", ADDRESS, "--json")
    assert doctor.document["ok"]
    assert [entry["address"] for entry in run("ls", "--json").document["tables"]] == [ADDRESS]
    assert run("mv", ADDRESS, "penstock://default/u").code == 0
    assert "did you mean penstock://default/u?" in run("info", "penstock://default/uu").err
    assert "penstock.delete" in run("rm", "penstock://default/u", "--now").err
    assert run("rm", "penstock://default/u").code == 0
    assert "penstock://default/u" in run("ls", "--dropped").out
    assert run("restore", "penstock://default/u").code == 0
    assert run("ls").out.splitlines()[-1].split()[0] == "penstock://default/u"
    assert os.listdir(tmp_path / "home") == ["login.json"]
    penstock.delete("penstock://default/u")
