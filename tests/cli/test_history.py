"""The commands for a table's history."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.cli import _export
from penstock.cli._vacuum import parse_duration
from penstock.cli._versions import version_ranges
from penstock.errors import InvalidInputError
from penstock.format import CommitRef
from tests.cli.conftest import RunCommand
from tests.servers import new_location


@pytest.fixture
def uri(tmp_path: Path) -> Path:
    """Two branches: `main` has six rows in two fragments; `clean` starts at main@1 with three rows and updates two."""
    dataset = penstock.create(tmp_path / "t", {"caption": penstock.Text(), "score": penstock.Tensor("float32")})
    dataset.append({"caption": ["a", "b", "c"], "score": [0, 1, 2]})
    dataset.commit("three")
    clean = dataset.branches.create("clean")
    clean.update(positions=[0, 1], data={"caption": ["A", "B"]})
    clean.commit("upper case")
    dataset.append({"caption": ["d", "e", "f"], "score": [3, 4, 5]})
    dataset.commit("six")
    return tmp_path / "t"


def _captions(uri: Path, **at: Any) -> list[str]:
    return [row["caption"] for row in penstock.load(uri, **at)]


def test_branches_are_listed_with_their_newest_commit(run: RunCommand, uri: Path) -> None:
    result = {branch["name"]: branch for branch in run("branch", uri, "--json").document["branches"]}
    assert list(result) == ["main", "clean"]
    assert (result["main"]["version"], result["main"]["rows"], result["main"]["message"]) == ("main@2", 6, "six")
    assert (result["clean"]["version"], result["clean"]["rows"]) == ("clean@1", 3)
    assert datetime.fromisoformat(result["clean"]["time"]).utcoffset() is not None
    shown = run("branch", uri)
    assert shown.code == 0
    assert all(word in shown.out for word in ("main@2", "clean@1", "upper case"))


@pytest.mark.parametrize(("at", "rows"), [((), 6), (("--at", 1), 3), (("--at", "clean"), 3), (("--at", "main@0"), 0)])
def test_a_branch_starts_at_the_given_version(run: RunCommand, uri: Path, at: tuple[object, ...], rows: int) -> None:
    made = run("branch", uri, "new", *at, "--json")
    assert made.code == 0
    assert (made.document["version"], made.document["rows"]) == ("new@0", rows)
    assert len(penstock.load(uri, branch="new")) == rows
    assert run("branch", uri, "new").code == 1


def test_branches_are_renamed_and_deleted(run: RunCommand, uri: Path) -> None:
    assert run("branch", uri, "--rename", "clean", "cleaned").code == 0
    assert list(penstock.load(uri).branches) == ["main", "cleaned"]
    gone = run("branch", uri, "--delete", "cleaned", "--json")
    assert gone.document["version"] == "cleaned@1"
    assert list(penstock.load(uri).branches) == ["main"]
    assert run("branch", uri, "--delete", "cleaned").code == 1
    assert run("branch", uri, "--delete", "main").code == 2


def test_tags(run: RunCommand, uri: Path) -> None:
    assert "no tags" in run("tag", uri).out
    assert run("tag", uri, "v2", "--json").document["version"] == "main@2"
    assert run("tag", uri, "v1", "--at", "clean@1").code == 0
    assert run("tag", uri, "v1").code == 1
    result = {tag["name"]: tag for tag in run("tag", uri, "--json").document["tags"]}
    assert {name: tag["version"] for name, tag in result.items()} == {"v1": "clean@1", "v2": "main@2"}
    assert result["v1"]["message"] == "upper case"
    assert run("tag", uri, "--rename", "v1", "v0").code == 0
    assert run("tag", uri, "--delete", "v2").code == 0
    assert list(penstock.load(uri).tags) == ["v0"]
    assert run("tag", uri, "--delete", "v2").code == 1


@pytest.mark.parametrize("command", ["branch", "tag"])
@pytest.mark.parametrize(
    "words", [["--at", "1"], ["a", "--delete", "b"], ["--delete", "b", "--rename", "b", "c"], ["a b"], ["a", "b"]]
)
def test_only_one_name_is_changed_at_a_time(run: RunCommand, uri: Path, command: str, words: list[str]) -> None:
    result = run(command, uri, *words)
    assert (result.code, result.out) == (2, "")
    assert len(result.err.splitlines()) == 1


def test_read_commands_accept_a_branch_a_tag_and_a_time(run: RunCommand, uri: Path) -> None:
    run("tag", uri, "v1", "--at", "clean@1")
    assert run("info", uri, "--branch", "clean", "--json").document["rows"] == 3
    for words in (["--tag", "v1"], ["--version", "v1"], ["--version", "clean"], ["--branch", "clean"]):
        result = run("head", uri, *words, "--json").document
        assert result["version"] == "clean@1"
        assert result["rows"][0]["caption"] == "A"
    first = run("log", uri, "--json").document["commits"][1]
    assert run("info", uri, "--as-of", first["time"], "--json").document["version"] == first["version"] == "main@1"
    on_a_branch = run("info", uri, "--branch", "clean", "--as-of", first["time"], "--json").document
    assert on_a_branch["version"] == "main@1"


@pytest.mark.parametrize("command", ["info", "head", "log"])
def test_options_for_a_version_exclude_each_other(run: RunCommand, uri: Path, command: str) -> None:
    assert run(command, uri, "--version", "1", "--as-of", "2026-01-01").code == 2
    assert run(command, uri, "--tag", "v1", "--branch", "clean").code == 2
    assert run(command, uri, "--as-of", "yesterday").code == 2
    assert run(command, uri, "--as-of", "2001-01-01").code == 1
    assert run(command, uri, "--branch", "nothing").code == 1
    assert run(command, uri, "--tag", "nothing").code == 1


def test_the_log_of_a_branch_includes_commits_before_it(run: RunCommand, uri: Path) -> None:
    commits = run("log", uri, "--branch", "clean", "--json").document["commits"]
    assert [commit["version"] for commit in commits] == ["clean@1", "clean@0", "main@1", "main@0"]
    assert commits[1]["parent"] == "main@1"
    assert "branch off main@1" in run("log", uri, "--branch", "clean").out
    run("merge", uri, "clean")
    merged = run("log", uri, "--json").document["commits"][0]
    assert (merged["operation"], merged["merged"], merged["parent"]) == ("merge", "clean@1", "main@2")
    assert "merge clean@1" in run("log", uri).out
    run("branch", uri, "--delete", "clean")
    assert run("log", uri).code == 0


def test_checkout_resolves_a_version(run: RunCommand, uri: Path) -> None:
    run("tag", uri, "v1", "--at", "1")
    for name, version in (("1", "main@1"), ("clean@0", "clean@0"), ("v1", "main@1"), ("clean", "clean@1")):
        result = run("checkout", uri, name, "--json").document
        assert result["version"] == version
        assert (result["columns"], result["file"]) == (["caption", "score"], None)
    shown = run("checkout", uri, "clean").out
    assert all(word in shown for word in ("clean@1", "upper case", "caption, score"))
    time = run("log", uri, "--json").document["commits"][1]["time"]
    assert run("checkout", uri, "--as-of", time, "--json").document["version"] == "main@1"
    assert run("checkout", uri).code == 2
    assert run("checkout", uri, "1", "--as-of", time).code == 2
    assert run("checkout", uri, "9").code == 1


def test_checkout_changes_nothing(run: RunCommand, uri: Path) -> None:
    before = sorted(uri.rglob("*"))
    assert run("checkout", uri, "0").code == 0
    assert sorted(uri.rglob("*")) == before


@pytest.mark.parametrize("ending", ["arrow", "parquet"])
@pytest.mark.parametrize("batch", [1, 2, 1000])
def test_checkout_exports_rows(
    run: RunCommand, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, batch: int
) -> None:
    monkeypatch.setattr(_export, "_LINKED_BATCH_ROWS", batch)
    to = tmp_path / f"out.{ending}"
    result = run("checkout", table, "main", "--to", to, "--links", "--json")
    assert result.code == 0
    assert result.document["file"] == {"path": str(to), "rows": 3, "bytes": to.stat().st_size}
    read = pq.read_table(to) if ending == "parquet" else pa.ipc.open_file(to).read_all()
    whole = penstock.load(table, links=True).to_arrow()
    assert repr(read.to_pylist()) == repr(whole.to_pylist())  # as text, because NaN != NaN


def test_blobs_and_inline_values_are_exported_in_one_column(
    run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_export, "_BATCH_ROWS", 1)
    films = [b"small", bytes(17 << 20)]
    dataset = penstock.create(tmp_path / "t", {"film": penstock.Video()})
    dataset.append({"film": films})
    dataset.commit()
    assert run("checkout", tmp_path / "t", "main", "--to", tmp_path / "t.parquet").code == 0
    assert pq.read_table(tmp_path / "t.parquet")["film"].to_pylist() == films


def test_an_empty_version_is_exported_with_its_columns(run: RunCommand, uri: Path, tmp_path: Path) -> None:
    assert run("checkout", uri, "0", "--to", tmp_path / "e.parquet").code == 0
    assert pq.read_table(tmp_path / "e.parquet").column_names == ["caption", "score"]


def test_a_file_is_overwritten_only_with_force(run: RunCommand, uri: Path, tmp_path: Path) -> None:
    to = tmp_path / "out.arrow"
    to.write_text("precious")
    refused = run("checkout", uri, "main", "--to", to)
    assert (refused.code, to.read_text()) == (1, "precious")
    assert "--force" in refused.err
    assert run("checkout", uri, "main", "--to", to, "--force").code == 0
    assert pa.ipc.open_file(to).read_all().num_rows == 6


@pytest.mark.parametrize("name", ["out.txt", "out", "nothing/out.arrow", "folder.arrow"])
def test_invalid_export_targets_are_refused(run: RunCommand, uri: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.arrow").mkdir()
    assert run("checkout", uri, "main", "--to", tmp_path / name, "--force").code == 2


def test_a_failed_export_leaves_no_file(run: RunCommand, table: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    assert run("checkout", table, "main", "--to", tmp_path / "out.arrow").code == 1  # links that are not allowed
    assert sorted(tmp_path.iterdir()) == before


def test_diff_of_rows_and_columns(run: RunCommand, uri: Path) -> None:
    dataset = penstock.load(uri)
    dataset.delete(positions=[1])
    dataset.rename_column("caption", "text")
    dataset.update(positions=[0], data={"text": "z"})
    dataset.drop_column("score")
    dataset.add_column("checked", penstock.Tensor("bool"), fill=True)
    dataset.commit()
    result = run("diff", uri, "1", "--json").document
    assert (result["old"], result["new"]) == ("main@1", "main@3")
    assert (result["rows_added"], result["rows_deleted"], result["rows_updated"]) == (3, 1, 1)
    assert (result["columns_added"], result["columns_dropped"]) == (["checked"], ["score"])
    assert result["columns_renamed"] == [["caption", "text"]]
    ids = penstock.load(uri, version=2)["_row_id"][:].tolist()
    assert result["ids"] == {"added": ids[3:], "deleted": [ids[1]], "updated": [ids[0]]}
    assert result["values"] == {"text": [{"row_id": ids[0], "old": "a", "new": "z"}]}
    shown = run("diff", uri, "1").out
    for part in ("3 added, 1 deleted, 1 updated", "+checked", "-score", "caption is now text", "'a' -> 'z'"):
        assert part in shown


def test_diff_limits_the_values_shown(run: RunCommand, uri: Path) -> None:
    result = run("diff", uri, "main@1", "clean", "-n", 1, "--json").document
    assert result["updated"] == {"caption": 2}
    assert len(result["values"]["caption"]) == len(result["ids"]["updated"]) == 1
    shown = run("diff", uri, "main@1", "clean", "-n", 1).out
    assert "'a' -> 'A'" in shown
    assert "'B'" not in shown
    assert "1 more" in shown


def test_diff_of_large_and_linked_values(run: RunCommand, table: Path) -> None:
    dataset = penstock.load(table, links=True)
    other = table.parent / "elsewhere" / "image.png"
    other.parent.mkdir()
    other.write_bytes((table.parent / "source" / "image.png").read_bytes())
    frames = np.zeros((1, 8, 8, 3), np.uint8)
    dataset.update(
        positions=[0], data={"photo": [penstock.Link(str(other))], "frame": frames, "raw": [bytes(1000)], "label": 1}
    )
    dataset.commit()
    shown = run("diff", table, "2").out
    for part in (
        "0 to 191 -> uint8[8, 8, 3]  0 to 0",
        "2.0 MB -> 1.0 KB",
        "0 (cat) -> 1 (dog)",
        "elsewhere/image.png",
    ):
        assert part in shown
    assert run("diff", table, "3", "2", "--json").document["values"]["label"][0]["new"] == {"label": 0, "name": "cat"}


def test_different_values_with_the_same_preview_are_marked(run: RunCommand, uri: Path) -> None:
    dataset = penstock.load(uri)
    dataset.update(positions=[0], data={"caption": "x" * 200})
    dataset.commit()
    dataset.update(positions=[0], data={"caption": "x" * 201})
    dataset.commit()
    assert "the full values differ" in run("diff", uri, "3").out


def test_no_difference(run: RunCommand, uri: Path) -> None:
    same = run("diff", uri, "main", "main@2")
    assert same.code == 0
    assert "no difference" in same.out
    assert run("diff", uri, "nothing").code == 1
    assert run("diff", uri).code == 2


def test_merge_reports_the_merged_changes(run: RunCommand, uri: Path) -> None:
    result = run("merge", uri, "clean", "-m", "took it", "--json").document
    assert (result["version"], result["merged"], result["message"]) == ("main@3", "clean@1", "took it")
    assert (result["came_in"]["rows_added"], result["came_in"]["rows_updated"]) == (0, 2)
    assert _captions(uri) == ["A", "B", "c", "d", "e", "f"]
    again = run("merge", uri, "clean")
    assert again.code == 0
    assert "already" in again.out
    back = run("merge", uri, "main", "--into", "clean")
    assert "3 added" in back.out
    assert sorted(_captions(uri, branch="clean")) == sorted(_captions(uri))


def test_a_conflict_fails_and_changes_nothing(run: RunCommand, uri: Path) -> None:
    dataset = penstock.load(uri)
    dataset.update(positions=[0], data={"caption": "mine"})
    dataset.delete(positions=[1])
    dataset.commit()
    ids = penstock.load(uri, version=2)["_row_id"][:2].tolist()
    result = run("merge", uri, "clean", "--json")
    assert result.code == 1
    assert result.document["error"]["type"] == "MergeConflictError"
    assert result.document["count"] == 2
    conflicts = {one["row_id"]: one for one in result.document["conflicts"]}
    assert {key: conflicts[ids[0]][key] for key in ("column", "ours", "theirs")} == {
        "column": "caption", "ours": "mine", "theirs": "A",
    }  # fmt: skip
    assert (conflicts[ids[1]]["ours"], conflicts[ids[1]]["theirs"]) == ("deleted", "changed")
    shown = run("merge", uri, "clean", "-n", 1)
    assert shown.code == 1
    assert "1 more" in shown.out
    assert penstock.load(uri).version == "main@3"
    assert run("merge", uri, "clean", "--on-conflict", "never").code == 2
    assert run("merge", uri, "clean", "--on-conflict", "ours").code == 0
    assert _captions(uri)[0] == "mine"


def test_conflicts_resolved_with_theirs(run: RunCommand, uri: Path) -> None:
    dataset = penstock.load(uri)
    dataset.update(positions=[0], data={"caption": "mine"})
    dataset.commit()
    assert run("merge", uri, "clean", "--on-conflict", "theirs").code == 0
    assert _captions(uri)[:2] == ["A", "B"]


def test_compact_reports_fragments(run: RunCommand, uri: Path) -> None:
    result = run("compact", uri, "--json").document
    assert (result["compacted"], result["before"]["fragments"], result["after"]["fragments"]) == (True, 2, 1)
    assert _captions(uri) == ["a", "b", "c", "d", "e", "f"]
    again = run("compact", uri, "--json").document
    assert (again["compacted"], again["version"]) == (False, "main@3")
    assert run("compact", uri, "--branch", "clean").code == 0
    assert run("compact", uri, "--branch", "nothing").code == 1


def test_vacuum_removes_what_the_dry_run_reports(run: RunCommand, uri: Path) -> None:
    run("compact", uri)
    run("tag", uri, "v1", "--at", "1")
    assert run("vacuum", uri, "--json").document["objects"] == 0
    planned = run("vacuum", uri, "--older-than", "0s", "--dry-run", "--json").document
    assert run("info", uri, "--version", 2).code == 0
    done = run("vacuum", uri, "--older-than", "0s", "--json").document
    assert (planned.pop("dry_run"), done.pop("dry_run")) == (True, False)
    assert planned == done
    assert done["objects"] > 0
    assert done["bytes"] > 0
    assert sorted(done["versions"]) == ["main@0", "main@2"]  # clean@0 shares the snapshot of main@1, which has a tag
    gone = run("info", uri, "--version", 2)
    assert gone.code == 1
    assert "vacuum" in gone.err
    assert run("verify", uri).code == 0
    assert (len(_captions(uri)), len(_captions(uri, tag="v1")), len(_captions(uri, branch="clean"))) == (6, 3, 3)


def test_vacuum_on_a_terminal(run: RunCommand, uri: Path) -> None:
    run("compact", uri)
    would = run("vacuum", uri, "--older-than", "0s", "--dry-run").out
    assert would.startswith("Would remove")
    assert "main@0 to 2" in would
    assert run("vacuum", uri, "--older-than", "0s").out.startswith("Removed")


@pytest.mark.parametrize(
    ("text", "duration"),
    [("30d", timedelta(30)), ("12h", timedelta(hours=12)), ("0s", timedelta()), ("1w2d", timedelta(9)),
     ("90m", timedelta(hours=1.5))],
)  # fmt: skip
def test_durations_are_parsed(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["", "30", "-1d", "d", "1y", "1d ago", "99999999999w"])
def test_invalid_durations_are_refused(run: RunCommand, uri: Path, text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_duration(text)
    assert run("vacuum", uri, f"--older-than={text}").code == 2


def test_consecutive_versions_are_shown_as_ranges() -> None:
    def namer(at: CommitRef) -> str:
        return f"{at.branch}@{at.version}"

    versions = [
        CommitRef(branch, number) for branch, numbers in (("b", [3]), ("a", [4, 0, 1, 2, 6])) for number in numbers
    ]
    assert version_ranges(versions, namer) == ["a@0 to 2", "a@4", "a@6", "b@3"]
    assert version_ranges([], namer) == []


def test_reset_is_a_commit(run: RunCommand, uri: Path) -> None:
    result = run("reset", uri, "1", "-m", "back", "--json").document
    assert (result["version"], result["rows"], result["operation"], result["message"]) == ("main@3", 3, "reset", "back")
    assert run("reset", uri, "main@2").code == 0
    assert len(_captions(uri)) == 6
    assert run("reset", uri, "0", "--branch", "clean").code == 0
    assert _captions(uri, branch="clean") == ["a", "b", "c"]
    assert run("reset", uri, "nothing").code == 1


@pytest.mark.parametrize(
    "words",
    [["branch"], ["tag"], ["checkout", "1"], ["diff", "1"], ["merge", "x"], ["compact"], ["vacuum"], ["reset", "1"]],
)
def test_a_missing_table_fails(run: RunCommand, tmp_path: Path, words: list[str]) -> None:
    command, *rest = words
    result = run(command, tmp_path / "nothing", *rest)
    assert (result.code, result.out) == (1, "")
    assert "is not a table" in result.err
    assert run(command, tmp_path / "nothing", *rest, "--json").document["error"]["type"] == "NotFoundError"
    assert not (tmp_path / "nothing").exists()


def test_history_commands_on_a_bucket(run: RunCommand) -> None:
    bucket = new_location("s3")
    options = [word for key, value in bucket.options.items() for word in ("--option", f"{key}={value}")]
    dataset = penstock.create(bucket.uri, {"x": penstock.Tensor("int64")}, storage_options=bucket.options)
    dataset.append({"x": [1, 2]})
    dataset.commit()
    for words in (["branch", "b"], ["tag", "v"], ["reset", "0"], ["merge", "b"], ["compact"], ["vacuum"]):
        assert run(words[0], bucket.uri, *words[1:], *options).code == 0
    listed = run("branch", bucket.uri, *options, "--json").document["branches"]
    assert {one["name"]: one["rows"] for one in listed} == {"main": 0, "b": 2}
