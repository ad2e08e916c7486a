"""Budgets of memory below the window of the shuffle: bytes read, memory, the order, and the advice."""

import re
from collections.abc import Callable
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Column, Dataset, Epochs, Image, Shuffle, Steps, Tensor, Text, Workers
from penstock.plan import page_reads
from tests.engine.reading import batch_of, few
from tests.servers import new_location

AT_MOST = {0.9: 1.5, 0.5: 4.0, 0.25: 8.0}
"""How often a byte may be read, by the budget relative to the window."""
SHUFFLE = Shuffle(block_bytes=80 << 10, lanes=8, spread=6)
TABLE_BYTES = 16 << 20
EPOCHS = 2
PROCESSES = Workers(2, "process")


RANDOM = np.random.default_rng(0)

Kind = Callable[[], tuple[Column, Any]]


def tokens() -> tuple[Column, Any]:
    return Column(Tensor("uint16", (1024,)), page_bytes=16 << 10), np.zeros((TABLE_BYTES // 2048, 1024), np.uint16)


def images() -> tuple[Column, Any]:
    column = Column(Tensor("uint8", (64, 64, 3)), page_bytes=32 << 10)
    return column, np.zeros((TABLE_BYTES // 12288, 64, 64, 3), np.uint8)


def text() -> tuple[Column, Any]:
    lengths = RANDOM.lognormal(7.2, 0.7, TABLE_BYTES // 1700).astype(int)
    return Column(Text(), page_bytes=16 << 10), [RANDOM.bytes(length // 2).hex() for length in lengths]


def jpegs() -> tuple[Column, Any]:
    sizes = RANDOM.lognormal(8, 0.5, TABLE_BYTES // 3400).astype(int)
    return Column(Image(), page_bytes=16 << 10), [b"\xff\xd8\xff" + RANDOM.bytes(size) for size in sizes]


@cache
def table(kind: Kind, place: str) -> Dataset:
    """A table of several windows."""
    column, values = kind()
    ds = penstock.create(new_location(place).uri, {"x": column})
    for part in range(3):
        ds.append({"x": values[part::3]})
    ds.commit()
    return ds


def loader_of(ds: Dataset, memory_budget: int | None, **options: Any) -> Any:
    return ds.numpy(batch_size=8, decode=False, shuffle=SHUFFLE, memory_budget=memory_budget, **options)


def window_bytes(ds: Dataset) -> int:
    with loader_of(ds, 1 << 30) as loader:
        needed = loader._engine._sizing.memory_needs.window_bytes
    assert 2 * needed < TABLE_BYTES
    return int(needed)


def check_bytes(ds: Dataset, share: float, **options: Any) -> None:
    stored = sum(node.bytes for node in ds._session.snapshot.nodes)
    budget = round(share * window_bytes(ds))
    with loader_of(ds, budget, until=Epochs(EPOCHS), **options) as loader:
        for _ in loader:
            pass
        stats = loader.stats()
    times = stats.bytes / stored / EPOCHS
    assert times <= AT_MOST[share]
    assert stats.read_factor == pytest.approx(times, rel=0.1)
    assert stats.window_peak_bytes <= budget


@pytest.mark.parametrize("share", AT_MOST)
@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (tokens, "memory"),
        (tokens, "folder"),
        (images, "memory"),
        (images, "folder"),
        (text, "memory"),
        (jpegs, "memory"),
    ],
)
def test_bytes_grow_gently_with_smaller_budgets(kind: Kind, place: str, share: float) -> None:
    check_bytes(table(kind, place), share, num_workers=2)


@pytest.mark.parametrize("share", AT_MOST)
@pytest.mark.parametrize("kind", [tokens, jpegs])
def test_so_they_do_with_worker_processes(kind: Kind, share: float) -> None:
    check_bytes(table(kind, "folder"), share, num_workers=PROCESSES)


def test_a_byte_less_than_the_window_is_read_once_too() -> None:
    ds = table(tokens, "memory")

    def reads(budget: int) -> float:
        with loader_of(ds, budget) as loader:
            return float(loader._engine._sizing.pipeline_options().tables[0].page_reads)

    too_small, enough = window_bytes(ds), 2 * window_bytes(ds)
    assert reads(too_small) > 1
    assert not reads(enough)
    while enough - too_small > 1:
        middle = (too_small + enough) // 2
        too_small, enough = (too_small, middle) if not reads(middle) else (middle, enough)
    assert reads(too_small) == 1


@given(st.floats(0.001, 1), st.floats(0.001, 1), st.booleans())
def test_less_of_the_window_is_read_more_often(share: float, part: float, whole_lanes: bool) -> None:
    assert page_reads(1, whole_lanes=whole_lanes) == 1
    fewer = page_reads(share, whole_lanes=whole_lanes)
    assert 1 <= fewer <= page_reads(part * share, whole_lanes=whole_lanes)
    assert fewer <= 1 + 1 / share


@cache
def numbered(place: str) -> Dataset:
    """A table of four megabytes with a number in each row; some rows are deleted."""
    numbers = np.arange(4000)
    ds = penstock.create(
        new_location(place).uri, {"n": int, "t": Text(), "x": Column(Tensor("uint8", (1000,)), page_bytes=10_000)}
    )
    for part in np.split(numbers, [1500, 1501]):
        x = np.repeat((part % 251).astype(np.uint8)[:, None], 1000, axis=1)
        ds.append({"n": part, "t": [f"row {n}" for n in part], "x": x})
    ds.delete(positions=range(2000, 2100))
    ds.commit()
    return ds


def read_numbers(ds: Any, **options: Any) -> list[list[int]]:
    """The numbers of each batch; checks that the columns of a row belong together."""
    with ds.pytorch(**options) as loader:
        return [batch_of(batch).numbers.tolist() for batch in loader]


SHUFFLES = st.builds(
    Shuffle,
    seed=st.integers(0, 3),
    block_bytes=st.sampled_from([10_000, 50_000, 200_000]),
    spread=st.sampled_from([0, 0.5, 3, 30, 1000]),
    lanes=st.integers(1, 9),
)


@given(SHUFFLES, st.integers(1 << 20, 5 << 20), st.integers(8, 200), st.integers(1, 5), st.integers(0, 2), st.data())
@settings(few, max_examples=15)
def test_budgets_do_not_change_the_order(
    shuffle: Shuffle, budget: int, batch_size: int, ranks: int, workers: int, data: st.DataObject
) -> None:
    ds = numbered("memory")
    view = data.draw(st.sampled_from([ds, ds[700:3500], ds[::2], ds[np.repeat(np.arange(0, 3900, 3), 2).tolist()]]))
    options: dict[str, Any] = {"batch_size": batch_size, "shuffle": shuffle}
    options |= {"distributed": (data.draw(st.integers(0, ranks - 1)), ranks), "until": Epochs(2)}
    wanted = read_numbers(view, num_workers=0, **options)
    assert read_numbers(view, num_workers=workers, memory_budget=budget, **options) == wanted


@pytest.mark.parametrize("spread", [3, 1000])
@pytest.mark.parametrize("budget", [1 << 20, 3 << 20])
def test_so_they_do_not_with_worker_processes(budget: int, spread: float) -> None:
    shuffle = Shuffle(block_bytes=50_000, lanes=8, spread=spread)
    options: dict[str, Any] = {"batch_size": 32, "shuffle": shuffle, "until": Epochs(2)}
    wanted = read_numbers(numbered("folder"), num_workers=0, **options)
    assert read_numbers(numbered("folder"), num_workers=PROCESSES, memory_budget=budget, **options) == wanted


def test_the_order_of_a_mixture_does_not_depend_on_the_budget() -> None:
    ds = numbered("memory")
    mixed = penstock.mix({"a": ds[:1700], "b": ds[1700:]}, weights={"a": 1, "b": 2})
    options: dict[str, Any] = {"batch_size": 32, "num_workers": 1, "until": Steps(200)}
    options["shuffle"] = Shuffle(block_bytes=50_000, lanes=4, spread=5)
    wanted = read_numbers(mixed, **options)
    assert read_numbers(mixed, memory_budget=1 << 20, **options) == wanted


@pytest.mark.parametrize("spread", [3, 1000])
@pytest.mark.parametrize("bad_samples", ["raise", "replace"])
def test_a_run_with_a_small_budget_resumes_anywhere(spread: float, bad_samples: Any) -> None:
    options: dict[str, Any] = {"shuffle": Shuffle(block_bytes=50_000, lanes=8, spread=spread), "num_workers": 1}
    options |= {"batch_size": 32, "bad_samples": bad_samples}
    wanted = read_numbers(numbered("memory"), **options)
    with numbered("memory").pytorch(memory_budget=1 << 20, **options) as loader:
        for _ in islice(loader, 61):
            pass
        state = loader.state_dict()
    with numbered("memory").pytorch(memory_budget=1 << 20, **options) as loader:
        loader.load_state_dict(state)
        assert [batch_of(batch).numbers.tolist() for batch in loader] == wanted[61:]


@pytest.mark.parametrize("shuffle", [SHUFFLE, Shuffle(seed=3, block_bytes=256 << 10, lanes=8, spread=1.5), True])
@pytest.mark.parametrize("budget", [1 << 20, 4 << 20])
def test_the_advice_of_the_note_fits(shuffle: Any, budget: int) -> None:
    ds = table(tokens, "memory")

    def notes(shuffle: Any, budget: Any) -> tuple[str, ...]:
        with ds.numpy(batch_size=8, shuffle=shuffle, memory_budget=budget) as loader:
            next(iter(loader))
            found: tuple[str, ...] = loader.stats().notes
            return found

    [note] = notes(shuffle, budget)
    assert "pages are read about" in note
    [changed] = re.findall(r"shuffle=penstock\.Shuffle\((.*?)\)", note)
    chosen = {
        name: float(value) if "." in value else int(value) for name, value in re.findall(r"(\w+)=([\d.]+)", changed)
    }
    assert chosen.get("seed", 0) == getattr(shuffle, "seed", 0)
    assert not notes(Shuffle(**chosen), budget)  # type: ignore[arg-type]
    [larger] = re.findall(r'memory_budget="(\w+)"', note)
    assert not notes(shuffle, larger)
    assert not notes(False, budget)
