"""Each command on a table in a folder."""

from datetime import datetime
from pathlib import Path

import pytest

import penstock
from penstock.cli._command import CommandContext
from penstock.cli._doctor import check_store
from penstock.storage import MemoryStore, open_store
from penstock.types import Buffer
from tests.cli.conftest import RunCommand
from tests.servers import new_location


def test_info_document(run: RunCommand, table: Path) -> None:
    found = run("info", table, "--json").document
    summary = penstock.load(table).summary()
    assert (found["rows"], found["bytes"], found["fragments"]) == (3, summary.bytes, 1)
    assert (found["uri"], found["version"]) == (str(table), "main@2")
    columns = {column["name"]: column for column in found["columns"]}
    assert list(columns) == penstock.load(table).schema.names
    assert columns["frame"]["kind"] == "uint8[8, 8, 3]"
    assert columns["frame"]["codec"] == "zstd"
    assert columns["caption"]["nullable"]
    assert columns["label"]["type"]["names"] == ["cat", "dog"]


def test_info_lists_every_column(run: RunCommand, table: Path) -> None:
    shown = run("info", table)
    assert shown.code == 0
    assert "3 rows" in shown.out
    assert all(name in shown.out for name in penstock.load(table).schema.names)


def test_older_versions_are_read(run: RunCommand, table: Path) -> None:
    assert run("info", table, "--version", "1", "--json").document["rows"] == 4
    assert len(run("head", table, "--version", "main@1", "--json").document["rows"]) == 4
    assert run("info", table, "--version", "9").code == 1
    assert run("info", table, "--version", "x").code == 1


def test_head_shows_short_previews(run: RunCommand, table: Path) -> None:
    shown = run("head", table)
    assert shown.code == 0
    assert len(shown.out) < 10_000
    for part in ("uint8[10, 20, 3]", "0 to 191", "0 (cat)", "-1 to 2", "2.0 MB", "2024-05-06T07:08:09", "nan"):
        assert part in shown.out
    assert "\x1b" not in shown.out


def test_head_document(run: RunCommand, table: Path) -> None:
    first, second, _ = run("head", table, "--json").document["rows"]
    image = first["image"]
    assert (image["dtype"], image["shape"], image["min"], image["max"]) == ("uint8", [10, 20, 3], 7, 7)
    assert first["label"] == {"label": 0, "name": "cat"}
    assert first["meta"] == {"number": 0, "deep": [1, {"x": None}]}
    assert first["raw"] == {"bytes": 2_000_000}
    assert first["score"] == "nan"
    assert len(first["caption"]) == 1000
    assert second["caption"] is None
    assert second["tags"] == {"items": 1, "first": ["x"]}
    assert second["pose"]["ok"] is True
    assert first["boxes"] == {"dtype": "float32", "shape": [0, 4], "min": None, "max": None, "first": []}
    assert first["wave"]["first"] == ["(1+2j)", "0j"]


def test_head_of_selected_rows_and_columns(run: RunCommand, table: Path) -> None:
    rows = run("head", table, "-n", 2, "--columns", "score,label", "--json").document["rows"]
    assert [list(row) for row in rows] == [["score", "label"]] * 2
    missing = run("head", table, "--columns", "nothing")
    assert missing.code == 1
    assert "'nothing'" in missing.err


def test_head_follows_links_only_on_request(run: RunCommand, table: Path) -> None:
    image = table.parent / "source" / "image.png"
    found = run("head", table, "--columns", "photo", "--json").document["rows"][0]["photo"]
    assert found == {"link": f"file://{image}", "offset": 0, "length": image.stat().st_size}
    followed = run("head", table, "--columns", "photo", "--links", "--json").document["rows"][0]["photo"]
    assert followed["shape"] == [4, 6, 3]
    image.unlink()
    gone = run("head", table, "--columns", "photo,label", "--links")
    assert gone.code == 0
    assert "cannot be read" in gone.out
    assert "0 (cat)" in gone.out


def test_head_does_not_read_blobs(run: RunCommand, tmp_path: Path) -> None:
    dataset = penstock.create(tmp_path / "t", {"film": penstock.Video()})
    dataset.append([{"film": bytes(17 << 20)}])
    dataset.commit()
    for blob in (tmp_path / "t" / "blobs").iterdir():
        blob.unlink()
    assert run("head", tmp_path / "t", "--json").document["rows"] == [{"film": {"bytes": 17 << 20}}]


def test_head_and_info_of_an_empty_table(run: RunCommand, tmp_path: Path) -> None:
    penstock.create(tmp_path / "t")
    assert run("head", tmp_path / "t", "--json").document["rows"] == []
    assert run("info", tmp_path / "t").code == 0


