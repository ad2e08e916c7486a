"""Batches do not depend on how many threads or processes build them: equal to the bit, for every kind of column."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import Column, Dataset, Image, Json, Shuffle, Struct, Tensor, Text, Workers
from penstock import List as ListOf
from tests.engine.watch import soon, worker_processes
from tests.servers import new_location

ROWS = 331
THREADS, PROCESSES = Workers(2, "thread"), Workers(3, "process")
SHUFFLE = Shuffle(seed=5, block_bytes=4000, spread=1, lanes=24)


def noise(seed: int, *shape: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@cache
def table() -> Dataset:
    """Columns of every shape: fixed, nullable, ragged, text, nested, encoded, large rows; with deleted rows."""
    ds = penstock.create(
        new_location("folder").uri,
        {
            "n": Column(Tensor("int64"), page_bytes=256),
            "x": Column(Tensor("uint8", (33_000,)), page_bytes=70_000),
            "maybe": Column(Tensor("float32", (3,)), nullable=True),
            "ragged": Column(Tensor("int16", (None, 2)), nullable=True),
            "text": Column(Text(), nullable=True),
            "json": Json(),
            "nested": ListOf(Struct({"a": Tensor("int64"), "b": Text()})),
            "image": Column(Image("jpeg", (24, 16, 3)), nullable=True, page_bytes=4000),
            "any": Image("png"),
        },
    )
    for part in np.array_split(np.arange(ROWS), 3):
        ds.append([
            {
                "n": k,
                "x": np.full(33_000, k % 251, np.uint8),
                "maybe": None if k % 5 == 0 else np.full(3, k, np.float32),
                "ragged": None if k % 7 == 0 else np.full((k % 4, 2), k, np.int16),
                "text": None if k % 9 == 0 else f"row {k}" * (k % 3),
                "json": {"k": int(k)},
                "nested": [{"a": int(k), "b": str(k)}] * (k % 3),
                "image": None if k % 11 == 0 else noise(int(k), 24, 16, 3),
                "any": noise(int(k), 3 + int(k) % 4, 5, 3),
            }
            for k in part
        ])  # fmt: skip
    ds.delete(positions=[5, 6, 7, 100, 330])
    ds.commit()
    return ds


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            assert_same(first, second)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    else:
        assert one == other


def drawn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A random transform that some rows fail."""
    if int(sample["n"]) % 19 == 4:
        raise ValueError(f"row {sample['n']}")
    return {"n": sample["n"], "noise": rng.random(3), "x": sample["x"][:4]}


def doubled(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**batch, "n": batch["n"] * 2, "noise": rng.random(2)}


columns = st.sampled_from([None, ["n", "x"], ["image", "n"], ["text", "ragged", "n"], ["nested", "n"], ["_row_id"]])
functions = st.sampled_from([
    {},
    {"collate_fn": "pad"},
    {"transform": drawn, "bad_samples": "replace"},
    {"batch_transform": doubled},
    {"bad_samples": "replace"},
])  # fmt: skip
shuffles = st.sampled_from([None, SHUFFLE, replace(SHUFFLE, lanes=5, spread=2.5), replace(SHUFFLE, lanes=1)])


@given(
    columns, functions, shuffles, st.sampled_from([1, 7, 32]), st.integers(1, 3), st.sampled_from([1, 2, 3, 5]),
    st.sampled_from([None, 4 << 20]), st.booleans(), st.integers(0, 300),
)  # fmt: skip
@settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.too_slow])
def test_processes_build_the_same_batches_as_threads(
    columns: list[str] | None,
    functions: dict[str, Any],
    shuffle: Shuffle | None,
    batch_size: int,
    ranks: int,
    workers: int,
    budget: int | None,
    drop_last: bool,
    consumed: int,
) -> None:
    options: dict[str, Any] = {
        "shuffle": shuffle, "batch_size": batch_size, "distributed": (ranks - 1, ranks),
        "memory_budget": budget, "drop_last": drop_last, **functions,
    }  # fmt: skip
    view: Any = (
        table() if columns is None or functions.keys() & {"transform", "batch_transform"} else table().select(columns)
    )
    with (
        view.numpy(num_workers=THREADS, **options) as here,
        view.numpy(num_workers=replace(PROCESSES, count=workers), **options) as there,
    ):
        for loader in (here, there):
            consumed = min(consumed, len(here) * batch_size * ranks) // (batch_size * ranks) * (batch_size * ranks)
            loader.load_state_dict({**loader.state_dict(), "consumed": min(consumed, len(table()))})
        for _ in range(2):
            for one, other in zip(here, there, strict=True):
                assert_same(one, other)
                assert here.state_dict() == there.state_dict()
        assert there.stats().processes >= 1
        assert here.stats().bad_samples == there.stats().bad_samples
        assert here.stats().rows == there.stats().rows
    assert soon(lambda: not worker_processes())


@pytest.mark.parametrize("adapter", ["pytorch", "jax"])
def test_frameworks_get_their_own_arrays(adapter: str) -> None:
    options: dict[str, Any] = {"shuffle": SHUFFLE, "batch_size": 16}
    make = getattr(table().select(["n", "maybe", "ragged", "text"]), adapter)
    with make(num_workers=THREADS, **options) as here, make(num_workers=PROCESSES, **options) as there:
        for one, other in zip(here, there, strict=True):
            assert list(one) == list(other)
            for name in one:
                assert type(one[name]) is type(other[name])
                if name == "ragged" and adapter == "pytorch":
                    assert all((a == b).all() for a, b in zip(one[name].unbind(), other[name].unbind(), strict=True))
                elif name == "text":
                    assert one[name] == other[name]
                else:
                    assert one[name].dtype == other[name].dtype
                    assert np.array_equal(np.asarray(one[name]), np.asarray(other[name]), equal_nan=name == "maybe")
