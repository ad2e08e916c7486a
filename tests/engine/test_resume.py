"""Resume from any position, with other ranks and batch sizes, and never with other rows."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import penstock
from penstock import Shuffle, View
from penstock.errors import InvalidInputError
from tests.engine.reading import (
    MANY_LANES,
    MIXED,
    SHUFFLE,
    Int64Array,
    Key,
    Table,
    batch_of,
    columns,
    few,
    joined,
    machines,
    selected,
    shuffles,
    table,
    views,
    worlds,
)
from tests.servers import new_location


@dataclass(frozen=True)
class Stage:
    """A part of a run: a number of steps on a number of ranks."""

    ranks: int
    batch_size: int
    steps: int
    machine: dict[str, Any]


stages = st.builds(Stage, worlds, st.integers(1, 20), st.integers(0, 6), machines)


def read_stage(
    view: View, stage: Stage, state: dict[str, Any] | None, **options: Any
) -> tuple[list[Int64Array], dict[str, Any], bool]:
    """Read some steps from a state: returns the rows, the new state, and whether the epoch ended."""
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


def read_epoch(
    view: Any,
    run: list[Stage],
    machine: dict[str, Any],
    take: Callable[[dict[str, Any]], None],
    *,
    shuffle: Shuffle | None,
    batch_size: int | None = None,
) -> None:
    """Read an epoch in stages, and its rest on one rank; `take` gets every batch of every rank."""
    state = None
    for stage in [*run, Stage(1, 16, 10**6, machine)]:
        states = []
        for rank in range(stage.ranks):
            with view.numpy(
                batch_size=batch_size or stage.batch_size,
                distributed=(rank, stage.ranks),
                shuffle=shuffle,
                **stage.machine,
            ) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                for _, batch in zip(range(stage.steps), loader, strict=False):
                    take(batch)
                states.append(loader.state_dict())
        assert all(found == states[0] for found in states)
        state = states[0]
        if state["epoch"]:
            return


@given(views(), shuffles, st.lists(stages, min_size=1, max_size=4), columns)
@few
@example(
    (table("long"), None),
    Shuffle(block_bytes=8192, spread=1.5, lanes=2),
    [Stage(1, 5000, 1, {}), Stage(2, 700, 1, {}), Stage(3, 333, 1, {})],
    None,
)
def test_seen_and_resumed_rows_are_the_whole_epoch(
    chosen: tuple[Table, Key], shuffle: Shuffle | None, run: list[Stage], names: list[str] | None
) -> None:
    view, wanted = chosen[0].view(chosen[1])
    view = selected(view, None if chosen[0] is table("long") else names)
    seen: list[Int64Array] = []
    state: dict[str, Any] | None = None
    for stage in [*run, Stage(1, 64, 10**6, {"num_workers": 0})]:
        found, state, ended = read_stage(view, stage, state, shuffle=shuffle)
        seen += found
        if ended:
            assert (state["epoch"], state["consumed"]) == (1, 0)
            break
        assert (state["epoch"], state["consumed"]) == (0, min(len(joined(seen)), len(wanted)))
    assert np.array_equal(np.sort(joined(seen)), np.sort(wanted))


@pytest.mark.parametrize(
    ("before", "after"), [((3, 5), (7, 4)), ((7, 2), (24, 1)), ((24, 3), (1, 50)), ((65, 2), (6, 9))]
)
def test_a_run_resumes_on_other_ranks(before: tuple[int, int], after: tuple[int, int]) -> None:
    chosen = table("broken")
    options, view = {"shuffle": MANY_LANES}, chosen.ds.select(["n"])
    seen, state, _ = read_stage(view, Stage(*before, 2, {"num_workers": 0}), None, **options)
    assert state["consumed"] == 2 * before[0] * before[1]
    rest, _, ended = read_stage(view, Stage(*after, 10**6, {"num_workers": 0}), state, **options)
    assert ended
    assert np.array_equal(np.sort(joined([*seen, *rest])), chosen.numbers)


@pytest.mark.parametrize("shuffle", [None, SHUFFLE], ids=["in order", "shuffled"])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_run_resumes_at_every_point_of_an_epoch(shuffle: Shuffle | None, drop_last: bool, ranks: int) -> None:
    """Every state gives the same batches as an uninterrupted run, then the next epoch's."""
    chosen = table("folder")
    options: dict[str, Any] = {**MIXED, "shuffle": shuffle, "drop_last": drop_last, "batch_size": 9}
    options["distributed"], view = (ranks - 1, ranks), chosen.ds.select(["n"])
    with view.pytorch(**options) as loader:
        states = [loader.state_dict()]
        epochs: list[list[list[int]]] = []
        for _ in range(2):
            epochs.append([])
            for found in loader:
                epochs[-1].append(found["n"].tolist())
                states.append(loader.state_dict())
    assert epochs[0] != epochs[1] or shuffle is None
    for done, state in enumerate(states[: len(epochs[0]) + 1]):
        with view.pytorch(**options) as loader:
            loader.load_state_dict(state)
            assert [found["n"].tolist() for found in loader] == epochs[0][done:]
            assert [found["n"].tolist() for found in loader] == epochs[1]
    with view.pytorch(**options) as loader:
        for _ in loader:
            pass
        assert (loader.state_dict()["epoch"], loader.state_dict()["consumed"]) == (1, 0)


