"""What the loader promises about order: every row once, the same on any machines, and from any point on."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import penstock
from penstock import Column, Tensor, View
from penstock.errors import InvalidInputError
from tests.engine.reading import (
    TABLES,
    WORLDS,
    Batch,
    Key,
    Rows,
    Table,
    batch_of,
    by_step,
    columns,
    joined,
    machines,
    read,
    read_all,
    shuffles,
    table,
    views,
    worlds,
)
from tests.servers import new_place

few = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
fewest = settings(few, max_examples=20)
MIXED = {"shuffle": True, "shuffle_block": 1500, "lanes": 4, "num_workers": 0}
AN_EPOCH_OF_ONE_ROW = {"shuffle": False, "batch_size": 1}


def check_an_epoch(
    all_ranks: Sequence[Sequence[Batch]], wanted: Rows, batch_size: int, *, drop_last: bool = False
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


@given(
    views(), shuffles, machines, worlds, st.integers(1, 33), columns, st.booleans()
)
@few
@example((table("one row"), None), {"shuffle": True}, {}, 4, 3, None, False)
@example((table("no rows"), None), {"shuffle": True}, {}, 2, 3, None, False)
@example((table("broken"), []), {"shuffle": False}, {}, 1, 3, None, False)
def test_each_row_once(
    chosen: tuple[Table, Key],
    shuffle: dict[str, Any],
    machine: dict[str, Any],
    ranks: int,
    batch_size: int,
    names: list[str] | None,
    drop_last: bool,
) -> None:
    view, wanted = chosen[0].view(chosen[1])
    if chosen[0] is table("long"):
        names = None
    options = {**shuffle, **machine, "columns": names, "drop_last": drop_last, "batch_size": batch_size}
    all_ranks = read_all(view, ranks=ranks, **options)
    check_an_epoch(all_ranks, wanted, batch_size, drop_last=drop_last)
    if not shuffle["shuffle"] and ranks == 1:
        got = joined([batch.numbers for batch in all_ranks[0]])
        assert np.array_equal(got, wanted[: len(got)])


@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_each_row_once_on_many_ranks(ranks: int, drop_last: bool) -> None:
    few_rows, broken = table("odd"), table("broken")
    for chosen, batch_size in ((few_rows, 5), (broken, 2)):
        options = {**MIXED, "lanes": 24, "batch_size": batch_size, "drop_last": drop_last, "columns": ["n"]}
        all_ranks = read_all(chosen.ds, ranks=ranks, **options)
        check_an_epoch(all_ranks, chosen.numbers, batch_size, drop_last=drop_last)


@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_that_are_asked_for_twice_come_twice(shuffle: bool) -> None:
    chosen = table("broken")
    for rows in ([5, 5, 7, 9, 9, 9, 12], [30, 30, 31, 33, 3, 3, 0], [0] * 20, [*range(60), *range(30, 90)]):
        for each in (rows, sorted(rows)):
            view, wanted = chosen.view(each)
            for ranks in (1, 3):
                options = {"batch_size": 4, "shuffle": shuffle, "shuffle_block": 700, "num_workers": 0}
                check_an_epoch(read_all(view, ranks=ranks, **options), wanted, 4)


def positions(view: View, **options: Any) -> Rows:
    """The rows in the order of their positions: what one rank reads."""
    return joined([batch.numbers for batch in read(view, batch_size=64, num_workers=0, **options)])


@given(views(), shuffles, machines, worlds, st.integers(1, 20))
@fewest
def test_a_step_reads_the_same_rows_on_any_number_of_ranks(
    chosen: tuple[Table, Key], shuffle: dict[str, Any], machine: dict[str, Any], ranks: int, batch_size: int
) -> None:
    view, _ = chosen[0].view(chosen[1])
    order = positions(view, **shuffle, columns=["n"])
    all_ranks = read_all(view, ranks=ranks, **shuffle, **machine, columns=["n"], batch_size=batch_size)
    step_rows = ranks * batch_size
    for step, rows in enumerate(by_step(all_ranks)):
        assert np.array_equal(rows, np.sort(order[step * step_rows : (step + 1) * step_rows]))
    lanes = min(shuffle.get("lanes", 1), max(1, len(order)))
    if lanes % ranks == 0:  # a rank owns lanes, and reads their positions in order
        for rank, batches in enumerate(all_ranks):
            assert np.array_equal(joined([batch.real for batch in batches]), order[rank::ranks])


@pytest.mark.parametrize("ranks", WORLDS)
def test_a_step_reads_the_same_rows_on_many_ranks(ranks: int) -> None:
    chosen = table("broken")
    options: dict[str, Any] = {**MIXED, "lanes": 24, "columns": ["n"]}
    alone = read(chosen.ds, batch_size=3 * ranks, **options)
    all_ranks = read_all(chosen.ds, ranks=ranks, batch_size=3, **options)
    for batch, rows in zip(alone, by_step(all_ranks), strict=True):
        assert np.array_equal(np.sort(batch.numbers), rows)


@given(views(), shuffles, machines, columns, st.integers(1, 70))
@few
def test_the_order_does_not_depend_on_workers_prefetch_memory_or_batches(
    chosen: tuple[Table, Key], shuffle: dict[str, Any], machine: dict[str, Any], names: list[str] | None, size: int
) -> None:
    view, _ = chosen[0].view(chosen[1])
    if chosen[0] is table("long"):
        names = None
    order = positions(view, **shuffle, columns=names)
    batches = read(view, batch_size=size, **shuffle, **machine, columns=names)
    assert np.array_equal(joined([batch.numbers for batch in batches]), order)


def test_too_little_memory_is_noted_and_changes_nothing() -> None:
    ds = penstock.create(
        new_place("memory").uri, {"n": int, "x": Column(Tensor("uint8", (1024,)), page_bytes=8 << 10)}
    )
    ds.append({"n": np.arange(5000), "x": np.zeros((5000, 1024), np.uint8)})
    ds.commit()
    options: dict[str, Any] = {
        "batch_size": 50, "shuffle": True, "shuffle_block": 64 << 10, "lanes": 4, "shuffle_spread": 8,
    }  # fmt: skip
    orders = []
    for budget in (None, 64 << 20, 1 << 20):
        with ds.pytorch(**options, memory_budget=budget) as loader:
            orders.append([batch["n"].tolist() for batch in loader])
            stats = loader.stats()
        assert any("memory_budget" in note for note in stats.notes) == (budget == 1 << 20)
        assert stats.budget_bytes >= stats.window_peak_bytes or budget == 1 << 20
    assert orders[0] == orders[1] == orders[2]


def test_rows_that_are_compressed_or_in_no_file_fit_in_memory() -> None:
    """A window is sized by what rows take in it, and not by what they take in files."""
    ds = penstock.create(new_place("memory").uri, {"x": Column(Tensor("uint8", (3000,)), codec="zstd")})
    ds.append({"x": np.zeros((6000, 3000), np.uint8)})
    ds.commit()
    for names in (["_row_id"], ["x", "_row_id"]):
        with ds.pytorch(batch_size=50, shuffle=True, columns=names) as loader:
            rows = sorted(row for batch in loader for row in batch["_row_id"].tolist())
        assert rows == ds["_row_id"][:].tolist()
    with ds.pytorch(batch_size=50, shuffle=True, memory_budget=1 << 20) as loader:
        assert sum(len(batch["x"]) for batch in loader) == 6000
        stats = loader.stats()
    assert stats.window_peak_bytes < 9 << 20  # what is put together at once, and not the whole table


def test_seeds_and_epochs_differ_and_come_back() -> None:
    chosen = table("odd")
    loaders = [chosen.ds.pytorch(batch_size=50, **MIXED, seed=seed) for seed in (0, 1)]
    orders = {}
    for seed, loader in enumerate(loaders):
        with loader:
            for epoch in range(3):
                assert loader.state_dict()["epoch"] == epoch
                orders[seed, epoch] = joined([batch_of(found).numbers for found in loader]).tolist()
    assert len(set(map(tuple, orders.values()))) == 6
    assert all(sorted(order) == chosen.numbers.tolist() for order in orders.values())
    with chosen.ds.pytorch(batch_size=64, **{**MIXED, "num_workers": 2}) as loader:  # the default seed is 0
        for epoch in (2, 0, 0, 1):
            loader.set_epoch(epoch)
            assert joined([batch_of(found).numbers for found in loader]).tolist() == orders[0, epoch]


_ELSEWHERE = """
import sys, penstock
with penstock.load(sys.argv[1]).pytorch(batch_size=9, shuffle=True, shuffle_block=700, lanes=4, seed=5) as loader:
    loader.set_epoch(3)
    print([n for batch in loader for n in batch["n"].tolist()])
