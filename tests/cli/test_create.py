"""`penstock create` without a source, and the syntax of columns."""

import json
from pathlib import Path

import pytest

import penstock
from penstock.cli._columns import parse_type
from penstock.errors import InvalidInputError
from penstock.format import Column
from tests.cli.conftest import RunCommand


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("text", Column(penstock.Text())),
        ("text?", Column(penstock.Text(), nullable=True)),
        ("json:zstd", Column(penstock.Json(), codec="zstd")),
        ("float32", Column(penstock.Tensor("float32"))),
        ("float32[3,4]:zstd:3?", Column(penstock.Tensor("float32", (3, 4)), nullable=True, codec="zstd:3")),
        ("uint8[?, 4]", Column(penstock.Tensor("uint8", (None, 4)))),
        ("uint8[?]?", Column(penstock.Tensor("uint8", (None,)), nullable=True)),
        ("datetime64[us]", Column(penstock.Tensor("datetime64[us]"))),
        ("datetime64[us][3]", Column(penstock.Tensor("datetime64[us]", (3,)))),
        ("image", Column(penstock.Image())),
        ("image:jpeg:90", Column(penstock.Image("jpeg:90"))),
        ("image[8,8,3]:webp", Column(penstock.Image("webp", (8, 8, 3)))),
        ("mask", Column(penstock.Mask())),
        ("audio:flac", Column(penstock.Audio("flac"))),
        ("video?", Column(penstock.Video(), nullable=True)),
        ("label", Column(penstock.Label())),
        ("label=cat,dog?", Column(penstock.Label(("cat", "dog")), nullable=True)),
        ("embedding[512]", Column(penstock.Embedding(512))),
        ("boxes=xywh", Column(penstock.Boxes(layout="xywh"))),
        ("points[2]", Column(penstock.Points(shape=(None, 2)))),
        ("list(text)?", Column(penstock.List(penstock.Text()), nullable=True)),
        ("list(list(int8))", Column(penstock.List(penstock.List(penstock.Tensor("int8"))))),
        ("linked(image:jpeg)", Column(penstock.Linked(penstock.Image("jpeg")))),
    ],
)
def test_types_are_parsed(text: str, column: Column) -> None:
    assert parse_type(text) == column


@pytest.mark.parametrize(
    "text",
    ["", "nothing", "text=a", "text[3]", "float32[]", "float32[3,,4]", "float32[-1]", "image:jpeg:900", "image:zstd",
     "label=a,a", "embedding", "embedding[?]", "boxes=abcd", "list(text?)", "linked(float32)", "text:gzip", "Text",
     "mask:jpeg", "float32[3"],
)  # fmt: skip
def test_invalid_types_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_type(text)


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
