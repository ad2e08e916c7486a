"""`penstock query`, `search` and `index` on a table in a folder."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.cli import _export
from penstock.cli._index import progress_line
from penstock.cli._query import parse_params
from penstock.errors import InvalidInputError
from tests.cli.conftest import RunCommand

ROWS = 30


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with an image, a label, a caption, an embedding, a matrix, JSON, bytes and a time."""
    path = tmp_path_factory.mktemp("query") / "table"
    dataset = penstock.create(
        path,
        {
            "image": penstock.Image("png"),
            "label": penstock.Label(["drop", "grasp"]),
            "caption": penstock.Column(penstock.Text(), nullable=True),
            "emb": penstock.Embedding(4),
            "matrix": penstock.Tensor("int16", (2, 2)),
            "meta": penstock.Json(),
            "raw": penstock.Bytes(),
            "when": penstock.Tensor("datetime64[s]"),
            "reward": penstock.Tensor("float32"),
        },
    )
    dataset.append([_row(number) for number in range(ROWS)])
    dataset.commit("rows")
    return path


def _row(number: int) -> dict[str, Any]:
    return {
        "image": np.full((4, 4 + number, 3), number, np.uint8),
        "label": number % 2,
        "caption": None if number == 3 else f"robot {'red' if number % 3 else 'blue'} number{number}",
        "emb": np.array([number, 1, 0, -1], np.float32),
        "matrix": np.arange(4).reshape(2, 2) + number,
        "meta": {"camera": "left" if number < 10 else "right", "n": number},
        "raw": bytes([number]),
        "when": np.datetime64("2026-01-01", "s") + number,
        "reward": float("nan") if number == 5 else number / 4,
    }


def test_a_result_is_shown_as_a_table(run: RunCommand, uri: Path) -> None:
    sql = "SELECT * FROM ds WHERE label = 'grasp' AND meta.camera = 'left' ORDER BY reward DESC NULLS LAST LIMIT 2"
    shown = run("query", uri, sql)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith("2 rows\n")
    for part in ("caption", "1 (grasp)", "'robot blue number9'", "uint8[4, 13, 3]", "int16[2, 2]  9, 10, 11, 12"):
        assert part in shown.out


def test_a_result_is_a_document(run: RunCommand, uri: Path) -> None:
    found = run("query", uri, "SELECT label_name(label) AS name, count(*) AS n FROM ds GROUP BY 1 ORDER BY 1", "--json")
    document = found.document
    assert document["version"] == "main@1"
    assert document["total"] == 2
    assert document["rows"] == [{"name": "drop", "n": 15}, {"name": "grasp", "n": 15}]


def test_twenty_rows_are_shown_by_default(run: RunCommand, uri: Path) -> None:
    shown = run("query", uri, "SELECT _row_id, reward FROM ds")
    assert shown.out.startswith(f"20 of {ROWS} rows\n")
    document = run("query", uri, "SELECT _row_id, reward FROM ds", "--limit", 3, "--json").document
    assert document["rows"] == [{"_row_id": number, "reward": number / 4} for number in range(3)]
    assert run("query", uri, "SELECT * FROM ds WHERE reward < 0").out == "0 rows\n"


@pytest.mark.parametrize(
    ("sql", "params"),
    [
        ("SELECT reward FROM ds WHERE meta.n = ? AND label = ?", ["4", '"drop"']),
        ("SELECT reward FROM ds WHERE meta.n = $n AND label = $name", ["n=4", "name=drop"]),
        ("SELECT reward FROM ds WHERE reward IN (SELECT unnest(?::FLOAT[])) AND label = 'drop'", ["[1.0, 1.25]"]),
    ],
)
def test_parameters_are_values(run: RunCommand, uri: Path, sql: str, params: list[str]) -> None:
    words = [word for param in params for word in ("--param", param)]
    assert run("query", uri, sql, *words, "--json").document["rows"] == [{"reward": 1.0}]


def test_parameters_are_json_or_text() -> None:
    assert parse_params([]) is None
    assert parse_params(["1", "[1, 2]", "red", '"1"', "a b=c"]) == [1, [1, 2], "red", "1", "a b=c"]
    assert parse_params(["x=1", "y=a=b"]) == {"x": 1, "y": "a=b"}
    with pytest.raises(InvalidInputError, match="none"):
        parse_params(["x=1", "2"])


