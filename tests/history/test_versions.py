"""Branches, tags, time travel, diff, merge, compaction, vacuum and leases."""

import shutil
import subprocess
import sys
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import penstock
from penstock import Column, Conflict, Tensor
from penstock.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    MergeConflictError,
    NotFoundError,
    PenstockWarning,
    SnapshotExpiredError,
)
from penstock.history import WriteIntent, lease
from penstock.history._leases import ORPHAN_AGE_S, oldest_intent_s, store_time
from penstock.storage import Store, open_store
from penstock.testing import CountingStore, Fault, FaultyStore
from tests.history.maintenance import compact, vacuum
from tests.servers import StoreLocation


def table(place: Any = "memory://", rows: int = 10, **options: Any) -> penstock.Dataset:
    ds = penstock.create(place, {"x": "int64", "t": str}, **options)
    ds.append({"x": list(range(rows)), "t": [f"row {n}" for n in range(rows)]})
    ds.commit("first")
    return ds


def xs(ds: penstock.View) -> list[int]:
    return [int(x) for x in ds["x"][:]]


def test_branch_merge_compact_and_vacuum_on_every_store(store_uri: StoreLocation) -> None:
    options: dict[str, Any] = {"storage_options": store_uri.options}
    ds = table(store_uri.uri, **options)
    fix = ds.branches.create("fix")
    fix.update(positions=[1], data={"x": 100})
    fix.append({"x": [50], "t": ["new"]})
    fix.commit("better labels")
    ds.delete(positions=[0])
    ds.commit("less")
    ds.tags.create("before-merge")
    assert ds.diff("before-merge", "fix").to_json()["rows_added"] == 2
    ds.merge("fix")
    assert xs(ds) == [100, 2, 3, 4, 5, 6, 7, 8, 9, 50]
    compact(ds)
    vacuum(ds)
    assert xs(penstock.load(store_uri.uri, **options)) == [100, 2, 3, 4, 5, 6, 7, 8, 9, 50]
    assert xs(penstock.load(store_uri.uri, tag="before-merge", **options)) == list(range(1, 10))
    assert xs(penstock.load(store_uri.uri, branch="fix", **options)) == [0, 100, *range(2, 10), 50]
    with pytest.raises(SnapshotExpiredError):
        penstock.load(store_uri.uri, version=1, **options)
    ds.branches.delete("fix")
    with pytest.raises(NotFoundError, match="fix"):
        penstock.load(store_uri.uri, branch="fix", **options)
    assert penstock.verify(store_uri.uri, **options).damaged == []


def test_versions_are_found_by_number_name_tag_branch_and_time() -> None:
    store = open_store("memory://")
    ds = table(store)
    between = datetime.now(UTC)
    ds.append({"x": [10], "t": ["ten"]})
    ds.commit()
    ds.tags.create("ten")
    ds.branches.create("side", at=1)
    assert [len(penstock.load(store, version=spec)) for spec in (0, 1, "main@1", "main@2", "ten", "side")] == [
        0, 10, 10, 11, 11, 10,
    ]  # fmt: skip
    assert len(penstock.load(store, as_of=between)) == 10
    assert penstock.load(store, as_of=between.isoformat()).version == "main@1"
    assert penstock.load(store, tag="ten").version == "main@2"
    assert penstock.load(store, branch="side", as_of=between).version == "main@1"
    with pytest.raises(NotFoundError, match="was created at"):
        penstock.load(store, as_of="2001-01-01")
    for missing in ({"version": 7}, {"version": "no"}, {"tag": "main"}, {"tag": "1"}, {"branch": "ten"}):
        with pytest.raises(NotFoundError):
            penstock.load(store, **missing)
    with pytest.raises(InvalidInputError, match="one of"):
        penstock.load(store, version=1, tag="ten")


def test_as_of_reads_few_commits_of_a_long_log() -> None:
    store = CountingStore(open_store("memory://"))
    ds = penstock.create(store, {"x": "int64"})
    times = []
    for step in range(200):
        ds.append({"x": [step]})
        ds.commit()
        times.append(next(ds.log()).time)
    store.reset()
    assert len(penstock.load(store, as_of=times[37])) == 38
    assert store.requests["get"] < 25


