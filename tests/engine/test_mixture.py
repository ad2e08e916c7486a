"""Mixtures through the engine: the same rows in the same steps on any hardware, from any position."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import Dataset, Mixture, Shuffle, Tensor, Workers
from penstock.engine import LoaderOptions, RankAgreement
from penstock.errors import InvalidInputError
from penstock.table import RowPages
from tests.engine.reading import LARGE_BYTES, SCHEMA, SHUFFLE, large, rows_of
from tests.servers import new_location

few = settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.too_slow])
fewest = settings(few, max_examples=6)
STEP = 1000
"""Row n of source s holds the number n + STEP * s."""
SIZES = (60, 23, 7, 41)
NAMES = "abcd"
WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.05, "d": 0.15}

Row = tuple[int, int]
"""The source and the number of a row."""


@cache
def source(number: int, kind: str = "memory") -> Dataset:
    ds = penstock.create(new_location(kind).uri, SCHEMA)
    numbers = np.arange(SIZES[number]) + STEP * number
    for part in np.array_split(numbers, 3):
        ds.append(rows_of(part))
    ds.commit()
    return ds


def mixture(sources: int = 3, kind: str = "memory", **options: Any) -> Mixture:
    names = NAMES[:sources]
    options.setdefault("weights", {name: WEIGHTS[name] for name in names})
    return penstock.mix({name: source(number, kind) for number, name in enumerate(names)}, **options)


def flat(parts: Iterable[list[Row]]) -> list[Row]:
    return [row for part in parts for row in part]


def rows(batch: dict[str, Any], names: Sequence[str] = NAMES) -> list[Row]:
    """The rows of a batch that are not padding; checks that the columns of a row belong together."""
    numbers, sources = batch["n"], np.array([NAMES.index(name) for name in names])[batch["_source"]]
    if "t" in batch:
        assert batch["t"] == [f"row {n}" for n in numbers]
    if "x" in batch:
        assert (batch["x"] == batch["x"][:, :1]).all()
        assert (batch["x"][:, 0] == numbers % 251).all()
    assert (numbers // STEP == sources).all()
    real: npt.NDArray[np.bool_] = ~batch["_pad"] if "_pad" in batch else np.ones(len(numbers), bool)
    return list(zip(sources[real].tolist(), numbers[real].tolist(), strict=True))


def steps_of(
    mix: Mixture, *, ranks: int = 1, steps: int | None = None, epochs: int = 1, state: Any = None, **options: Any
) -> tuple[list[list[Row]], dict[str, Any]]:
    """The rows of each step over all ranks, and the state after them."""
    found: list[list[list[Row]]] = []
    states = []
    for rank in range(ranks):
        with mix.numpy(distributed=(rank, ranks), **options) as loader:
            if state is not None:
                loader.load_state_dict(state)
                assert loader.state_dict() == state
            found.append([rows(batch, mix.sources) for _ in range(epochs) for batch in islice(loader, steps)])
            states.append(json.loads(json.dumps(loader.state_dict())))
    assert all(each == states[0] for each in states)
    return [flat(step) for step in zip(*found, strict=True)], states[0]


def check_proportions(found: list[Row], names: str, weights: dict[str, float] = WEIGHTS) -> None:
    """Every prefix has each source within one row of its share."""
    total = sum(weights[name] for name in names)
    counts = Counter[int]()
    for index, (number, _) in enumerate(found):
        counts[number] += 1
        for each, name in enumerate(names):
            assert abs(counts[each] - (index + 1) * weights[name] / total) < 1 + 1e-9


def check_epochs(found: list[Row], sources: int, start: dict[int, int] | None = None) -> None:
    """Each source is read once in each of its epochs, from `start` rows on."""
    for number in range(sources):
        mine = [row for source, row in found if source == number]
        first = (SIZES[number] - (start or {}).get(number, 0)) % SIZES[number]
        for begin in range(first, len(mine) - SIZES[number] + 1, SIZES[number]):
            assert len(set(mine[begin : begin + SIZES[number]])) == SIZES[number]
        assert len(set(mine[:first])) == len(mine[:first])


def check_counts(found: list[int], size: int) -> None:
    """Whole epochs of a source, and a part of the next one."""
    counts = Counter(found)
    assert len(counts) == min(len(found), size)
    assert set(counts.values()) <= {len(found) // size, -(-len(found) // size)}


shuffles = st.sampled_from(
    [None, SHUFFLE, replace(SHUFFLE, lanes=24, seed=2), Shuffle(block_bytes=700, spread=0, lanes=1)]
)
machines = st.fixed_dictionaries(
    {"num_workers": st.integers(0, 2), "memory_budget": st.sampled_from([None, None, 1 << 20])}
)


@given(
    st.integers(1, 4), shuffles, machines, st.integers(1, 4), st.integers(1, 20), st.sampled_from(["first", "all", 50])
)
@few
def test_steps_are_the_same_on_any_hardware(
    sources: int, shuffle: Shuffle | None, machine: dict[str, Any], ranks: int, batch_size: int, stop: Any
) -> None:
    mix = mixture(sources, stop=stop)
    one, _ = steps_of(mix, epochs=2, batch_size=ranks * batch_size, shuffle=shuffle, num_workers=0)
    found, _ = steps_of(mix, epochs=2, ranks=ranks, batch_size=batch_size, shuffle=shuffle, **machine)
    assert [sorted(step) for step in found] == [sorted(step) for step in one]
    order = flat(one)
    assert len(order) == 2 * len(mix)
    check_proportions(order, NAMES[:sources])
    check_epochs(order, sources)
    counts = Counter(number for number, _ in order[: len(mix)])
    if stop == "first":
        assert all(counts[number] <= SIZES[number] for number in range(sources))
    if stop == "all":
        assert all(counts[number] >= SIZES[number] for number in range(sources))


stages = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 12), st.integers(0, 4), machines), min_size=1, max_size=4)


@given(shuffles, stages, st.sampled_from([{}, {"weights": [(0, WEIGHTS), (30, {"a": 0.1, "b": 0.9, "c": 0})]}]))
@few
def test_a_run_resumes_on_other_hardware(shuffle: Shuffle | None, stages: list[Any], options: dict[str, Any]) -> None:
    if "weights" in options:
        options = {"weights": [(row, {name: each[name] for name in "abc"}) for row, each in options["weights"]]}
    mix = mixture(3, stop=100, **options)
    whole = flat(steps_of(mix, epochs=3, batch_size=10, shuffle=shuffle)[0])
    state, done = None, 0
    for ranks, batch_size, steps, machine in stages:
        found, state = steps_of(
            mix, ranks=ranks, steps=steps, state=state, batch_size=batch_size, shuffle=shuffle, **machine
        )
        for step in found:
            assert sorted(step) == sorted(whole[done : done + len(step)])
            done += len(step)
        assert state["row"] == done
        assert len(json.dumps(state)) < 1024 + 3 * 400


def test_a_loader_without_settings_takes_those_of_the_state() -> None:
    chosen: dict[str, Any] = {
        "shuffle": Shuffle(5, block_bytes=400, lanes=3, spread=2.0),
        "batch_size": 8,
        "num_workers": 0,
    }
    whole, _ = steps_of(mixture(), **chosen)
    _, state = steps_of(mixture(), steps=2, **chosen)
    rest, _ = steps_of(mixture(), state=state, **chosen | {"shuffle": Shuffle(5)})
    assert whole == whole[:2] + rest
    assert rest != steps_of(mixture(), **chosen | {"shuffle": Shuffle(5)})[0][2:]


def test_the_next_epoch_goes_on_where_each_source_is() -> None:
    mix = mixture(2, stop=31)
    found, state = steps_of(mix, epochs=5, batch_size=7, shuffle=SHUFFLE)
    order = flat(found)
    check_proportions(order, "ab")
    check_epochs(order, 2)
    assert state["row"] == 5 * 31
    with mix.numpy(batch_size=7, shuffle=SHUFFLE) as loader:
        loader.set_epoch(3)
        assert flat(rows(batch) for batch in loader) == order[3 * 31 : 4 * 31]


@given(st.sampled_from([1, 2, 3]), st.integers(0, 5), st.sampled_from([0.1, 0.8]), shuffles)
@fewest
def test_sources_and_weights_may_change_at_a_resume(ranks: int, steps: int, weight: float, shuffle: Shuffle) -> None:
    before = penstock.mix(
        {"a": source(0), "b": source(1), "c": source(2)}, weights={"a": 0.5, "b": 0.3, "c": 0.2}, stop=90
    )
    first, state = steps_of(before, ranks=ranks, steps=steps, batch_size=4, shuffle=shuffle)
    weights = {"a": weight, "b": 0.1, "d": 0.1}
    after = penstock.mix({"a": source(0), "b": source(1), "d": source(3)}, weights=weights, stop=300)
    with after.numpy(batch_size=4, shuffle=shuffle) as loader:
        loader.load_state_dict(state)
        resumed = loader.state_dict()
    then, last = steps_of(after, ranks=2, state=resumed, batch_size=5, shuffle=shuffle)
    old, new = flat(first), flat(then)
    assert len(new) == 300 - len(old)
    for number in (0, 1):
        check_counts([row for source, row in old + new if source == number], SIZES[number])
    check_counts([row for source, row in new if source == 3], SIZES[3])
    counts = Counter(number for number, _ in new)
    assert abs(counts[0] - len(new) * weight / sum(weights.values())) < 1 + 1e-9
    assert last["row"] == 300


def test_batches_of_one_source() -> None:
    mix = mixture(3, stop="all", per_batch="single")
    one, state = steps_of(mix, epochs=2, batch_size=5, shuffle=SHUFFLE)
    assert all(len({number for number, _ in step}) == 1 and len(step) == 5 for step in one)
    check_proportions([step[0] for step in one], "abc", {"a": 0.5, "b": 0.3, "c": 0.05})
    check_epochs(flat(one), 3)
    counts = Counter(number for number, _ in flat(one[: len(one) // 2]))
    assert all(counts[number] >= SIZES[number] for number in range(3))
    found, _ = steps_of(mix, epochs=2, ranks=3, batch_size=5, shuffle=SHUFFLE)
    half = len(one) // 2
    wanted = [sorted(flat(epoch[k : k + 3])) for epoch in (one[:half], one[half:]) for k in range(0, half, 3)]
    assert [sorted(step) for step in found] == wanted
    with (
        mix.numpy(batch_size=6, shuffle=SHUFFLE) as loader,
        pytest.raises(InvalidInputError, match="batches of 5 rows"),
    ):
        loader.load_state_dict(state)


@pytest.mark.parametrize(("ranks", "workers"), [(1, Workers(2)), (2, Workers(2)), (1, Workers(4, "process"))])
def test_large_rows_are_read_directly_into_the_batches_that_tables_share(
    ranks: int, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    real = RowPages.read

    def counting(*arguments: Any) -> Any:
        reads.append(1)
        return real(*arguments)

    monkeypatch.setattr(RowPages, "read", counting)
    monkeypatch.setattr("penstock.engine._sizing.LoaderSizing._fits", lambda *_, **__: False)
    tables = [large(new_location("folder").uri, 40, 21)[0] for _ in range(3)]
    mix = penstock.mix(dict(zip("abc", tables, strict=True)), weights={"a": 0.5, "b": 0.3, "c": 0.2}, stop="all")
    shuffle = Shuffle(block_bytes=4 * LARGE_BYTES, lanes=2, spread=1)
    seen = Counter[Row]()
    for rank in range(ranks):
        with mix.numpy(batch_size=8, shuffle=shuffle, distributed=(rank, ranks), num_workers=workers) as loader:
            for batch in loader:
                assert batch["t"] == [f"row {n}" for n in batch["n"]]
                assert (batch["x"] == (batch["n"] % 251)[:, None]).all()
                real_rows = ~batch["_pad"] if ranks > 1 else slice(None)
                seen.update(zip(batch["_source"][real_rows].tolist(), batch["n"][real_rows].tolist(), strict=True))
    assert reads or workers.type == "process"
    assert sum(seen.values()) == len(mix)
    assert len(seen) == 3 * 61


@pytest.mark.parametrize("functions", [False, True])
def test_worker_processes_build_the_same_batches(functions: bool) -> None:
    mix = mixture(3, "folder", stop="all")
    options: dict[str, Any] = {"batch_size": 9, "shuffle": replace(SHUFFLE, lanes=24), "bad_samples": "replace"}
    if functions:
        options["transform"] = _noisy
    with mix.numpy(**options, num_workers=0) as here, mix.numpy(**options, num_workers=Workers(2, "process")) as there:
        for _ in range(2):
            for mine, theirs in zip(here, there, strict=True):
                assert list(mine) == list(theirs)
                for name, values in mine.items():
                    assert np.array_equal(values, theirs[name]), name
        assert there.stats().processes
        assert {bad.source for bad in here.stats().bad_samples} == ({"b"} if functions else set())
        assert here.stats().bad_samples == there.stats().bad_samples


def _noisy(sample: dict[str, Any], random: np.random.Generator) -> dict[str, Any]:
    if sample["n"] == STEP + 5:
        raise ValueError("a bad sample")
    return {**sample, "noise": random.random()}


def test_random_numbers_depend_on_the_source_its_epoch_and_the_row() -> None:
    mix = mixture(2, weights={"a": 1, "b": 1}, stop=4 * SIZES[1])

    def noise(**options: Any) -> dict[tuple[Row, float], int]:
        found = Counter[tuple[Row, float]]()
        with mix.numpy(transform=_noise, shuffle=SHUFFLE, **options) as loader:
            for batch in loader:
                found.update(zip(rows(batch), batch["noise"].tolist(), strict=True))
        return found

    one = noise(batch_size=8, num_workers=0)
    assert one == noise(batch_size=5, num_workers=2)
    assert max(one.values()) == 1  # other numbers in each epoch of a source
    assert len({value for _, value in one}) == len(one)


def _noise(sample: dict[str, Any], random: np.random.Generator) -> dict[str, Any]:
    return {**sample, "noise": random.random()}


def test_a_bad_sample_names_its_source() -> None:
    mix = mixture(2)
    with mix.numpy(transform=_noisy, batch_size=4) as loader, pytest.raises(ValueError, match="bad") as raised:
        list(loader)
    assert any("source 'b'" in note for note in raised.value.__notes__)


def test_columns_that_a_source_lacks_are_masked() -> None:
    def make(schema: dict[str, Any], values: dict[str, Any]) -> Dataset:
        ds = penstock.create(new_location("memory").uri, schema)
        ds.append(values)
        return ds

    left = make({"n": Tensor("int64"), "x": Tensor("float32", (2,)), "t": penstock.Text()},
                {"n": np.arange(6), "x": np.ones((6, 2)), "t": ["left"] * 6})  # fmt: skip
    right = make({"n": Tensor("int64"), "r": Tensor("int32", (None,))},
                 {"n": np.arange(6) + 10, "r": [np.arange(k + 1) for k in range(6)]})  # fmt: skip
    mix = penstock.mix({"left": left, "right": right}, weights={"left": 1, "right": 1}, columns="union")
    assert list(mix.schema.names) == ["n", "x", "t", "r", "_source"]
    [batch] = mix.numpy(batch_size=20)
    for index, number in enumerate(batch["n"].tolist()):
        is_left = number < 10
        assert batch["_source"][index] == (not is_left)
        assert batch["x_mask"][index] == batch["t_mask"][index] == is_left
        assert (batch["x"][index] == (1 if is_left else 0)).all()
        assert batch["t"][index] == ("left" if is_left else None)
        assert batch["r_mask"][index] == (not is_left)
        assert batch["r"][index] is None if is_left else len(batch["r"][index]) == number - 9
    [batch] = penstock.mix({"left": left, "right": right}, columns=["x", "_row_id"]).numpy(batch_size=20)
    assert sorted(batch) == ["_row_id", "_source", "x", "x_mask"]
    assert list(next(iter(penstock.mix({"left": left, "right": right}).numpy()))) == ["n", "_source"]


def test_a_resumed_epoch_that_is_shorter_than_what_was_read_is_over() -> None:
    _, state = steps_of(mixture(2, stop=80), steps=5, batch_size=12, shuffle=SHUFFLE)
    short = mixture(2, stop=50)
    with short.numpy(batch_size=10, shuffle=SHUFFLE) as loader:
        loader.load_state_dict(state)
        assert loader.epoch == 1
        found = flat(rows(batch) for batch in loader)
        assert len(found) == 50
        assert loader.state_dict()["row"] == 110
        loader.set_epoch(2)
        assert len(flat(rows(batch) for batch in loader)) == 50


def test_an_epoch_before_a_change_of_weights_cannot_be_read_again() -> None:
    _, state = steps_of(mixture(2, stop=40), steps=3, batch_size=10, epochs=2)
    changed = mixture(2, stop=40, weights={"a": 1, "b": 1})
    with changed.numpy(batch_size=10) as loader:
        loader.load_state_dict(state)
        with pytest.raises(InvalidInputError, match="epoch 0 is before the row"):
            loader.set_epoch(0)


def test_loading_a_state_ends_the_iteration() -> None:
    mix = mixture(2, stop=40)
    with mix.numpy(batch_size=10, shuffle=SHUFFLE) as loader:
        batches = iter(loader)
        first = rows(next(batches))
        state = loader.state_dict()
        second = rows(next(batches))
        loader.load_state_dict(state)
        with pytest.raises(InvalidInputError, match="another iteration"):
            next(batches)
        assert rows(next(iter(loader))) == second != first


def test_ranks_compare_their_mixtures() -> None:
    with mixture(2).numpy(batch_size=4) as mine, mixture(2, weights={"a": 1, "b": 1}).numpy(batch_size=4) as other:
        states = [mine._state, other._state]
    point = {
        "the epoch": 0, "the rows read before": 0, "the steps before": 0, "the epochs before": 0, "batch_size": 4,
        "drop_last": False, "until": "Epochs(count=1)", "following": False,
    }  # fmt: skip
    ranks = RankAgreement(
        LoaderOptions(
            batch_size=4, shuffle=None, workers=Workers(0), prefetch_factor=1, drop_last=False, memory_budget=None
        ),
        lambda _: [[state.to_json(), point] for state in states],
    )
    with pytest.raises(InvalidInputError, match=r"ranks 0 and 1 .* the weights"):
        ranks.check(states[0])


def test_a_source_smaller_than_a_batch_of_its_own_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="source 'c' has 7 rows, which do not fill a batch of 8"):
        mixture(3, per_batch="single").numpy(batch_size=8)


@pytest.mark.parametrize("workers", [Workers(2), Workers(2, "process")])
@pytest.mark.parametrize(("sizes", "image_size"), [((16, 16), None), ((16, 24), None), ((16, 24), 8)])
def test_images_share_a_batch_if_they_have_one_shape(
    workers: Workers, sizes: tuple[int, int], image_size: int | None
) -> None:
    tables = []
    for number, size in enumerate(sizes):
        kind = penstock.Image("png", shape=(size, size, 3), inferred=True)
        ds = penstock.create(new_location("folder").uri, {"n": Tensor("int64"), "image": kind})
        ds.append(
            {
                "n": np.arange(9) + STEP * number,
                "image": [np.full((size, size, 3), 9 * number + k, np.uint8) for k in range(9)],
            }
        )
        ds.commit()
        tables.append(ds)
    mix = penstock.mix(dict(zip("ab", tables, strict=True)))
    with mix.numpy(batch_size=6, shuffle=SHUFFLE, num_workers=workers, image_size=image_size) as loader:
        batches = list(loader)
    assert sum(len(rows(batch)) for batch in batches) == 18
    for batch in batches:
        assert isinstance(batch["image"], np.ndarray) == (image_size is not None or sizes[0] == sizes[1])
        for number, image in zip(batch["n"].tolist(), batch["image"], strict=True):
            side = image_size or sizes[number // STEP]
            assert image.shape == (side, side, 3)
            assert (image == 9 * (number // STEP) + number % STEP).all()
