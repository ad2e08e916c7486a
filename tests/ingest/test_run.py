"""The run of an ingest: one commit, nothing twice, nothing lost, whatever happens on the way."""

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.errors import (
    ConflictError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    SampleError,
    StorageError,
)
from penstock.ingest import Job, OnBad, Outcome, Settings, Threads, _parts, do_part, prepare, run
from penstock.ingest._bucket import Bucket
from penstock.ingest._parts import cut_parts
from penstock.storage import ObjectInfo, open_store
from tests.ingest.lines import SOURCES, write

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    for number in range(7):
        write(source, f"{number}.lines", *(f"{number}-{line}" for line in range(5)))
    return source


def take_in(
    ds: penstock.Dataset,
    source: Path,
    settings: Settings = Settings(),  # noqa: B008
    *,
    on_bad: OnBad = "skip",
    max_bad: int = 100,
    runner: Any = None,
) -> Outcome:
    prepared = prepare(ds._session, open_store(source), SOURCES, None, settings)
    return run(ds._session, prepared, on_bad=on_bad, max_bad=max_bad, message="", workers=2, runner=runner)


def texts(ds: penstock.Dataset) -> list[str]:
    return list(ds["text"][:])


def all_lines(folder: Path) -> list[str]:
    return [line for path in sorted(folder.glob("*.lines")) for line in path.read_text().splitlines()]


def table() -> penstock.Dataset:
    return penstock.create("memory://")


def test_a_run_is_one_commit_with_the_rows_in_the_order_of_the_files(folder: Path) -> None:
    ds = table()
    outcome = take_in(ds, folder)
    assert texts(ds) == all_lines(folder)
    assert (outcome.rows, ds.version) == (35, "main@1")
    assert next(iter(ds.log())).operation == "ingest"
    assert ds.sources == (open_store(folder).uri,)


def test_a_second_run_adds_nothing_and_a_new_file_is_picked_up(folder: Path) -> None:
    ds = table()
    take_in(ds, folder)
    assert take_in(ds, folder).rows == 0
    assert ds.version == "main@1"
    write(folder, "3b.lines", "new")
    assert take_in(ds, folder).rows == 1
    assert texts(ds)[-1] == "new"
    assert ds.version == "main@2"


def test_a_file_that_changed_is_named_and_left_alone(folder: Path) -> None:
    ds = table()
    take_in(ds, folder)
    write(folder, "2.lines", "something else entirely")
    assert prepare(ds._session, open_store(folder), SOURCES, None, Settings()).changed == ("2.lines",)
    assert take_in(ds, folder).rows == 0
    assert len(ds) == 35


def test_what_is_known_belongs_to_the_version(folder: Path) -> None:
    ds = table()
    take_in(ds, folder)
    ds.delete([0, 1, 2, 3, 4])
    ds.commit()
    assert take_in(ds, folder).rows == 0  # who deletes rows does not want them back
    ds.reset("main@0")
    assert take_in(ds, folder).rows == 35


def test_a_branch_knows_its_own_and_a_merge_brings_it_along(folder: Path) -> None:
    ds = table()
    take_in(ds, folder)
    ds.branch("more")
    ds.checkout("more")
    write(folder, "8.lines", "eight")
    assert take_in(ds, folder).rows == 1
    ds.checkout("main")
    assert prepare(ds._session, open_store(folder), SOURCES, None, Settings()).new[0].key == "8.lines"
    ds.merge("more")
    assert take_in(ds, folder).rows == 0
    assert texts(ds)[-1] == "eight"


def test_a_vacuum_keeps_the_lists_and_takes_what_waits_too_long(folder: Path) -> None:
    place = folder.parent / "table"
    ds = penstock.create(place)
    take_in(ds, folder)
    store = open_store(place)
    store.put("ingest/waiting/old/plan.json", b"{}")
    store.put("ingest/nobody.arrow", b"")
    for name in ("waiting/old/plan.json", "nobody.arrow"):
        os.utime(place / "ingest" / name, (0, 0))
    [kept] = [item.key for item in store.list("ingest/") if item.size > 2]
    os.utime(place / kept, (0, 0))
    ds.vacuum()
    assert [item.key for item in store.list("ingest/")] == [kept]
    assert take_in(penstock.load(place), folder).rows == 0