def test_a_past_version_is_read_only() -> None:
    store = open_store("memory://")
    table(store)
    for old in (penstock.load(store, version=1), penstock.load(store).checkout(as_of=datetime.now(UTC))):
        with pytest.raises(InvalidInputError, match="opened read-only"):
            old.append({"x": [1], "t": ["a"]})
    ds = penstock.load(store, version=1).checkout(branch="main")
    ds.append({"x": [1], "t": ["a"]})
    with pytest.raises(InvalidInputError, match="uncommitted"):
        ds.checkout(1)


def test_a_reused_branch_name_shows_nothing_of_the_deleted_branch() -> None:
    store = open_store("memory://")
    ds = table(store)
    old = ds.branches.create("b")
    old.append({"x": [1], "t": ["old"]})
    old.commit()
    ds.branches.delete("b")
    new = ds.branches.create("b", at=0)
    assert (len(new), new.version) == (0, "b@0")
    assert len(penstock.load(store, branch="b")) == 0
    old.append({"x": [2], "t": ["late"]})
    old.commit()
    assert len(penstock.load(store, branch="b")) == 0, "a writer on the old branch does not reach the new one"


def test_refs_can_be_listed_renamed_and_deleted() -> None:
    ds = table()
    ds.branches.create("a")
    ds.tags.create("t1")
    assert dict(ds.branches) == {"main": "main@1", "a": "a@0"}
    assert dict(ds.tags) == {"t1": "main@1"}
    ds.branches.rename("a", "team/b")
    ds.tags.rename("t1", "v1.0")
    assert (list(ds.branches), list(ds.tags)) == (["main", "team/b"], ["v1.0"])
    ds.tags.delete("v1.0")
    ds.tags.create("v1.0", at=0)
    assert ds.tags["v1.0"] == "main@0"
    for existing in ("main", "team/b", "v1.0"):
        with pytest.raises(AlreadyExistsError):
            ds.branches.create(existing)
        with pytest.raises(AlreadyExistsError):
            ds.tags.create(existing)
    for invalid in ("", "7", "a@b", "../x", "a b", "x" * 200, "-a"):
        with pytest.raises(InvalidInputError):
            ds.branches.create(invalid)
    with pytest.raises(InvalidInputError, match="main"):
        ds.branches.delete("main")


def test_reset_is_a_new_commit_that_can_be_reset() -> None:
    ds = table()
    ds.delete(positions=slice(0, 5))
    ds.commit()
    assert ds.reset(1) == "main@3"
    assert xs(ds) == list(range(10))
    ds.reset("main@2")
    assert xs(ds) == list(range(5, 10))
    assert [commit.operation for commit in ds.log()][:2] == ["reset", "reset"]


def test_a_diff_has_old_and_new_values_and_columns() -> None:
    ds = table()
    ids = ds.select(["_row_id"]).to_numpy()["_row_id"]
    ds.update(positions=[2, 3], data={"x": [20, 30]})
    ds.update(positions=[4], data={"t": "row 4"})  # the same value as before
    ds.delete(positions=[0])
    ds.append({"x": [99], "t": ["new"]})
    ds.add_column("z", fill=1)
    ds.rename_column("t", "text")
    found = ds.diff(1)
    assert found.updated["x"].tolist() == [ids[2], ids[3]]
    assert "text" not in found.updated, "a value rewritten with the same value is no change"
    both = zip(found.before(row_ids=ids[2:4]), found.after(row_ids=ids[2:4]), strict=True)
    assert [(int(a["x"]), int(b["x"])) for a, b in both] == [
        (2, 20), (3, 30),
    ]  # fmt: skip
    assert (len(found.added), len(found.deleted)) == (1, 1)
    assert (found.columns_added, found.columns_dropped, found.columns_renamed) == (["z"], [], [("t", "text")])
    assert "1 added, 1 deleted, 2 updated" in str(found)
    assert not ds.diff("main@1", "main@1")


