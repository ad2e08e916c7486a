"""A table of one block is shuffled as a whole."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import Column, Dataset, Shuffle, Tensor, Text, Workers
from penstock.storage import open_store
from penstock.testing import CountingStore


def sorted_by_class(rows: int, classes: int) -> Dataset:
    ds = penstock.create("memory://", {"n": int, "x": Tensor("float32", (4,)), "y": int})
    n = np.arange(rows)
    ds.append({"n": n, "x": np.zeros((rows, 4), np.float32), "y": n * classes // rows})
    ds.commit()
    return ds


def entropy(labels: list[int]) -> float:
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    return float(-(shares * np.log(shares)).sum())


def epochs(ds: Dataset, count: int, **options: Any) -> list[list[dict[str, list[int]]]]:
    with ds.select(["n", "y"]).pytorch(shuffle=True, **options) as loader:
        return [[{name: batch[name].tolist() for name in batch} for batch in loader] for _ in range(count)]


def test_a_few_rows_have_another_order_in_each_epoch() -> None:
    orders = {
        tuple(n for batch in epoch for n in batch["n"]) for epoch in epochs(sorted_by_class(10, 2), 8, batch_size=5)
    }
    assert len(orders) >= 7


@pytest.mark.parametrize("batch_size", [4, 8, 16])
def test_batches_of_a_table_sorted_by_class_are_mixed(batch_size: int) -> None:
    generator = np.random.default_rng(0)
    found = [
        entropy(batch["y"])
        for epoch in epochs(sorted_by_class(150, 3), 10, batch_size=batch_size, drop_last=True)
        for batch in epoch
    ]
    true = [entropy((generator.permutation(150)[:batch_size] * 3 // 150).tolist()) for _ in range(500)]
    assert np.mean(found) >= 0.9 * np.mean(true)


def test_the_order_does_not_favour_any_position_of_the_table() -> None:
    """Over many epochs, the rows of the first tenth of an epoch are from the middle of the table on average."""
    first = [n for epoch in epochs(sorted_by_class(200, 2), 30, batch_size=20) for n in epoch[0]["n"]]
    assert abs(np.mean(first) - 99.5) < 12  # four standard errors of a true shuffle
    assert {n // 50 for n in first} == {0, 1, 2, 3}


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_table_that_fits_the_budget_is_read_once(shuffle: bool, num_workers: int) -> None:
    store = CountingStore(open_store("memory://"))
    made = penstock.create(store, {"n": int, "t": Text()})
    made.append({"n": range(900), "t": [f"row {k}" for k in range(900)]})
    made.commit()
    with made.numpy(batch_size=50, shuffle=shuffle, num_workers=num_workers) as loader:
        loader.load_state_dict({**loader.state_dict(), "consumed": 450})
        assert len(list(loader)) == 9, "the rest of an epoch"
        for epoch in (1, 2, 3):
            if epoch == 2:
                store.reset()
            seen = [int(n) for batch in loader for n in batch["n"]]
            assert sorted(seen) == list(range(900))
        assert not store.requests["get"], "later epochs come from memory"


@pytest.mark.parametrize("transform", [None, lambda sample: sample])
def test_a_table_that_fits_the_budget_is_read_once_by_processes(tmp_path: Path, transform: Any) -> None:
    """It stays in the memory that they share."""
    made = penstock.create(tmp_path / "t", {"n": int, "t": Text()})
    made.append({"n": range(900), "t": [f"row {k}" for k in range(900)]})
    made.commit()
    with made.numpy(batch_size=50, shuffle=True, num_workers=Workers(2, "process"), transform=transform) as loader:
        for _ in range(4):
            seen = [(int(n), text) for batch in loader for n, text in zip(batch["n"], batch["t"], strict=True)]
            assert sorted(seen) == [(k, f"row {k}") for k in range(900)]
            time.sleep(0.6)  # until the process that reads has told how much
        stats = loader.stats()
    assert stats.processes == 2
    assert 0 < stats.bytes <= 1.1 * sum(file.stat().st_size for file in (tmp_path / "t" / "data").iterdir())


@pytest.mark.parametrize("key", [slice(None), slice(None, None, 3)])
@pytest.mark.parametrize(("lanes", "spread"), [(1, 0), (1, 2), (3, 5), (4, 1000)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_rows_in_memory_have_the_order_of_rows_that_are_read_again(
    lanes: int, spread: float, key: slice, drop_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lanes of several chunks, whose orders are computed one after the other; dropped rows leave out whole blocks."""
    made = penstock.create("memory://", {"n": Column(Tensor("int64"), page_bytes=512)})
    made.append({"n": range(20_000)})
    made.delete(positions=range(0, 20_000, 7))
    made.commit()
    shuffle = Shuffle(block_bytes=4000, lanes=lanes, spread=spread)

    def read() -> list[list[int]]:
        with made[key].numpy(batch_size=1100, shuffle=shuffle, drop_last=drop_last, num_workers=1) as loader:
            orders = [[int(n) for batch in loader for n in batch["n"]] for _ in range(2)]
            state = {**loader.state_dict(), "epoch": 1, "consumed": 2200}  # in the middle, when all is in memory
            loader.load_state_dict(state)
            assert [int(n) for batch in loader for n in batch["n"]] == orders[1][2200:]
            return [*orders, *([int(n) for batch in loader for n in batch["n"]] for _ in range(4))]

    kept = read()
    monkeypatch.setattr("penstock.engine._sizing.LoaderSizing._fits", lambda *_: False)
    assert read() == kept