"""


def test_an_epoch_is_the_same_in_another_process() -> None:
    ds = table("folder").ds
    command = [sys.executable, "-c", _ELSEWHERE, ds.uri]
    there = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True).stdout
    with ds.pytorch(batch_size=30, shuffle=True, shuffle_block=700, lanes=4, seed=5) as loader:
        loader.set_epoch(3)
        here = [n for batch in loader for n in batch["n"].tolist()]
    assert json.loads(there) == here


@dataclass(frozen=True)
class Stage:
    """A part of a run: so many steps on so many ranks."""

    ranks: int
    batch_size: int
    steps: int
    machine: dict[str, Any]


stages = st.builds(Stage, worlds, st.integers(1, 20), st.integers(0, 6), machines)


def read_stage(
    view: View, stage: Stage, state: dict[str, Any] | None, **options: Any
) -> tuple[list[Rows], dict[str, Any], bool]:
    """Go on from a state for some steps: what was read, the state then, and whether the epoch has ended."""
    found, states, ended = [], [], []
    for rank in range(stage.ranks):
        with view.pytorch(
            batch_size=stage.batch_size, distributed=(rank, stage.ranks), **stage.machine, **options
        ) as loader:
            if state is not None:
                loader.load_state_dict(state)
                assert loader.state_dict() == state
            batches = iter(loader)
            taken = [batch_of(batch) for batch in islice(batches, stage.steps)]
            found += [batch.real for batch in taken]
            ended.append(len(taken) < stage.steps)
            text = json.dumps(loader.state_dict())
            assert len(text) < 1024
            states.append(json.loads(text))
    assert all(state == states[0] for state in states)
    assert len(set(ended)) == 1
    return found, states[0], ended[0]


@given(views(), shuffles, st.lists(stages, min_size=1, max_size=4), columns)
@few
@example(
    (table("long"), None),
    {"shuffle": True, "shuffle_block": 8192, "shuffle_spread": 1.5, "lanes": 2, "seed": 0},
    [Stage(1, 5000, 1, {}), Stage(2, 700, 1, {}), Stage(3, 333, 1, {})],
    None,
)
def test_what_was_seen_and_what_is_resumed_is_the_whole_epoch(
    chosen: tuple[Table, Key], shuffle: dict[str, Any], run: list[Stage], names: list[str] | None
) -> None:
    view, wanted = chosen[0].view(chosen[1])
    options = {**shuffle, "columns": None if chosen[0] is table("long") else names}
    seen: list[Rows] = []
    state: dict[str, Any] | None = None
    for stage in [*run, Stage(1, 64, 10**6, {"num_workers": 0})]:
        found, state, ended = read_stage(view, stage, state, **options)
        seen += found
        if ended:
            assert (state["epoch"], state["consumed"]) == (1, 0)
            break
        assert (state["epoch"], state["consumed"]) == (0, min(len(joined(seen)), len(wanted)))
    assert np.array_equal(np.sort(joined(seen)), np.sort(wanted))


@pytest.mark.parametrize(("before", "after"), [((3, 5), (7, 4)), ((7, 2), (24, 1)), ((24, 3), (1, 50)), ((65, 2), (6, 9))])
def test_a_run_goes_on_with_other_ranks(before: tuple[int, int], after: tuple[int, int]) -> None:
    chosen = table("broken")
    options = {**MIXED, "lanes": 24, "columns": ["n"]}
    del options["num_workers"]
    seen, state, _ = read_stage(chosen.ds, Stage(*before, 2, {"num_workers": 0}), None, **options)
    assert state["consumed"] == 2 * before[0] * before[1]
    rest, _, ended = read_stage(chosen.ds, Stage(*after, 10**6, {"num_workers": 0}), state, **options)
    assert ended
    assert np.array_equal(np.sort(joined([*seen, *rest])), chosen.numbers)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_run_resumes_at_every_point_of_an_epoch(shuffle: bool, drop_last: bool, ranks: int) -> None:
    """From the state of every step, and of the end, come the same batches as without a break; then the next epoch's."""
    chosen = table("folder")
    options: dict[str, Any] = {**MIXED, "shuffle": shuffle, "drop_last": drop_last, "batch_size": 9, "columns": ["n"]}
    options["distributed"] = (ranks - 1, ranks)
    with chosen.ds.pytorch(**options) as loader:
        states, epochs = [loader.state_dict()], []
        for _ in range(2):
            epochs.append([])
            for found in loader:
                epochs[-1].append(found["n"].tolist())
                states.append(loader.state_dict())
        states[len(epochs[0]) + 1 : len(epochs[0]) + 1] = []
    assert epochs[0] != epochs[1] or not shuffle
    for done, state in enumerate(states[: len(epochs[0]) + 1]):
        with chosen.ds.pytorch(**options) as loader:
            loader.load_state_dict(state)
            assert [found["n"].tolist() for found in loader] == epochs[0][done:]
            assert [found["n"].tolist() for found in loader] == epochs[1]
    with chosen.ds.pytorch(**options) as loader:
        for _ in loader:
            pass
        assert (loader.state_dict()["epoch"], loader.state_dict()["consumed"]) == (1, 0)