def test_a_diff_over_several_updates_has_all_of_them() -> None:
    ds = table()
    for step in range(4):
        ds.update(positions=[step], data={"x": 100 + step})
        ds.update(positions=[9], data={"t": f"step {step}"})
        ds.commit()
    assert ds.diff("main@1", "main@5").updated["x"].tolist() == [0, 1, 2, 3]
    assert ds.diff("main@3", "main@5").updated["x"].tolist() == [2, 3]
    assert ds.diff("main@1", "main@5").updated["t"].tolist() == [9]
    compact(ds)
    ds.update(positions=[5], data={"x": 500})
    assert ds.diff("main@2").updated["x"].tolist() == [1, 2, 3, 5]


def test_compaction_drops_deleted_rows_and_keeps_row_ids() -> None:
    ds = table()
    ds.append({"x": [10, 11], "t": ["a", "b"]})
    ds.delete(positions=[0, 3, 11])
    ds.commit()
    ids = ds.select(["_row_id"]).to_numpy()["_row_id"]
    compact(ds)
    assert ds.select(["_row_id"]).to_numpy()["_row_id"].tolist() == ids.tolist()  # type: ignore[union-attr]
    assert xs(ds.rows(row_ids=ids[::-1])) == xs(ds)[::-1]


def test_a_diff_does_not_read_shared_fragments() -> None:
    store = CountingStore(open_store("memory://"))
    ds = penstock.create(store, {"x": Column(Tensor("uint8", (4096,)), file_bytes=1 << 16, page_bytes=1 << 14)})
    rng = np.random.default_rng(0)
    for _ in range(60):
        ds.append({"x": rng.integers(0, 256, (50, 4096), dtype=np.uint8)})
    ds.commit()
    whole = ds.summary().bytes
    ds.update(positions=[7], data={"x": np.zeros(4096, np.uint8)})
    ds.delete(positions=[1000])
    ds.commit()
    ds = penstock.load(store)
    store.reset()
    found = ds.diff(1, 2)
    assert (len(found.updated_rows), len(found.deleted)) == (1, 1)
    assert sum(store.bytes.values()) < whole / 100


def diverged() -> tuple[penstock.Dataset, penstock.Dataset]:
    ds = table()
    return ds, ds.branches.create("other")


def test_disjoint_changes_of_both_branches_are_merged() -> None:
    ours, theirs = diverged()
    ours.update(positions=[0], data={"x": -1})
    ours.append({"x": [100], "t": ["ours"]})
    ours.add_column("a", fill=1)
    ours.commit()
    theirs.update(positions=[0], data={"t": "theirs"})
    theirs.append({"x": [200], "t": ["theirs"]})
    theirs.add_column("b", compute=lambda batch: batch["x"] * 2)
    theirs.delete(positions=[5])
    theirs.commit()
    ours.merge("other", message="together")
    rows = list(ours)
    assert (rows[0]["x"], rows[0]["t"], rows[0]["a"], rows[0]["b"]) == (-1, "theirs", 1, 0)
    assert xs(ours) == [-1, 1, 2, 3, 4, 6, 7, 8, 9, 100, 200]
    assert (rows[-2]["b"], rows[-1]["a"], rows[-1]["b"]) == (None, 1, 400)
    ids = ours.select(["_row_id"]).to_numpy()["_row_id"]
    assert len(set(ids)) == len(ours)
    last = next(ours.log())
    assert (last.operation, last.message) == ("merge", "together")
    assert dict(last.changes) == {"added": 1, "updated": 1, "deleted": 1}
    assert ours.merge("other") == ours.version, "merging again changes nothing"


def test_merge_conflicts_name_rows_and_columns_and_change_nothing() -> None:
    ours, theirs = diverged()
    ours.update(positions=[3], data={"x": 30})
    ours.delete(positions=[4])
    ours.commit()
    theirs.update(positions=[3, 4], data={"x": [33, 44]})
    theirs.commit()
    with pytest.raises(MergeConflictError, match="row 3, column 'x'") as error:
        ours.merge("other")
    found = {(conflict.type, conflict.row_id, conflict.column) for conflict in error.value.conflicts}  # type: ignore[attr-defined]
    assert found == {("value", 3, "x"), ("deleted by us", 4, None)}
    assert ours.version == "main@2"
    assert not ours.summary().has_changes


