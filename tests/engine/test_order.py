"""The order: every row once, independent of machines, from any position."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import penstock
from penstock import Column, Dataset, Shuffle, Tensor, View
from penstock.storage import open_store
from tests.engine.reading import (
    MANY_LANES,
    MIXED,
    SHUFFLE,
    TABLES,
    WORLDS,
    Batch,
    Int64Array,
    Key,
    Table,
    batch_of,
    by_step,
    columns,
    few,
    joined,
    machines,
    of_fragments,
    read,
    read_all,
    shuffles,
    table,
    views,
    worlds,
)
from tests.servers import new_location

fewest = settings(few, max_examples=20)


def check_an_epoch(
    all_ranks: Sequence[Sequence[Batch]], wanted: Int64Array, batch_size: int, *, drop_last: bool = False
) -> None:
    """Each row once, the same number of steps on every rank, and only the last step is not full."""
    ranks = len(all_ranks)
    step_rows = ranks * batch_size
    [steps] = {len(batches) for batches in all_ranks}
    real = joined(list(by_step(all_ranks)))
    if drop_last:
        assert steps == len(wanted) // step_rows
        assert all(len(batch.numbers) == batch_size for batches in all_ranks for batch in batches)
        assert all(batch.padding is None for batches in all_ranks for batch in batches)
        assert len(real) == steps * step_rows
        left, counts = np.unique(wanted, return_counts=True)
        assert (np.unique(joined([real, left]), return_counts=True)[1] - 1 <= counts).all()
        return
    assert steps == -(-len(wanted) // step_rows)
    assert np.array_equal(np.sort(real), np.sort(wanted))
    for batches in all_ranks:
        for number, batch in enumerate(batches):
            full = number < len(wanted) // step_rows
            if ranks == 1:
                assert batch.padding is None
                assert len(batch.numbers) == (batch_size if full else len(wanted) % step_rows)
            else:
                assert batch.padding is not None
                assert len(batch.numbers) == batch_size
                assert not (full and batch.padding.any())
            assert np.isin(batch.numbers, wanted).all()


@given(views(), shuffles, machines, worlds, st.integers(1, 33), columns, st.booleans())
@few
@example((table("one row"), None), Shuffle(), {}, 4, 3, None, False)
@example((table("no rows"), None), Shuffle(), {}, 2, 3, None, False)
@example((table("broken"), []), None, {}, 1, 3, None, False)
def test_each_row_once(
    chosen: tuple[Table, Key],
    shuffle: Shuffle | None,
    machine: dict[str, Any],
    ranks: int,
    batch_size: int,
    names: list[str] | None,
    drop_last: bool,
) -> None:
    view, wanted = chosen[0].view(chosen[1])
    if chosen[0] is table("long"):
        names = None
    options = {"shuffle": shuffle, **machine, "columns": names, "drop_last": drop_last, "batch_size": batch_size}
    all_ranks = read_all(view, ranks=ranks, **options)
    check_an_epoch(all_ranks, wanted, batch_size, drop_last=drop_last)
    if shuffle is None and ranks == 1:
        got = joined([batch.numbers for batch in all_ranks[0]])
        assert np.array_equal(got, wanted[: len(got)])


@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_each_row_once_on_many_ranks(ranks: int, drop_last: bool) -> None:
    few_rows, broken = table("odd"), table("broken")
    for chosen, batch_size in ((few_rows, 5), (broken, 2)):
        options = {**MIXED, "shuffle": MANY_LANES, "batch_size": batch_size, "drop_last": drop_last, "columns": ["n"]}
        all_ranks = read_all(chosen.ds, ranks=ranks, **options)
        check_an_epoch(all_ranks, chosen.numbers, batch_size, drop_last=drop_last)


@pytest.mark.parametrize("shuffle", [False, Shuffle(block_bytes=700)], ids=["in order", "shuffled"])
def test_repeated_rows_are_read_repeatedly(shuffle: bool | Shuffle) -> None:
    chosen = table("broken")
    for rows in ([5, 5, 7, 9, 9, 9, 12], [30, 30, 31, 33, 3, 3, 0], [0] * 20, [*range(60), *range(30, 90)]):
        for each in (rows, sorted(rows)):
            view, wanted = chosen.view(each)
            for ranks in (1, 3):
                options = {"batch_size": 4, "shuffle": shuffle, "num_workers": 0}
                check_an_epoch(read_all(view, ranks=ranks, **options), wanted, 4)


def positions(view: View, **options: Any) -> Int64Array:
    """The rows in the order of their positions: what one rank reads."""
    return joined([batch.numbers for batch in read(view, batch_size=64, num_workers=0, **options)])


@given(views(), shuffles, machines, worlds, st.integers(1, 20))
@fewest
def test_a_step_reads_the_same_rows_on_any_number_of_ranks(
    chosen: tuple[Table, Key], shuffle: Shuffle | None, machine: dict[str, Any], ranks: int, batch_size: int
) -> None:
    view, _ = chosen[0].view(chosen[1])
    order = positions(view, shuffle=shuffle, columns=["n"])
    all_ranks = read_all(view, ranks=ranks, shuffle=shuffle, **machine, columns=["n"], batch_size=batch_size)
    step_rows = ranks * batch_size
    for step, rows in enumerate(by_step(all_ranks)):
        assert np.array_equal(rows, np.sort(order[step * step_rows : (step + 1) * step_rows]))
    lanes = min(1 if shuffle is None else shuffle.lanes or 1, max(1, len(order)))
    if lanes % ranks == 0:  # a rank owns lanes, and reads their positions in order
        for rank, batches in enumerate(all_ranks):
            assert np.array_equal(joined([batch.real for batch in batches]), order[rank::ranks])


@pytest.mark.parametrize("ranks", WORLDS)
def test_a_step_reads_the_same_rows_on_many_ranks(ranks: int) -> None:
    chosen = table("broken")
    options: dict[str, Any] = {**MIXED, "shuffle": MANY_LANES, "columns": ["n"]}
    alone = read(chosen.ds, batch_size=3 * ranks, **options)
    all_ranks = read_all(chosen.ds, ranks=ranks, batch_size=3, **options)
    for batch, rows in zip(alone, by_step(all_ranks), strict=True):
        assert np.array_equal(np.sort(batch.numbers), rows)


@given(views(), shuffles, machines, columns, st.integers(1, 70))
@few
def test_the_order_does_not_depend_on_workers_prefetch_memory_or_batches(
    chosen: tuple[Table, Key], shuffle: Shuffle | None, machine: dict[str, Any], names: list[str] | None, size: int
) -> None:
    view, _ = chosen[0].view(chosen[1])
    if chosen[0] is table("long"):
        names = None
    order = positions(view, shuffle=shuffle, columns=names)
    batches = read(view, batch_size=size, shuffle=shuffle, **machine, columns=names)
    assert np.array_equal(joined([batch.numbers for batch in batches]), order)


def test_too_little_memory_is_noted_and_does_not_change_the_order() -> None:
    ds = penstock.create(
        new_location("memory").uri, {"n": int, "x": Column(Tensor("uint8", (1024,)), page_bytes=8 << 10)}
    )
    ds.append({"n": np.arange(5000), "x": np.zeros((5000, 1024), np.uint8)})
    ds.commit()
    options: dict[str, Any] = {
        "batch_size": 50, "shuffle": Shuffle(block_bytes=64 << 10, lanes=4, spread=8),
    }  # fmt: skip
    orders = []
    for budget in (None, 64 << 20, 1 << 20):
        with ds.pytorch(**options, memory_budget=budget) as loader:
            orders.append([batch["n"].tolist() for batch in loader])
            stats = loader.stats()
        assert any("memory_budget" in note for note in stats.notes) == (budget == 1 << 20)
        assert stats.budget_bytes >= stats.window_peak_bytes or budget == 1 << 20
    assert orders[0] == orders[1] == orders[2]


def test_the_window_is_sized_by_decoded_rows() -> None:
    """Compressed rows take more memory than file bytes; row ids are in no file."""
    ds = penstock.create(new_location("memory").uri, {"x": Column(Tensor("uint8", (3000,)), codec="zstd")})
    ds.append({"x": np.zeros((6000, 3000), np.uint8)})
    ds.commit()
    for names in (["_row_id"], ["x", "_row_id"]):
        with ds.select(names).pytorch(batch_size=50, shuffle=True) as loader:
            rows = sorted(row for batch in loader for row in batch["_row_id"].tolist())
        assert rows == ds["_row_id"][:].tolist()
    with ds.pytorch(batch_size=50, shuffle=True, memory_budget=1 << 20) as loader:
        assert sum(len(batch["x"]) for batch in loader) == 6000
        stats = loader.stats()
    assert stats.window_peak_bytes < 9 << 20  # a span, not the whole table


def test_seeds_and_epochs_differ_and_are_reproducible() -> None:
    chosen = table("odd")
    loaders = [chosen.ds.pytorch(batch_size=50, **MIXED | {"shuffle": replace(SHUFFLE, seed=seed)}) for seed in (0, 1)]
    orders = {}
    for seed, loader in enumerate(loaders):
        with loader:
            for epoch in range(3):
                assert loader.epoch == epoch
                orders[seed, epoch] = joined([batch_of(found).numbers for found in loader]).tolist()
    assert len(set(map(tuple, orders.values()))) == 6
    assert all(sorted(order) == chosen.numbers.tolist() for order in orders.values())
    with chosen.ds.pytorch(batch_size=64, **{**MIXED, "num_workers": 2}) as loader:  # the default seed is 0
        for epoch in (2, 0, 0, 1):
            loader.set_epoch(epoch)
            assert joined([batch_of(found).numbers for found in loader]).tolist() == orders[0, epoch]


_PROGRAM = """
import sys, penstock
shuffle = penstock.Shuffle(block_bytes=700, lanes=4, seed=5)
with penstock.load(sys.argv[1]).pytorch(batch_size=9, shuffle=shuffle) as loader:
    loader.set_epoch(3)
    print([n for batch in loader for n in batch["n"].tolist()])
