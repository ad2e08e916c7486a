"""Iterations over several epochs: bounded by steps or epochs, endless, and following a branch."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Dataset, Epochs, Shuffle, Steps, View, Workers
from penstock.errors import InvalidInputError, NotFoundError
from tests.engine.reading import (
    MIXED,
    SHUFFLE,
    Key,
    Table,
    batch_of,
    few,
    joined,
    machines,
    shuffles,
    table,
    views,
    worlds,
)
from tests.engine.test_bytes import Sorted
from tests.servers import new_location

Options = dict[str, Any]


def numbers(batches: Any) -> list[list[int]]:
    """The rows of each batch, without padding."""
    return [batch_of(batch).real.tolist() for batch in batches]


def by_epochs(view: View, count: int, **options: Any) -> list[list[int]]:
    """The first batches, read one epoch at a time."""
    found: list[list[int]] = []
    with view.pytorch(**options) as loader:
        while len(found) < count:
            found += numbers(loader)
    return found[:count]


@given(
    chosen=views(["odd", "folder", "broken", "one row"]),
    shuffle=shuffles,
    ranks=worlds,
    batch_size=st.integers(1, 60),
    drop_last=st.booleans(),
    machine=machines,
    steps=st.integers(1, 30),
    taken=st.integers(0, 30),
)
@settings(few, max_examples=20)
def test_a_run_of_steps_resumes_with_the_rest_of_them(
    chosen: tuple[Table, Key],
    shuffle: Shuffle | None,
    ranks: int,
    batch_size: int,
    drop_last: bool,
    machine: Options,
    steps: int,
    taken: int,
) -> None:
    view, _ = chosen[0].view(chosen[1])
    if len(view) < (ranks * batch_size if drop_last else 1):
        return
    states = []
    for rank in range(ranks):
        options: Options = {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last, **machine}
        options["distributed"] = (rank, ranks)
        expected = by_epochs(view, steps, **options)
        with view.pytorch(until=Steps(steps), **options) as loader:
            assert len(loader) == steps
            first = numbers(islice(loader, taken))
            states.append(loader.state_dict())
        assert first == expected[:taken]
        with view.pytorch(until=Steps(steps), **options) as loader:
            loader.load_state_dict(states[-1])
            rest = numbers(loader)
            assert loader.state_dict()["steps"] == steps
            assert first + rest == expected
    assert all(state == states[0] for state in states)
    assert states[0]["steps"] == min(steps, taken)


@given(
    chosen=views(["odd", "folder", "no rows"]),
    epochs=st.integers(2, 4),
    taken=st.integers(0, 50),
    batch_size=st.integers(5, 200),
    machine=machines,
)
@settings(few, max_examples=20)
def test_a_run_of_epochs_resumes_with_the_rest_of_them(
    chosen: tuple[Table, Key], epochs: int, taken: int, batch_size: int, machine: Options
) -> None:
    view, _ = chosen[0].view(chosen[1])
    options: Options = {"batch_size": batch_size, "shuffle": SHUFFLE, **machine}
    with view.pytorch(until=Epochs(epochs), **options) as loader:
        count = len(loader)
        expected = by_epochs(view, count, **options)
        first = numbers(islice(loader, taken))
        state = loader.state_dict()
    with view.pytorch(until=Epochs(epochs), **options) as loader:
        loader.load_state_dict(state)
        assert first + numbers(loader) == expected
        assert loader.epoch == epochs


def test_an_endless_run() -> None:
    ds = table("odd").ds
    options: Options = {"batch_size": 50, **MIXED}
    expected = by_epochs(ds, 30, **options)
    with ds.pytorch(until=None, **options) as loader:
        batches = iter(loader)
        assert numbers(islice(batches, 20)) == expected[:20]
        assert loader.epoch == 2
        state = loader.state_dict()
        with pytest.raises(TypeError, match="until=None never ends and has no length"):
            len(loader)
        assert "steps" in repr(loader)
    with ds.pytorch(until=None, **options) as loader:
        loader.load_state_dict(state)
        assert numbers(islice(loader, 10)) == expected[20:]


def test_the_next_run_of_steps_continues_without_reading_again() -> None:
    made = Sorted()
    options: Options = {"batch_size": 100, "shuffle": Shuffle(block_bytes=32 << 10, lanes=4), "num_workers": 1}
    expected = by_epochs(made.ds, 90, **options)
    made.store.reads.clear()
    with made.ds.pytorch(until=Steps(7), memory_budget=64 << 20, **options) as loader:
        found = [numbers(loader) for _ in range(9)]
        assert [len(steps) for steps in found] == [7] * 9
        assert loader.epoch == 0
        epoch_bytes = sum(end - start for key, start, end in made.store.reads if key.startswith("data/"))
        found += [numbers(loader) for _ in range(3)]
        assert loader.epoch == 1
    assert [step for steps in found for step in steps] == expected[:84]
    assert epoch_bytes <= 2.1 * made.ds.summary().bytes, "an epoch, and what is prefetched of the next one"


def test_a_run_that_is_left_continues_at_its_position_or_with_the_next_epoch() -> None:
    ds = table("odd").ds
    options: Options = {"batch_size": 100, **MIXED}
    expected = by_epochs(ds, 12, **options)
    with ds.pytorch(until=Steps(5), **options) as loader:
        assert numbers(islice(loader, 3)) == expected[:3]
        assert numbers(loader) == expected[3:8], "a run of five steps from there on"
    with ds.pytorch(until=Epochs(2), **options) as loader:
        assert numbers(islice(loader, 1)) == expected[:1]
        assert loader.epoch == 1
        assert numbers(loader) == expected[4:12]


def test_a_run_of_steps_starts_at_the_epoch_that_was_set() -> None:
    ds = table("odd").ds
    options: Options = {"batch_size": 100, **MIXED}
    expected = by_epochs(ds, 12, **options)
    with ds.pytorch(until=Steps(6), **options) as loader:
        loader.set_epoch(1)
        assert numbers(loader) == expected[4:10]


def test_a_complete_run_stays_complete_and_one_epoch_is_followed_by_the_next() -> None:
    ds = table("odd").ds
    expected = by_epochs(ds, 16, batch_size=100, **MIXED)
    for until in (Steps(6), Epochs(2)):
        with ds.pytorch(batch_size=100, until=until, **MIXED) as loader:
            done = numbers(loader)
            state = loader.state_dict()
            assert done + numbers(loader) == expected[: 2 * len(done)]
        with ds.pytorch(batch_size=100, until=until, **MIXED) as loader:
            loader.load_state_dict(state)
            assert numbers(loader) == []
    with ds.pytorch(batch_size=100, **MIXED) as loader:
        first = numbers(loader)
        state = loader.state_dict()
    with ds.pytorch(batch_size=100, **MIXED) as loader:
        loader.load_state_dict(state)
        assert first + numbers(loader) == expected[:8]


def test_states_without_counts_load() -> None:
    ds = table("odd").ds
    with ds.pytorch(batch_size=100, **MIXED) as loader:
        next(iter(loader))
        state = loader.state_dict()
    older = {name: value for name, value in state.items() if name not in ("steps", "epochs")}
    with ds.pytorch(until=Steps(5), batch_size=100, **MIXED) as loader:
        loader.load_state_dict(older)
        assert numbers(loader) == by_epochs(ds, 6, batch_size=100, **MIXED)[1:]


def test_worker_processes_run_through_epochs() -> None:
    ds = table("folder").ds
    options: Options = {"batch_size": 30, "shuffle": SHUFFLE}
    expected = by_epochs(ds, 20, **options)
    with ds.pytorch(until=Steps(9), num_workers=Workers(2, "process"), **options) as loader:
        assert numbers(loader) + numbers(loader) == expected[:18]


@pytest.mark.parametrize(
    ("until", "words"),
    [
        (lambda: Steps(0), r"Steps\(…\) must be a whole number of at least 1, not 0"),
        (lambda: Steps(1.5), r"Steps\(…\) must be a whole number"),  # type: ignore[arg-type]
        (lambda: Epochs(0), r"Epochs\(…\) must be a whole number of at least 1, not 0"),
        (lambda: 3, r"until is penstock.Steps\(n\), penstock.Epochs\(n\), or None .* not 3"),
        (lambda: "2 epochs", "not '2 epochs'"),
    ],
)
def test_lengths_that_make_no_sense(until: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        table("odd").ds.numpy(until=until())


@pytest.mark.parametrize("until", [Steps(3), None], ids=str)
def test_epochs_without_steps_are_an_error(until: Steps | None) -> None:
    with pytest.raises(InvalidInputError, match="an epoch has no steps"):
        next(iter(table("no rows").ds.numpy(until=until)))
    with pytest.raises(InvalidInputError, match="drop_last=True drops all of them"):
        next(iter(table("one row").ds.numpy(batch_size=2, drop_last=True, until=until)))


@pytest.mark.parametrize("until", [Steps(9), None], ids=str)
def test_progress_of_several_epochs(until: Steps | None, capsys: pytest.CaptureFixture[str]) -> None:
    with table("odd").ds.numpy(batch_size=200, progress="line", until=until) as loader:
        assert len(list(islice(loader, 9))) == 9
    assert ("/9" in capsys.readouterr().err) == (until is not None)


@pytest.fixture
def growing() -> Dataset:
    """A table of ten rows, at main@1."""
    ds = penstock.create(new_location("folder").uri, {"n": int, "w": float})
    ds.append({"n": range(10), "w": [1.0] * 10})
    ds.commit()
    return ds


def append(ds: Dataset, numbers: range) -> None:
    ds.append({"n": numbers, "w": [0.0] * len(numbers)})
    ds.commit()


@pytest.mark.parametrize("num_workers", [0, Workers(2, "process")], ids=str)
def test_a_loader_follows_its_branch_at_the_end_of_an_epoch(growing: Dataset, num_workers: Any) -> None:
    other = penstock.load(growing.uri)
    with growing.select(["n"]).following().numpy(batch_size=4, until=Epochs(4), num_workers=num_workers) as loader:
        batches = iter(loader)
        assert [next(batches)["n"].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        append(other, range(10, 13))
        assert next(batches)["n"].tolist() == [8, 9], "the epoch that has begun stays as it is"
        assert loader.state_dict()["order"]["version"] == "main@1"
        assert [next(batches)["n"].tolist() for _ in range(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12]]
        assert loader.state_dict()["order"]["version"] == "main@2"
        assert joined([batch["n"] for batch in batches]).tolist() == [*range(13), *range(13)]
        assert loader.stats().batches == 3 + 3 * 4
    assert growing.version == "main@1", "the dataset stays where it is"


def test_each_iteration_follows_if_it_is_an_epoch(growing: Dataset) -> None:
    with growing.following().numpy(batch_size=4) as loader:
        assert len(list(loader)) == 3
        append(penstock.load(growing.uri), range(10, 20))
        assert len(list(loader)) == 3, "the version was chosen at the end of the epoch before"
        assert len(loader) == 5
        assert loader.epoch == 2
        assert len(list(loader)) == 5


def test_a_state_of_an_older_version_continues_there(growing: Dataset) -> None:
    options: Options = {"batch_size": 3, "shuffle": True, "until": Epochs(2)}
    with growing.following().numpy(**options) as loader:
        batches = iter(loader)
        first = next(batches)["n"].tolist()
        state = loader.state_dict()
    append(growing, range(10, 15))
    with growing.following().numpy(**options) as loader:
        assert "main@2" in repr(loader)
        loader.load_state_dict(state)
        assert "main@1" in repr(loader)
        batches = iter(loader)
        rest = [next(batches)["n"].tolist() for _ in range(3)]
        assert sorted(sum(rest, first)) == list(range(10))
        assert sorted(joined([batch["n"] for batch in batches]).tolist()) == list(range(15))
        assert loader.state_dict()["order"]["version"] == "main@2"
    without = growing.numpy(**options)
    with pytest.raises(InvalidInputError, match="differs in the snapshot"):
        without.load_state_dict(state)
    with pytest.raises(NotFoundError):
        growing.following().numpy(**options).load_state_dict(
            {**state, "order": {**state["order"], "version": "main@9"}}
        )
    with pytest.raises(InvalidInputError, match="differs in the seed"):
        growing.following().numpy(**{**options, "shuffle": Shuffle(seed=3)}).load_state_dict(state)


def test_weights_follow_their_column(growing: Dataset) -> None:
    with growing.weighted("w").following().numpy(batch_size=10) as loader:
        ds = penstock.load(growing.uri)
        append(ds, range(10, 20))
        ds.update(positions=slice(0, 10), data={"w": 0.0})
        ds.update(positions=slice(10, 20), data={"w": 1.0})
        ds.commit()
        assert joined([batch["n"] for batch in loader]).max() < 10
        last = joined([batch["n"] for batch in loader])
    assert len(last) == 20
    assert last.min() >= 10


def test_a_missing_or_changed_column_is_an_error_at_the_end_of_the_epoch(growing: Dataset) -> None:
    loaders = [
        growing.select([name]).following().numpy(batch_size=5, until=Epochs(2)) for name in ("n", "w", "_row_id")
    ]
    ds = penstock.load(growing.uri)
    ds.drop_column("w")
    ds.drop_column("n")
    ds.add_column("n", float, fill=0.5)
    ds.commit()
    for loader, words in zip(
        loaders, ("'n' holds float64 and not int64 in main@2", "'w' does not exist in main@2"), strict=False
    ):
        batches = iter(loader)
        assert len(list(islice(batches, 2))) == 2
        with pytest.raises(InvalidInputError, match=words):
            next(batches)
        state = loader.state_dict()
        assert (state["order"]["version"], state["epoch"], state["consumed"]) == ("main@1", 1, 0)
    assert len(list(loaders[2])) == 4
    for loader in loaders:
        loader.close()


def test_weights_and_following_come_in_any_order(growing: Dataset) -> None:
    views = growing.following().weighted("w", rows=30), growing.weighted("w", rows=30).following()
    loaders = [view.select("n").numpy(batch_size=10, shuffle=True) for view in views]
    first, second = [[batch["n"].tolist() for batch in loader] for loader in loaders]
    assert first == second
    assert loaders[0].state_dict() == loaders[1].state_dict()


def test_what_cannot_be_followed(growing: Dataset) -> None:
    for view in (growing[:5], growing[[3, 1]], growing[::-1], growing.windows(length=2)):
        with pytest.raises(InvalidInputError, match="this view is a choice of rows of one version"):
            view.following()
    with pytest.raises(InvalidInputError, match="an array fits one version only"):
        growing.following().weighted(np.ones(10))
    with pytest.raises(InvalidInputError, match="needs a process group"):
        growing.following().numpy(distributed=(0, 2))
    with pytest.raises(InvalidInputError, match="chosen in each epoch, and have no positions"):
        growing.following().pytorch()
    with pytest.raises(InvalidInputError, match="source 'new' follows its branch"):
        penstock.mix({"new": growing.following()})
    with growing.select(["n"]).following().numpy(distributed=(0, 1)) as loader:
        assert len(list(loader)) == 1
    growing.append({"n": [1], "w": [1.0]})
    with pytest.raises(InvalidInputError, match="commit the changes of this dataset first"):
        growing.following()
    growing.rollback()