def test_a_loader_can_be_sent_back() -> None:
    chosen = table("odd")
    with chosen.ds.pytorch(batch_size=20, **MIXED) as loader:
        start = loader.state_dict()
        first = [found["n"].tolist() for found in loader]
        loader.load_state_dict(start)
        batches = iter(loader)
        assert [next(batches)["n"].tolist() for _ in range(3)] == first[:3]
        middle = loader.state_dict()
        loader.load_state_dict(middle)
        loader.set_epoch(0)  # as a training loop does at the head of every epoch: the point is kept
        assert [found["n"].tolist() for found in loader] == first[3:]
        loader.set_epoch(0)
        assert [found["n"].tolist() for found in loader] == first


def test_a_state_of_another_run_is_refused_and_says_what_to_load() -> None:
    place = new_place("memory")
    ds = penstock.create(place.uri, {"n": int, "m": int})
    ds.append({"n": range(100), "m": range(100)})
    ds.commit()
    options: dict[str, Any] = {"batch_size": 10, "shuffle": True, "shuffle_block": 256, "lanes": 2, "shuffle_spread": 2}

    def attempt(view: View, words: str, state: dict[str, Any], **changes: Any) -> None:
        with view.pytorch(**{**options, **changes}) as loader:
            with pytest.raises(InvalidInputError, match=words) as refused:
                loader.load_state_dict(state)
            assert "main@1" in str(refused.value)
            assert place.uri in str(refused.value)
            assert len(list(loader)) == len(loader)  # nothing of it was taken over

    with ds.pytorch(**options) as loader:
        next(iter(loader))
        state = json.loads(json.dumps(loader.state_dict()))
    attempt(ds, "the seed: 0 there, 3 here", state, seed=3)
    attempt(ds, "whether rows are shuffled", state, shuffle=False)
    attempt(ds, "shuffle options", state, lanes=4)
    attempt(ds, "shuffle options", state, shuffle_block=512)
    attempt(ds, "shuffle options", state, shuffle_spread=1)
    attempt(ds[:90], "selection", state)
    attempt(ds.select(["n"]), "selection", state)
    attempt(ds, "selection", state, columns=["m", "n"])
    ds.append({"n": [100], "m": [100]})
    attempt(ds, "the snapshot", state)  # a change that is not committed counts
    ds.commit()
    attempt(ds, "the snapshot", state)
    ds.delete([100])
    ds.commit()
    attempt(ds, "the snapshot", state)  # as many rows as then, but a row more has been there
    with penstock.load(place.uri, version="main@1").pytorch(**{**options, "batch_size": 7}) as loader:
        loader.load_state_dict(state)
        assert sum(len(batch["n"]) for batch in loader) == 90