@pytest.mark.parametrize("num_workers", [2, Workers(2, "process")])
@pytest.mark.parametrize("shuffle", [True, Shuffle(block_bytes=4000, lanes=4, spread=0.5)])
def test_rows_that_were_dropped_are_read_when_they_are_needed(
    shuffle: bool | Shuffle, num_workers: int | Workers, tmp_path: Path
) -> None:
    """Once, as all others: also those whose block had only rows that `drop_last` dropped in the first epochs."""
    made = penstock.create(tmp_path / "t", {"n": Column(Tensor("int64"), page_bytes=512)})
    made.append({"n": range(20_000)})
    made.commit()
    with made.numpy(batch_size=12_000, shuffle=shuffle, drop_last=True, num_workers=num_workers) as loader:
        for _ in range(6):
            seen = [int(n) for batch in loader for n in batch["n"]]
            assert len(set(seen)) == 12_000
            time.sleep(0.6)  # until a process that reads has told how much
        read = loader.stats().bytes
    stored = sum(file.stat().st_size for file in (tmp_path / "t" / "data").iterdir())
    assert 0.9 * stored < read <= stored


@pytest.mark.parametrize("num_workers", [1, Workers(1, "process")])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_read_what_they_do_not_hold(ranks: int, num_workers: int | Workers, tmp_path: Path) -> None:
    """In each epoch a rank has other rows, and reads those that it has not read before; so it reads no row twice."""
    made = penstock.create(tmp_path / "t", {"n": Column(Tensor("int64"), page_bytes=512)})
    made.append({"n": range(20_000)})
    made.commit()
    options: dict[str, Any] = {"batch_size": 500, "shuffle": Shuffle(block_bytes=4000, lanes=4, spread=1)}
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(made.numpy(distributed=(rank, ranks), num_workers=num_workers, **options))
            for rank in range(ranks)
        ]
        for _ in range(12):
            seen = [int(n) for loader in loaders for batch in loader for n in batch["n"][~batch["_pad"]]]
            assert sorted(seen) == list(range(20_000))
            time.sleep(0.6 * isinstance(num_workers, Workers))  # until a process that reads has told how much
        read = sum(loader.stats().bytes for loader in loaders)
    stored = sum(file.stat().st_size for file in (tmp_path / "t" / "data").iterdir())
    assert 1.5 * stored < read <= ranks * stored


def test_a_table_larger_than_the_budget_is_read_in_each_epoch() -> None:
    made = penstock.create("memory://", {"x": Column(Tensor("uint8", (1000,)), page_bytes=10_000)})
    made.append({"x": np.zeros((4000, 1000), np.uint8)})
    made.commit()
    shuffle = Shuffle(spread=1, block_bytes=20_000, lanes=2)
    with made.numpy(batch_size=50, shuffle=shuffle, num_workers=1, memory_budget=2 << 20) as loader:
        for epoch in (1, 2, 3):
            list(loader)
            assert loader.stats().bytes >= epoch * 4_000_000


def test_rows_that_an_epoch_drops_are_read_in_later_ones() -> None:
    made = penstock.create("memory://", {"n": Column(Tensor("int64"), page_bytes=64)})
    made.append({"n": range(997)})
    made.commit()
    shuffle = Shuffle(block_bytes=100, spread=1, lanes=4)
    with made.numpy(batch_size=100, shuffle=shuffle, num_workers=1, drop_last=True) as loader:
        for _ in range(4):
            seen = [int(n) for batch in loader for n in batch["n"]]
            assert len(seen) == len(set(seen)) == 900
