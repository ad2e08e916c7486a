"""Quarantine: loaders leave the listed rows out, and the list is part of every version."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import BadSample, Tensor, Text
from penstock.errors import (
    CommitStateUnknownError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    PenstockError,
    StorageError,
)
from penstock.storage import Store, open_store
from penstock.table import without_quarantined
from penstock.testing import Fault, FaultyStore
from tests.history.maintenance import compact

ROWS = 12


def table(store: Store | None = None, rows: int = ROWS) -> penstock.Dataset:
    ds = penstock.create(store or open_store("memory://"), {"n": int})
    ds.append({"n": np.arange(rows)})
    ds.commit()
    return ds


def ids(view: penstock.View) -> list[int]:
    found: list[int] = np.asarray(view["_row_id"][:]).tolist()
    return found


def streamed(view: penstock.View, **options: Any) -> list[int]:
    batches = view.numpy(batch_size=4, **options)
    return sorted(
        n for batch in batches for n in batch["n"][~batch.get("_pad", np.zeros(len(batch["n"]), bool))].tolist()
    )


def store_of(ds: penstock.Dataset) -> Store:
    return ds._session.store


READERS: dict[str, Callable[[penstock.View], list[int]]] = {
    "numpy": streamed,
    "shuffled": lambda view: streamed(view, shuffle=True),
    "ranks": lambda view: sorted(n for rank in range(2) for n in streamed(view, distributed=(rank, 2))),
    "torch rows": lambda view: sorted(int(row["n"]) for row in iter_rows(view.pytorch())),
    "torch": lambda view: sorted(n for batch in view.pytorch(batch_size=4) for n in batch["n"].tolist()),
}  # fmt: skip


def iter_rows(dataset: Any) -> list[Any]:
    return [dataset[index] for index in range(len(dataset))]


@pytest.mark.parametrize("reader", READERS)
@settings(max_examples=8)
@given(bad=st.sets(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS - 4).map(sorted))
def test_loaders_leave_quarantined_rows_out(reader: str, bad: list[int]) -> None:
    read = READERS[reader]
    ds = table()
    ds.quarantine(row_ids=[ids(ds)[n] for n in bad], reason="blurred")
    good = sorted(set(range(ROWS)) - set(bad))
    for view in (ds, ds[::-1], penstock.load(store_of(ds))):
        assert read(view) == good
    assert read(ds[np.array(good)]) == good
    assert len(ds) == ROWS
    assert [row["n"] for row in ds] == list(range(ROWS))
    ds.release()
    assert read(ds) == list(range(ROWS))


def source_rows(view: penstock.View) -> Any:
    return without_quarantined(view._reader, view._pinned()._rows)


def test_the_selection_of_a_table_without_a_list_stays_a_range() -> None:
    ds = table()
    assert source_rows(ds) == range(ROWS)
    ds.quarantine(row_ids=ids(ds)[0], reason="x")
    assert source_rows(ds[1:]) == range(1, ROWS)


def test_bad_samples_of_a_loader_are_quarantined_with_their_reasons() -> None:
    def picky(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["n"] % 5 == 0:
            raise ValueError(f"{sample['n']} is round\udcff")
        return sample

    ds = table()
    loader = ds.numpy(batch_size=4, transform=picky, bad_samples="replace")
    for _ in range(2):
        list(loader)
    ds.quarantine(loader.stats().bad_samples)
    assert sorted(ds.quarantined()) == [ids(ds)[n] for n in (0, 5, 10)]
    assert all("is round\\udcff" in reason for reason in ds.quarantined().values())
    again = ds.numpy(batch_size=4, transform=picky)
    assert sorted(n for batch in again for n in batch["n"].tolist()) == [1, 2, 3, 4, 6, 7, 8, 9, 11]


def test_bad_samples_that_were_deleted_since_are_accepted() -> None:
    ds = table()
    first, second = ids(ds)[:2]
    ds.delete(positions=[0])
    ds.commit()
    ds.quarantine([BadSample(first, 0, "bad"), BadSample(second, 0, "worse")])
    assert ds.quarantined() == {second: "worse"}


reasons = st.dictionaries(st.integers(0, 5), st.sampled_from(["a", "b", ""]))


def set_list(ds: penstock.Dataset, wanted: dict[int, str]) -> None:
    """Make the list of a version exactly this one."""
    known = ids(ds)
    now = {known[n]: reason for n, reason in wanted.items()}
    ds.release(row_ids=[id for id in ds.quarantined() if id not in now])
    ds.quarantine(row_ids=now)
    assert ds.quarantined() == now


@settings(max_examples=40)
@given(base=reasons, ours=reasons, theirs=reasons, side=st.sampled_from(["branch", "writer"]))
def test_two_sides_merge_row_by_row(
    base: dict[int, str], ours: dict[int, str], theirs: dict[int, str], side: str
) -> None:
    ds = table()
    known = ids(ds)
    set_list(ds, base)
    other = ds.branches.create("side") if side == "branch" else penstock.load(store_of(ds))
    if side == "branch":
        set_list(other, theirs)
        set_list(ds, ours)
        ds.merge("side")
    else:  # what the other writer does is one commit, made on the version before ours
        theirs = {**base, **theirs}
        set_list(ds, ours)
        other.quarantine(row_ids={known[n]: reason for n, reason in theirs.items()})
        ds.checkout()
    expected = {}
    for n in ours.keys() | theirs.keys():
        mine, their, old = ours.get(n), theirs.get(n), base.get(n)
        kept = their if mine == old else mine if their == old or mine is not None else their
        if kept is not None:
            expected[known[n]] = kept
    assert ds.quarantined() == expected


def test_concurrent_writers_of_rows_and_of_the_list_do_not_conflict() -> None:
    ds = table()
    known = ids(ds)
    appender, compactor, first, second = (penstock.load(store_of(ds)) for _ in range(4))
    appender.append({"n": [100]})
    appender.delete(positions=[3])
    compact(compactor)
    first.quarantine(row_ids=[known[3], known[4]], reason="a")
    second.quarantine(row_ids=known[5], reason="b")
    appender.commit()
    ds.checkout()
    assert ds.quarantined() == {known[4]: "a", known[5]: "b"}
    assert streamed(ds) == [0, 1, 2, 6, 7, 8, 9, 10, 11, 100]


def test_the_list_belongs_to_the_version() -> None:
    ds = table()
    known = ids(ds)
    ds.tags.create("clean")
    assert ds.quarantine(row_ids=known[2], reason="x") == "main@2"
    ds.append({"n": [100]})
    ds.update(positions=[3], data={"n": 33})
    ds.add_column("m", int, fill=0)
    ds.commit()
    compact(ds)
    side = ds.branches.create("side")
    assert ds.quarantined() == side.quarantined() == {known[2]: "x"}
    assert penstock.load(store_of(ds), tag="clean").quarantined() == {}
    assert streamed(penstock.load(store_of(ds), version=1)) == list(range(ROWS))
    side.release(row_ids=known[2])
    assert ds.quarantined()
    ds.merge("side")
    assert ds.quarantined() == {}
    ds.reset("main@2")
    assert ds.quarantined() == {known[2]: "x"}
    ds.delete(positions=[2])
    assert ds.quarantined() == {}


def test_the_log_and_the_difference_show_the_list() -> None:
    ds = table()
    known = ids(ds)
    ds.quarantine(row_ids={known[1]: "a", known[2]: "b"}, message="blurred")
    ds.release(row_ids=[known[1]])
    released, quarantined, *_ = ds.log()
    assert (quarantined.operation, quarantined.message, quarantined.changes) == (
        "quarantine", "blurred", {"quarantined": 2},
    )  # fmt: skip
    assert (released.operation, released.changes) == ("release", {"released": 1})
    change = ds.diff("main@2", "main@3")
    assert change
    assert change.released.tolist() == [known[1]]
    assert "1 rows released" in str(change)
    assert ds.diff("main@1").quarantined.tolist() == [known[2]]
    assert ds.diff("main@1").to_json()["rows_quarantined"] == 1
    assert not ds.diff("main@3")


def test_nothing_new_is_no_commit() -> None:
    ds = table()
    assert ds.quarantine(row_ids=[]) == ds.release() == "main@1"
    assert ds.quarantine(row_ids=ids(ds)[:1], reason="x") == "main@2"
    assert ds.quarantine(row_ids=ids(ds)[:1], reason="x") == "main@2"
    assert ds.quarantine(row_ids=ids(ds)[:1], reason="y") == "main@3"


def test_a_run_resumes_at_its_version_whatever_is_quarantined_later() -> None:
    ds = table()
    whole = [batch["n"].tolist() for batch in ds.numpy(batch_size=4, shuffle=True)]
    loader = ds.numpy(batch_size=4, shuffle=True)
    assert next(iter(loader))["n"].tolist() == whole[0]
    state = loader.state_dict()
    loader.close()
    ds.quarantine(row_ids=[ids(ds)[n] for n in whole[1]], reason="bad")
    resumed = penstock.load(store_of(ds), version="main@1").numpy(batch_size=4, shuffle=True)
    resumed.load_state_dict(state)
    assert [batch["n"].tolist() for batch in resumed] == whole[1:]
    other = ds.numpy(batch_size=4, shuffle=True)
    with pytest.raises(PenstockError, match="version"):
        other.load_state_dict(state)


def test_vacuum_keeps_the_lists_of_retained_versions() -> None:
    ds = table()
    ds.quarantine(row_ids=ids(ds)[:2], reason="x")
    ds.tags.create("kept")
    ds.quarantine(row_ids=ids(ds)[2:3], reason="y")
    ds.release(row_ids=ids(ds)[0])
    store = store_of(ds)
    assert len(list(store.list("quarantine/"))) == 3
    penstock.vacuum(store, older_than=timedelta(0))
    assert len(list(store.list("quarantine/"))) == 2
    assert len(penstock.load(store, tag="kept").quarantined()) == 2
    assert penstock.verify(store).damaged == []
    penstock.delete(store)
    assert not list(store.list(""))


def test_verify_lists_quarantined_rows_and_reports_a_damaged_list() -> None:
    ds = table()
    store, known = store_of(ds), ids(ds)
    ds.branches.create("clean")
    ds.quarantine(row_ids={known[1]: "a", known[0]: "b"})
    ds.delete(positions=[0])
    ds.commit()
    report = penstock.verify(store)
    assert report.damaged == []
    assert report.quarantined == {"main": {known[1]: "a"}}
    [item] = store.list("quarantine/")
    data = bytearray(store.get(item.key))
    data[len(data) // 2] ^= 1
    store.put(item.key, bytes(data))
    report = penstock.verify(store)
    assert len(report.damaged) == 1
    assert item.key in report.damaged[0]
    for read in (ds.quarantined, ds.numpy):
        with pytest.raises(CorruptError, match="checksum"):
            read()
    store.delete([item.key])
    with pytest.raises(CorruptError, match="missing"):
        ds.quarantined()
    assert len(penstock.verify(store).damaged) == 1


def test_a_writer_that_does_not_know_lists_must_not_drop_one() -> None:
    """Readers of older versions ignore the list; writers would lose it, so the snapshot names a feature."""
    ds = table()
    store = store_of(ds)

    def snapshot() -> Any:
        return json.loads(bytes(store.get(ds._session.version.commit.snapshot.key)))

    assert "quarantine" not in snapshot()
    ds.quarantine(row_ids=ids(ds)[:1], reason="x")
    assert snapshot()["quarantine"].keys() == {"id", "length", "crc"}
    assert snapshot()["features"] == {"read": [], "write": ["quarantine"]}
    ds.append({"n": [1]})
    ds.commit()
    assert snapshot()["features"]["write"] == ["quarantine"]
    ds.release()
    assert "quarantine" not in snapshot()
    assert snapshot()["features"]["write"] == []


def test_a_failed_commit_leaves_nothing_staged() -> None:
    inner = open_store("memory://")
    known = ids(table(inner))
    ds = penstock.load(FaultyStore(inner, Fault("fail_before", "put", "snapshots/*", times=1000)))
    with pytest.raises(StorageError):
        ds.quarantine(row_ids=known[:1], reason="x")
    assert not ds._session.changes
    assert ds.quarantined() == {}


def test_a_commit_of_unknown_state_is_committed_again() -> None:
    inner = open_store("memory://")
    known = ids(table(inner))
    store = FaultyStore(inner)
    ds = penstock.load(store)
    store.faults = (Fault("fail_before", "create", "log/*", times=99), Fault("fail_before", "get", "log/*", times=99))
    with pytest.raises(CommitStateUnknownError):
        ds.quarantine(row_ids=known[:1], reason="x")
    store.faults = ()
    assert ds.commit() == "main@2"
    assert penstock.load(inner).quarantined() == {known[0]: "x"}


@pytest.mark.parametrize(
    ("rows", "reason", "error", "sentence"),
    [
        ([10**6], "x", NotFoundError, "no row with id 1000000"),
        ({10**6: "x"}, None, NotFoundError, "no row with id 1000000"),
        ([0], None, InvalidInputError, "row 0 needs a reason"),
        ({0: 1}, None, InvalidInputError, "row 0 needs a reason.* not 1"),
        (np.array([True, False]), "x", InvalidInputError, "row ids are whole numbers .* not .*True"),
        (["a"], "x", InvalidInputError, "row ids are whole numbers .* not .*'a'"),
        ([0.5], "x", InvalidInputError, "row ids are whole numbers .* not .*0.5"),
        ([-1], "x", InvalidInputError, "row ids are whole numbers .* not .*-1"),
        ([2**63], "x", InvalidInputError, "row ids are whole numbers from 0 to 2.63"),
    ],
)
def test_bad_input_is_named(rows: Any, reason: str | None, error: type[Exception], sentence: str) -> None:
    ds = table()
    with pytest.raises(error, match=sentence):
        ds.quarantine(row_ids=rows, reason=reason)
    assert ds.version == "main@1"


def test_what_cannot_be_changed_is_named() -> None:
    ds = table()
    with pytest.raises(NotFoundError, match="row 3 is not quarantined"):
        ds.release(row_ids=[3])
    with pytest.raises(InvalidInputError, match="read-only"):
        penstock.load(store_of(ds), version=1).quarantine(row_ids=ids(ds)[:1], reason="x")
    ds.append({"n": [1]})
    with pytest.raises(InvalidInputError, match="uncommitted changes"):
        ds.quarantine(row_ids=ids(ds)[:1], reason="x")
    ds.rollback()


def test_quarantined_rows_can_be_repaired() -> None:
    ds = penstock.create(open_store("memory://"), {"t": Text(), "v": Tensor("float32", (2,))})
    ds.append({"t": ["a", "b"], "v": np.zeros((2, 2), np.float32)})
    ds.commit()
    ds.quarantine(row_ids=ids(ds)[1], reason="wrong text")
    assert ds.rows(row_ids=list(ds.quarantined()))[0]["t"] == "b"
    ds.update(positions=[1], data={"t": "c"})
    ds.commit()
    ds.release(row_ids=list(ds.quarantined()))
    assert [text for batch in ds.numpy() for text in batch["t"]] == ["a", "c"]