@pytest.mark.parametrize(("policy", "expected"), [("ours", 30), ("theirs", 33), (lambda c: c.ours + c.theirs, 63)])
def test_conflicts_are_resolved_by_policy(policy: Any, expected: int) -> None:
    ours, theirs = diverged()
    ours.update(positions=[3], data={"x": 30})
    ours.commit()
    theirs.update(positions=[3, 4], data={"x": [33, 44]})
    theirs.commit()
    ours.merge("other", on_conflict=policy)
    assert [int(x) for x in ours["x"][3:5]] == [expected, 44]


def test_a_conflict_function_gets_the_conflict() -> None:
    ours, theirs = diverged()
    ours.delete(positions=[4])
    ours.commit()
    theirs.update(positions=[4], data={"x": 44})
    theirs.commit()
    seen: list[Conflict] = []

    def keep(conflict: Conflict) -> str:
        seen.append(conflict)
        return "theirs"

    ours.merge("other", on_conflict=keep)
    assert [(conflict.type, conflict.row_id) for conflict in seen] == [("deleted by us", 4)]
    assert 44 in xs(ours)


def test_a_merge_that_raises_stages_nothing() -> None:
    ours, theirs = diverged()
    ours.update(positions=[3], data={"x": 30})
    ours.commit()
    theirs.drop_column("t")
    theirs.update(positions=[3], data={"x": 33})
    theirs.commit()

    def refuse(conflict: Conflict) -> None:
        raise RuntimeError(str(conflict))

    with pytest.raises(RuntimeError, match="row 3"):
        ours.merge("other", on_conflict=refuse)
    assert not ours.summary().has_changes
    assert ours.commit() == "main@2"
    assert "t" in ours.schema.names


@pytest.mark.parametrize("policy", ["raise", "ours", "theirs"])
def test_two_added_columns_of_one_name_conflict(policy: Any) -> None:
    ours, theirs = diverged()
    ours.add_column("z", fill=1)
    ours.commit()
    theirs.add_column("z", fill="text")
    theirs.commit()
    if policy == "raise":
        with pytest.raises(MergeConflictError, match="column 'z'"):
            ours.merge("other")
        return
    ours.merge("other", on_conflict=policy)
    assert ours[0]["z"] == {"ours": 1, "theirs": "text"}[policy]


