"""Every command accepts a `penstock://workspace/table` address."""

from pathlib import Path

import pytest

import penstock
from penstock.cli._app import app
from tests.cli.conftest import RunCommand

ADDRESS = "penstock://org/table"
COMMANDS: list[list[str]] = [
    ["create", "penstock://org/new"],
    ["create", "penstock://org/new", "from-{source}"],
    ["create", ADDRESS, "from-{source}"],
    ["sync", ADDRESS],
    ["info", ADDRESS],
    ["head", ADDRESS],
    ["query", ADDRESS, "SELECT count(*) FROM ds"],
    ["search", ADDRESS, "--text", "red"],
    ["index", "create", ADDRESS, "words", "--kind", "text"],
    ["index", "list", ADDRESS],
    ["index", "drop", ADDRESS, "x_scalar"],
    ["log", ADDRESS],
    ["diff", ADDRESS, "0"],
    ["checkout", ADDRESS, "1"],
    ["branch", ADDRESS],
    ["branch", ADDRESS, "new"],
    ["branch", ADDRESS, "--rename", "other", "new"],
    ["branch", ADDRESS, "--delete", "other"],
    ["tag", ADDRESS],
    ["tag", ADDRESS, "new"],
    ["tag", ADDRESS, "--rename", "v1", "new"],
    ["tag", ADDRESS, "--delete", "v1"],
    ["merge", ADDRESS, "other"],
    ["reset", ADDRESS, "0"],
    ["compact", ADDRESS],
    ["vacuum", ADDRESS],
    ["verify", ADDRESS],
    ["doctor", ADDRESS],
]


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
    return source


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_accepts_an_address(run: RunCommand, source: Path, words: list[str]) -> None:
    result = run(*(word.replace("{source}", str(source)) for word in words))
    assert (result.code, result.err) == (0, "")


def test_every_command_is_tested() -> None:
    assert {words[0] for words in COMMANDS} == {
        command.name for command in (*app.registered_commands, *app.registered_groups)
    }


@pytest.mark.parametrize("command", ["info", "branch", "tag", "doctor", "verify", "index list"])
def test_an_unknown_address_fails(run: RunCommand, source: Path, command: str) -> None:
    result = run(*command.split(), "penstock://org/tabel")
    assert (result.code, result.out) == (1, "")
    assert "penstock://org/table" in result.err  # the closest name