def test_a_damaged_list_is_noticed(folder: Path) -> None:
    place = folder.parent / "table"
    take_in(penstock.create(place), folder)
    [item] = open_store(place).list("ingest/")
    data = bytearray((place / item.key).read_bytes())
    data[len(data) // 2] ^= 1
    (place / item.key).write_bytes(data)
    assert any(item.key in sentence for sentence in penstock.verify(place).damaged)
    with pytest.raises(CorruptError, match="is damaged"):
        take_in(penstock.load(place), folder)


def test_bad_rows_and_files_are_listed_and_a_mended_file_is_taken_later(folder: Path) -> None:
    write(folder, "4.lines", "good", "!", "fine")
    write(folder, "5.lines", "!!")
    ds = table()
    outcome = take_in(ds, folder)
    assert {reject.name: reject.reason for reject in outcome.rejects} == {"4.lines:1": "bad line", "5.lines": "broken"}
    write(folder, "5.lines", "mended")
    assert take_in(ds, folder).rows == 1
    assert texts(ds)[-1] == "mended"


def test_a_value_that_does_not_fit_is_a_reject_of_its_row_alone(folder: Path) -> None:
    for number in range(20):
        write(folder, f"9{number:02}.lines", "x", "y")
    write(folder, "901b.lines", "before", "?", "after")
    ds = table()
    outcome = take_in(ds, folder)
    [reject] = outcome.rejects
    assert reject.name == "901b.lines:1"
    assert "number" in reject.reason
    assert "not nullable" in reject.reason
    assert {"before", "after"} <= set(texts(ds))
    nullable = table()
    assert not take_in(nullable, folder, Settings(nullable=("number",))).rejects


def test_a_part_that_fails_gives_up_its_turn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_parts, "_LEAST_PART_BYTES", 1)
    write(folder, "1.lines", "!")
    ds = table()
    prepared = prepare(ds._session, open_store(folder), SOURCES, None, Settings())
    with pytest.raises(SampleError, match="bad line"):
        run(ds._session, prepared, on_bad="raise", max_bad=0, message="", workers=1)


def test_raise_stops_and_commits_nothing(folder: Path) -> None:
    write(folder, "4.lines", "good", "!")
    ds = table()
    with pytest.raises(SampleError, match=r"4\.lines:1: bad line; nothing was committed"):
        take_in(ds, folder, on_bad="raise")
    assert (ds.version, len(ds)) == ("main@0", 0)


def test_too_many_bad_rows_stop_the_run(folder: Path) -> None:
    write(folder, "4.lines", *"!!!!!!")
    ds = table()
    with pytest.raises(SampleError, match="more than 3 rows or files could not be taken in"):
        take_in(ds, folder, max_bad=3)
    assert len(ds) == 0
    take_in(ds, folder, max_bad=6)
    assert len(ds) == 30


def test_the_limit_holds_inside_a_file(folder: Path) -> None:
    def endless(job: Job, parts: Any, *, stop: Any) -> Any:
        with pytest.raises(SampleError, match="more than 3 rows"):
            do_part(job, parts[0], stop)
        raise SampleError("stopped at once")

    write(folder, "4.lines", *("!" * 1000))
    with pytest.raises(SampleError, match="stopped at once"):
        take_in(table(), folder, max_bad=3, runner=endless)


def test_two_runs_at_once_take_nothing_twice(folder: Path) -> None:
    place = folder.parent / "table"
    first, second = penstock.create(place), penstock.load(place)
    here = prepare(first._session, open_store(folder), SOURCES, None, Settings())
    there = prepare(second._session, open_store(folder), SOURCES, None, Settings())
    how: dict[str, Any] = {"on_bad": "skip", "max_bad": 0, "message": "", "workers": 2}
    assert run(first._session, here, **how).rows == 35
    with pytest.raises(ConflictError):
        run(second._session, there, **how)
    assert len(penstock.load(place)) == 35
    second.rollback()
    second.refresh()
    assert take_in(second, folder).rows == 0


def test_parts_of_another_plan_are_left_alone(folder: Path) -> None:
    ds = table()
    write(folder, "6.lines", "!")
    with pytest.raises(SampleError):
        take_in(ds, folder, max_bad=0)
    ds.append({"text": ["mine"], "number": [4], "more": [1.5]})
    ds.commit()
    with pytest.raises(InvalidInputError, match="needs a value in every row"):
        take_in(ds, folder)
    ds.drop_column("more")
    ds.commit()
    assert take_in(ds, folder).continued == 0
    assert texts(ds) == ["mine", *all_lines(folder)[:-1]]
    assert ds["number"][1:3].tolist() == [3, 3]


