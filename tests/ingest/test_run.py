"""The run of an ingest: one commit, no row duplicated and none lost, whatever fails."""

import gc
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.engine import BadSamples
from penstock.errors import (
    CommitStateUnknownError,
    ConflictError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    SampleError,
    StorageError,
)
from penstock.ingest import (
    IngestOptions,
    IngestOutcome,
    Job,
    ThreadRunner,
    _parts,
    find_transform,
    prepare,
    run,
    run_part,
    sources,
)
from penstock.ingest._parts import split_parts
from penstock.ingest._reader import SourceReader
from penstock.plan import Shuffle
from penstock.storage import FolderStore, ObjectInfo, open_store
from penstock.testing import Fault, FaultyStore
from penstock.types import ByteRange
from tests.ingest.lines import SOURCES, write

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    for number in range(7):
        write(source, f"{number}.lines", *(f"{number}-{line}" for line in range(5)))
    return source


def ingest(
    ds: penstock.Dataset,
    source: Path,
    options: IngestOptions = IngestOptions(),  # noqa: B008
    *,
    bad_samples: BadSamples = BadSamples(limit=100),  # noqa: B008
    runner: Any = None,
) -> IngestOutcome:
    prepared = prepare(ds._session, open_store(source), SOURCES, None, options)
    return run(ds._session, prepared, bad_samples=bad_samples, message="", num_workers=2, runner=runner)


def texts(ds: penstock.Dataset) -> list[str]:
    return list(ds["text"][:])


def all_lines(folder: Path) -> list[str]:
    return [line for path in sorted(folder.glob("*.lines")) for line in path.read_text().splitlines()]


def table() -> penstock.Dataset:
    return penstock.create("memory://")


def test_a_run_is_one_commit_with_the_rows_in_the_order_of_the_files(folder: Path) -> None:
    ds = table()
    outcome = ingest(ds, folder)
    assert texts(ds) == all_lines(folder)
    assert (outcome.rows, ds.version) == (35, "main@1")
    assert next(iter(ds.log())).operation == "ingest"
    assert ds.summary().sources == (open_store(folder).uri,)


def test_a_second_run_ingests_only_new_files(folder: Path) -> None:
    ds = table()
    ingest(ds, folder)
    assert ingest(ds, folder).rows == 0
    assert ds.version == "main@1"
    write(folder, "3b.lines", "new")
    assert ingest(ds, folder).rows == 1
    assert texts(ds)[-1] == "new"
    assert ds.version == "main@2"


def test_a_changed_file_is_reported_and_not_ingested(folder: Path) -> None:
    ds = table()
    ingest(ds, folder)
    write(folder, "2.lines", "something else entirely")
    assert prepare(ds._session, open_store(folder), SOURCES, None, IngestOptions()).changed == ("2.lines",)
    assert ingest(ds, folder).rows == 0
    assert len(ds) == 35


def test_ingested_files_are_recorded_per_version(folder: Path) -> None:
    ds = table()
    ingest(ds, folder)
    ds.delete(positions=[0, 1, 2, 3, 4])
    ds.commit()
    assert ingest(ds, folder).rows == 0  # deleted rows are not ingested again
    ds.reset("main@0")
    assert ingest(ds, folder).rows == 35


def test_ingested_files_are_recorded_per_branch_and_merged(folder: Path) -> None:
    ds = table()
    ingest(ds, folder)
    ds.branches.create("more")
    ds.checkout("more")
    write(folder, "8.lines", "eight")
    assert ingest(ds, folder).rows == 1
    ds.checkout("main")
    assert prepare(ds._session, open_store(folder), SOURCES, None, IngestOptions()).new[0].key == "8.lines"
    ds.merge("more")
    assert ingest(ds, folder).rows == 0
    assert texts(ds)[-1] == "eight"


def test_parts_left_behind_by_a_commit_become_other_rows_after_a_reset(folder: Path) -> None:
    """A run that dies between its commit and its clean-up leaves its parts, and a later run takes them up."""
    ds = penstock.create(FaultyStore(open_store("memory://"), Fault("fail_before", "delete", "ingest/waiting/*")))
    assert ingest(ds, folder).rows == 35, "the commit is done; a clean-up that fails is no failure of the run"
    assert list(ds._session.store.list("ingest/waiting/"))
    ds.tags.create("first")
    ds.reset(0)
    side = ds.branches.create("side", at=0)
    assert ingest(ds, folder).resumed_rows == 35
    found = ds.diff("first")
    assert (len(found.added), len(found.deleted)) == (35, 35), "rows with new ids are other rows"
    side.merge("first")
    side.merge("main")
    assert list(side.select(["_row_id", "text"])) == list(ds.select(["_row_id", "text"])), "a merge has the new rows"


