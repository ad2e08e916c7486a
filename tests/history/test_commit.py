"""The commit protocol: a reported commit exists exactly once, whatever the store does."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Column
from penstock.errors import CommitStateUnknownError, ConflictError, CorruptError, PenstockWarning, StorageError
from penstock.format import CommitRef, commit_key, encode_hint, hint_key
from penstock.history import discard, newest_commit, read_commit
from penstock.storage import Store, open_store
from penstock.table import compact as compact_fragments
from penstock.testing import CountingStore, Fault, FaultyStore


def table(store: Store) -> penstock.Dataset:
    ds = penstock.create(store, {"x": "int64"})
    ds.append({"x": [0]})
    ds.commit()
    return ds


def values(store: Store) -> list[int]:
    return [int(x) for x in penstock.load(store)["x"][:]]


def test_a_commit_whose_response_is_lost_is_recognised_and_not_repeated() -> None:
    inner = open_store("memory://")
    table(inner)
    store = FaultyStore(inner, Fault("fail_after", "create", "log/*"))
    ds = penstock.load(store)
    ds.append({"x": [1]})
    assert ds.commit() == "main@2"
    assert values(inner) == [0, 1]


def test_a_create_that_never_arrived_is_retried() -> None:
    inner = open_store("memory://")
    table(inner)
    ds = penstock.load(FaultyStore(inner, Fault("fail_before", "create", "log/*", times=2)))
    ds.append({"x": [1]})
    assert ds.commit() == "main@2"
    assert values(inner) == [0, 1]


def test_a_lost_response_under_another_writers_commit_is_a_rebase() -> None:
    inner = open_store("memory://")
    table(inner)
    ds = penstock.load(FaultyStore(inner, Fault("fail_before", "create", "log/*")))
    ds.append({"x": [1]})
    other = penstock.load(inner)
    other.append({"x": [2]})
    other.commit()
    assert ds.commit() == "main@3"
    assert sorted(values(inner)) == [0, 1, 2]


@pytest.mark.parametrize("landed", [True, False])
def test_an_unknown_commit_state_raises_and_is_resolved_by_the_next_commit(
    landed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.history._log._BACKOFF_S", 0.0)
    inner = open_store("memory://")
    table(inner)
    faults = (
        Fault("fail_after" if landed else "fail_before", "create", "log/*", times=1),
        Fault("fail_before", "create", "log/*", times=99),
        Fault("fail_before", "get", "log/*", times=99),
    )
    store = FaultyStore(inner)
    ds = penstock.load(store)
    ds.append({"x": [1]})
    store.faults = faults
    with pytest.raises(CommitStateUnknownError, match=r"Commit again"):
        ds.commit()
    objects = {item.key for item in inner.list("")}
    store.faults = ()
    assert ds.commit() == "main@2"
    assert values(inner) == [0, 1]
    assert objects <= {item.key for item in inner.list("")}, "nothing may be deleted while the outcome is unknown"
    assert not ds.summary().has_changes


Outage = tuple[Store, FaultyStore, penstock.Dataset]


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outage]:
    """A commit of [1] of unknown state: the store stopped responding, after it took the commit or before."""
    monkeypatch.setattr("penstock.history._log._BACKOFF_S", 0.0)

    def stop(*, landed: bool, change: Callable[[penstock.Dataset], object] | None = None) -> Outage:
        inner = open_store("memory://")
        table(inner)
        store = FaultyStore(inner)
        ds = penstock.load(store)
        ds.append({"x": [1]})
        store.faults = (
            Fault("fail_after" if landed else "fail_before", "create", "log/*", times=1),
            Fault("fail_before", "create", "log/*", times=99),
            Fault("fail_before", "get", "log/*", times=99),
        )
        with pytest.raises(CommitStateUnknownError):
            ds.commit()
        return inner, store, ds

    return stop


def test_a_rollback_of_an_unknown_commit_publishes_nothing(outage: Callable[..., Outage]) -> None:
    inner, store, ds = outage(landed=False)
    with pytest.raises(CommitStateUnknownError, match="rollback"):
        ds.rollback()
    assert ds.summary().has_changes, "while the store does not respond, nothing is decided"
    store.faults = ()
    before = {item.key for item in inner.list("log/")}
    ds.rollback()
    assert {item.key for item in inner.list("log/")} == before
    assert not ds.summary().has_changes
    assert values(inner) == [0]
    ds.append({"x": [2]})
    assert ds.commit() == "main@2"
    assert values(inner) == [0, 2]


def test_a_rollback_of_an_unknown_commit_that_exists_raises_and_moves_to_it(outage: Callable[..., Outage]) -> None:
    inner, store, ds = outage(landed=True)
    store.faults = ()
    with pytest.raises(ConflictError, match="main@2"):
        ds.rollback()
    assert (ds.version, ds.summary().has_changes) == ("main@2", False)
    assert values(inner) == [0, 1]


@pytest.mark.parametrize("look_first", [False, True])
def test_a_rolled_back_commit_that_arrives_late_is_not_committed_on_unseen(
    look_first: bool, outage: Callable[..., Outage]
) -> None:
    inner, store, ds = outage(landed=False)
    store.faults = ()
    assert ds._session._unknown is not None
    late = ds._session._unknown.commit
    ds.rollback()
    inner.create(commit_key(late.branch, late.version), late.encode())
    if look_first:
        ds.checkout()
        assert len(ds) == 2
    ds.append({"x": [1]})
    if not look_first:
        with pytest.raises(ConflictError, match="main@2"):
            ds.commit()
        ds.rollback()
        ds.checkout()
        assert len(ds) == 2
        ds.append({"x": [1]})
    ds.commit()
    assert values(inner) == [0, 1, 1]


def test_an_unknown_commit_is_recognised_even_if_its_snapshot_cannot_be_read(outage: Callable[..., Outage]) -> None:
    inner, store, ds = outage(landed=True)
    store.faults = (Fault("fail_before", "get", "snapshots/*", times=99),)
    assert ds.commit() == "main@2"
    assert ds.commit() == "main@2"
    assert values(inner) == [0, 1]


def test_nothing_is_staged_on_top_of_a_commit_of_unknown_state(outage: Callable[..., Outage]) -> None:
    inner, store, ds = outage(landed=True)
    store.faults = ()
    with pytest.raises(CommitStateUnknownError, match="first"):
        ds.append({"x": [2]})
    ds.commit()
    ds.append({"x": [2]})
    ds.commit()
    assert values(inner) == [0, 1, 2]


@pytest.mark.parametrize("act", [lambda ds: ds.reset(0), lambda ds: ds.branches.create("b")])
def test_a_read_that_fails_after_a_commit_does_not_fail_the_commit(act: Callable[[penstock.Dataset], object]) -> None:
    inner = open_store("memory://")
    table(inner)
    store = FaultyStore(inner)
    ds = penstock.load(store)
    read_snapshot = Fault("fail_before", "get", "snapshots/*", times=99)

    class FailsOncePublished(FaultyStore):
        def create(self, key: str, data: Any) -> None:
            super().create(key, data)
            store.faults = (read_snapshot,)

    store.store = FailsOncePublished(inner)
    act(ds)


def test_a_merge_of_unknown_state_is_never_committed_as_plain_changes(outage: Callable[..., Outage]) -> None:
    inner = open_store("memory://")
    ds = table(inner)
    side = ds.branches.create("side")
    side.append({"x": [5]})
    side.commit()
    store = FaultyStore(inner)
    ds = penstock.load(store)
    store.faults = (
        Fault("fail_before", "create", "log/*", times=99),
        Fault("fail_before", "get", "log/*", skip=4, times=99),
    )
    with pytest.raises(CommitStateUnknownError):
        ds.merge("side")
    store.faults = ()
    other = penstock.load(inner)
    other.append({"x": [6]})
    other.commit()
    with pytest.raises(ConflictError, match="merge again"):
        ds.commit()
    ds.rollback()
    ds.checkout()
    ds.merge("side")
    ds.merge("side")
    assert sorted(values(inner)) == [0, 5, 6]


@pytest.mark.parametrize("kind", ["fail_before", "fail_after"])
@pytest.mark.parametrize("key", ["ids/*", "refs/tags/*", "refs/branches/*", "log/*"])
def test_one_failed_create_is_retried(key: str, kind: Literal["fail_before", "fail_after"]) -> None:
    inner = open_store("memory://")
    table(inner)
    fault = Fault(kind, "create", key)
    ds = penstock.load(FaultyStore(inner, fault))
    ds.append({"x": [1, 2]})
    ds.commit()
    ds.tags.create("t")
    ds.branches.create("b")
    ds.branches.rename("b", "c")
    assert ds._session.store.fired[fault] == 1  # type: ignore[attr-defined]
    assert (dict(ds.tags), list(ds.branches), values(inner)) == ({"t": "main@2"}, ["main", "c"], [0, 1, 2])


def test_a_denied_create_is_not_repeated() -> None:
    inner = open_store("memory://")
    table(inner)
    fault = Fault("fail_before", "create", "ids/*", times=99, error=penstock.errors.AccessDeniedError)
    store = FaultyStore(inner, fault)
    with pytest.raises(penstock.errors.AccessDeniedError):
        penstock.load(store).append({"x": [1]})
    assert store.fired[fault] == 1


def test_a_denied_commit_raises_and_can_be_retried() -> None:
    inner = open_store("memory://")
    table(inner)
    store = FaultyStore(inner, Fault("fail_before", "create", "log/*", error=penstock.errors.AccessDeniedError))
    ds = penstock.load(store)
    ds.append({"x": [1]})
    with pytest.raises(penstock.errors.AccessDeniedError):
        ds.commit()
    assert values(inner) == [0]
    assert ds.commit() == "main@2"
    assert values(inner) == [0, 1]


def test_a_lost_response_to_a_row_id_claim_assigns_no_id_twice() -> None:
    inner = open_store("memory://")
    table(inner)
    ds = penstock.load(FaultyStore(inner, Fault("fail_after", "create", "ids/*")))
    ds.append({"x": [1, 2]})
    ds.commit()
    ids = penstock.load(inner).select(["_row_id"]).to_numpy()["_row_id"]
    assert len(set(ids)) == 3


def test_commits_are_never_deleted() -> None:
    deleted: list[str] = []

    class RecordsDeletes(CountingStore):
        def delete(self, keys: list[str]) -> None:  # type: ignore[override]
            deleted.extend(keys)
            super().delete(keys)

    store = RecordsDeletes(open_store("memory://"))
    ds = table(store)
    stalled = penstock.load(store)
    stalled.append({"x": [100]})
    for step in range(5):
        ds.append({"x": [step]})
        ds.commit()
        ds.append({"x": [-1]})
        ds.rollback()
        with pytest.raises(penstock.errors.InvalidInputError):
            ds.append({"x": ["no number"]})
    ds.delete(positions=slice(0, 1))
    ds.commit()
    assert not [key for key in deleted if key.startswith("log/")]
    assert stalled.commit() == "main@8"
    assert 100 in values(store)


def test_discard_refuses_to_delete_a_commit() -> None:
    store = open_store("memory://")
    ds = table(store)
    key = commit_key(ds._session.info.main, 0)
    with pytest.raises(AssertionError, match="never deleted"):
        discard(store, ["data/none.arrow", key])
    assert store.get(key)


def test_a_store_without_create_only_is_detected_and_takes_one_writer() -> None:
    inner = open_store("memory://")
    store = FaultyStore(inner, Fault("overwrite", "create", times=10**9))
    with pytest.warns(PenstockWarning, match="one process at a time"):
        ds = penstock.create(store, {"x": "int64"})
    ds.append({"x": [1]})
    ds.commit()
    assert penstock.load(store)._session.info.single_writer
    late = penstock.load(store, version=None)
    ds.append({"x": [2]})
    ds.commit()
    late.append({"x": [3]})
    late.commit()
    assert values(inner) == [1, 2, 3], "sequential writers lose nothing, even on such a store"


def test_a_store_with_create_only_gets_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert penstock.create(open_store("memory://"), {"x": "int64"})._session.info.features.write == ()


@settings(deadline=None, max_examples=40)
@given(count=st.integers(0, 40), hint=st.integers(0, 45), kind=st.sampled_from(["intact", "missing", "damaged"]))
def test_the_newest_version_is_found_with_any_hint(count: int, hint: int, kind: str) -> None:
    store = open_store("memory://")
    ds = table(store)
    branch = ds._session.info.main
    first = read_commit(store, branch, 1)
    for version in range(2, 2 + count):
        store.create(commit_key(branch, version), replace(first, version=version).encode())
    body = bytearray(encode_hint(hint))
    if kind == "damaged":
        body[12] ^= 1
    if kind == "missing":
        store.delete([hint_key(branch)])
    else:
        store.put(hint_key(branch), bytes(body))
    assert newest_commit(store, branch).version == 1 + count


@pytest.mark.parametrize("wrong", [{"version": 1}, {"version": 0}, {"version": 7}, {"branch": "0" * 32}])
def test_a_commit_that_disagrees_with_its_key_is_corrupt(wrong: dict[str, Any]) -> None:
    store = open_store("memory://")
    ds = table(store)
    branch = ds._session.info.main
    store.create(commit_key(branch, 2), replace(read_commit(store, branch, 1), **{"version": 2, **wrong}).encode())
    for version in (None, 2):
        with pytest.raises(CorruptError, match="says that it is"):
            penstock.load(store, version=version)
    with pytest.raises(CorruptError, match="says that it is"):
        ds.checkout()


@pytest.mark.parametrize("parent", [1, 2])
def test_a_log_that_is_its_own_ancestor_is_corrupt(parent: int) -> None:
    store = open_store("memory://")
    ds = table(store)
    branch = ds._session.info.main
    first = read_commit(store, branch, 1)
    loop = replace(first, version=2, parent=CommitRef(branch, parent), time_us=first.time_us - 1)
    store.create(commit_key(branch, 2), loop.encode())
    with pytest.raises(CorruptError, match="parent"):
        list(penstock.load(store).log())


def test_branches_that_begin_at_each_other_are_corrupt() -> None:
    store = open_store("memory://")
    ds = table(store)
    main, other = ds._session.info.main, "0" * 32
    first = read_commit(store, main, 0)
    store.put(commit_key(main, 0), replace(first, parent=CommitRef(other, 0)).encode())
    store.put(commit_key(other, 0), replace(first, branch=other, parent=CommitRef(main, 0)).encode())
    with pytest.raises(CorruptError, match="parent"):
        penstock.load(store, as_of="2001-01-01")


def test_opening_takes_at_most_five_requests() -> None:
    store = CountingStore(open_store("memory://"))
    table(store)
    store.reset()
    penstock.load(store)
    assert sum(store.requests.values()) <= 5


Act = Callable[[penstock.Dataset, int], object]
ACTS: dict[str, Act] = {
    "append": lambda ds, value: ds.append({"x": [value], "y": [value]}),
    "update x of row 0": lambda ds, value: ds.update(positions=[0], data={"x": value}),
    "update y of row 0": lambda ds, value: ds.update(positions=[0], data={"y": value}),
    "update x of row 1": lambda ds, value: ds.update(positions=[1], data={"x": value}),
    "update x of row 60": lambda ds, value: ds.update(positions=[60], data={"x": value}),
    "delete row 0": lambda ds, _: ds.delete(positions=[0]),
    "delete row 1": lambda ds, _: ds.delete(positions=[1]),
    "add nullable z": lambda ds, _: ds.add_column("z", Column(penstock.Text(), nullable=True)),
    "add filled z": lambda ds, value: ds.add_column("z", fill=value),
    "add computed w": lambda ds, _: ds.add_column("w", compute=lambda batch: batch["x"] * 2),
    "drop y": lambda ds, _: ds.drop_column("y"),
    "rename y": lambda ds, _: ds.rename_column("y", "v"),
    "compact": lambda ds, _: compact_fragments(ds._session),
}
CONFLICTS = {
    frozenset(pair)
    for pair in [
        ("update x of row 0",),
        ("update y of row 0",),
        ("update x of row 1",),
        ("update x of row 60",),
        ("update x of row 0", "delete row 0"),
        ("update y of row 0", "delete row 0"),
        ("update x of row 1", "delete row 1"),
        ("update y of row 0", "drop y"),
        ("add nullable z",),
        ("add filled z",),
        ("add nullable z", "add filled z"),
        ("add computed w",),
        ("drop y", "rename y"),
        ("append", "add computed w"),
    ]
}


@pytest.mark.parametrize("first", ACTS)
@pytest.mark.parametrize("second", ACTS)
def test_two_writers_rebase_or_conflict(first: str, second: str) -> None:
    store = open_store("memory://")
    # columns share files of a few rows: rows 0 and 1 are in one file, and row 60 in another
    x = Column(penstock.Tensor("int64"), file_bytes=128, page_bytes=64)
    ds = penstock.create(store, {"x": x, "y": x})
    for start in (0, 32):
        ds.append({"x": list(range(start, start + 32)), "y": list(range(start, start + 32))})
        ds.commit()
    one, two = penstock.load(store), penstock.load(store)
    ACTS[first](one, 71)
    ACTS[second](two, 72)
    one.commit()
    stale = second == "add computed w" and first.startswith("update")
    if stale or frozenset((first, second)) in CONFLICTS:
        with pytest.raises(ConflictError):
            two.commit()
        assert two.summary().has_changes
        two.rollback()
        assert not two.summary().has_changes
        return
    two.commit()
    both, alone = penstock.load(store), penstock.load(store, version=2)
    names = {"x": "x", "y": "v" if "rename y" in (first, second) else "y"}
    expected = {int(id): {"x": n, names["y"]: n} for n, id in enumerate(row_ids(alone))}
    for act, value in ((first, 71), (second, 72)):
        verb, *words = act.split()
        if verb == "update":
            expected[int(words[-1])][names[words[0]]] = value
        elif verb == "delete":
            expected.pop(int(words[-1]), None)
        elif verb == "append":
            expected[-value] = {"x": value, names["y"]: value}
    if "drop y" in (first, second):
        for row in expected.values():
            del row["y"]
    columns = sorted({name for row in expected.values() for name in row})
    found = {
        id if id < 64 else -row["x"]: row for id, row in zip(row_ids(both).tolist(), both.select(columns), strict=True)
    }
    assert found == expected
    assert {"z", "w"} & set(both.schema.names) == {act[-1] for act in (first, second) if act.startswith("add")}
    assert not penstock.verify(store).damaged


def row_ids(ds: penstock.View) -> Any:
    return np.asarray(ds.select(["_row_id"]).to_numpy()["_row_id"])


def test_a_conflict_names_the_row_the_column_and_both_values() -> None:
    store = open_store("memory://")
    ds = penstock.create(store, {"x": "int64", "y": "int64"})
    ds.append({"x": [1, 2, 3], "y": [1, 2, 3]})
    ds.commit()
    one, two = penstock.load(store), penstock.load(store)
    one.update(positions=[0, 1], data={"x": 10})
    one.commit()
    two.update(positions=[1, 2], data={"x": 20, "y": 5})
    with pytest.raises(ConflictError, match=r"another writer .* 1 conflict: row 1, column 'x': ours 20, theirs 10"):
        two.commit()


def test_writers_rebase_over_many_commits_of_one_file() -> None:
    """Each of eight writers holds a version that is up to seven commits old, and all rows share a file."""
    store = open_store("memory://")
    ds = penstock.create(store, {"x": "int64", "t": "text", "r": penstock.Tensor("int64", (None,))})
    ds.append({"x": [0] * 8, "t": [""] * 8, "r": [[0]] * 8})
    ds.commit()
    writers = [penstock.load(store) for _ in range(8)]
    for n, writer in enumerate(writers):
        writer.update(positions=[n], data={"x": n + 1})
        writer.update(positions=[7 - n], data={"t": str(n), "r": [[n] * n]})
        writer.append({"x": [100 + n], "t": ["new"], "r": [[]]})
    for writer in writers:
        writer.commit()
    rows = list(penstock.load(store))
    assert [row["x"] for row in rows] == [*range(1, 9), *range(100, 108)]
    assert [row["t"] for row in rows[:8]] == [str(7 - n) for n in range(8)]
    assert [row["r"].tolist() for row in rows[:8]] == [[7 - n] * (7 - n) for n in range(8)]
    assert not penstock.verify(store).damaged


def test_files_that_one_writer_replaced_are_neither_read_nor_written_again() -> None:
    """A column is computed while another writer deletes: the rebase touches metadata only."""
    store = CountingStore(open_store("memory://"))
    ds = penstock.create(store, {"x": "int64"})
    ds.append({"x": list(range(1000))})
    ds.commit()
    one, two = penstock.load(store), penstock.load(store)
    one.delete(positions=[5])
    one.commit()
    two.add_column("w", compute=lambda batch: batch["x"] * 2)
    before = {key for key in keys(store) if key.startswith("data/")}
    two.commit()
    assert {key for key in keys(store) if key.startswith("data/")} == before
    both = penstock.load(store)
    assert [row["w"] for row in both] == [2 * x for x in range(1000) if x != 5]


def keys(store: Any) -> list[str]:
    return [item.key for item in store.list("")]


def test_a_column_that_every_row_needs_conflicts_with_rows_of_another_writer() -> None:
    store = open_store("memory://")
    ds = penstock.create(store, {"x": "int64"})
    one, two = penstock.load(store), penstock.load(store)
    one.append({"x": [1]})
    one.commit()
    two.add_column("y", "int64")  # without rows it needs no value
    with pytest.raises(ConflictError, match="'y' was added on one side, and has no value for rows"):
        two.commit()
    assert ds.checkout().schema.names == ["x"]


def test_versions_and_commit_times_increase(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = iter(range(10**18, 0, -(10**15)))
    monkeypatch.setattr("penstock.history._table.time.time_ns", lambda: next(clock))
    ds = penstock.create(tmp_path, {"x": "int64"})
    for step in range(3):
        ds.append({"x": [step]})
        ds.commit()
    log = list(ds.log())
    assert [commit.version for commit in log] == [3, 2, 1, 0]
    assert all(new.time_us > old.time_us for new, old in pairwise(log))


def test_a_storage_error_is_not_reported_as_a_missing_table(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FaultyStore(
        open_store("memory://"), Fault("fail_before", "get", times=99), Fault("fail_before", "head", times=99)
    )
    with pytest.raises(StorageError):
        penstock.load(store)
    with pytest.raises(StorageError):
        penstock.exists(store)