Policy = Literal["raise", "ours", "theirs"]
POLICIES: list[Policy] = ["raise", "ours", "theirs"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_column_dropped_and_added_again_under_its_name_is_merged_without_a_conflict(policy: Policy) -> None:
    ours, theirs = diverged()
    theirs.drop_column("t")
    theirs.add_column("t", fill=7)
    theirs.commit()
    ours.append({"x": [100], "t": ["old"]})
    ours.commit()
    ours.merge("other", on_conflict=policy)
    assert [row["t"] for row in ours] == [7] * 11


@pytest.mark.parametrize("policy", POLICIES)
def test_swapped_names_are_merged_without_a_conflict(policy: Policy) -> None:
    ours, theirs = diverged()
    theirs.rename_column("x", "between")
    theirs.rename_column("t", "x")
    theirs.rename_column("between", "t")
    theirs.commit()
    ours.update(positions=[0], data={"x": -1})
    ours.commit()
    ours.merge("other", on_conflict=policy)
    assert [row["t"] for row in ours] == [-1, *range(1, 10)]
    assert {row["x"] for row in ours} == {row["t"] for row in penstock.load(ours._session.store, version=1)}


def test_two_columns_renamed_to_one_name_keep_their_values() -> None:
    cases: list[tuple[Policy, set[str]]] = [("ours", {"n", "t"}), ("theirs", {"x", "n"})]
    for policy, names in cases:
        ours, theirs = diverged()
        ours.rename_column("x", "n")
        ours.commit()
        theirs.rename_column("t", "n")
        theirs.commit()
        with pytest.raises(MergeConflictError, match="column 'n'"):
            ours.merge("other")
        ours.merge("other", on_conflict=policy)
        assert set(ours.schema.names) == names
        assert [row["n" if policy == "ours" else "x"] for row in ours] == list(range(10))


@pytest.mark.parametrize("kind", ["fill", "computed"])
def test_a_row_that_comes_back_has_a_value_in_every_column_without_nulls(kind: str) -> None:
    ours, theirs = diverged()
    if kind == "fill":
        ours.add_column("w", "int64", fill=5)
    else:
        ours.add_column("w", "int64", values=list(range(10)))
    ours.delete(positions=[4])
    ours.commit()
    theirs.update(positions=[4], data={"x": 44})
    theirs.commit()
    ours.merge("other", on_conflict="theirs")
    assert ours[-1]["x"] == 44
    assert ours[-1]["w"] == (5 if kind == "fill" else None)
    assert ours.schema["w"].nullable == (kind == "computed")


def test_a_row_that_stays_is_null_in_a_column_that_was_computed_without_it() -> None:
    ours, theirs = diverged()
    theirs.delete(positions=[4])
    theirs.add_column("w", "int64", values=list(range(9)))
    theirs.commit()
    ours.update(positions=[4], data={"x": 44})
    ours.commit()
    ours.merge("other", on_conflict="ours")
    assert [row["w"] for row in ours] == [0, 1, 2, 3, None, 4, 5, 6, 7, 8]
    assert ours.schema["w"].nullable


def test_rows_added_after_a_drop_are_null_in_the_column_that_the_other_side_kept() -> None:
    ours, theirs = diverged()
    ours.update(positions=[0], data={"t": "new"})
    ours.commit()
    theirs.drop_column("t")
    theirs.append({"x": [100]})
    theirs.commit()
    ours.merge("other", on_conflict="ours")
    assert (ours[0]["t"], ours[-1]["t"]) == ("new", None)
    assert ours.schema["t"].nullable


def test_a_column_that_stays_has_our_values_though_they_updated_it_before_they_dropped_it() -> None:
    ours, theirs = diverged()
    ours.rename_column("t", "text")
    ours.commit()
    theirs.update(positions=[0], data={"t": "lost", "x": -1})
    theirs.drop_column("t")
    theirs.commit()
    ours.merge("other", on_conflict="ours")
    assert (ours[0]["text"], ours[0]["x"]) == ("row 0", -1)


@pytest.mark.parametrize("compacted", [False, True])
def test_a_column_dropped_by_one_side_and_updated_by_the_other_is_a_conflict(compacted: bool) -> None:
    for policy in POLICIES[1:]:
        ours, theirs = diverged()
        ours.drop_column("t")
        ours.delete(positions=[9])
        ours.commit()
        if compacted:
            compact(ours)
        ours.append({"x": [100]})
        ours.commit()
        theirs.update(positions=[0], data={"t": "new"})
        theirs.commit()
        with pytest.raises(MergeConflictError, match="column 't': ours dropped, theirs updated"):
            ours.merge("other")
        ours.merge("other", on_conflict=policy)
        assert ("t" in ours.schema.names) == (policy == "theirs")
        if policy == "theirs":
            old = [row["t"] for row in penstock.load(ours._session.store, version=1)]
            assert [row["t"] for row in ours] == ["new", *old[1:9], None]


def test_a_row_that_comes_back_has_the_value_of_the_base_in_a_column_that_the_other_side_dropped() -> None:
    ours, theirs = diverged()
    before = ours[4]["t"]
    ours.update(positions=[0], data={"t": "new"})
    ours.delete(positions=[4])
    ours.commit()
    theirs.update(positions=[4], data={"x": 44})
    theirs.drop_column("t")
    theirs.commit()
    theirs.delete(positions=[9])
    theirs.commit()
    compact(theirs)  # their files have no values of the dropped column any more
    ours.merge("other", on_conflict=lambda conflict: "ours" if conflict.column == "t" else "theirs")
    assert (ours[-1]["x"], ours[-1]["t"]) == (44, before)
    assert not ours.schema["t"].nullable


def test_a_column_that_became_nullable_on_a_branch_is_nullable_after_the_merge() -> None:
    ours, theirs = diverged()
    third = ours.branches.create("third")
    third.append({"x": [100], "t": ["third"]})
    third.commit()
    theirs.add_column("w", values=list(range(10)))
    theirs.commit()
    ours.merge("other")
    theirs.merge("third")
    assert theirs[-1]["w"] is None
    ours.merge("other")
    assert ours[-1]["w"] is None
    assert ours.schema["w"].nullable


def test_a_mask_column_of_one_side_conflicts_with_a_nullable_column_of_the_other() -> None:
    ours, theirs = diverged()
    ours.add_column("w_mask", fill=1)
    ours.append({"x": [100], "t": ["ours"], "w_mask": [1]})
    ours.commit()
    theirs.add_column("w", values=list(range(10)))
    theirs.commit()
    with pytest.raises(MergeConflictError, match="w_mask"):
        ours.merge("other", on_conflict="ours")
    assert ours.version == "main@2"
    assert not ours.summary().has_changes


def test_branches_that_merged_the_same_branches_in_another_order_have_each_row_once() -> None:
    """Two common ancestors, neither of which contains the other."""
    store = open_store("memory://")
    ours = table(store)
    theirs, one, two = (ours.branches.create(name) for name in ("other", "one", "two"))
    one.append({"x": [100, 101], "t": ["one", "one"]})
    one.update(positions=[0], data={"x": -1})
    one.commit()
    two.append({"x": [200], "t": ["two"]})
    two.commit()
    for name in ("one", "two"):
        ours.merge(name)
    for name in ("two", "one"):
        theirs.merge(name)
    ours.delete(positions=[10])
    ours.update(positions=[0], data={"x": -2})
    ours.commit()
    theirs.append({"x": [300], "t": ["other"]})
    theirs.commit()
    ours.merge("other")
    assert sorted(xs(ours)) == [-2, *range(1, 10), 101, 200, 300]


def test_a_merge_retries_after_a_concurrent_commit() -> None:
    store = open_store("memory://")
    ours = table(store)
    theirs = ours.branches.create("other")
    theirs.append({"x": [1000], "t": ["b"]})
    theirs.commit()
    late = penstock.load(store)
    ours.append({"x": [500], "t": ["c"]})
    ours.commit()
    late.merge("other")
    assert set(xs(late)) == {*range(10), 500, 1000}


def test_branches_merge_both_ways_repeatedly() -> None:
    ours, theirs = diverged()
    for step in range(4):
        ours.append({"x": [100 + step], "t": ["o"]})
        ours.commit()
        theirs.append({"x": [200 + step], "t": ["t"]})
        theirs.update(positions=[step], data={"x": -step})
        theirs.commit()
        ours.merge("other")
        theirs.merge("main")
    assert sorted(xs(ours)) == sorted(xs(theirs))
    assert len(ours) == 18


def test_a_table_whose_columns_were_dropped_is_compacted_to_itself(tmp_path: Path) -> None:
    ds = penstock.create(tmp_path / "t", {"a": "int64"})
    for number in range(3):
        ds.append({"a": [number, number]})
        ds.commit()
    ds.drop_column("a")
    ds.commit()
    penstock.compact(tmp_path / "t")
    assert len(penstock.load(tmp_path / "t")) == 6


def test_compaction_keeps_row_order_ids_and_open_readers() -> None:
    store = open_store("memory://")
    ds = penstock.create(store, {"x": "int64", "v": Column(penstock.Video(), nullable=True)})
    for step in range(40):
        ds.append({"x": [step, step + 1000], "v": [None, bytes([step]) * 3]})
        ds.commit()
    ds.delete(positions=slice(0, 10))
    ds.commit()
    reader = penstock.load(store)
    before = list(reader.select(["_row_id", "x", "v"]))
    other = penstock.load(store)
    other.append({"x": [7], "v": [None]})
    other.commit()
    compact(ds)
    assert list(reader.select(["_row_id", "x", "v"])) == before
    assert list(ds.select(["_row_id", "x", "v"]))[:-1] == before
    assert ds.summary().fragments <= 2
    assert not ds.diff("main@41", ds.version).updated
    late = penstock.load(store, version="main@42").checkout(branch="main")
    late.update(positions=[0], data={"x": -5})
    late.commit()
    assert len(ds.diff("main@41", late.version).updated_rows) == 1


def test_a_lease_protects_a_reader_from_vacuum() -> None:
    store = open_store("memory://")
    ds = table(store, rows=1000)
    reader = penstock.load(store)
    with reader.lease():
        rows = iter(reader.batches(100))
        seen = len(next(rows)["x"])
        ds.delete(positions=slice(0, 1000))
        ds.commit()
        compact(ds)
        vacuum(ds)
        assert seen + sum(len(batch["x"]) for batch in rows) == 1000
    assert vacuum(ds).objects > 0
    with pytest.raises(SnapshotExpiredError, match="vacuum"):
        penstock.load(store, version=1)
    with pytest.raises(SnapshotExpiredError):
        list(reader.batches(100))


def test_a_reader_without_write_access_is_warned_once_and_continues() -> None:
    inner = open_store("memory://")
    table(inner)
    reader = penstock.load(
        FaultyStore(inner, Fault("fail_before", "put", "leases/*", times=99, error=AccessDeniedError))
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            with reader.lease():
                assert len(list(reader)) == 10
    assert [str(w.message).count("SnapshotExpiredError") for w in caught if w.category is PenstockWarning] == [1]


@pytest.mark.skipif(shutil.which("unshare") is None, reason="mounts a folder read-only in a namespace of its own")
def test_a_table_on_a_read_only_file_system_is_read_without_a_lease(tmp_path: Path) -> None:
    table(tmp_path / "table")
    script = f"""
import warnings, penstock
ds = penstock.load({str(tmp_path / "table")!r})
with warnings.catch_warnings(record=True) as caught:
    with ds.lease():
        print(len(list(ds)), [w.category.__name__ for w in caught])
"""
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" || exit 77; exec "$1" -c "$2"'
    found = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, str(tmp_path), sys.executable, script], capture_output=True, text=True
    )
    if found.returncode == 77 or "unshare" in found.stderr:
        pytest.skip(f"no namespaces here: {found.stderr}")
    assert (found.stdout, found.stderr) == ("10 ['PenstockWarning']\n", "")