def test_a_run_that_fails_drops_what_it_staged_without_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.history._log._BACKOFF_S", 0.0)
    write(tmp_path / "text", "a.jsonl", '{"x": 1}', '{"x": 2}')
    inner = open_store("memory://")
    penstock.create(inner)
    store = FaultyStore(
        inner, Fault("fail_before", "create", "log/*", times=99), Fault("fail_before", "get", "log/*", skip=4, times=99)
    )

    def fail() -> None:
        with pytest.raises(CommitStateUnknownError):
            penstock.ingest(tmp_path / "text", store)

    gc.collect()  # what other tests left behind
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fail()
        gc.collect()
    assert not caught
    assert penstock.ingest(tmp_path / "text", inner).resumed_rows > 0


def test_vacuum_retains_manifests_and_removes_expired_staged_parts(folder: Path) -> None:
    place = folder.parent / "table"
    ds = penstock.create(place)
    ingest(ds, folder)
    store = open_store(place)
    store.put("ingest/waiting/old/plan.json", b"{}")
    unreferenced = f"{'0' * 32}.arrow"
    store.put(f"ingest/{unreferenced}", b"")
    for name in ("waiting/old/plan.json", unreferenced):
        os.utime(place / "ingest" / name, (0, 0))
    [manifest] = [item.key for item in store.list("ingest/") if item.size > 2]
    os.utime(place / manifest, (0, 0))
    penstock.vacuum(ds._session.store)
    assert [item.key for item in store.list("ingest/")] == [manifest]
    assert ingest(penstock.load(place), folder).rows == 0