def test_rows_are_in_order_whichever_parts_were_there_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_parts, "_LEAST_PART_BYTES", 1)
    place = folder.parent / "table"
    ds = penstock.create(place)

    def some(job: Job, parts: Any, *, stop: Any) -> Any:
        for number in (4, 1):
            do_part(job, parts[number], stop)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_in(ds, folder, runner=some)
    monkeypatch.setattr(_parts, "_LEAST_PART_BYTES", 1 << 30)
    outcome = take_in(penstock.load(place), folder)
    assert outcome.continued > 0
    assert texts(penstock.load(place)) == all_lines(folder)


def test_a_part_that_is_done_twice_is_there_once(folder: Path) -> None:
    def twice(job: Job, parts: Any, *, stop: Any) -> Any:
        for part in parts:
            do_part(job, part, stop)
            yield do_part(job, part, stop)

    ds = table()
    take_in(ds, folder, runner=twice)
    assert texts(ds) == all_lines(folder)


def test_what_waits_is_not_committed_when_its_files_are_gone(folder: Path) -> None:
    place = folder.parent / "table"
    ds = penstock.create(place)

    def one(job: Job, parts: Any, *, stop: Any) -> Any:
        do_part(job, parts[0], stop)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_in(ds, folder, runner=one)
    store = open_store(place)
    store.delete([item.key for item in store.list("data/")])
    with pytest.raises(StorageError, match="are gone, so nothing was committed"):
        take_in(penstock.load(place), folder)
    assert take_in(penstock.load(place), folder).rows == 35


def test_a_table_does_not_choose_what_code_runs(folder: Path) -> None:
    place = folder.parent / "table"
    ds = penstock.create(place)
    take_in(ds, folder, Settings(transform="tests.ingest.test_run:shout"))
    write(folder, "9.lines", "new")
    with pytest.raises(InvalidInputError, match=r"to have it called, say transform='tests\.ingest\.test_run:shout'"):
        penstock.sync(place)
    assert "tests.ingest.nowhere" not in sys.modules
    Settings(transform="tests.ingest.nowhere:f")  # reading what a table says imports nothing


def test_nothing_to_read_is_said(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError, match="there is nothing in"):
        take_in(table(), tmp_path / "empty")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.xyz").write_text("?")
    with pytest.raises(InvalidInputError, match=r"nothing that is recognised \(its files end in xyz\)"):
        take_in(table(), tmp_path / "other")
    write(tmp_path / "bad", "a.lines", "!")
    with pytest.raises(InvalidInputError, match=r"could be read as rows: a.lines:0: bad line"):
        take_in(table(), tmp_path / "bad")


def shout(row: dict[str, Any]) -> dict[str, Any] | None:
    return None if row["text"].startswith("3") else row | {"text": row["text"] + "!"}


def fail(row: dict[str, Any]) -> dict[str, Any]:
    return row if row["text"] != "2-2" else row[3]  # type: ignore[index]


def test_transforms_columns_and_shuffle(folder: Path) -> None:
    ds = table()
    take_in(ds, folder, Settings(transform="tests.ingest.test_run:shout", columns=("text",)))
    assert ds.schema.names == ["text"]
    assert texts(ds) == [line + "!" for line in all_lines(folder) if not line.startswith("3")]
    broken = table()
    [reject] = take_in(broken, folder, Settings(transform="tests.ingest.test_run:fail")).rejects
    assert reject == ("2.lines:2", "the transform failed: KeyError: 3")
    mixed, again, other = table(), table(), table()
    take_in(mixed, folder, Settings(shuffle=1))
    take_in(again, folder, Settings(shuffle=1))
    take_in(other, folder, Settings(shuffle=2))
    assert sorted(texts(mixed)) == sorted(all_lines(folder))
    assert texts(mixed) == texts(again) != texts(other)
    with pytest.raises(InvalidInputError, match=r"there is no column 'nope'; the source has text, number"):
        take_in(table(), folder, Settings(columns=("nope",)))
    with pytest.raises(InvalidInputError, match="cannot be found"):
        take_in(table(), folder, Settings(transform="tests.ingest.test_run:nope"))


