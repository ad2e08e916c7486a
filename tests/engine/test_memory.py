"""The memory budget bounds memory, never changes the order, and never deadlocks."""

import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Any, TypeVar

import numpy as np
import pytest

import penstock
from penstock import Column, Dataset, Shuffle, Tensor, Text, View
from penstock.storage import open_store
from penstock.testing import CountingStore
from tests.engine.watch import soon

T = TypeVar("T")

ROWS = 3000
WIDTH = 512
ROW_BYTES = WIDTH * 4
MIB = 1 << 20


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Six megabytes of numbers and one of text, in pages of 16 KiB."""
    made = penstock.create(
        tmp_path_factory.mktemp("memory") / "t",
        {
            "n": Column(Tensor("int64"), page_bytes=4096),
            "x": Column(Tensor("float32", (WIDTH,)), page_bytes=16384),
            "t": Column(Text(), page_bytes=16384),
        },
    )
    n = np.arange(ROWS)
    for part in np.array_split(n, 3):
        x = np.repeat(part, WIDTH).reshape(-1, WIDTH).astype(np.float32)
        made.append({"n": part, "x": x, "t": [f"{k:400}" for k in part]})
    made.commit()
    return made


def read(ds: View, **options: Any) -> tuple[list[int], Any]:
    numbers: list[int] = []
    with ds.pytorch(**options) as loader:
        for batch in loader:
            assert (batch["x"][:, -1] == batch["n"]).all()
            if "t" in batch:
                assert [int(text) for text in batch["t"]] == batch["n"].tolist()
            numbers += batch["n"].tolist()
        return numbers, loader.stats()


@pytest.mark.parametrize("columns", [None, ["n", "x"]], ids=["with text", "fixed-width only"])
@pytest.mark.parametrize("batch_size", [1, 16, 100])
def test_a_small_budget_does_not_change_the_order(ds: Dataset, batch_size: int, columns: Any) -> None:
    shuffle: dict[str, Any] = {"shuffle": Shuffle(block_bytes=64 << 10, lanes=24)}
    view = ds if columns is None else ds.select(columns)
    expected, plenty = read(view, batch_size=batch_size, **shuffle)
    assert sorted(expected) == list(range(ROWS))
    assert plenty.notes == ()
    found, tight = read(view, batch_size=batch_size, memory_budget=MIB, num_workers=2, **shuffle)
    assert found == expected
    span = max(batch_size, 4 * MIB // (batch_size * ROW_BYTES) * batch_size) * (ROW_BYTES + 500)
    # All raw pages of a span may be in memory before the first is parsed.
    assert tight.window_peak_bytes <= MIB + 4 * span
    assert tight.budget_bytes == MIB
    assert any("memory_budget" in note and "reads them once, in the same order" in note for note in tight.notes)


@pytest.mark.parametrize("num_workers", [0, 1, 16])
@pytest.mark.parametrize(
    "shuffle",
    [
        Shuffle(block_bytes=32 << 10, lanes=96, spread=3),
        Shuffle(block_bytes=2 * MIB, lanes=2),
        Shuffle(block_bytes=100, lanes=384),
        False,
    ],
    ids=str,
)
def test_the_smallest_budget_does_not_deadlock(ds: Dataset, shuffle: bool | Shuffle, num_workers: int) -> None:
    found, stats = read(
        ds, batch_size=32, memory_budget=MIB, num_workers=num_workers, prefetch_factor=8, shuffle=shuffle
    )
    assert sorted(found) == list(range(ROWS))
    assert stats.batches == 94


def test_rows_larger_than_the_budget(tmp_path: Any) -> None:
    made = penstock.create(tmp_path / "t", {"n": int, "x": Tensor("float32", (MIB,))})
    made.append({"n": range(5), "x": np.repeat(np.arange(5, dtype=np.float32), MIB).reshape(5, MIB)})
    made.commit()
    for shuffle in (False, True):
        found, stats = read(made, batch_size=2, memory_budget=MIB, num_workers=3, shuffle=shuffle)
        assert sorted(found) == list(range(5))
        assert stats.window_peak_bytes < 5 * 4 * MIB


def test_memory_of_an_interrupted_epoch_is_released(ds: Dataset) -> None:
    with ds.pytorch(
        batch_size=32, memory_budget=40 * MIB, num_workers=2, shuffle=Shuffle(block_bytes=64 << 10)
    ) as loader:
        for _ in range(8):
            next(iter(loader))
        numbers = [n for batch in loader for n in batch["n"].tolist()]
        assert sorted(numbers) == list(range(ROWS))
        assert loader.stats().window_peak_bytes <= 40 * MIB


def test_narrow_rows_do_not_allocate_more_than_the_budget(ds: Dataset) -> None:
    """A column of a byte, or none but the ids: rows are few bytes, and must not be counted by the billion."""
    for columns in (["_row_id"], ["n"], ["_row_id", "n"]):
        with ds.select(columns).pytorch(batch_size=100, shuffle=True) as loader:
            found = sorted(n for batch in loader for n in batch[columns[0]].tolist())
        assert found == list(range(ROWS))
    made = penstock.create("memory://", {"b": Column(Tensor("bool"), codec="zstd")})
    made.append({"b": np.zeros(5000, bool)})
    made.commit()
    assert sum(len(batch["b"]) for batch in made.pytorch(batch_size=512, shuffle=True)) == 5000


def rows_read(loader: Any, name: str = "n") -> list[int]:
    return sorted(n for batch in loader for n in batch[name].tolist())


@pytest.mark.parametrize("budget", [MIB, 2 * MIB, 4 * MIB])
@pytest.mark.parametrize("batch_size", [4, 64])
def test_pages_larger_than_the_budget_end_no_run(tmp_path: Any, budget: int, batch_size: int) -> None:
    """A page of 256 KiB for each of 64 rows is many times the budget, and most of it is not wanted."""
    rows = 2000
    made = penstock.create(tmp_path / "t", {"n": int, "a": Tensor("uint8", (2000,)), "b": Tensor("uint8", (2000,))})
    n = np.arange(rows)
    values = np.repeat(n % 251, 2000).reshape(rows, 2000).astype(np.uint8)
    made.append({"n": n, "a": values, "b": values})
    made.commit()
    with made[::5].pytorch(batch_size=batch_size, memory_budget=budget, shuffle=Shuffle(lanes=24, spread=9)) as loader:
        found = []
        for batch in loader:
            assert (batch["a"][:, 7] == batch["n"] % 251).all()
            assert (batch["b"][:, -1] == batch["n"] % 251).all()
            found += batch["n"].tolist()
        stats = loader.stats()
    assert sorted(found) == list(range(0, rows, 5))
    assert stats.window_peak_bytes <= budget + 4 * (256 << 10) + batch_size * 4008


@pytest.mark.parametrize("shuffle", [False, True])
def test_row_sizes_are_judged_by_all_fragments(tmp_path: Any, shuffle: bool) -> None:
    """Tiny rows come first, and the others are a thousand times as large."""
    made = penstock.create(tmp_path / "t", {"n": int, "t": Text()})
    made.append({"n": np.arange(2000), "t": ["tiny"] * 2000})
    made.commit()
    for part in np.array_split(np.arange(2000, 2200), 4):
        made.append({"n": part, "t": [f"{k:100000}" for k in part]})
        made.commit()
    budget = 4 * MIB
    for view in (made, made[1900:]):
        with view.pytorch(batch_size=8, memory_budget=budget, num_workers=2, shuffle=shuffle) as loader:
            assert rows_read(loader) == view["n"][:].tolist()
            stats = loader.stats()
        assert stats.window_peak_bytes <= 1.5 * budget
    with made[:100].pytorch(batch_size=8, memory_budget=budget, shuffle=shuffle) as loader:
        assert rows_read(loader) == list(range(100))
        assert loader.stats().notes == (), "rows that are not read do not count"


def test_the_window_is_sized_by_all_columns(tmp_path: Any) -> None:
    names = [f"c{number}" for number in range(60)]
    made = penstock.create(tmp_path / "t", {"n": int, **{name: Tensor("uint8", (40_000,)) for name in names}})
    values = np.zeros((64, 40_000), np.uint8)
    made.append({"n": np.arange(64), **dict.fromkeys(names, values)})
    made.commit()
    budget = 48 * MIB  # of a table of 154 MB, of which each column is 2.6 MB
    for shuffle in (True, False):
        with made.pytorch(batch_size=4, num_workers=1, shuffle=shuffle, memory_budget=budget) as loader:
            assert rows_read(loader) == list(range(64))
            assert loader.stats().window_peak_bytes <= 1.25 * budget


@pytest.mark.parametrize("is_local", [True, False], ids=["local", "remote"])
def test_reading_rows_in_an_order_of_their_own_stays_within_budget(is_local: bool) -> None:
    """Each row is in a page of its own, so a span of rows needs many times its bytes."""
    store = CountingStore(open_store("memory://"))
    store.is_local = is_local
    made = penstock.create(store, {"n": int, "x": Tensor("uint8", (2000,)), "t": Text()})
    made.append({"n": np.arange(ROWS), "x": np.zeros((ROWS, 2000), np.uint8), "t": ["text" * 500] * ROWS})
    made.commit()
    order = np.random.default_rng(0).permutation(ROWS)[:500]
    budget = 4 * MIB
    with made[order].pytorch(batch_size=32, num_workers=2, memory_budget=budget) as loader:
        assert [n for batch in loader for n in batch["n"].tolist()] == order.tolist()
        assert loader.stats().window_peak_bytes <= 1.5 * budget


class _HeldStore(CountingStore):
    """A remote store whose data files are read only when `go` is set."""

    def __init__(self) -> None:
        super().__init__(open_store("memory://"))
        self.go = Event()

    def _call(self, call: Any, execute: Callable[[], T]) -> T:
        if call.verb == "get" and call.keys[0].startswith("data/"):
            self._count("get", 1, 0)
            assert self.go.wait(240)
            return execute()
        return super()._call(call, execute)


def test_blocks_that_no_thread_can_fetch_yet_hold_no_memory() -> None:
    store = _HeldStore()
    made = penstock.create(store, {"x": Column(Tensor("float32", (WIDTH,)), page_bytes=16384)})
    made.append({"x": np.repeat(np.arange(ROWS, dtype=np.float32), WIDTH).reshape(-1, WIDTH)})
    made.commit()
    shuffle = Shuffle(block_bytes=16 << 10, lanes=8, spread=1)
    with made.pytorch(batch_size=1, num_workers=1, shuffle=shuffle, memory_budget=64 * MIB) as loader:
        found: list[int] = []
        reader = Thread(target=lambda: found.extend(int(row["x"][0, 0]) for row in loader))
        reader.start()
        store.reset()
        assert soon(lambda: store.requests["get"] >= 32)
        time.sleep(0.2)
        held = loader.stats().window_bytes
        store.go.set()
        reader.join(240)
    assert sorted(found) == list(range(ROWS))
    assert 0 < held < ROWS * ROW_BYTES  # a block counts twice until it is parsed: less than half of the table