def test_a_tag_or_a_branch_of_the_same_version_goes_on() -> None:
    place = new_place("memory")
    ds = penstock.create(place.uri, {"n": int})
    ds.append({"n": range(50)})
    ds.commit()
    ds.branch("side")
    ds.tag("v1")
    with ds.pytorch(batch_size=10, shuffle=True) as loader:
        seen = next(iter(loader))["n"].tolist()
        state = loader.state_dict()
    for same in (penstock.load(place.uri, tag="v1"), penstock.load(place.uri, branch="side")):
        with same.pytorch(batch_size=15, shuffle=True) as loader:
            loader.load_state_dict(state)
            assert sorted(seen + [n for batch in loader for n in batch["n"].tolist()]) == list(range(50))


@pytest.mark.parametrize("name", sorted(set(TABLES) - {"no rows", "one row"}))
def test_no_shuffle_is_the_order_of_the_table(name: str) -> None:
    chosen = table(name)
    assert np.array_equal(positions(chosen.ds), chosen.numbers)
    assert np.array_equal(positions(chosen.ds[::-1]), chosen.numbers[::-1])
    every = np.random.default_rng(1).permutation(len(chosen.numbers)).tolist()
    assert np.array_equal(positions(chosen.ds[every]), chosen.numbers[every])
    two = read_all(chosen.ds, ranks=2, batch_size=8)  # the next sixteen rows in each step
    for step, rows in enumerate(by_step(two)):
        assert np.array_equal(rows, chosen.numbers[16 * step : 16 * (step + 1)])
