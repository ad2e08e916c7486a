"""Concurrent commits from many processes; what belongs to a process does not follow it into a fork or a pickle."""

import copy
import multiprocessing
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import InvalidInputError
from penstock.history import HeldLease, WriteIntent
from penstock.storage import open_store
from tests.servers import new_location

WRITERS, COMMITS, ROWS = 8, 25, 3


def write(uri: str, options: dict[str, str], writer: int, commits: int) -> None:
    ds = penstock.load(uri, storage_options=options)
    for step in range(commits):
        ds.append({"writer": [writer] * ROWS, "step": [step] * ROWS, "row": list(range(ROWS))})
        ds.commit(f"{writer}/{step}")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "commits"),
    [("folder", 4), ("s3", 2), *(pytest.param(kind, COMMITS, marks=pytest.mark.slow) for kind in ("folder", "s3"))],
)
def test_eight_concurrent_writers_lose_no_commits(kind: str, commits: int) -> None:
    place = new_location(kind)
    penstock.create(place.uri, {"writer": "int32", "step": "int32", "row": "int32"}, storage_options=place.options)
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=write, args=(place.uri, place.options, n, commits)) for n in range(WRITERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * WRITERS

    ds = penstock.load(place.uri, storage_options=place.options)
    assert ds.version == f"main@{WRITERS * commits}"
    rows: dict[str, Any] = ds.select(["writer", "step", "row", "_row_id"]).to_numpy()
    seen = set(zip(rows["writer"].tolist(), rows["step"].tolist(), rows["row"].tolist(), strict=True))
    assert len(ds) == len(seen) == WRITERS * commits * ROWS
    assert len(np.unique(rows["_row_id"])) == len(ds), "row ids are unique"
    messages = [commit.message for commit in ds.log()]
    assert len(set(messages)) == len(messages) == WRITERS * commits + 1
    for writer in range(WRITERS):  # each writer's commits stay in order
        assert rows["step"][rows["writer"] == writer].tolist() == [s for s in range(commits) for _ in range(ROWS)]
    assert penstock.verify(place.uri, storage_options=place.options).damaged == []


def table(place: Any) -> penstock.Dataset:
    ds = penstock.create(place, {"x": "int64"})
    ds.append({"x": [0]})
    ds.commit()
    return ds


def add(ds: penstock.Dataset, x: int) -> None:
    ds.append({"x": [x, x]})
    ds.commit()


def row_ids(place: Any) -> list[int]:
    return [row["_row_id"] for row in penstock.load(place).select(["_row_id"])]


def in_forked_child(run: Callable[[], None]) -> None:
    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_forked_writers_assign_no_row_id_twice(tmp_path: Path) -> None:
    ds = table(tmp_path)
    for child in range(3):
        in_forked_child(lambda child=child: add(ds, child))  # type: ignore[misc]
    add(ds, 3)
    assert len(set(row_ids(tmp_path))) == len(penstock.load(tmp_path)) == 9


@pytest.mark.parametrize("duplicate", [lambda ds: pickle.loads(pickle.dumps(ds)), copy.deepcopy])
def test_a_copied_dataset_assigns_no_row_id_of_the_original(
    duplicate: Callable[[penstock.Dataset], penstock.Dataset], tmp_path: Path
) -> None:
    ds = table(tmp_path)
    other = duplicate(ds)
    add(ds, 1)
    add(other, 2)
    assert len(set(row_ids(tmp_path))) == len(penstock.load(tmp_path)) == 5
    ds.append({"x": [3]})
    with pytest.raises(InvalidInputError, match="commit them first"):
        duplicate(ds)
    ds.rollback()


def test_changes_staged_before_a_fork_are_committed_by_the_parent_alone(tmp_path: Path) -> None:
    ds = table(tmp_path)
    ds.append({"x": [1]})
    parent = os.getpid()

    def child() -> None:
        for change in (ds.commit, lambda: ds.append({"x": [2]}), lambda: ds.reset(0), lambda: ds.merge("main@0")):
            with pytest.raises(InvalidInputError, match=rf"process {parent} before a fork: commit there, or rollback"):
                change()
        assert [int(x) for x in ds["x"][:]] == [0, 1], "reading works"
        ds.rollback()
        add(ds, 3)

    in_forked_child(child)
    ds.commit()
    assert [int(x) for x in penstock.load(tmp_path)["x"][:]] == [0, 3, 3, 1]
    assert len(set(row_ids(tmp_path))) == 4


def test_a_forked_child_leaves_leases_and_intents_of_its_parent_alone(tmp_path: Path) -> None:
    ds = table(tmp_path)
    store = ds._session.store
    hours = iter(range(100))
    intent = WriteIntent(store, every_s=1.0, clock=lambda: next(hours) * 3600.0)
    held = HeldLease(store, ds._session.version.commit, seconds=60.0)
    intent.renew()
    intent.renew()

    def objects() -> dict[str, float]:
        store = open_store(str(tmp_path))
        return {item.key: item.modified_s for prefix in ("leases/", "intents/") for item in store.list(prefix)}

    before = objects()
    assert len(before) == 2

    def child() -> None:
        held.renew()
        held.release()
        intent.renew()
        intent.renew()
        assert len(objects()) == 3, "it has an intent of its own"
        intent.release()

    in_forked_child(child)
    assert objects() == before
    intent.release()
    held.release()
    assert not objects()