def test_a_damaged_manifest_raises(folder: Path) -> None:
    place = folder.parent / "table"
    ingest(penstock.create(place), folder)
    [item] = open_store(place).list("ingest/")
    data = bytearray((place / item.key).read_bytes())
    data[len(data) // 2] ^= 1
    (place / item.key).write_bytes(data)
    assert any(item.key in message for message in penstock.verify(place).damaged)
    with pytest.raises(CorruptError, match="is damaged"):
        ingest(penstock.load(place), folder)


def test_bad_rows_and_files_are_rejected_and_a_repaired_file_is_ingested_later(folder: Path) -> None:
    write(folder, "4.lines", "good", "!", "fine")
    write(folder, "5.lines", "!!")
    ds = table()
    outcome = ingest(ds, folder)
    assert {reject.name: reject.reason for reject in outcome.rejects} == {"4.lines:1": "bad line", "5.lines": "broken"}
    write(folder, "5.lines", "repaired")
    assert ingest(ds, folder).rows == 1
    assert texts(ds)[-1] == "repaired"


class GrowingFile(FolderStore):
    """A folder in which another process appends to `0.jsonl` after some reads of it."""

    reads = -1

    def get(self, key: str, *, byte_range: ByteRange | None = None, etag: str | None = None) -> memoryview:
        found = super().get(key, byte_range=byte_range, etag=etag)
        self.reads -= key == "0.jsonl"
        if key == "0.jsonl" and not self.reads:
            with (self._root / key).open("a") as file:
                file.write('{"text": "new"}\n')
        return found


def test_a_file_that_changes_while_it_is_read_is_rejected_and_ingested_later(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    lines = [{"text": f"{number}" * 100_000} for number in range(10)] * 12
    (source / "0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (source / "1.jsonl").write_text('{"text": "one"}\n')
    ds = table()
    store = GrowingFile(source)
    prepared = prepare(ds._session, store, sources.SOURCES, None, IngestOptions())
    store.reads = 2
    outcome = run(ds._session, prepared, bad_samples=BadSamples(limit=1), message="", num_workers=1)
    assert [reject.name for reject in outcome.rejects] == ["0.jsonl"]
    assert "changed while it was read" in outcome.rejects[0].reason
    assert texts(ds) == ["one"]
    prepared = prepare(ds._session, open_store(source), sources.SOURCES, None, IngestOptions())
    assert [file.key for file in prepared.new] == ["0.jsonl"]
    assert run(ds._session, prepared, bad_samples=BadSamples(), message="", num_workers=1).rows == 121


def test_a_value_that_does_not_fit_rejects_only_its_row(folder: Path) -> None:
    for number in range(20):
        write(folder, f"9{number:02}.lines", "x", "y")
    write(folder, "901b.lines", "before", "?", "after")
    ds = table()
    outcome = ingest(ds, folder)
    [reject] = outcome.rejects
    assert reject.name == "901b.lines:1"
    assert "number" in reject.reason
    assert "not nullable" in reject.reason
    assert {"before", "after"} <= set(texts(ds))
    nullable = table()
    assert not ingest(nullable, folder, IngestOptions(nullable=("number",))).rejects


def test_a_failed_part_releases_its_read_slot(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_parts, "_MIN_PART_BYTES", 1)
    write(folder, "1.lines", "!")
    ds = table()
    prepared = prepare(ds._session, open_store(folder), SOURCES, None, IngestOptions())
    with pytest.raises(SampleError, match="bad line"):
        run(ds._session, prepared, bad_samples=BadSamples(action="raise", limit=0), message="", num_workers=1)


def test_raise_stops_without_a_commit(folder: Path) -> None:
    write(folder, "4.lines", "good", "!")
    ds = table()
    with pytest.raises(SampleError, match=r"4\.lines:1: bad line; nothing was committed"):
        ingest(ds, folder, bad_samples=BadSamples(action="raise"))
    assert (ds.version, len(ds)) == ("main@0", 0)


def test_more_bad_rows_than_the_limit_stop_the_run(folder: Path) -> None:
    write(folder, "4.lines", *"!!!!!!")
    ds = table()
    with pytest.raises(SampleError, match="more than 3 rows or files could not be read"):
        ingest(ds, folder, bad_samples=BadSamples(limit=3))
    assert len(ds) == 0
    ingest(ds, folder, bad_samples=BadSamples(limit=6))
    assert len(ds) == 30


def test_a_float_limit_is_a_share_of_the_rows_seen(folder: Path) -> None:
    write(folder, "4.lines", *"!!!!!!")
    ds = table()
    with pytest.raises(SampleError, match=r"more than 10\.000% rows or files could not be read"):
        ingest(ds, folder, bad_samples=BadSamples(limit=0.1))
    assert len(ds) == 0
    assert len(ingest(ds, folder, bad_samples=BadSamples(limit=0.2)).rejects) == 6  # of 36


def test_by_default_a_thousand_bad_rows_are_allowed(folder: Path) -> None:
    write(folder, "4.lines", *("!" * 1000))
    assert len(ingest(table(), folder, bad_samples=BadSamples()).rejects) == 1000
    write(folder, "4.lines", *("!" * 1001))
    with pytest.raises(SampleError, match="more than 1000 rows"):
        ingest(table(), folder, bad_samples=BadSamples())


def test_the_limit_applies_within_a_file(folder: Path) -> None:
    def endless(job: Job, parts: Any, *, stop: Any) -> Any:
        with pytest.raises(SampleError, match="more than 3 rows"):
            run_part(job, parts[0], stop)
        raise SampleError("stopped at once")

    write(folder, "4.lines", *("!" * 1000))
    with pytest.raises(SampleError, match="stopped at once"):
        ingest(table(), folder, bad_samples=BadSamples(limit=3), runner=endless)


def test_concurrent_runs_do_not_duplicate_rows(folder: Path) -> None:
    place = folder.parent / "table"
    first, second = penstock.create(place), penstock.load(place)
    here = prepare(first._session, open_store(folder), SOURCES, None, IngestOptions())
    there = prepare(second._session, open_store(folder), SOURCES, None, IngestOptions())
    how: dict[str, Any] = {"bad_samples": BadSamples(limit=0), "message": "", "num_workers": 2}
    assert run(first._session, here, **how).rows == 35
    with pytest.raises(ConflictError):
        run(second._session, there, **how)
    assert len(penstock.load(place)) == 35
    second.rollback()
    second.checkout()
    assert ingest(second, folder).rows == 0


def test_parts_of_another_plan_are_not_used(folder: Path) -> None:
    ds = table()
    write(folder, "6.lines", "!")
    with pytest.raises(SampleError):
        ingest(ds, folder, bad_samples=BadSamples(limit=0))
    ds.append({"text": ["mine"], "number": [4], "more": [1.5]})
    ds.commit()
    with pytest.raises(InvalidInputError, match="needs a value in every row"):
        ingest(ds, folder)
    ds.drop_column("more")
    ds.commit()
    assert ingest(ds, folder).resumed_rows == 0
    assert texts(ds) == ["mine", *all_lines(folder)[:-1]]
    assert ds["number"][1:3].tolist() == [3, 3]


def interrupted_after(count: int) -> Any:
    """A runner that finishes some parts, and is interrupted."""

    def runner(job: Job, parts: Any, *, stop: Any) -> Any:
        for part in parts[:count]:
            run_part(job, part, stop)
        raise KeyboardInterrupt

    return runner


@pytest.mark.parametrize("name", ["*.part", "plan.json"])
def test_damaged_records_of_an_interrupted_run_are_found_and_its_parts_ingested_again(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flips a byte of a record, or cuts it, at many places; each time the next run gives the same rows."""
    monkeypatch.setattr(_parts, "_MIN_PART_BYTES", 1)
    place = folder.parent / "table"
    with pytest.raises(KeyboardInterrupt):
        ingest(penstock.create(place), folder, runner=interrupted_after(2))
    rng = random.Random(0)
    [path, *_] = sorted(place.rglob(name))
    data = path.read_bytes()
    damage = [data[:size] for size in (0, 5, len(data) // 2, len(data) - 1)]
    damage += [data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :] for at in
               rng.sample(range(len(data)), 12)]  # fmt: skip
    for number, damaged in enumerate(damage):
        copy = folder.parent / f"copy-{number}"
        shutil.copytree(place, copy)
        (copy / path.relative_to(place)).write_bytes(damaged)
        ds = penstock.load(copy)
        prepared = prepare(ds._session, open_store(folder), SOURCES, None, IngestOptions())
        outcome = run(ds._session, prepared, bad_samples=BadSamples(limit=0), message="", num_workers=2)
        assert texts(ds) == all_lines(folder)
        assert not penstock.verify(copy).damaged
        assert outcome.damaged_parts == (name == "*.part")
        assert any("plan of an interrupted run is damaged" in note for note in prepared.notes) == (name == "plan.json")
        shutil.rmtree(copy)


def test_a_plan_ages_when_the_columns_of_the_source_change(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()

    def write_rows(**more: object) -> None:
        for number in range(3):
            (source / f"{number}.jsonl").write_text(json.dumps({"text": f"{number}", **more}) + "\n")

    def prepare_again(ds: penstock.Dataset) -> Any:
        return prepare(ds._session, open_store(source), sources.SOURCES, None, IngestOptions())

    def run_again(ds: penstock.Dataset, prepared: Any, runner: Any = None) -> IngestOutcome:
        return run(
            ds._session, prepared, bad_samples=BadSamples(action="raise"), message="", num_workers=1, runner=runner
        )

    write_rows()
    ds = table()
    with pytest.raises(KeyboardInterrupt):
        run_again(ds, prepare_again(ds), interrupted_after(1))
    assert prepare_again(ds).notes == ()
    for columns, kind in (({"more": 1}, "int64"), ({"more": "one"}, "text")):
        write_rows(**columns)
        ds = penstock.load(ds._session.store)
        prepared = prepare_again(ds)
        assert prepared.notes == ("the columns changed since an interrupted run, so its parts are ingested again",)
        assert str(prepared.plan.schema["more"].kind) == kind
        with pytest.raises(KeyboardInterrupt):
            run_again(ds, prepared, interrupted_after(1))
    prepared = prepare_again(ds)
    assert prepared.notes == ()
    assert run_again(ds, prepared).resumed_rows == 3
    assert list(ds["more"][:]) == ["one"] * 3


def test_rows_are_in_file_order_after_a_resume(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_parts, "_MIN_PART_BYTES", 1)
    place = folder.parent / "table"
    ds = penstock.create(place)

    def some(job: Job, parts: Any, *, stop: Any) -> Any:
        for number in (4, 1):
            run_part(job, parts[number], stop)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(ds, folder, runner=some)
    monkeypatch.setattr(_parts, "_MIN_PART_BYTES", 1 << 30)
    outcome = ingest(penstock.load(place), folder)
    assert outcome.resumed_rows > 0
    assert texts(penstock.load(place)) == all_lines(folder)


def test_a_part_that_runs_twice_is_staged_once(folder: Path) -> None:
    def twice(job: Job, parts: Any, *, stop: Any) -> Any:
        for part in parts:
            run_part(job, part, stop)
            yield run_part(job, part, stop)

    ds = table()
    ingest(ds, folder, runner=twice)
    assert texts(ds) == all_lines(folder)


def test_staged_parts_with_missing_files_are_not_committed(folder: Path) -> None:
    place = folder.parent / "table"
    ds = penstock.create(place)

    def one(job: Job, parts: Any, *, stop: Any) -> Any:
        run_part(job, parts[0], stop)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(ds, folder, runner=one)
    store = open_store(place)
    store.delete([item.key for item in store.list("data/")])
    with pytest.raises(StorageError, match="are gone, so nothing was committed"):
        ingest(penstock.load(place), folder)
    assert ingest(penstock.load(place), folder).rows == 35


def test_a_table_does_not_decide_which_code_runs(folder: Path) -> None:
    place = folder.parent / "table"
    ds = penstock.create(place)
    ingest(ds, folder, IngestOptions(transform="tests.ingest.test_run:shout"))
    write(folder, "9.lines", "new")
    with pytest.raises(InvalidInputError, match=r"to run it, pass transform='tests\.ingest\.test_run:shout'"):
        penstock.sync(place)
    assert "tests.ingest.nowhere" not in sys.modules
    IngestOptions(transform="tests.ingest.nowhere:f")  # parsing stored options imports nothing


def test_a_source_without_rows_raises(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError, match="there are no files in"):
        ingest(table(), tmp_path / "empty")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.xyz").write_text("?")
    with pytest.raises(InvalidInputError, match=r"no files of a known kind \(their names end in \.xyz\)"):
        ingest(table(), tmp_path / "other")
    write(tmp_path / "bad", "a.lines", "!")
    with pytest.raises(InvalidInputError, match=r"could be read: a.lines:0: bad line"):
        ingest(table(), tmp_path / "bad")


def shout(row: dict[str, Any]) -> dict[str, Any] | None:
    return None if row["text"].startswith("3") else row | {"text": row["text"] + "!"}


def fail(row: dict[str, Any]) -> dict[str, Any]:
    return row if row["text"] != "2-2" else row[3]  # type: ignore[index]


def test_transforms_columns_and_shuffle(folder: Path) -> None:
    ds = table()
    ingest(ds, folder, IngestOptions(transform="tests.ingest.test_run:shout", columns=("text",)))
    assert ds.schema.names == ["text"]
    assert texts(ds) == [line + "!" for line in all_lines(folder) if not line.startswith("3")]
    broken = table()
    [reject] = ingest(broken, folder, IngestOptions(transform="tests.ingest.test_run:fail")).rejects
    assert reject == ("2.lines:2", "the transform failed: KeyError: 3")
    shuffled, again, other = table(), table(), table()
    ingest(shuffled, folder, IngestOptions(shuffle_seed=1))
    ingest(again, folder, IngestOptions(shuffle_seed=1))
    ingest(other, folder, IngestOptions(shuffle_seed=2))
    assert sorted(texts(shuffled)) == sorted(all_lines(folder))
    assert texts(shuffled) == texts(again) != texts(other)
    with pytest.raises(InvalidInputError, match=r"there is no column 'nope'; the source has text, number"):
        ingest(table(), folder, IngestOptions(columns=("nope",)))
    with pytest.raises(InvalidInputError, match="cannot be imported"):
        ingest(table(), folder, IngestOptions(transform="tests.ingest.test_run:nope"))


def test_importing_a_transform_does_not_search_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_in_this_folder.py").write_text("def f(row): return row")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    with pytest.raises(InvalidInputError, match="cannot be imported: No module named 'only_in_this_folder'"):
        find_transform("only_in_this_folder:f")
    find_transform("tests.ingest.test_run:shout")
    assert sys.path == before


def test_options_are_validated_before_the_source_is_read(tmp_path: Path, folder: Path) -> None:
    def call(**options: Any) -> None:
        penstock.ingest(tmp_path / "missing", tmp_path / "table", **options)

    with pytest.raises(TypeError, match="unexpected option 'image_sice'; did you mean 'image_size'"):
        call(image_sice=(8, 8))
    with pytest.raises(InvalidInputError, match=r"BadSamples\(callback=…\) is for loaders"):
        call(bad_samples=BadSamples(callback=print))
    with pytest.raises(InvalidInputError, match="bad_samples is"):
        call(bad_samples="maybe")
    with pytest.raises(InvalidInputError, match="shuffle is True, False or"):
        call(shuffle=3)
    with pytest.raises(InvalidInputError, match="uses only the seed of a Shuffle"):
        call(shuffle=Shuffle(3, lanes=4))
    for seed in (0, 7):
        assert IngestOptions.from_keywords({"shuffle": Shuffle(seed)}).shuffle_seed == seed
    assert IngestOptions.from_keywords({"shuffle": True}).shuffle_seed == 0
    assert IngestOptions.from_keywords({"shuffle": False}).shuffle_seed is None


def test_stored_options_have_stable_keys() -> None:
    options = IngestOptions(image_size=(4, 5), shuffle_seed=3, columns=("a",), nullable=("b",), codecs={"a": "png"})
    document = {"resize": (4, 5), "shuffle": 3, "columns": ("a",), "nullable": ("b",), "codecs": {"a": "png"}}
    assert options.to_json() == document
    assert IngestOptions.from_json(json.loads(json.dumps(document)) | {"later": 1}) == options
    assert IngestOptions().to_json() == {}


def test_an_existing_schema_is_unchanged(folder: Path) -> None:
    ds = penstock.create(
        "memory://",
        {"text": penstock.Text(), "number": "int64", "more": penstock.Column(penstock.Text(), nullable=True)},
    )
    ingest(ds, folder)
    assert ds["number"][:3].tolist() == [3, 3, 3]
    strange = penstock.create("memory://", {"text": penstock.Text()})
    with pytest.raises(InvalidInputError, match="the source has a column 'number' and the table has not"):
        ingest(strange, folder)


def test_a_runner_may_run_parts_in_any_process_and_order(folder: Path) -> None:
    def elsewhere(job: Job, parts: Any, *, stop: Any) -> Any:
        job, parts = pickle.loads(pickle.dumps((job, parts)))
        yield from reversed(list(ThreadRunner(1)(job, list(reversed(parts)), stop=stop)))

    place = folder.parent / "table"
    ds = penstock.create(place)
    ingest(ds, folder, runner=elsewhere)
    assert texts(ds) == all_lines(folder)


files = st.lists(st.integers(0, 300 << 20), max_size=60).map(
    lambda sizes: [ObjectInfo(f"{n:03}", size, None, 0.0) for n, size in enumerate(sizes)]
)


@given(files, st.integers(1, 32))
def test_parts_partition_the_files_in_order(given_files: list[ObjectInfo], num_workers: int) -> None:
    parts = split_parts(given_files, num_workers)
    assert [file for part in parts for file in part.files] == given_files
    assert all(part.files for part in parts)
    assert all(part.bytes <= 256 << 20 or len(part.files) == 1 for part in parts)


def test_hidden_and_empty_files_are_ignored(folder: Path) -> None:
    shown = all_lines(folder)
    for name in (".git/x.lines", "_state/x.lines", "a/.x.lines", "_x.lines"):
        write(folder, name, "hidden")
    (folder / "empty.lines").touch()
    ds = penstock.create(folder.parent / "table")
    ingest(ds, folder)
    assert texts(ds) == shown


def test_objects_are_prefetched_in_order_with_their_errors(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(50):
        store.put(f"{number:02}", bytes([number]) * (number + 1))
    listed = list(store.list())
    store.delete(["07"])
    found = list(SourceReader(store).read_many(listed))
    assert [file.key for file, _ in found] == [f"{number:02}" for number in range(50)]
    assert [file.key for file, data in found if isinstance(data, Exception)] == ["07"]
    assert bytes(found[9][1]) == bytes([9]) * 10  # type: ignore[arg-type]
    assert all(not data for _, data in SourceReader(store, link=True).read_many(listed))


def test_a_file_is_read_in_chunks_from_any_offset(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    body = random.Random(0).randbytes(10 << 20)
    store.put("big", body)
    [info] = store.list()
    with SourceReader(store).open(info) as file:
        assert file.read(100) == body[:100]
        assert file.seek(5 << 20) == 5 << 20
        assert file.read(3 << 20) == body[5 << 20 : 8 << 20]
        file.seek(-10, os.SEEK_END)
        assert file.read() == body[-10:]
        file.seek(0)
        assert file.read() == body


def test_a_killed_run_resumes(tmp_path: Path) -> None:
    source, place = tmp_path / "source", tmp_path / "table"
    for number in range(40):
        write(source, f"{number:02}.lines", *(f"{number}-{line}" for line in range(50)))
    penstock.create(place)
    rng = random.Random(time.time_ns())
    kills = 0
    while True:
        program = subprocess.Popen([sys.executable, "-m", "tests.ingest.killed", str(source), str(place)], cwd=ROOT)
        try:
            program.wait(timeout=rng.uniform(0.6, 2.0) if kills < 6 else 120)
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
