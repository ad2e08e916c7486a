"""Concurrent commits from many processes."""

import multiprocessing
from typing import Any

import numpy as np
import pytest

import penstock
from tests.servers import new_location

WRITERS, COMMITS, ROWS = 8, 25, 3


def write(uri: str, options: dict[str, str], writer: int) -> None:
    ds = penstock.load(uri, storage_options=options)
    for step in range(COMMITS):
        ds.append({"writer": [writer] * ROWS, "step": [step] * ROWS, "row": list(range(ROWS))})
        ds.commit(f"{writer}/{step}")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_eight_concurrent_writers_lose_no_commits(kind: str) -> None:
    place = new_location(kind)
    penstock.create(place.uri, {"writer": "int32", "step": "int32", "row": "int32"}, storage_options=place.options)
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=write, args=(place.uri, place.options, n)) for n in range(WRITERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * WRITERS

    ds = penstock.load(place.uri, storage_options=place.options)
    assert ds.version == f"main@{WRITERS * COMMITS}"
    rows: dict[str, Any] = ds.select(["writer", "step", "row", "_row_id"]).to_numpy()
    seen = set(zip(rows["writer"].tolist(), rows["step"].tolist(), rows["row"].tolist(), strict=True))
    assert len(ds) == len(seen) == WRITERS * COMMITS * ROWS
    assert len(np.unique(rows["_row_id"])) == len(ds), "row ids are unique"
    messages = [commit.message for commit in ds.log()]
    assert len(set(messages)) == len(messages) == WRITERS * COMMITS + 1
    for writer in range(WRITERS):  # each writer's commits stay in order
        assert rows["step"][rows["writer"] == writer].tolist() == [s for s in range(COMMITS) for _ in range(ROWS)]
    assert penstock.verify(place.uri, storage_options=place.options).damaged == []