def test_older_versions_and_branches_are_asked(run: RunCommand, uri: Path) -> None:
    assert run("query", uri, "SELECT count(*) AS n FROM ds", "--version", 0, "--json").document["rows"] == [{"n": 0}]
    assert run("query", uri, "SELECT 1", "--branch", "nobody").code == 1


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv", "json", "jsonl"])
def test_a_result_is_written(
    run: RunCommand, uri: Path, tmp_path: Path, ending: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_export, "_FIRST_BATCH_ROWS", batch)
    monkeypatch.setattr(_export, "_BATCH_ROWS", batch)
    to = tmp_path / f"out.{ending}"
    sql = "SELECT _row_id, * EXCLUDE (image), reward * 2 AS double FROM ds ORDER BY _row_id DESC"
    document = run("query", uri, sql, "--output", to, "--json").document
    assert document["file"] == {"path": str(to), "rows": ROWS, "bytes": to.stat().st_size}
    assert [path.name for path in tmp_path.iterdir()] == [to.name]
    expected = penstock.load(uri).query(sql).to_arrow()
    if ending in ("parquet", "arrow"):
        read = pq.read_table(to) if ending == "parquet" else pa.ipc.open_file(to).read_all()
        assert read.column_names == expected.column_names
        assert str(read.to_pylist()) == str(expected.to_pylist())  # NaN is equal as text
        return
    if ending == "csv":
        with to.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert list(rows[0]) == expected.schema.names
        assert rows[-4]["caption"] == ""
        assert json.loads(rows[-1]["matrix"]) == [[0, 1], [2, 3]]
        assert (rows[-2]["raw"], rows[-2]["when"], rows[-2]["double"]) == ("AQ==", "2026-01-01T00:00:01", "0.5")
        return
    text = to.read_text()
    found = json.loads(text) if ending == "json" else [json.loads(line) for line in text.splitlines()]
    assert [row["_row_id"] for row in found] == list(range(ROWS))[::-1]
    assert found[-2] == {
        "_row_id": 1, "label": 1, "caption": "robot red number1", "emb": [1, 1, 0, -1], "matrix": [[1, 2], [3, 4]],
        "meta": {"camera": "left", "n": 1}, "raw": "AQ==", "when": "2026-01-01T00:00:01", "reward": 0.25, "double": 0.5,
    }  # fmt: skip
    assert found[-6]["reward"] is None
    assert found[-4]["caption"] is None


def test_heavy_columns_are_written(run: RunCommand, uri: Path, tmp_path: Path) -> None:
    to = tmp_path / "out.parquet"
    assert run("query", uri, "SELECT * FROM ds WHERE label = 'grasp'", "-o", to, "--limit", 2).code == 0
    read = pq.read_table(to)
    assert read["image"].to_pylist() == penstock.load(uri)[[1, 3]].to_arrow()["image"].to_pylist()
    assert run("query", uri, "SELECT * FROM ds WHERE reward < 0", "-o", tmp_path / "none.json").code == 0
    assert json.loads((tmp_path / "none.json").read_text()) == []


def test_files_are_protected(run: RunCommand, uri: Path, tmp_path: Path) -> None:
    to = tmp_path / "out.csv"
    to.write_text("mine")
    refused = run("query", uri, "SELECT 1 AS x FROM ds", "-o", to)
    assert (refused.code, to.read_text()) == (1, "mine")
    assert "--force" in refused.err
    assert run("query", uri, "SELECT 1 AS x FROM ds LIMIT 1", "-o", to, "--force").code == 0
    assert to.read_text().split() == ["x", "1"]
    assert "must end with .parquet, .arrow, .csv, .json or .jsonl" in run("query", uri, "SELECT 1", "-o", "a.txt").err


def test_a_query_is_explained(run: RunCommand, uri: Path) -> None:
    shown = run("query", uri, "SELECT reward FROM ds WHERE label = ?", "--param", "grasp", "--explain")
    assert shown.code == 0
    assert "bytes" in shown.out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["SELECT lable FROM ds"], 1, "did you mean 'label'"),
        (["SELECT * FROM ds WHERE label = 'grsp'"], 2, "grasp"),
        (["SELEC 1"], 2, "SELEC"),
        (["DELETE FROM ds"], 2, "SELECT"),
        (["SELECT * FROM '/etc/passwd'"], 1, "/etc/passwd"),
        (["SELECT reward FROM ds WHERE reward > ?"], 2, "parameter"),
        (["SELECT 1", "--param", "x=1", "--param", "2"], 2, "--param"),
        (["SELECT 1", "--force"], 2, "--output"),
        (["SELECT 1", "--limit", "-1"], 2, "--limit"),
        ([], 2, "SQL"),
    ],
)
def test_wrong_queries_fail_with_a_reason(
    run: RunCommand, uri: Path, words: list[str], code: int, message: str
) -> None:
    failed = run("query", uri, *words)
    assert (failed.code, failed.out) == (code, "")
    assert message.lower() in failed.err.lower()


