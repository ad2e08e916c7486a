"""`penstock create` without a source, and the syntax of columns."""

import json
from pathlib import Path

import pytest

import penstock
from tests.cli.conftest import RunCommand


def test_columns_from_options(run: RunCommand, tmp_path: Path) -> None:
    created = run(
        "create", tmp_path / "t", "--column", "photo:image:jpeg:90", "--column", "kind:label=cat,dog?", "-m", "hi"
    )
    assert created.code == 0
    assert "Created" in created.out
    dataset = penstock.load(tmp_path / "t")
    assert dataset.schema.names == ["photo", "kind"]
    assert dataset.schema["kind"].nullable
    assert next(iter(dataset.log())).message == "hi"


def test_without_columns_they_are_inferred_from_the_first_rows(run: RunCommand, tmp_path: Path) -> None:
    assert run("create", tmp_path / "t", "--json").document["columns"] == []
    dataset = penstock.load(tmp_path / "t")
    dataset.append({"x": [1, 2]})
    assert dataset.schema.names == ["x"]


def test_columns_from_a_schema_file(run: RunCommand, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({"x": "float32[3]", "y": {"type": {"kind": "text"}, "nullable": True}}))
    assert run("create", tmp_path / "t", "--schema", file).code == 0
    assert [str(field) for field in penstock.load(tmp_path / "t").schema] == ["x: float32[3]", "y: text?"]


def test_columns_from_the_schema_of_another_table(run: RunCommand, table: Path, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(run("info", table, "--json").out)
    assert run("create", tmp_path / "t", "--schema", file).code == 0
    assert str(penstock.load(tmp_path / "t").schema) == str(penstock.load(table).schema)


@pytest.mark.parametrize("content", ["", "[]", "3", '{"x": 3}', '{"columns": [{}]}', '{"x": {"type": {"kind": "?"}}}'])
def test_invalid_schema_files_are_refused(run: RunCommand, tmp_path: Path, content: str) -> None:
    (tmp_path / "schema.json").write_text(content)
    result = run("create", tmp_path / "t", "--schema", tmp_path / "schema.json")
    assert (result.code, result.out) == (2, "")
    assert len(result.err.splitlines()) == 1
    assert "defect" not in result.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--column", "x"], "name:TYPE"),
        (["--column", "x:nothing"], "column 'x'"),
        (["--column", "x:text", "--column", "x:json"], "two columns"),
        (["--column", "_x:text"], "_"),
        (["--column", "x:text", "--schema", "f.json"], "not with both"),
        (["--schema", "/nothing/f.json"], "/nothing/f.json"),
        (["elsewhere"], "from-"),
    ],
)
def test_wrong_usage_creates_nothing(run: RunCommand, tmp_path: Path, words: list[str], message: str) -> None:
    result = run("create", tmp_path / "t", *words)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert len(result.err.splitlines()) == 1
    assert not (tmp_path / "t").exists()


def test_an_existing_table_is_unchanged(run: RunCommand, table: Path) -> None:
    result = run("create", table)
    assert result.code == 1
    assert "already" in result.err
    assert len(penstock.load(table)) == 3
