"""Threads that share a Dataset: each staged row is published exactly once, and each read sees one state."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.storage import open_store
from penstock.table import Reader, Session

THREADS = 8
Step = Literal["append", "commit", "update", "delete"]


def work(ds: penstock.Dataset, thread: int, steps: list[Step], start: threading.Barrier) -> set[int]:
    """Change rows of this thread alone; returns the values that it leaves in the table."""
    mine: list[int] = []
    start.wait(60)
    for number, step in enumerate([*steps, "commit"]):
        value = 1000 * thread + number
        if step == "append":
            ds.append({"x": [value]})
            mine.append(value)
        elif step == "commit":
            name = ds.commit()
            assert set(mine) <= {int(x) for x in penstock.load(ds._session.store, version=name)["x"][:]}
        elif mine and step == "update":
            assert ds.update(pc.field("x") == mine[0], {"x": value}) == 1
            mine[0] = value
        elif mine:
            assert ds.delete(pc.field("x") == mine.pop()) == 1
    return set(mine)


@settings(max_examples=6)
@given(plan=st.lists(st.lists(st.sampled_from(["append", "append", "commit", "update", "delete"]), max_size=6),
                     min_size=THREADS, max_size=THREADS))  # fmt: skip
def test_threads_that_share_a_dataset_lose_and_double_nothing(plan: list[list[Step]]) -> None:
    store = open_store("memory://")
    ds = penstock.create(store, {"x": "int64"})
    start = threading.Barrier(THREADS)
    with ThreadPoolExecutor(THREADS) as pool:
        done = [pool.submit(work, ds, thread, steps, start) for thread, steps in enumerate(plan)]
        expected = sorted(value for future in done for value in future.result())
    assert not ds.summary().has_changes
    now = penstock.load(store)
    assert sorted(int(x) for x in now["x"][:]) == expected
    ids = [row["_row_id"] for row in now.select(["_row_id"])]
    assert len(set(ids)) == len(ids)
    assert penstock.verify(store).damaged == []


class BusySession(Session):
    """Another thread changes the table each time a read has taken its state."""

    other: Callable[[], object] | None = None

    @property
    def reader(self) -> Reader:
        found = super().reader
        if (other := self.other) is not None:
            self.other = None
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        return found


READS: dict[str, Callable[[Any], Any]] = {
    "slice": lambda ds: ds[:]["x"][:],
    "column": lambda column: column[:],
    "column of one row": lambda column: [column[-50]] * 50,
    "last": lambda ds: [ds[-1]] * 50,
    "list": lambda ds: ds[list(range(50))].to_numpy()["x"],
    "filter": lambda ds: list(ds[pc.field("x") >= 0]),
    "rows": lambda ds: list(iter(ds)),
    "select": lambda ds: list(ds.select(["x"])),
    "row ids": lambda ds: list(ds.rows(row_ids=range(50))),
    "batches": lambda ds: [row for batch in ds.batches(7) for row in batch["x"]],
    "pages": lambda ds: [row for batch in ds.batches(None) for row in batch["x"]],
    "numpy": lambda ds: ds.to_numpy()["x"],
    "arrow": lambda ds: ds.to_arrow().column("x"),
    "schema": lambda ds: ds.schema.names * 50,
    "loader": lambda ds: [row for batch in ds.numpy(batch_size=7, shuffle=False) for row in batch["x"]],
}


@pytest.mark.parametrize("change", ["delete", "append", "drop"])
@pytest.mark.parametrize("read", READS)
def test_a_read_beside_a_writer_sees_one_state(read: str, change: str) -> None:
    store = open_store("memory://")
    first = penstock.create(store, {"x": "int64"})
    first.append({"x": list(range(50))})
    first.commit()
    session = first._session
    busy = BusySession(store, session.info, session.version, branch="main")
    ds = penstock.Dataset(busy)

    def other() -> None:
        if change == "append":
            ds.append({"x": list(range(50))})
        elif change == "delete":
            ds.delete(positions=slice(0, None))
        else:
            ds.add_column("y", fill=1)
            ds.drop_column("x")
        ds.commit()

    target = ds["x"] if read.startswith("column") else ds
    busy.other = other
    assert len(READS[read](target)) == 50
    assert busy.other is None