def test_search_shows_the_best_rows_first(run: RunCommand, uri: Path) -> None:
    shown = run("search", uri, "--text", "blue robot", "--where", "label = 'drop'", "-k", 3)
    assert (shown.code, shown.err) == (0, "")
    assert "'robot blue number0'" in shown.out
    assert "red" not in shown.out
    rows = run("search", uri, "--like", 7, "-k", 2, "--columns", "reward", "--json").document["rows"]
    assert [list(row) for row in rows] == [["_row_id", "score", "reward"]] * 2
    assert [row["_row_id"] for row in rows] == [8, 6]
    nearest = run("search", uri, "--vector", "[5, 1, 0, -1]", "--metric", "l2", "-k", 1, "--json").document["rows"]
    assert (nearest[0]["_row_id"], nearest[0]["score"]) == (5, 0.0)
    both = run("search", uri, "--text", "number4", "--like", 5, "--weights", "0.1,0.9", "--json").document["rows"]
    assert both[0]["_row_id"] == 4
    assert len(both) == 10


def test_search_writes_files(run: RunCommand, uri: Path, tmp_path: Path) -> None:
    to = tmp_path / "best.jsonl"
    assert run("search", uri, "--text", "number4 number5", "--columns", "caption", "-o", to).code == 0
    rows = [json.loads(line) for line in to.read_text().splitlines()]
    assert [row["caption"] for row in rows] == ["robot red number4", "robot red number5"]
    assert list(rows[0]) == ["_row_id", "score", "caption"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "nothing to search by"),
        (["--text", "x", "--column", "nothing"], 1, "nothing"),
        (["--text", "x", "--column", "emb"], 2, "words are searched in text"),
        (["--like", "999"], 1, "no row with id 999"),
        (["--vector", "[1, 2]"], 2, "length 4"),
        (["--vector", "near"], 2, "list of numbers"),
        (["--vector", "[1, 2, 3, 4]", "--metric", "near"], 2, "not a metric"),
        (["--text", "x", "--like", "1", "--weights", "1"], 2, "--weights"),
        (["--text", "x", "--where", "nothing = 1"], 1, "nothing"),
    ],
)
def test_wrong_searches_fail_with_a_reason(
    run: RunCommand, uri: Path, words: list[str], code: int, message: str
) -> None:
    failed = run("search", uri, *words)
    assert (failed.code, failed.out) == (code, "")
    assert message in failed.err


def test_indexes_are_created_listed_extended_and_dropped(run: RunCommand, tmp_path: Path) -> None:
    dataset = penstock.create(tmp_path / "t", {"caption": penstock.Text(), "emb": penstock.Embedding(2)})
    rows = {"caption": ["red arms", "blue"], "emb": np.eye(2, dtype=np.float32)}
    dataset.append(rows)
    dataset.commit("rows")
    assert run("index", "list", tmp_path / "t").out == "no indexes yet\n"
    made = run("index", "create", tmp_path / "t", "caption", "--kind", "text", "--stem", "english", "--json")
    assert made.code == 0
    assert made.document["index"]["name"] == "caption_text"
    assert json.loads(made.err.splitlines()[-1]) == {"event": "progress", "done": 2, "rows": 2}
    assert (
        run("index", "create", tmp_path / "t", "emb", "--kind", "vector", "--metric", "l2", "--name", "near").code == 0
    )
    assert run("search", tmp_path / "t", "--text", "arm", "--json").document["rows"][0]["_row_id"] == 0
    dataset.checkout().append(rows)
    dataset.commit("more rows")
    listed = run("index", "list", tmp_path / "t", "--json").document["indexes"]
    assert [(each["name"], each["rows"], each["uncovered"]) for each in listed] == [
        ("caption_text", 2, 2),
        ("near", 2, 2),
    ]
    assert listed[1]["options"] == {"metric": "l2"}
    assert (
        "covers 4 rows"
        in run("index", "create", tmp_path / "t", "emb", "--kind", "vector", "--metric", "l2", "--name", "near").out
    )
    dropped = run("index", "drop", tmp_path / "t", "near", "-m", "not needed")
    assert dropped.out.endswith("dropped index near.\n")
    shown = run("index", "list", tmp_path / "t").out
    assert "caption_text" in shown
    assert "near" not in shown


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["create", "URI", "caption", "--kind", "hash"], 2, "hash"),
        (["create", "URI", "captoin", "--kind", "text"], 1, "captoin"),
        (["create", "URI", "caption", "--kind", "vector"], 2, "not vectors"),
        (["create", "URI", "caption", "--kind", "text", "--metric", "l2"], 2, "metric"),
        (["create", "URI", "caption"], 2, "--kind"),
        (["drop", "URI", "nothing"], 1, "nothing"),
        (["list", "URI", "--version", "99"], 1, "99"),
    ],
)
def test_wrong_indexes_fail_with_a_reason(
    run: RunCommand, uri: Path, words: list[str], code: int, message: str
) -> None:
    failed = run("index", *(str(uri) if word == "URI" else word for word in words))
    assert (failed.code, failed.out) == (code, "")
    assert message in failed.err


def test_the_progress_bar_fills() -> None:
    assert progress_line(0, 0) == f"{'╌' * 24} 0 of 0 rows"
    assert progress_line(500, 1000) == f"{'━' * 12}{'╌' * 12} 500 of 1,000 rows"
