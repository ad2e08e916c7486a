"""Every command accepts a `penstock://workspace/table` address, and the commands that manage addresses."""

import re
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import typer

import penstock
from penstock.catalog import Catalog, TableAddress
from penstock.cli._app import app
from penstock.cli._index import index
from penstock.dataset import _purge
from penstock.errors import StorageError
from penstock.history import open_table
from penstock.storage import Store, open_store
from tests.cli.conftest import RunCommand

ADDRESS = "penstock://org/table"
COMMANDS: list[list[str]] = [
    ["create", "penstock://org/new"],
    ["create", "penstock://org/new", "from-{source}"],
    ["create", ADDRESS, "from-{source}"],
    ["sync", ADDRESS],
    ["info", ADDRESS],
    ["info", ADDRESS, "--tag", "v1"],
    ["head", ADDRESS],
    ["head", ADDRESS, "--branch", "other"],
    ["query", ADDRESS, "SELECT count(*) FROM ds"],
    ["query", ADDRESS, "SELECT count(*) FROM ds", "--version", "1"],
    ["search", ADDRESS, "--text", "red"],
    ["index", "create", ADDRESS, "words", "--kind", "text"],
    ["index", "list", ADDRESS],
    ["index", "drop", ADDRESS, "x_scalar"],
    ["log", ADDRESS],
    ["log", ADDRESS, "--branch", "other"],
    ["diff", ADDRESS, "0"],
    ["diff", ADDRESS, "0", "v1"],
    ["checkout", ADDRESS, "1"],
    ["checkout", ADDRESS, "--as-of", "2100-01-01"],
    ["branch", ADDRESS],
    ["branch", ADDRESS, "new"],
    ["branch", ADDRESS, "new", "--at", "v1"],
    ["branch", ADDRESS, "--rename", "other", "new"],
    ["branch", ADDRESS, "--delete", "other"],
    ["tag", ADDRESS],
    ["tag", ADDRESS, "new"],
    ["tag", ADDRESS, "new", "--at", "other"],
    ["tag", ADDRESS, "--rename", "v1", "new"],
    ["tag", ADDRESS, "--delete", "v1"],
    ["merge", ADDRESS, "other"],
    ["reset", ADDRESS, "0"],
    ["ls"],
    ["ls", "org", "--dropped"],
    ["mv", ADDRESS, "penstock://lab/new"],
    ["rm", ADDRESS],
    ["rm", ADDRESS, "--now"],
    ["restore", "penstock://org/dropped"],
    ["register", "penstock://org/new", "{source}/../registered"],
    ["compact", ADDRESS],
    ["vacuum", ADDRESS],
    ["verify", ADDRESS],
    ["doctor", ADDRESS],
]
WITHOUT_ADDRESS = {"login", "logout", "keys", "members", "serve", "workspaces"}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The source of a table at an address, with a branch and a tag."""
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PENSTOCK_STORAGE", raising=False)
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.jsonl").write_text('{"x": 1, "words": "red"}\n{"x": 2, "words": "blue"}\n')
    penstock.ingest(source, ADDRESS)
    dataset = penstock.load(ADDRESS)
    dataset.create_index("x", "scalar")
    dataset.branches.create("other")
    dataset.tags.create("v1")
    penstock.create("penstock://org/dropped", {"x": int})
    Catalog().drop(TableAddress("org", "dropped"))
    penstock.create(tmp_path / "registered", {"x": int})
    return source


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_accepts_an_address(run: RunCommand, source: Path, words: list[str]) -> None:
    result = run(*(word.replace("{source}", str(source)) for word in words))
    assert (result.code, result.err) == (0, "")


def test_every_command_is_tested() -> None:
    commands = set(typer.main.get_group(app).list_commands(None))  # type: ignore[arg-type]
    assert {words[0] for words in COMMANDS} == commands - WITHOUT_ADDRESS
    assert {words[1] for words in COMMANDS if words[0] == "index"} == {
        command.name for command in index.registered_commands
    }


@pytest.mark.parametrize("command", ["info", "branch", "tag", "doctor", "verify", "index list"])
def test_an_unknown_address_fails(run: RunCommand, source: Path, command: str) -> None:
    result = run(*command.split(), "penstock://org/tabel")
    assert (result.code, result.out) == (1, "")
    assert "penstock://org/table" in result.err  # the closest name


@pytest.mark.parametrize(
    "words",
    [
        ["mv", "org/table", "penstock://org/new"],
        ["mv", "penstock://org/table", "org/new"],
        ["rm", "org/table"],
        ["restore", "org/table"],
        ["register", "org/table", "/data"],
    ],
    ids=" ".join,
)
def test_an_address_without_its_scheme_is_refused_with_the_address(
    run: RunCommand, source: Path, words: list[str]
) -> None:
    result = run(*words)
    assert (result.code, result.out) == (2, "")
    assert re.search(r"'org/(table|new)' may be a folder .*; write penstock://org/\1", result.err)
    assert [entry.address.table for entry in Catalog().tables()] == ["table"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rm", "table"], "write penstock://workspace/table"),
        (["rm", "s3://bucket/table"], "write penstock://workspace/table"),
        (["mv", ADDRESS, "penstock://Org/New"], "write penstock://org/new"),
        (["ls", "penstock://org"], "write `penstock ls WORKSPACE`"),
        (
            ["register", "penstock://org/new", ADDRESS],
            "rename the table with `penstock mv penstock://org/table penstock",
        ),
    ],
)
def test_wrong_usage_is_explained(run: RunCommand, source: Path, words: list[str], message: str) -> None:
    result = run(*words)
    assert result.code == 2
    assert message in result.err


def test_ls_lists_addresses_and_locations(run: RunCommand, source: Path) -> None:
    penstock.create("penstock://lab/a", {"x": int})
    lines = run("ls").out.splitlines()
    assert lines[0].split() == ["address", "created", "location"]
    assert [line.split()[0] for line in lines[2:]] == ["penstock://lab/a", ADDRESS]
    assert lines[3].endswith(penstock.load(ADDRESS).uri)
    document = run("ls", "org", "--json").document
    assert document["workspace"] == "org"
    (table,) = document["tables"]
    assert (table["address"], table["uri"]) == (ADDRESS, penstock.load(ADDRESS).uri)
    assert abs(datetime.fromisoformat(table["created"]).timestamp() - time.time()) < 3600
    assert run("ls", "none").out == "no tables in the workspace none yet\n"


def test_a_renamed_table_and_a_new_one_of_its_old_name_keep_their_rows(run: RunCommand, source: Path) -> None:
    assert run("mv", ADDRESS, "penstock://lab/new").code == 0
    new = penstock.create(ADDRESS, {"x": int})
    new.append({"x": [7]})
    new.commit()
    assert penstock.load("penstock://lab/new")["x"][:].tolist() == [1, 2]
    assert penstock.load(ADDRESS)["x"][:].tolist() == [7]
    result = run("mv", ADDRESS, "penstock://lab/new")
    assert (result.code, "rename or drop that table first" in result.err) == (1, True)
    assert run("rm", ADDRESS, "--now").code == 0
    assert penstock.load("penstock://lab/new")["x"][:].tolist() == [1, 2]


def test_a_dropped_table_is_listed_and_restored(run: RunCommand, source: Path) -> None:
    dropped = run("rm", ADDRESS, "--json").document
    assert not penstock.exists(ADDRESS)
    until = datetime.fromisoformat(dropped["restore_until"])
    assert until - datetime.fromisoformat(dropped["dropped"]) == timedelta(days=7)
    assert dropped["deleted"] is False
    listed = run("ls", "--dropped", "--json").document["tables"]
    assert [each["address"] for each in listed] == ["penstock://org/dropped", ADDRESS]
    assert listed[1]["restore_until"] == dropped["restore_until"]
    again = run("rm", ADDRESS)
    assert (again.code, f"`penstock restore {ADDRESS}`" in again.err) == (1, True)
    penstock.create(ADDRESS, {"y": int})
    assert run("restore", ADDRESS).code == 1
    assert run("mv", ADDRESS, "penstock://org/other").code == 0
    assert run("restore", ADDRESS).out.startswith(f"Restored {ADDRESS}; ")
    assert penstock.load(ADDRESS)["x"][:].tolist() == [1, 2]
    line = run("rm", ADDRESS).out
    assert re.fullmatch(rf"Dropped {ADDRESS}; until \S+ \S+, `penstock restore {ADDRESS}` brings it back.\n", line)


def test_rm_now_deletes_the_files(run: RunCommand, source: Path) -> None:
    location = Path(penstock.load(ADDRESS).uri)
    assert run("rm", ADDRESS, "--now").out == f"Deleted {ADDRESS}.\n"
    assert not location.exists()
    assert run("restore", ADDRESS).code == 1


def test_rm_now_of_an_address_without_a_table(run: RunCommand, source: Path) -> None:
    Catalog().reserve(TableAddress("org", "new"))
    assert run("rm", "penstock://org/new", "--now").code == 0
    assert [entry.address.table for entry in Catalog().tables()] == ["table"]


@pytest.mark.parametrize("options", [["--now"], []])
def test_rm_of_a_registered_table_does_not_delete_its_files(
    run: RunCommand, source: Path, tmp_path: Path, options: list[str]
) -> None:
    uri, address = tmp_path / "registered", "penstock://org/new"
    registered = run("register", address, uri, "--json").document
    assert registered["uri"] == str(uri)
    assert registered["table_id"] == open_table(open_store(str(uri))).id
    assert penstock.exists(address)
    result = run("rm", address, *options)
    assert (result.code, f"The files of the table stay in {uri}." in result.out) == (0, True)
    assert not penstock.exists(address)
    assert penstock.exists(uri)


def test_register_needs_a_table(run: RunCommand, source: Path) -> None:
    result = run("register", "penstock://org/new", source)
    assert (result.code, "is not a table" in result.err) == (1, True)
    assert [entry.address.table for entry in Catalog().tables()] == ["table"]


def test_rm_deletes_tables_that_can_no_longer_be_restored(
    run: RunCommand, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = Path(Catalog().tables(dropped=True)[0].uri)
    later = time.time_ns() + 8 * 24 * 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)

    def fail(*_: object, **__: object) -> Store:
        raise StorageError("the store with the password SECRET does not respond")

    with monkeypatch.context() as patch:
        patch.setattr(_purge, "open_store", fail)
        result = run("rm", ADDRESS, "--option", "password=SECRET")
    assert (result.code, "SECRET" in result.out) == (0, False)
    assert re.search(rf"could not be deleted from {location} \(.*\); the next `penstock rm` tries again", result.out)
    assert location.exists()
    assert run("restore", ADDRESS).code == 0
    assert run("rm", ADDRESS).out.count("\n") == 1
    assert not location.exists()