def test_a_clean_up_that_fails_does_not_hide_the_error() -> None:
    inner = open_store("memory://")
    table(inner)
    ds = penstock.load(FaultyStore(inner, Fault("fail_before", "delete", "*", times=99)))
    blob = b"x" * (17 << 20)
    ds.add_column("v", Column(penstock.Video(), nullable=True))
    rows = ({"x": n if n < 3000 else "no number", "t": "row", "v": blob if n == 0 else None} for n in range(3001))
    with pytest.raises(InvalidInputError, match="row 3000"):
        ds.append(rows)
    ds.rollback()


def test_a_vacuum_dry_run_reports_and_deletes_nothing() -> None:
    store = open_store("memory://")
    ds = table(store)
    ds.delete(positions=slice(0, 9))
    ds.commit()
    compact(ds)
    before = {item.key for item in store.list("")}
    planned = vacuum(ds, dry_run=True)
    assert {item.key for item in store.list("")} == before
    result = vacuum(ds)
    assert (planned.objects, planned.bytes, planned.versions) == (result.objects, result.bytes, result.versions)
    assert result.objects > 0
    assert result.bytes > 0
    assert vacuum(ds).objects == 0


def test_vacuum_retains_versions_for_the_retention_period() -> None:
    store = open_store("memory://")
    ds = table(store)
    ds.delete(positions=[0])
    ds.commit()
    assert penstock.vacuum(ds._session.store).objects == 0
    assert len(penstock.load(store, version=1)) == 10


