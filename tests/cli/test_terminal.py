"""Nothing that a table contains is executed by the terminal that shows it: names, values, messages, errors."""

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

import penstock
from penstock.errors import InvalidInputError, NotFoundError, SampleError
from penstock.format import Schema
from penstock.storage import open_store
from tests.cli.conftest import RunCommand
from tests.table import hostile

HOSTILE = "a\x1b]0;title\x07\x1b[31m\x9b2J\r\u202eb\u2066\b\x00[bold]c[/bold] :smile:"
UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def hostile_table(tmp_path: Path) -> Path:
    """A table whose column, branch, tag, author, message, class and values are hostile; older versions allowed it."""
    ds = penstock.create(
        tmp_path / "table", {"text": str, "label": penstock.Label((HOSTILE,)), "json": penstock.Json()}
    )
    ds.append({"text": [HOSTILE], "label": [0], "json": [{HOSTILE: HOSTILE}]})
    ds.commit(HOSTILE)
    ds.update(positions=[0], data={"text": [HOSTILE * 2]})
    ds.commit()
    store = open_store(str(tmp_path / "table"))
    commit, snapshot = hostile.newest(store)
    renamed = [replace(field, name=field.name + HOSTILE) for field in snapshot.schema.fields]
    hostile.forge_snapshot(store, replace(commit, author=HOSTILE), replace(snapshot, schema=Schema(tuple(renamed))))
    folder = quote(HOSTILE, safe="")
    for kind, version in (("branches", None), ("tags", 1)):
        ref = {"branch": commit.branch, "version": version, "write_id": "w"}
        store.put(f"refs/{kind}/{folder}/{0:020}.json", hostile.sealed(ref))
    return tmp_path / "table"


@pytest.mark.parametrize(
    "words",
    [
        ("info",),
        ("head",),
        ("log",),
        ("diff", 1),
        ("diff", 1, 2),
        ("branch",),
        ("tag",),
        ("checkout",),
        ("checkout", "2"),
        ("verify",),
        ("doctor",),
        ("head", "--columns", HOSTILE.replace("\0", "")),
        ("head", "--columns", "missing"),
        ("head", "--columns", "missing", "--debug"),
        ("log", "--tag", "missing"),
        ("log", "--branch", HOSTILE.replace("\0", "")),
        ("info", "--json"),
        ("head", "--json"),
    ],
)
def test_no_command_prints_what_a_terminal_executes(
    run: RunCommand, hostile_table: Path, words: tuple[str, ...]
) -> None:
    result = run(words[0], hostile_table, *words[1:])
    assert UNSAFE.findall(result.out + result.err) == []
    assert (":smile:" in result.out) == ("[bold]c[/bold] :smile:" in result.out)


def test_errors_and_descriptions_show_control_characters_escaped(hostile_table: Path) -> None:
    ds = penstock.load(hostile_table)
    with pytest.raises(NotFoundError) as caught:
        ds["missing"]
    for text in (str(caught.value), repr(ds), str(ds.schema), str(ds.summary()), repr(ds.branches), repr(ds.tags)):
        assert UNSAFE.findall(text) == []
        assert "\\x1b" in text
    assert str(SampleError("two\nlines")) == "two\nlines"


@pytest.mark.parametrize("name", ["a\x1b[31m", "a\nb", "a\rb", "a\u202eb", "a\x00", "a\x9b", "a\u2028b"])
def test_new_names_have_no_control_characters(name: str) -> None:
    ds = penstock.create("memory://", {"x": int})
    with pytest.raises(InvalidInputError, match="printable"):
        penstock.create("memory://", {name: int})
    with pytest.raises(InvalidInputError, match="printable"):
        ds.add_column(name, int, fill=0)
    with pytest.raises(InvalidInputError, match="printable"):
        ds.rename_column("x", name)
    with pytest.raises(InvalidInputError, match="cannot be the name of a branch"):
        ds.branches.create(name)
    with pytest.raises(InvalidInputError, match="cannot be the name of a branch"):
        ds.tags.create(name)