def test_a_table_that_has_columns_keeps_them(folder: Path) -> None:
    ds = penstock.create(
        "memory://",
        {"text": penstock.Text(), "number": "int64", "more": penstock.Column(penstock.Text(), nullable=True)},
    )
    take_in(ds, folder)
    assert ds["number"][:3].tolist() == [3, 3, 3]
    strange = penstock.create("memory://", {"text": penstock.Text()})
    with pytest.raises(InvalidInputError, match="the source has a column 'number' and the table has not"):
        take_in(strange, folder)


def test_a_runner_may_do_the_parts_anywhere_and_in_any_order(folder: Path) -> None:
    def elsewhere(job: Job, parts: Any, *, stop: Any) -> Any:
        there = pickle.loads(pickle.dumps((job, parts)))
        yield from reversed(list(Threads(1)(there[0], list(reversed(there[1])), stop=stop)))

    place = folder.parent / "table"
    ds = penstock.create(place)
    take_in(ds, folder, runner=elsewhere)
    assert texts(ds) == all_lines(folder)


files = st.lists(st.integers(0, 300 << 20), max_size=60).map(
    lambda sizes: [ObjectInfo(f"{n:03}", size, None, 0.0) for n, size in enumerate(sizes)]
)


@given(files, st.integers(1, 32))
def test_parts_are_the_files_in_order(given_files: list[ObjectInfo], workers: int) -> None:
    parts = cut_parts(given_files, workers)
    assert [file for part in parts for file in part.files] == given_files
    assert all(part.files for part in parts)
    assert all(part.bytes <= 256 << 20 or len(part.files) == 1 for part in parts)


def test_what_is_hidden_or_empty_is_nobodys_data(folder: Path) -> None:
    shown = all_lines(folder)
    for name in (".git/x.lines", "_state/x.lines", "a/.x.lines", "_x.lines"):
        write(folder, name, "hidden")
    (folder / "empty.lines").touch()
    ds = penstock.create(folder.parent / "table")
    take_in(ds, folder)
    assert texts(ds) == shown


def test_objects_are_read_ahead_in_order_and_errors_stay_with_theirs(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(50):
        store.put(f"{number:02}", bytes([number]) * (number + 1))
    listed = list(store.list())
    store.delete(["07"])
    found = list(Bucket(store).each(listed))
    assert [file.key for file, _ in found] == [f"{number:02}" for number in range(50)]
    assert [file.key for file, data in found if isinstance(data, Exception)] == ["07"]
    assert bytes(found[9][1]) == bytes([9]) * 10  # type: ignore[arg-type]
    assert all(not data for _, data in Bucket(store, link=True).each(listed))


def test_a_file_is_read_in_steps_from_any_place(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    body = random.Random(0).randbytes(10 << 20)
    store.put("big", body)
    [info] = store.list()
    with Bucket(store).open(info) as file:
        assert file.read(100) == body[:100]
        assert file.seek(5 << 20) == 5 << 20
        assert file.read(3 << 20) == body[5 << 20 : 8 << 20]
        file.seek(-10, os.SEEK_END)
        assert file.read() == body[-10:]
        file.seek(0)
        assert file.read() == body


def test_a_run_that_is_killed_goes_on_where_it_stopped(tmp_path: Path) -> None:
    source, place = tmp_path / "source", tmp_path / "table"
    for number in range(40):
        write(source, f"{number:02}.lines", *(f"{number}-{line}" for line in range(50)))
    penstock.create(place)
    dice = random.Random(time.time_ns())
    kills = 0
    while True:
        program = subprocess.Popen([sys.executable, "-m", "tests.ingest.killed", str(source), str(place)], cwd=ROOT)
        try:
            program.wait(timeout=dice.uniform(0.6, 2.0) if kills < 6 else 120)
        except subprocess.TimeoutExpired:
            os.kill(program.pid, signal.SIGKILL)
            program.wait()
            kills += 1
            continue
        assert program.returncode == 0
        break
    ds = penstock.load(place)
    assert texts(ds) == all_lines(source)
    assert ds.version == "main@1"
    assert not list(open_store(place).list("ingest/waiting/"))
    assert not penstock.verify(place).damaged