def test_vacuum_keeps_staged_objects_of_an_active_writer() -> None:
    store = open_store("memory://")
    ds = table(store)
    writer = penstock.load(store)
    writer.append({"x": [77], "t": ["staged"]})
    ds.delete(positions=[0])
    ds.commit()
    vacuum(ds)
    writer.commit()
    assert xs(penstock.load(store)) == [*range(1, 10), 77]
    assert penstock.verify(store).damaged == []


def test_a_slow_writer_renews_its_intent() -> None:
    store = open_store("memory://")
    now = iter([0.0, 5.0, 3700.0, 3800.0])
    intent = WriteIntent(store, clock=lambda: next(now))
    since_s = store_time(store)
    for expected in (0, 0, 1, 1):
        intent.renew()
        assert len(list(store.list("intents/"))) == expected
    later = since_s + 30 * 86_400  # by then the intent has expired
    assert oldest_intent_s(store, now_s=later) == later - ORPHAN_AGE_S
    assert oldest_intent_s(store, now_s=since_s + 60) <= since_s - 3700
    intent.release()
    assert not list(store.list("intents/"))


class InterruptedVacuum(CountingStore):
    """Calls a function between the two phases of a vacuum."""

    def __init__(self, store: Store, between: Any) -> None:
        super().__init__(store)
        self._between = between

    def put(self, key: str, data: Any) -> None:
        super().put(key, data)
        if key.startswith("vacuums/") and self._between:
            between, self._between = self._between, None
            between()


