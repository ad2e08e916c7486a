"""Weighted sampling through loaders: each draw once over all ranks, through resume, and unused pages stay unread."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Column, Dataset, Image, Label, Mixture, Shuffle, Tensor, Text, Workers
from penstock.errors import InvalidInputError, NotFoundError
from penstock.plan import WeightedDraw
from tests.adapters import transforms
from tests.engine.reading import (
    Int64Array,
    Key,
    Table,
    batch_of,
    columns,
    few,
    joined,
    machines,
    read_all,
    shuffles,
    table,
    views,
    worlds,
)
from tests.engine.test_bad_samples import truncated
from tests.engine.test_bytes import Sorted, read_for

Loaded = dict[str, Any]


def weights_of(count: int, seed: int) -> Any:
    """Weights of which some are 0 and one is large."""
    found = np.random.default_rng(seed).integers(0, 4, count).astype(float)
    found[seed % max(count, 1) :][:1] = 20.0
    return found


def drawn(numbers: Int64Array, weights: Any, draws: int, seed: int, epoch: int) -> Int64Array:
    return np.sort(numbers[WeightedDraw.of(weights, draws, source="").rows(seed, epoch)])


seeds = st.integers(0, 50)
draw_counts = st.one_of(st.none(), st.integers(1, 300))


@given(
    chosen=views(["odd", "folder", "large", "broken", "late"]),
    columns=columns,
    shuffle=shuffles,
    ranks=worlds,
    batch_size=st.integers(1, 30),
    machine=machines,
    weights_seed=seeds,
    rows=draw_counts,
)
@settings(few, max_examples=20)
def test_each_draw_comes_once_over_all_ranks(
    chosen: tuple[Table, Key],
    columns: list[str] | None,
    shuffle: Shuffle | None,
    ranks: int,
    batch_size: int,
    machine: Loaded,
    weights_seed: int,
    rows: int | None,
) -> None:
    view, numbers = chosen[0].view(chosen[1])
    if not len(view):
        return
    weights = weights_of(len(view), weights_seed)
    weighted = view.weighted(weights, rows)
    assert len(weighted) == (rows or len(view))
    found = read_all(weighted, columns=columns, ranks=ranks, shuffle=shuffle, batch_size=batch_size, **machine)
    seen = np.sort(joined([batch.real for batches in found for batch in batches]))
    seed = 0 if shuffle is None else shuffle.seed
    assert np.array_equal(seen, drawn(numbers, weights, rows or len(view), seed, 0))


@given(
    chosen=views(["odd", "folder", "broken"]),
    shuffle=shuffles,
    worlds=st.tuples(worlds, worlds),
    sizes=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    steps=st.integers(0, 8),
    machine=machines,
    weights_seed=seeds,
    epoch=st.integers(0, 2),
)
@settings(few, max_examples=20)
def test_a_draw_resumes_on_other_ranks(
    chosen: tuple[Table, Key],
    shuffle: Shuffle | None,
    worlds: tuple[int, int],
    sizes: tuple[int, int],
    steps: int,
    machine: Loaded,
    weights_seed: int,
    epoch: int,
) -> None:
    view, numbers = chosen[0].view(chosen[1])
    if not len(view):
        return
    weights = weights_of(len(view), weights_seed)
    found: list[Int64Array] = []
    state: Any = None
    for ranks, size in zip(worlds, sizes, strict=True):
        states = []
        for rank in range(ranks):
            options = {"shuffle": shuffle, "batch_size": size, **machine}
            with view.weighted(weights).pytorch(distributed=(rank, ranks), **options) as loader:
                if state is None:
                    loader.set_epoch(epoch)
                else:
                    loader.load_state_dict(state)
                batches = islice(loader, steps) if state is None else iter(loader)
                found += [batch_of(batch).real for batch in batches]
                states.append(loader.state_dict())
        assert all(other == states[0] for other in states)
        state = states[0]
        if state["epoch"] > epoch:
            break
    seed = 0 if shuffle is None else shuffle.seed
    assert np.array_equal(np.sort(joined(found)), drawn(numbers, weights, len(view), seed, epoch))


def test_epochs_draw_anew_and_rows_are_in_table_order_without_shuffle() -> None:
    ds, numbers = table("broken").ds, table("broken").numbers
    weights = weights_of(len(ds), 3)
    with ds.weighted(weights, rows=500).pytorch(batch_size=50, num_workers=2) as loader:
        epochs = [joined([batch["n"].numpy() for batch in loader]) for _ in range(3)]
    for epoch, seen in enumerate(epochs):
        assert np.array_equal(seen, drawn(numbers, weights, 500, 0, epoch))
    assert not np.array_equal(epochs[0], epochs[1])


def test_worker_processes_and_small_budgets_read_the_same_draws() -> None:
    ds = table("folder").ds
    view, shuffle = ds.weighted(weights_of(len(ds), 1)), Shuffle(lanes=4, block_bytes=1500)
    found = []
    machines: list[Loaded] = [{"num_workers": Workers(2, "process")}, {"num_workers": 2}, {"memory_budget": 1 << 20}]
    for machine in machines:
        with view.pytorch(batch_size=16, shuffle=shuffle, **machine) as loader:
            found.append([batch["n"].tolist() for _ in range(3) for batch in loader])
            assert loader.stats().window_peak_bytes <= loader.stats().budget_bytes
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("machine", [{"num_workers": 2}, {"num_workers": Workers(2, "process")}], ids=str)
def test_each_draw_of_a_row_has_its_own_random_numbers(machine: Loaded) -> None:
    ds = table("folder").ds
    view = ds.select(["n"]).weighted(weights_of(len(ds), 1))
    options: Loaded = {"transform": transforms.noisy, "shuffle": True}
    with view.pytorch(batch_size=16, **options, **machine) as loader:
        seen = noises(loader)
    assert len({n for n, _ in seen}) < len(seen), "some rows were drawn again"
    assert len({noise for _, noise in seen}) == len(seen)
    with view.pytorch(batch_size=7, num_workers=0, **options) as other:
        assert noises(other) == seen


def noises(loader: Any) -> list[tuple[int, float]]:
    """The rows, each with a random number that its transform drew."""
    return [(int(n), float(noise[0])) for batch in loader for n, noise in zip(batch["n"], batch["noise"], strict=True)]


PAGE_ROWS, ROW_BYTES, PAGES = 4, 18 << 10, 200
"""Pages are larger than the gaps that a request may span."""


class LargePages(Sorted):
    """A table whose requests are for single pages."""

    def __post_init__(self) -> None:
        page_bytes = PAGE_ROWS * ROW_BYTES
        x = Column(Tensor("uint8", (ROW_BYTES,)), page_bytes=page_bytes, file_bytes=50 * page_bytes)
        self.ds = penstock.create(self.store, {"n": int, "x": x})
        rows = PAGE_ROWS * PAGES
        self.ds.append({"n": np.arange(rows), "x": np.zeros((rows, ROW_BYTES), np.uint8)})
        self.ds.commit()


@pytest.mark.parametrize("shuffle", [None, Shuffle(), Shuffle(lanes=4, block_bytes=1 << 19)], ids=str)
def test_pages_without_drawn_rows_are_not_fetched(shuffle: Shuffle | None) -> None:
    made = LargePages()
    weights = np.repeat(np.arange(PAGES) % 10 == 4, PAGE_ROWS)
    made.store.reads.clear()
    with made.ds.weighted(weights, rows=80).pytorch(batch_size=16, shuffle=shuffle, num_workers=1) as loader:
        seen = joined([batch["n"].numpy() for batch in loader])
    assert weights[seen].all()
    assert len(seen) == 80
    assert read_for(made.store.reads, made.pages(seen, ["x"])) <= 1.5 * len(seen) * ROW_BYTES


def test_a_bad_row_is_replaced_by_a_drawn_one() -> None:
    ds = penstock.create("memory://", {"n": int, "p": Image("png", (8, 8, 3))})
    pixels = np.zeros((8, 8, 3), np.uint8)
    ds.append([{"n": k, "p": truncated(pixels) if k == 3 else pixels} for k in range(60)])
    ds.commit()
    weights = np.arange(60) % 3 == 0
    with ds.weighted(weights, rows=400).pytorch(batch_size=16, bad_samples="replace", shuffle=True) as loader:
        batches = list(loader)
    numbers, flags = (joined([batch[name].numpy() for batch in batches]) for name in ("n", "_pad"))
    assert flags.any()
    assert set(numbers.tolist()) == {k for k in range(60) if k % 3 == 0 and k != 3}


@pytest.fixture(scope="module")
def classes() -> Dataset:
    """Two rare classes and a frequent one, as a label, a number, text and a boolean."""
    ds = penstock.create(
        "memory://",
        {
            "label": Label(("cat", "dog", "owl")), "n": int, "t": Text(), "b": bool, "w": float,
            "none": Column(Tensor("float32"), nullable=True), "v": Tensor("float32", (2,)),
        },
    )  # fmt: skip
    number = np.where(np.arange(1000) % 100 == 7, 1, np.where(np.arange(1000) % 50 == 8, 2, 0))
    ds.append(
        {
            "label": number, "n": number, "t": [f"class {n}" for n in number], "b": number > 0,
            "w": np.where(number == 1, -1.0, 1.0), "none": [None if k == 70 else 1.0 for k in range(1000)],
            "v": np.zeros((1000, 2), np.float32),
        }
    )  # fmt: skip
    ds.commit()
    return ds


@pytest.mark.parametrize("column", ["label", "n", "t", "b"])
def test_balance_gives_each_class_the_same_expected_count(classes: Dataset, column: str) -> None:
    draws = 30_000
    with classes.select(["n", "b"]).balanced(column, rows=draws).numpy(batch_size=1000) as loader:
        batches = list(loader)
    values = joined([np.asarray(batch["b" if column == "b" else "n"], np.int64) for batch in batches])
    counts = np.bincount(values)
    expected = draws / len(counts)
    assert len(counts) == (2 if column == "b" else 3)
    assert float(((counts - expected) ** 2 / expected).sum()) < 19.0, "a chi-square test that one in 10,000 fails"


def test_the_state_names_other_weights(classes: Dataset) -> None:
    options: Loaded = {"batch_size": 10, "shuffle": True}
    weights = np.ones(1000)
    state = classes.weighted(weights).numpy(**options).state_dict()
    classes.weighted(weights.copy()).numpy(**options).load_state_dict(state)
    weights[5] = 2.0
    with pytest.raises(InvalidInputError, match="differs in the selection"):
        classes.weighted(weights).numpy(**options).load_state_dict(state)
    with pytest.raises(InvalidInputError, match="differs in the number of rows: 1000 there, 10 here"):
        classes.weighted(np.ones(1000), rows=10).numpy(**options).load_state_dict(state)
    with pytest.raises(InvalidInputError, match="differs in the selection"):
        classes.numpy(**options).load_state_dict(state)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda ds: ds.weighted("w"), "column 'w' has the weight -1.0 in row 7; weights are finite numbers from 0 on"),
        (lambda ds: ds.weighted("none"), "column 'none' has no value in row 70"),
        (lambda ds: ds.weighted("t"), "column 't' holds text; weights are single numbers"),
        (lambda ds: ds.weighted("v"), "column 'v' holds .*; weights are single numbers"),
        (lambda ds: ds.weighted(np.ones(3)), r"one number per row: there are 1000, got shape \(3,\)"),
        (lambda ds: ds.weighted(np.zeros(1000)), r"weighted\(…\) sums to 0"),
        (lambda ds: ds.weighted(np.full(1000, np.nan)), r"weighted\(…\) has the weight nan in row 0"),
        (lambda ds: ds.weighted(["heavy"] * 1000), r"weighted\(…\) takes a column, or an array of numbers"),
        (lambda ds: ds.weighted(None), r"weighted\(…\) takes a column, or an array of numbers"),
        (lambda ds: ds.weighted(np.ones(1000), 0), "rows must be a whole number of at least 1, not 0"),
        (lambda ds: ds.weighted(np.ones(1000), rows=1.5), "rows must be a whole number of at least 1, not 1.5"),
        (lambda ds: ds.weighted(np.ones(1000)).balanced("n"), "weighted already: multiply the weights into one"),
        (lambda ds: ds.balanced("w"), r"column 'w' holds float64; balanced\(…\) takes labels"),
        (lambda ds: ds.balanced("v"), r"column 'v' holds .*; balanced\(…\) takes labels"),
        (lambda ds: ds.balanced("n")[0], "chosen in each epoch, and have no positions"),
        (lambda ds: ds.balanced("n").pytorch(), r"read it with a loader, as ds.pytorch\(batch_size=…\)"),
    ],
)
def test_weights_that_make_no_sense(classes: Dataset, make: Callable[[Dataset], Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        make(classes)


def test_unknown_columns(classes: Dataset) -> None:
    for make in (classes.weighted, classes.balanced, classes.balanced("n").select):
        with pytest.raises(NotFoundError, match="wieght"):
            make("wieght")


def test_empty_views(classes: Dataset) -> None:
    empty = classes[0:0]
    makers: list[Callable[[], Any]] = [
        lambda: empty.weighted([]),
        lambda: empty.weighted("n"),
        lambda: empty.balanced("n"),
    ]
    for make in makers:
        with pytest.raises(InvalidInputError, match="there are no rows to draw from"):
            make()


def test_a_weighted_view_shows_what_it_is(classes: Dataset) -> None:
    view = classes.balanced("label", rows=1500).select(["n", "_row_id"])
    assert repr(view) == "EpochView(1,500 rows in each epoch, of View(1,000 rows: n: int64))"
    assert view.schema.names == ["n"]
    assert set(next(iter(view.numpy(batch_size=4)))) == {"n", "_row_id"}


def mixed_steps(mix: Mixture, state: Any = None, *, ranks: int = 1, steps: int | None = None, **options: Any) -> Any:
    """The source and the number of each row, by step over all ranks in two epochs, and the state after them."""
    found: list[list[Any]] = []
    for rank in range(ranks):
        with mix.numpy(distributed=(rank, ranks), **options) as loader:
            if state is not None:
                loader.load_state_dict(state)
            batches = islice((batch for _ in range(2) for batch in loader), steps)
            found.append([sorted(zip(batch["_source"], batch["n"], strict=True)) for batch in batches])
            after = loader.state_dict()
    return [sorted(row for part in step for row in part) for step in zip(*found, strict=True)], after


@pytest.mark.parametrize("machine", [{"num_workers": 2}, {"num_workers": Workers(2, "process")}], ids=str)
def test_weighted_views_are_mixed(machine: Loaded) -> None:
    """Each source is drawn anew in each of its own epochs, on any hardware and from any state."""
    drawn_from, other = table("broken"), table("odd")
    weights = weights_of(len(drawn_from.ds), 5)
    views: Loaded = {
        "drawn": drawn_from.ds.weighted(weights, rows=60).select(["n"]),
        "all": other.ds[:50].select(["n"]),
    }
    shares = {"drawn": 3, "all": 1}
    own = Shuffle(seed=9, block_bytes=1500, lanes=4)
    mix = penstock.mix(views, weights=shares, stop=120, shuffle={"drawn": own})
    options: Loaded = {"batch_size": 12, "shuffle": Shuffle(block_bytes=1500, lanes=4)}
    expected, _ = mixed_steps(mix, num_workers=0, **options)
    rows = [n for step in expected for source, n in step if source == 0]
    assert len(rows) == 180
    wanted = [drawn(drawn_from.numbers, weights, 60, 9, epoch) for epoch in range(3)]
    assert sorted(rows) == np.sort(np.concatenate(wanted)).tolist()
    found, _ = mixed_steps(mix, ranks=2, **options | {"batch_size": 6}, **machine)
    assert found == expected
    first, state = mixed_steps(mix, steps=4, **options, **machine)
    rest, _ = mixed_steps(mix, state, ranks=3, **options | {"batch_size": 4}, num_workers=0)
    assert first + rest[: len(expected) - 4] == expected
    changed = {**views, "drawn": drawn_from.ds.weighted(weights + 1, rows=60).select(["n"])}
    other_mix = penstock.mix(changed, weights=shares, stop=120, shuffle={"drawn": own})
    with pytest.raises(InvalidInputError, match=r"source 'drawn' differs .* in the selection"):
        other_mix.numpy(**options).load_state_dict(state)
    for by_position in (lambda: mix[0], mix.pytorch):
        with pytest.raises(InvalidInputError, match="have no positions"):
            by_position()


@pytest.mark.parametrize("machine", [{"num_workers": 2}, {"num_workers": Workers(2, "process")}], ids=str)
def test_each_draw_of_a_row_in_a_mixture_has_its_own_random_numbers(machine: Loaded) -> None:
    ds = table("folder").ds.select(["n"])
    mix = penstock.mix({"drawn": ds.weighted(weights_of(len(ds), 1)), "all": ds})
    options: Loaded = {"transform": transforms.noisy, "shuffle": True}
    with mix.pytorch(batch_size=16, **options, **machine) as loader:
        seen = noises(loader)
    assert len({n for n, _ in seen}) < len(seen), "some rows were drawn again"
    assert len({noise for _, noise in seen}) == len(seen)
    with mix.pytorch(batch_size=7, num_workers=0, **options) as other:
        assert noises(other) == seen


def test_draws_of_one_row_are_spread_over_the_epoch() -> None:
    """A tenth of the draws are of one row: less than a lane."""
    ds = table("long").ds
    weights = np.ones(len(ds))
    weights[4321] = len(ds) / 9
    with ds.weighted(weights).pytorch(batch_size=100, shuffle=Shuffle(lanes=4, block_bytes=128, spread=8)) as loader:
        for _ in range(3):
            seen = joined([batch["n"].numpy() for batch in loader]) == 4321
            quarters = [int(np.count_nonzero(part)) for part in np.array_split(seen, 4)]
            assert min(quarters) > 0.5 * np.mean(quarters), quarters