def test_log_lists_commits(run: RunCommand, table: Path) -> None:
    commits = run("log", table, "--json").document["commits"]
    assert [commit["version"] for commit in commits] == ["main@2", "main@1", "main@0"]
    assert [commit["operation"] for commit in commits] == ["delete", "append", "create"]
    assert [commit["rows"] for commit in commits] == [3, 4, 0]
    assert [commit["changes"] for commit in commits] == [{"deleted": 1}, {"added": 4}, {}]
    assert datetime.fromisoformat(commits[0]["time"]).utcoffset() is not None
    assert len(run("log", table, "-n", 2, "--json").document["commits"]) == 2
    shown = run("log", table).out
    assert "created" in shown
    assert "\x1b" not in shown


def test_verify_lists_damaged_objects(run: RunCommand, table: Path) -> None:
    well = run("verify", table, "--links", "--json")
    assert well.code == 0
    assert well.document["damaged"] == []
    file = max((table / "data").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    bad = run("verify", table)
    assert bad.code == 1
    assert file.name in bad.out
    assert len(run("verify", table, "--json").document["damaged"]) == 1


def test_verify_lists_quarantined_rows(run: RunCommand, table: Path) -> None:
    assert run("verify", table, "--json").document["quarantined"] == []
    ds = penstock.load(table)
    ids = [int(id) for id in ds["_row_id"][:]]
    ds.quarantine(row_ids={ids[0]: "blurred", ids[2]: "\x1b[31mred"})
    shown = run("verify", table)
    assert shown.code == 0
    assert "2 rows quarantined on main" in shown.out
    assert f"row {ids[0]}: blurred" in shown.out
    assert "\x1b" not in shown.out
    listed = run("verify", table, "--json").document["quarantined"]
    assert listed[0] == {"branch": "main", "row_id": ids[0], "reason": "blurred"}
    assert "2 quarantined" in run("diff", table, "main@2").out


def test_verify_with_links_reads_linked_objects(run: RunCommand, table: Path) -> None:
    (table.parent / "source" / "image.png").write_bytes(b"other")
    assert run("verify", table).code == 0
    bad = run("verify", table, "--links")
    assert bad.code == 1
    assert "image.png" in bad.out


@pytest.mark.parametrize("command", ["info", "head", "log", "verify"])
def test_a_missing_table_fails(run: RunCommand, tmp_path: Path, command: str) -> None:
    found = run(command, tmp_path / "nothing")
    assert (found.code, found.out) == (1, "")
    assert "is not a table" in found.err
    assert len(found.err.splitlines()) == 1
    assert run(command, tmp_path / "nothing", "--json").document["error"]["type"] == "NotFoundError"
    assert not (tmp_path / "nothing").exists()


def test_doctor_removes_its_test_objects(run: RunCommand, tmp_path: Path) -> None:
    found = run("doctor", tmp_path / "a" / "b", "--json")
    assert found.code == 0
    assert all(check["ok"] for check in found.document["checks"])
    assert found.document["latency_ms"]["put"] > 0
    assert found.document["versions"]["penstock"] == run("--version").out.split()[1]
    assert not (tmp_path / "a").exists()


def test_doctor_on_a_table(run: RunCommand, table: Path) -> None:
    before = sorted(table.rglob("*"))
    shown = run("doctor", table)
    assert shown.code == 0
    assert "main@2 with 3 rows" in shown.out
    assert sorted(table.rglob("*")) == before
    (table / "penstock.json").unlink()
    assert run("doctor", table).code == 1


def test_doctor_detects_a_store_without_conditional_writes() -> None:
    class Unconditional(MemoryStore):
        def create(self, key: str, data: Buffer) -> None:
            self.put(key, data)

    store = open_store("memory://")
    store.__class__ = Unconditional  # its constructor is not public
    result = check_store(store, CommandContext({}))
    assert not result.ok
    assert {check["name"] for check in result.document["checks"] if not check["ok"]} == {"writers"}
    assert list(store.list()) == []


def test_commands_on_a_bucket(run: RunCommand) -> None:
    place = new_location("s3")
    options = [word for key, value in place.options.items() for word in ("--option", f"{key}={value}")]
    doctor = run("doctor", place.uri, *options, "--json")
    assert doctor.document["checks"][0]["detail"].startswith("found in --option access_key_id")
    assert list(place.open().list()) == []
    assert run("create", place.uri, "--column", "x:float32", *options).code == 0
    assert run("info", place.uri, *options, "--json").document["columns"][0]["kind"] == "float32"