def test_a_tag_created_while_its_version_expires_raises() -> None:
    inner = open_store("memory://")
    ds = table(inner)
    ds.delete(positions=[0])
    ds.commit()
    raised: list[str] = []

    def tag() -> None:
        with pytest.raises(SnapshotExpiredError):
            penstock.load(inner).tags.create("late", at=1)
        raised.append("expired")

    penstock.vacuum(InterruptedVacuum(inner, tag), older_than=timedelta(0))
    assert raised == ["expired"]
    assert "late" not in ds.tags


def test_a_lease_written_before_the_second_phase_protects_its_version() -> None:
    inner = open_store("memory://")
    ds = table(inner)
    ds.delete(positions=[0])
    ds.commit()
    old = penstock.load(inner, version=1)
    held = lease(inner, old._session.version.commit, seconds=60)
    penstock.vacuum(InterruptedVacuum(inner, held.__enter__), older_than=timedelta(0))
    assert xs(old) == list(range(10))
    held.__exit__(None, None, None)


@pytest.mark.parametrize("act", ["append", "update", "delete", "add", "compute", "drop", "rename", "compact", "reset"])
@pytest.mark.parametrize("other", ["compact", "reset", "branch", "tag"])
def test_two_writers_with_compaction_reset_or_refs(act: str, other: str, tmp_path: Path) -> None:
    """Pairs of operations on whole tables: each pair either rebases or conflicts."""
    store = open_store("memory://")
    ds = table(store)
    ds.append({"x": [10], "t": ["ten"]})
    ds.commit()
    one, two = penstock.load(store), penstock.load(store)
    acts: dict[str, Any] = {
        "append": lambda: one.append({"x": [11], "t": ["eleven"]}),
        "update": lambda: one.update(positions=[3], data={"x": 33}),
        "delete": lambda: one.delete(positions=[3]),
        "add": lambda: one.add_column("z", fill=0),
        "compute": lambda: one.add_column("w", compute=lambda batch: batch["x"]),
        "drop": lambda: one.drop_column("t"),
        "rename": lambda: one.rename_column("t", "text"),
        "compact": lambda: None,
        "reset": lambda: None,
    }
    acts[act]()
    others: dict[str, Any] = {
        "compact": lambda: compact(two),
        "reset": lambda: two.reset(1),
        "branch": lambda: two.branches.create("side"),
        "tag": lambda: two.tags.create("now"),
    }
    others[other]()
    conflict = {
        "compact": act == "reset",
        "reset": act == "reset",
    }.get(other, False)
    try:
        if act in ("compact", "reset"):
            compact(one) if act == "compact" else one.reset(1)
        else:
            one.commit()
    except ConflictError:
        assert conflict
        return
    assert not conflict
    now = penstock.load(store)
    assert len(now) == (10 if other == "reset" or act == "reset" else 11) + (act == "append") - (act == "delete")
    assert penstock.verify(store).damaged == []
