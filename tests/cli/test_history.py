"""The verbs that move in a table's history."""

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
from penstock.cli._versions import runs
from penstock.errors import InvalidInputError
from penstock.format import Parent
from tests.cli.conftest import Run
from tests.servers import new_place


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two branches: `main` has six rows in two fragments, and `clean`, begun at main@1 with three, has changed two."""
    dataset = penstock.create(tmp_path / "t", {"caption": penstock.Text(), "score": penstock.Tensor("float32")})
    dataset.append({"caption": ["a", "b", "c"], "score": [0, 1, 2]})
    dataset.commit("three")
    clean = dataset.branch("clean")
    clean.update([0, 1], {"caption": ["A", "B"]})
    clean.commit("upper case")
    dataset.append({"caption": ["d", "e", "f"], "score": [3, 4, 5]})
    dataset.commit("six")
    return tmp_path / "t"


def _captions(place: Path, **at: Any) -> list[str]:
    return [row["caption"] for row in penstock.load(place, **at)]


def test_branches_are_listed_with_what_is_newest(run: Run, place: Path) -> None:
    found = {branch["name"]: branch for branch in run("branch", place, "--json").document["branches"]}
    assert list(found) == ["main", "clean"]
    assert (found["main"]["version"], found["main"]["rows"], found["main"]["message"]) == ("main@2", 6, "six")
    assert (found["clean"]["version"], found["clean"]["rows"]) == ("clean@1", 3)
    assert datetime.fromisoformat(found["clean"]["time"]).utcoffset() is not None
    shown = run("branch", place)
    assert shown.code == 0
    assert all(word in shown.out for word in ("main@2", "clean@1", "upper case"))


@pytest.mark.parametrize(("at", "rows"), [((), 6), (("--at", 1), 3), (("--at", "clean"), 3), (("--at", "main@0"), 0)])
def test_a_branch_begins_where_it_is_told(run: Run, place: Path, at: tuple[object, ...], rows: int) -> None:
    made = run("branch", place, "new", *at, "--json")
    assert made.code == 0
    assert (made.document["version"], made.document["rows"]) == ("new@0", rows)
    assert len(penstock.load(place, branch="new")) == rows
    assert run("branch", place, "new").code == 1


def test_branches_are_renamed_and_deleted(run: Run, place: Path) -> None:
    assert run("branch", place, "--rename", "clean", "cleaned").code == 0
    assert list(penstock.load(place).branches) == ["main", "cleaned"]
    gone = run("branch", place, "--delete", "cleaned", "--json")
    assert gone.document["version"] == "cleaned@1"
    assert list(penstock.load(place).branches) == ["main"]
    assert run("branch", place, "--delete", "cleaned").code == 1
    assert run("branch", place, "--delete", "main").code == 2


def test_tags(run: Run, place: Path) -> None:
    assert "no tags" in run("tag", place).out
    assert run("tag", place, "v2", "--json").document["version"] == "main@2"
    assert run("tag", place, "v1", "--at", "clean@1").code == 0
    assert run("tag", place, "v1").code == 1
    found = {tag["name"]: tag for tag in run("tag", place, "--json").document["tags"]}
    assert {name: tag["version"] for name, tag in found.items()} == {"v1": "clean@1", "v2": "main@2"}
    assert found["v1"]["message"] == "upper case"
    assert run("tag", place, "--rename", "v1", "v0").code == 0
    assert run("tag", place, "--delete", "v2").code == 0
    assert list(penstock.load(place).tags) == ["v0"]
    assert run("tag", place, "--delete", "v2").code == 1


@pytest.mark.parametrize("verb", ["branch", "tag"])
@pytest.mark.parametrize(
    "words", [["--at", "1"], ["a", "--delete", "b"], ["--delete", "b", "--rename", "b", "c"], ["a b"], ["a", "b"]]
)
def test_names_one_at_a_time(run: Run, place: Path, verb: str, words: list[str]) -> None:
    found = run(verb, place, *words)
    assert (found.code, found.out) == (2, "")
    assert len(found.err.splitlines()) == 1


def test_reading_verbs_take_a_branch_a_tag_and_a_time(run: Run, place: Path) -> None:
    run("tag", place, "v1", "--at", "clean@1")
    assert run("info", place, "--branch", "clean", "--json").document["rows"] == 3
    for words in (["--tag", "v1"], ["--version", "v1"], ["--version", "clean"], ["--branch", "clean"]):
        found = run("head", place, *words, "--json").document
        assert found["version"] == "clean@1"
        assert found["rows"][0]["caption"] == "A"
    first = run("log", place, "--json").document["commits"][1]
    assert run("info", place, "--as-of", first["time"], "--json").document["version"] == first["version"] == "main@1"
    on_a_branch = run("info", place, "--branch", "clean", "--as-of", first["time"], "--json").document
    assert on_a_branch["version"] == "main@1"


@pytest.mark.parametrize("verb", ["info", "head", "log"])
def test_one_way_to_name_a_version(run: Run, place: Path, verb: str) -> None:
    assert run(verb, place, "--version", "1", "--as-of", "2026-01-01").code == 2
    assert run(verb, place, "--tag", "v1", "--branch", "clean").code == 2
    assert run(verb, place, "--as-of", "yesterday").code == 2
    assert run(verb, place, "--as-of", "2001-01-01").code == 1
    assert run(verb, place, "--branch", "nothing").code == 1
    assert run(verb, place, "--tag", "nothing").code == 1


def test_the_log_of_a_branch_goes_on_where_it_began(run: Run, place: Path) -> None:
    commits = run("log", place, "--branch", "clean", "--json").document["commits"]
    assert [commit["version"] for commit in commits] == ["clean@1", "clean@0", "main@1", "main@0"]
    assert commits[1]["parent"] == "main@1"
    assert "branch off main@1" in run("log", place, "--branch", "clean").out
    run("merge", place, "clean")
    merged = run("log", place, "--json").document["commits"][0]
    assert (merged["operation"], merged["merged"], merged["parent"]) == ("merge", "clean@1", "main@2")
    assert "merge clean@1" in run("log", place).out
    run("branch", place, "--delete", "clean")
    assert run("log", place).code == 0


def test_checkout_says_which_version_it_is(run: Run, place: Path) -> None:
    run("tag", place, "v1", "--at", "1")
    for name, version in (("1", "main@1"), ("clean@0", "clean@0"), ("v1", "main@1"), ("clean", "clean@1")):
        found = run("checkout", place, name, "--json").document
        assert found["version"] == version
        assert (found["columns"], found["file"]) == (["caption", "score"], None)
    shown = run("checkout", place, "clean").out
    assert all(word in shown for word in ("clean@1", "upper case", "caption, score"))
    time = run("log", place, "--json").document["commits"][1]["time"]
    assert run("checkout", place, "--as-of", time, "--json").document["version"] == "main@1"
    assert run("checkout", place).code == 2
    assert run("checkout", place, "1", "--as-of", time).code == 2
    assert run("checkout", place, "9").code == 1


def test_checkout_changes_nothing(run: Run, place: Path) -> None:
    before = sorted(place.rglob("*"))
    assert run("checkout", place, "0").code == 0
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize("ending", ["arrow", "parquet"])
@pytest.mark.parametrize("batch", [1, 2, 1000])
def test_checkout_writes_the_rows_out(
    run: Run, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, batch: int
) -> None:
    monkeypatch.setattr(_export, "_LINKED_ROWS", batch)
    to = tmp_path / f"out.{ending}"
    found = run("checkout", table, "main", "--to", to, "--links", "--json")
    assert found.code == 0
    assert found.document["file"] == {"path": str(to), "rows": 3, "bytes": to.stat().st_size}
    read = pq.read_table(to) if ending == "parquet" else pa.ipc.open_file(to).read_all()
    whole = penstock.load(table, links=True).to_arrow()
    assert repr(read.to_pylist()) == repr(whole.to_pylist())  # by their text: NaN is the same as NaN


def test_values_that_are_blobs_and_values_that_are_not_make_one_column(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_export, "_BATCH_ROWS", 1)
    films = [b"small", bytes(17 << 20)]
    dataset = penstock.create(tmp_path / "t", {"film": penstock.Video()})
    dataset.append({"film": films})
    dataset.commit()
    assert run("checkout", tmp_path / "t", "main", "--to", tmp_path / "t.parquet").code == 0
    assert pq.read_table(tmp_path / "t.parquet")["film"].to_pylist() == films


def test_an_empty_version_is_a_file_with_columns(run: Run, place: Path, tmp_path: Path) -> None:
    assert run("checkout", place, "0", "--to", tmp_path / "e.parquet").code == 0
    assert pq.read_table(tmp_path / "e.parquet").column_names == ["caption", "score"]


def test_a_file_is_overwritten_only_when_told(run: Run, place: Path, tmp_path: Path) -> None:
    to = tmp_path / "out.arrow"
    to.write_text("precious")
    refused = run("checkout", place, "main", "--to", to)
    assert (refused.code, to.read_text()) == (1, "precious")
    assert "--force" in refused.err
    assert run("checkout", place, "main", "--to", to, "--force").code == 0
    assert pa.ipc.open_file(to).read_all().num_rows == 6


@pytest.mark.parametrize("name", ["out.txt", "out", "nothing/out.arrow", "folder.arrow"])
def test_files_that_cannot_be_written(run: Run, place: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.arrow").mkdir()
    assert run("checkout", place, "main", "--to", tmp_path / name, "--force").code == 2


def test_a_file_that_failed_is_not_there(run: Run, table: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    assert run("checkout", table, "main", "--to", tmp_path / "out.arrow").code == 1  # links that are not allowed
    assert sorted(tmp_path.iterdir()) == before


def test_diff_counts_and_names(run: Run, place: Path) -> None:
    dataset = penstock.load(place)
    dataset.delete([1])
    dataset.rename_column("caption", "text")
    dataset.update([0], {"text": "z"})
    dataset.drop_column("score")
    dataset.add_column("checked", penstock.Tensor("bool"), fill=True)
    dataset.commit()
    found = run("diff", place, "1", "--json").document
    assert (found["old"], found["new"]) == ("main@1", "main@3")
    assert (found["rows_added"], found["rows_deleted"], found["rows_updated"]) == (3, 1, 1)
    assert (found["columns_added"], found["columns_dropped"]) == (["checked"], ["score"])
    assert found["columns_renamed"] == [["caption", "text"]]
    ids = penstock.load(place, version=2)["_row_id"][:].tolist()
    assert found["ids"] == {"added": ids[3:], "deleted": [ids[1]], "updated": [ids[0]]}
    assert found["values"] == {"text": [{"row_id": ids[0], "old": "a", "new": "z"}]}
    shown = run("diff", place, "1").out
    for part in ("3 added, 1 deleted, 1 updated", "+checked", "-score", "caption is now text", "'a' -> 'z'"):
        assert part in shown


def test_diff_shows_no_more_than_asked(run: Run, place: Path) -> None:
    found = run("diff", place, "main@1", "clean", "-n", 1, "--json").document
    assert found["updated"] == {"caption": 2}
    assert len(found["values"]["caption"]) == len(found["ids"]["updated"]) == 1
    shown = run("diff", place, "main@1", "clean", "-n", 1).out
    assert "'a' -> 'A'" in shown
    assert "'B'" not in shown
    assert "1 more" in shown


def test_diff_of_large_and_linked_values(run: Run, table: Path) -> None:
    dataset = penstock.load(table, links=True)
    other = table.parent / "elsewhere" / "picture.png"
    other.parent.mkdir()
    other.write_bytes((table.parent / "source" / "picture.png").read_bytes())
    frames = np.zeros((1, 8, 8, 3), np.uint8)
    dataset.update([0], {"photo": [penstock.Link(str(other))], "frame": frames, "raw": [bytes(1000)], "label": 1})
    dataset.commit()
    shown = run("diff", table, "2").out
    for part in (
        "0 to 191 -> uint8[8, 8, 3]  0 to 0",
        "2.0 MB -> 1.0 KB",
        "0 (cat) -> 1 (dog)",
        "elsewhere/picture.png",
    ):
        assert part in shown
    assert run("diff", table, "3", "2", "--json").document["values"]["label"][0]["new"] == {"label": 0, "name": "cat"}


def test_values_that_look_the_same_are_said_to_differ(run: Run, place: Path) -> None:
    dataset = penstock.load(place)
    dataset.update([0], {"caption": "x" * 200})
    dataset.commit()
    dataset.update([0], {"caption": "x" * 201})
    dataset.commit()
    assert "different inside" in run("diff", place, "3").out


def test_no_difference(run: Run, place: Path) -> None:
    same = run("diff", place, "main", "main@2")
    assert same.code == 0
    assert "no difference" in same.out
    assert run("diff", place, "nothing").code == 1
    assert run("diff", place).code == 2


def test_merge_says_what_came_in(run: Run, place: Path) -> None:
    found = run("merge", place, "clean", "-m", "took it", "--json").document
    assert (found["version"], found["merged"], found["message"]) == ("main@3", "clean@1", "took it")
    assert (found["came_in"]["rows_added"], found["came_in"]["rows_updated"]) == (0, 2)
    assert _captions(place) == ["A", "B", "c", "d", "e", "f"]
    again = run("merge", place, "clean")
    assert again.code == 0
    assert "already" in again.out
    back = run("merge", place, "main", "--into", "clean")
    assert "3 added" in back.out
    assert sorted(_captions(place, branch="clean")) == sorted(_captions(place))


def test_a_conflict_is_a_problem_and_changes_nothing(run: Run, place: Path) -> None:
    dataset = penstock.load(place)
    dataset.update([0], {"caption": "mine"})
    dataset.delete([1])
    dataset.commit()
    ids = penstock.load(place, version=2)["_row_id"][:2].tolist()
    found = run("merge", place, "clean", "--json")
    assert found.code == 1
    assert found.document["error"]["type"] == "MergeConflict"
    assert found.document["count"] == 2
    conflicts = {one["row_id"]: one for one in found.document["conflicts"]}
    assert {key: conflicts[ids[0]][key] for key in ("column", "ours", "theirs")} == {
        "column": "caption", "ours": "mine", "theirs": "A",
    }  # fmt: skip
    assert (conflicts[ids[1]]["ours"], conflicts[ids[1]]["theirs"]) == ("deleted", "changed")
    shown = run("merge", place, "clean", "-n", 1)
    assert shown.code == 1
    assert "1 more" in shown.out
    assert penstock.load(place).version == "main@3"
    assert run("merge", place, "clean", "--on-conflict", "never").code == 2
    assert run("merge", place, "clean", "--on-conflict", "ours").code == 0
    assert _captions(place)[0] == "mine"


def test_conflicts_settled_by_what_comes(run: Run, place: Path) -> None:
    dataset = penstock.load(place)
    dataset.update([0], {"caption": "mine"})
    dataset.commit()
    assert run("merge", place, "clean", "--on-conflict", "theirs").code == 0
    assert _captions(place)[:2] == ["A", "B"]


def test_compact_says_what_became_of_the_fragments(run: Run, place: Path) -> None:
    found = run("compact", place, "--json").document
    assert (found["compacted"], found["before"]["fragments"], found["after"]["fragments"]) == (True, 2, 1)
    assert _captions(place) == ["a", "b", "c", "d", "e", "f"]
    again = run("compact", place, "--json").document
    assert (again["compacted"], again["version"]) == (False, "main@3")
    assert run("compact", place, "--branch", "clean").code == 0
    assert run("compact", place, "--branch", "nothing").code == 1


def test_vacuum_removes_what_it_said_it_would(run: Run, place: Path) -> None:
    run("compact", place)
    run("tag", place, "v1", "--at", "1")
    assert run("vacuum", place, "--json").document["objects"] == 0
    planned = run("vacuum", place, "--older-than", "0s", "--dry-run", "--json").document
    assert run("info", place, "--version", 2).code == 0
    done = run("vacuum", place, "--older-than", "0s", "--json").document
    assert (planned.pop("dry_run"), done.pop("dry_run")) == (True, False)
    assert planned == done
    assert done["objects"] > 0
    assert done["bytes"] > 0
    assert sorted(done["versions"]) == ["main@0", "main@2"]  # clean@0 is the same as main@1, which has a tag
    gone = run("info", place, "--version", 2)
    assert gone.code == 1
    assert "vacuum" in gone.err
    assert run("verify", place).code == 0
    assert (len(_captions(place)), len(_captions(place, tag="v1")), len(_captions(place, branch="clean"))) == (6, 3, 3)


def test_vacuum_for_people(run: Run, place: Path) -> None:
    run("compact", place)
    would = run("vacuum", place, "--older-than", "0s", "--dry-run").out
    assert would.startswith("Would remove")
    assert "main@0 to 2" in would
    assert run("vacuum", place, "--older-than", "0s").out.startswith("Removed")


@pytest.mark.parametrize(
    ("text", "duration"),
    [("30d", timedelta(30)), ("12h", timedelta(hours=12)), ("0s", timedelta()), ("1w2d", timedelta(9)),
     ("90m", timedelta(hours=1.5))],
)  # fmt: skip
def test_durations(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["", "30", "-1d", "d", "1y", "1d ago", "99999999999w"])
def test_what_is_no_duration(run: Run, place: Path, text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_duration(text)
    assert run("vacuum", place, f"--older-than={text}").code == 2


def test_versions_are_counted_in_runs() -> None:
    def called(at: Parent) -> str:
        return f"{at.branch}@{at.version}"

    versions = [
        Parent(branch, number) for branch, numbers in (("b", [3]), ("a", [4, 0, 1, 2, 6])) for number in numbers
    ]
    assert runs(versions, called) == ["a@0 to 2", "a@4", "a@6", "b@3"]
    assert runs([], called) == []


def test_reset_is_a_commit(run: Run, place: Path) -> None:
    found = run("reset", place, "1", "-m", "back", "--json").document
    assert (found["version"], found["rows"], found["operation"], found["message"]) == ("main@3", 3, "reset", "back")
    assert run("reset", place, "main@2").code == 0
    assert len(_captions(place)) == 6
    assert run("reset", place, "0", "--branch", "clean").code == 0
    assert _captions(place, branch="clean") == ["a", "b", "c"]
    assert run("reset", place, "nothing").code == 1


@pytest.mark.parametrize(
    "words",
    [["branch"], ["tag"], ["checkout", "1"], ["diff", "1"], ["merge", "x"], ["compact"], ["vacuum"], ["reset", "1"]],
)
def test_a_place_that_is_not_a_table(run: Run, tmp_path: Path, words: list[str]) -> None:
    verb, *rest = words
    found = run(verb, tmp_path / "nothing", *rest)
    assert (found.code, found.out) == (1, "")
    assert "is not a table" in found.err
    assert run(verb, tmp_path / "nothing", *rest, "--json").document["error"]["type"] == "NotFoundError"
    assert not (tmp_path / "nothing").exists()


def test_a_history_in_a_bucket(run: Run) -> None:
    bucket = new_place("s3")
    options = [word for key, value in bucket.options.items() for word in ("--option", f"{key}={value}")]
    dataset = penstock.create(bucket.uri, {"x": penstock.Tensor("int64")}, options=bucket.options)
    dataset.append({"x": [1, 2]})
    dataset.commit()
    for words in (["branch", "b"], ["tag", "v"], ["reset", "0"], ["merge", "b"], ["compact"], ["vacuum"]):
        assert run(words[0], bucket.uri, *words[1:], *options).code == 0
    listed = run("branch", bucket.uri, *options, "--json").document["branches"]
    assert {one["name"]: one["rows"] for one in listed} == {"main": 0, "b": 2}