"""


def test_an_epoch_is_the_same_in_another_process() -> None:
    ds = table("folder").ds
    command = [sys.executable, "-c", _PROGRAM, ds.uri]
    there = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True).stdout
    with ds.pytorch(batch_size=30, shuffle=Shuffle(block_bytes=700, lanes=4, seed=5)) as loader:
        loader.set_epoch(3)
        here = [n for batch in loader for n in batch["n"].tolist()]
    assert json.loads(there) == here


@pytest.mark.parametrize("name", sorted(set(TABLES) - {"no rows", "one row"}))
def test_without_shuffle_rows_are_in_table_order(name: str) -> None:
    chosen = table(name)
    assert np.array_equal(positions(chosen.ds), chosen.numbers)
    assert np.array_equal(positions(chosen.ds[::-1]), chosen.numbers[::-1])
    every = np.random.default_rng(1).permutation(len(chosen.numbers)).tolist()
    assert np.array_equal(positions(chosen.ds[every]), chosen.numbers[every])
    two = read_all(chosen.ds, ranks=2, batch_size=8)  # the next sixteen rows in each step
    for step, rows in enumerate(by_step(two)):
        assert np.array_equal(rows, chosen.numbers[16 * step : 16 * (step + 1)])


def test_a_bad_row_is_replaced_by_the_same_row_everywhere() -> None:
    """On any ranks, with any batch size, with little memory, and after a resume."""
    chosen = table("long")
    bad = set(range(100, 9000, 701))
    shuffle = Shuffle(block_bytes=4096, lanes=2)

    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        if int(sample["n"]) in bad:
            raise ValueError("bad")
        return sample

    def read_some(ranks: int, batch_size: int, state: dict[str, Any] | None = None, **machine: Any) -> list[int]:
        """The replacements of bad rows."""
        found: list[int] = []
        real: list[int] = []
        for rank in range(ranks):
            with chosen.ds.pytorch(
                batch_size=batch_size, shuffle=shuffle, transform=fail, bad_samples="replace",
                distributed=(rank, ranks), num_workers=0, **machine,
            ) as loader:  # fmt: skip
                if state is not None:
                    loader.load_state_dict(state)
                for number, batch in enumerate(loader):
                    last = ranks > 1 and number == len(loader) - 1
                    found += [] if last else batch["n"][batch["_pad"]].tolist()
                    real += batch["n"][~batch["_pad"]].tolist()
        assert not bad.intersection(real)
        assert len(real) == len(set(real))
        return sorted(found)

    whole = read_some(1, 500)
    assert len(whole) == len(bad)
    assert read_some(1, 77, memory_budget=1 << 20) == whole
    assert read_some(3, 1000) == whole  # 9001 rows: only the last one is in the last step
    with chosen.ds.pytorch(batch_size=1, shuffle=shuffle) as loader:
        state = {**loader.state_dict(), "consumed": 5003}
    late = read_some(1, 500, state)
    assert late == read_some(1, 61, state)
    assert set(late) < set(whole)


@pytest.fixture(scope="module")
def many_leaves() -> Dataset:
    """More leaves than are prefetched: a lane holds one fragment at a time."""
    return of_fragments(open_store("memory://"), 70 * 32, 5)


@pytest.mark.parametrize(
    ("ranks", "lanes", "key", "shuffle"),
    [
        (1, 4, slice(1000, 3500), True),
        (2, 4, slice(2001, 3000), True),
        (3, 1, slice(0, 900), True),
        (3, 1, slice(300, 900), False),
        (1, 1, slice(500, 1500), False),
    ],
)
def test_a_table_of_many_manifests(many_leaves: Dataset, ranks: int, lanes: int, key: slice, shuffle: bool) -> None:
    view = many_leaves[key].select(["_row_id", "n"])
    wanted = view.to_numpy()
    numbers = dict(zip(wanted["_row_id"], wanted["n"], strict=True))
    options: dict[str, Any] = {"num_workers": 0, "batch_size": 70}
    if shuffle:
        options |= {"shuffle": Shuffle(lanes=lanes, block_bytes=64, spread=20)}
    found: list[Int64Array] = []
    state: dict[str, Any] | None = None
    for count, steps in ((ranks, 2), (1, 10**6)):
        for rank in range(count):
            with view.pytorch(**options, distributed=(rank, count)) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                for batch in islice(loader, steps):
                    assert [numbers[id] for id in batch["_row_id"].tolist()] == batch["n"].tolist()
                    found.append(batch["_row_id"].numpy().copy())
                after = loader.state_dict()
        state = after
    assert np.array_equal(np.sort(joined(found)), wanted["_row_id"])
    assert shuffle or ranks > 1 or np.array_equal(joined(found), wanted["_row_id"])