def test_the_epoch_is_the_one_being_read_or_the_next() -> None:
    chosen = table("odd")
    with chosen.ds.pytorch(batch_size=20, **MIXED) as loader:
        for epoch in range(2):
            assert loader.epoch == epoch
            assert {loader.epoch for _ in loader} == {epoch}
        for _ in loader:
            middle = loader.state_dict()
            loader.set_epoch(7)
            assert loader.epoch == 2
            break
        assert loader.epoch == 7
        loader.load_state_dict(middle)
        assert loader.epoch == 2
        next(iter(loader))
        assert loader.epoch == 3  # an interrupted epoch is not read again


def test_a_loader_can_load_an_earlier_state() -> None:
    chosen = table("odd")
    with chosen.ds.pytorch(batch_size=20, **MIXED) as loader:
        start = loader.state_dict()
        first = [found["n"].tolist() for found in loader]
        loader.load_state_dict(start)
        batches = iter(loader)
        assert [next(batches)["n"].tolist() for _ in range(3)] == first[:3]
        middle = loader.state_dict()
        loader.load_state_dict(middle)
        loader.set_epoch(0)  # as a training loop does at the head of every epoch: the position is kept
        assert [found["n"].tolist() for found in loader] == first[3:]
        loader.set_epoch(0)
        assert [found["n"].tolist() for found in loader] == first


def test_a_state_of_another_run_is_rejected_with_the_version_to_load() -> None:
    place = new_location("memory")
    ds = penstock.create(place.uri, {"n": int, "m": int})
    ds.append({"n": range(100), "m": range(100)})
    ds.commit()
    shuffle = Shuffle(block_bytes=256, lanes=2, spread=2)
    options: dict[str, Any] = {"batch_size": 10, "shuffle": shuffle}

    def attempt(view: View, words: str, state: dict[str, Any], **changes: Any) -> None:
        with view.pytorch(**{**options, **changes}) as loader:
            with pytest.raises(InvalidInputError, match=words) as refused:
                loader.load_state_dict(state)
            assert "main@1" in str(refused.value)
            assert place.uri in str(refused.value)
            assert len(list(loader)) == len(loader)  # the loader is unchanged

    with ds.pytorch(**options) as loader:
        next(iter(loader))
        state = json.loads(json.dumps(loader.state_dict()))
    attempt(ds, "the seed: 0 there, 3 here", state, shuffle=replace(shuffle, seed=3))
    attempt(ds, "whether rows are shuffled", state, shuffle=False)
    attempt(ds, "shuffle options", state, shuffle=replace(shuffle, lanes=4))
    attempt(ds, "shuffle options", state, shuffle=replace(shuffle, block_bytes=512))
    attempt(ds, "shuffle options", state, shuffle=replace(shuffle, spread=1))
    attempt(ds[:90], "selection", state)
    attempt(ds.select(["n"]), "selection", state)
    attempt(ds.select(["m", "n"]), "selection", state)
    ds.append({"n": [100], "m": [100]})
    attempt(ds, "the snapshot", state)  # a change that is not committed counts
    ds.commit()
    attempt(ds, "the snapshot", state)
    ds.delete(positions=[100])
    ds.commit()
    attempt(ds, "the snapshot", state)  # as many rows as then, but a row more has been there
    with penstock.load(place.uri, version="main@1").pytorch(**{**options, "batch_size": 7}) as loader:
        loader.load_state_dict(state)
        assert sum(len(batch["n"]) for batch in loader) == 90


@given(st.integers(1, 30), st.sampled_from((300, 1500, 6000)), st.floats(0, 50), st.integers(0, 12))
@few
def test_a_loader_without_settings_takes_those_of_the_state(
    lanes: int, block_bytes: int, spread: float, steps: int
) -> None:
    ds = table("long").ds
    chosen = Shuffle(3, block_bytes=block_bytes, lanes=lanes, spread=spread)
    with ds.pytorch(batch_size=700, shuffle=chosen, num_workers=0) as loader:
        epochs = [[batch["n"].tolist() for batch in loader] for _ in range(2)]
        loader.set_epoch(0)
        for _ in islice(loader, steps):
            pass
        state = loader.state_dict()
    with ds.pytorch(batch_size=700, shuffle=Shuffle(3), num_workers=0) as loader:
        own = loader.state_dict()
        loader.load_state_dict(state)
        assert [batch["n"].tolist() for batch in loader] == epochs[0][steps:]
        assert [batch["n"].tolist() for batch in loader] == epochs[1], "and the next epochs"
        assert loader.state_dict()["order"] == state["order"]
        loader.load_state_dict(own)
        assert loader.state_dict() == own, "or those of another state"


def test_a_tag_or_branch_of_the_same_version_resumes() -> None:
    place = new_location("memory")
    ds = penstock.create(place.uri, {"n": int})
    ds.append({"n": range(50)})
    ds.commit()
    ds.branches.create("side")
    ds.tags.create("v1")
    with ds.pytorch(batch_size=10, shuffle=True) as loader:
        seen = next(iter(loader))["n"].tolist()
        state = loader.state_dict()
    for same in (penstock.load(place.uri, tag="v1"), penstock.load(place.uri, branch="side")):
        with same.pytorch(batch_size=15, shuffle=True) as loader:
            loader.load_state_dict(state)
            assert sorted(seen + [n for batch in loader for n in batch["n"].tolist()]) == list(range(50))
